//! A process that stores objects is killed at random moments: what it said was stored is there, whole.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zllm_state::{Object, ObjectStore, PIECE_BYTES};

use crate::random::Random;
use crate::samples::{FOREVER, bytes, object};

/// How often it is killed.
const ROUNDS: u64 = 8;
/// Names the folder and the first number to the process that is killed.
const FOLDER: &str = "ZLLM_TEST_OBJECTS_FOLDER";
const FIRST: &str = "ZLLM_TEST_OBJECTS_FIRST";

fn piece(number: u64, at: u32) -> Vec<u8> {
    bytes(number * 100 + u64::from(at), if at == 0 { PIECE_BYTES } else { 70 })
}

/// Stores objects with contents, one after the other, and says of each when it is stored.
fn work(folder: &Path, first: u64) -> ! {
    let mut store = ObjectStore::open(folder, FOREVER, 0).unwrap();
    for number in first.. {
        let mut content = store.begin_content();
        for at in 0..3 {
            content = store.append(content, &piece(number, at)).unwrap();
        }
        store.put(&[Object { content: Some(content), ..object(number) }], 0).unwrap();
        println!("STORED {number}");
        if number % 3 == 0 {
            store.delete(&[object(number - 1).name]).unwrap();
            println!("DELETED {}", number - 1);
        }
    }
    unreachable!("it is killed before numbers end")
}

/// What the process says until it is killed, so long after its first object.
fn run_and_kill(folder: &Path, first: u64, lives: Duration) -> Vec<String> {
    let this_test = ["--exact", "killed::what_was_said_to_be_stored_survives_kill_9", "--nocapture"];
    let mut child = Command::new(env::current_exe().unwrap())
        .args(this_test)
        .envs([(FOLDER, folder.as_os_str()), (FIRST, first.to_string().as_ref())])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    let (began, begins) = mpsc::sync_channel(1);
    // A line that the kill cut off was not said.
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let (mut out, mut line) = (BufReader::new(out), String::new());
        while out.read_line(&mut line).unwrap_or(0) > 0 && line.ends_with('\n') {
            said.push(std::mem::take(&mut line).trim().to_owned());
            if said.last().is_some_and(|line| line.starts_with("STORED")) {
                let _ = began.try_send(());
            }
        }
        said
    });
    // A busy machine may take long to start it.
    begins.recv_timeout(Duration::from_secs(60)).expect("it stores objects");
    thread::sleep(lives);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    reader.join().unwrap()
}

#[test]
fn what_was_said_to_be_stored_survives_kill_9() {
    // The process that is killed is this test once more.
    if let Ok(folder) = env::var(FOLDER) {
        work(Path::new(&folder), env::var(FIRST).unwrap().parse().unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut random, mut stored, mut deleted) = (Random::new(8), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let lives = Duration::from_millis(50 + random.below(200));
        for line in run_and_kill(dir.path(), round * 1000 + 1, lives) {
            let number =
                |word: &str| line.strip_prefix(word).and_then(|number| number.trim().parse::<u64>().ok());
            stored.extend(number("STORED"));
            deleted.extend(number("DELETED"));
        }
        let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
        for &number in &stored {
            let found: Option<Object> = store.get(&object(number).name).unwrap();
            if deleted.contains(&number) {
                assert_eq!(found, None, "object {number} is deleted");
                continue;
            }
            // Deleted and not said to be.
            let Some(found) = found else {
                assert!(number % 3 == 2 && stored.contains(&(number + 1)), "object {number} is gone");
                continue;
            };
            assert_eq!(found.value, object(number).value);
            for at in 0..3 {
                assert!(store.piece(found.content.unwrap(), at).unwrap() == Some(piece(number, at)));
            }
        }
    }
    println!("{} objects were said to be stored, {} deleted", stored.len(), deleted.len());
    assert!(stored.len() as u64 >= ROUNDS, "{}", stored.len());
}
