//! A process that stores jobs and their tokens is killed at random moments: what it said was durable is there.

use std::thread;
use std::time::Duration;

use crate::process::{self, Process};
use crate::random::Random;
use crate::worker::{verify, work};

#[test]
fn what_was_said_to_be_durable_survives_kill_9() {
    // The process that is killed is this test once more.
    if let Some(folder) = process::folder() {
        work(&folder);
    }
    let this_test = ["--exact", "killed::what_was_said_to_be_durable_survives_kill_9", "--nocapture"];
    let dir = tempfile::tempdir().unwrap();
    let (mut random, mut said) = (Random::new(8), Vec::new());
    for _ in 0..12 {
        let process = Process::start(&this_test, dir.path());
        // Now and then it is killed before it does anything.
        if random.below(4) > 0 {
            process.wait_until_it_works();
        }
        thread::sleep(Duration::from_millis(20 + random.below(200)));
        said.extend(process.kill());
        verify(dir.path(), &said);
    }
    println!("{} times something was said to be durable", said.len());
    assert!(said.len() > 50, "{}", said.len());
}
