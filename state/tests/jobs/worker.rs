//! A process that stores jobs and their tokens until it is killed, and what must be found afterwards.

use std::path::Path;

use zllm_state::{JobRecord, JobState, JobStore, LogEntry, TokenLog};

use crate::process::say;
use crate::samples::{FOREVER, becomes, bytes, done, job};

/// Entries that each job appends, some at a time.
const ENTRIES: u64 = 24;

fn content(job: u64, index: u64) -> Vec<u8> {
    bytes(job * 1000 + index, (index * 11 % 200) as usize)
}

fn result(number: u64) -> Vec<u8> {
    bytes(number, 3000)
}

fn keyless(number: u64) -> JobRecord {
    JobRecord { key: None, ..job(number) }
}

/// Goes on where the process before it was killed: each job is submitted, runs, appends, ends, and its log is removed.
pub(crate) fn work(folder: &Path) -> ! {
    let (mut store, opened) = JobStore::open(folder, FOREVER, 0).unwrap();
    let (mut log, notes) = TokenLog::open(folder).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    let mut waiting: Vec<_> = opened.unfinished;
    let mut last_number = opened.last_number;
    loop {
        if waiting.is_empty() {
            let jobs: Vec<_> = (1..=3).map(|step| keyless(last_number + step)).collect();
            store.submit(&jobs).unwrap();
            last_number += 3;
            jobs.iter().for_each(|job| say(&format!("submitted {} 0", job.number)));
            waiting = jobs;
        }
        let job = waiting.remove(0);
        let number = job.number;
        if job.state == JobState::Queued {
            store.change(&[becomes(number, JobState::Running, number)]).unwrap();
            say(&format!("running {number} 0"));
        }
        let have = log.read(number, 0, 0, usize::MAX).unwrap().len() as u64;
        for start in (have..ENTRIES).step_by(5) {
            let end = ENTRIES.min(start + 5);
            let entry = |index| LogEntry { job: number, kind: 0, index, bytes: content(number, index) };
            log.append(&(start..end).map(entry).collect::<Vec<_>>()).unwrap();
            say(&format!("appended {number} {end}"));
        }
        store.change(&[done(number, number, result(number))]).unwrap();
        say(&format!("done {number} 0"));
        log.remove(&[number]).unwrap();
    }
}

/// All that was said is there, and the rest is whole or not there.
pub(crate) fn verify(folder: &Path, said: &[String]) {
    let (mut store, opened) = JobStore::open(folder, FOREVER, 0).unwrap();
    let (mut log, notes) = TokenLog::open(folder).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    let record = |store: &mut JobStore, number| store.record(number).unwrap().unwrap();
    for line in said {
        let [what, number, count] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let [number, count]: [u64; 2] = [number, count].map(|word| word.parse().unwrap());
        let found = record(&mut store, number);
        let has_ended = found.state == JobState::Done;
        match what {
            "submitted" => {
                assert_eq!((found.prompt, found.request), (job(number).prompt, job(number).request))
            }
            "running" => assert!(has_ended || found.state == JobState::Running),
            "appended" => {
                let entries = log.read(number, 0, 0, usize::MAX).unwrap();
                assert!(
                    has_ended || entries.len() as u64 >= count,
                    "job {number}: {} of {count}",
                    entries.len()
                );
                assert!((0..).zip(&entries).all(|(index, entry)| *entry == content(number, index)));
            }
            _ => assert!(has_ended),
        }
    }
    for number in 1..=opened.last_number {
        let expected = (record(&mut store, number).state == JobState::Done).then(|| result(number));
        assert_eq!(store.result(number).unwrap(), expected);
    }
}
