//! A process that stores objects is killed at random moments: what it said was stored is there, whole.

use std::path::Path;
use std::thread;
use std::time::Duration;

use zllm_state::{Object, ObjectStore, PIECE_BYTES};

use crate::process::{self, Process, say};
use crate::random::Random;
use crate::samples::{FOREVER, bytes, object};

/// How often it is killed.
const ROUNDS: u64 = 8;

fn piece(number: u64, at: u32) -> Vec<u8> {
    bytes(number * 100 + u64::from(at), if at == 0 { PIECE_BYTES } else { 70 })
}

/// Stores objects with contents, one after the other behind those of other processes, and says of each when it is stored.
fn work(folder: &Path) -> ! {
    let mut store = ObjectStore::open(folder, FOREVER, 0).unwrap();
    // None that is looked for is deleted.
    let mut firsts = (1..).step_by(3000);
    let first = firsts.find(|first| store.get(&object(*first).name).unwrap().is_none()).unwrap();
    for number in first.. {
        let mut content = store.begin_content();
        for at in 0..3 {
            content = store.append(content, &piece(number, at)).unwrap();
        }
        store.put(&[Object { content: Some(content), ..object(number) }], 0).unwrap();
        say(&format!("stored {number}"));
        if number % 3 == 0 {
            store.delete(&[object(number - 1).name]).unwrap();
            say(&format!("deleted {}", number - 1));
        }
    }
    unreachable!("it is killed before numbers end")
}

#[test]
fn what_was_said_to_be_stored_survives_kill_9() {
    // The process that is killed is this test once more.
    if let Some(folder) = process::folder() {
        work(&folder);
    }
    let dir = tempfile::tempdir().unwrap();
    let this_test = ["--exact", "killed::what_was_said_to_be_stored_survives_kill_9", "--nocapture"];
    let (mut random, mut stored, mut deleted) = (Random::new(8), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let process = Process::start(&this_test, dir.path());
        process.wait_until_it_works();
        thread::sleep(Duration::from_millis(50 + random.below(200)));
        for line in process.kill() {
            let number =
                |word: &str| line.strip_prefix(word).and_then(|number| number.trim().parse::<u64>().ok());
            stored.extend(number("stored"));
            deleted.extend(number("deleted"));
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
