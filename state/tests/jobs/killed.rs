//! A process that stores jobs and their tokens is killed at random moments: what it said was durable is there.

use std::env;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::random::Random;
use crate::worker::{FOLDER, start, verify, work};

#[test]
fn what_was_said_to_be_durable_survives_kill_9() {
    // The process that is killed is this test once more.
    if let Ok(folder) = env::var(FOLDER) {
        work(Path::new(&folder));
    }
    let this_test = ["--exact", "killed::what_was_said_to_be_durable_survives_kill_9", "--nocapture"];
    let dir = tempfile::tempdir().unwrap();
    let (mut random, mut said) = (Random::new(8), Vec::new());
    for _ in 0..12 {
        let (mut child, reader) = start(&this_test, dir.path());
        thread::sleep(Duration::from_millis(20 + random.below(200)));
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        said.extend(reader.join().unwrap());
        verify(dir.path(), &said);
    }
    println!("{} times something was said to be durable", said.len());
    assert!(said.len() > 50, "{}", said.len());
}
