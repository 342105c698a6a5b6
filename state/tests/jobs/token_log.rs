//! What the log keeps, and what it does when it is damaged.

use std::fs;
use std::path::Path;

use zllm_state::{LogEntry, TokenLog, TokenLogError};

use crate::samples::bytes;

const TOKENS: u8 = 0;
const EVENTS: u8 = 1;

fn open(dir: &Path) -> TokenLog {
    let (log, notes) = TokenLog::open(dir).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    log
}

/// What the entry at this place says.
fn content(job: u64, kind: u8, index: u64) -> Vec<u8> {
    let seed = job * 1_000_000 + u64::from(kind) * 100_000 + index;
    let length = if seed % 50 == 7 { 3 * 4096 } else { seed % 90 };
    bytes(seed, length as usize)
}

fn entry(job: u64, kind: u8, index: u64) -> LogEntry {
    LogEntry { job, kind, index, bytes: content(job, kind, index) }
}

fn entries(job: u64, kind: u8, indices: std::ops::Range<u64>) -> Vec<LogEntry> {
    indices.map(|index| entry(job, kind, index)).collect()
}

fn contents(job: u64, kind: u8, indices: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    indices.map(|index| content(job, kind, index)).collect()
}

#[test]
fn entries_come_back_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    assert_eq!(log.jobs().unwrap(), []);
    log.append(&[]).unwrap();
    for start in (0..200).step_by(20) {
        let batch: Vec<_> = [7, u64::MAX, 0]
            .iter()
            .flat_map(|job| {
                [entries(*job % 9, TOKENS, start..start + 20), entries(*job % 9, EVENTS, start..start + 10)]
            })
            .flatten()
            .collect();
        log.append(&batch).unwrap();
    }
    drop(log);
    let mut log = open(dir.path());
    assert_eq!(log.jobs().unwrap(), [0, 6, 7]);
    for job in [0, 6, 7] {
        assert!(log.read(job, TOKENS, 0, 1000).unwrap() == contents(job, TOKENS, 0..200));
        assert!(log.read(job, TOKENS, 150, 10).unwrap() == contents(job, TOKENS, 150..160));
        // Each second ten of the events was left out.
        assert!(log.read(job, EVENTS, 0, 1000).unwrap() == contents(job, EVENTS, 0..10));
        assert!(log.read(job, EVENTS, 22, 1000).unwrap() == contents(job, EVENTS, 22..30));
        assert_eq!(log.read(job, EVENTS, 10, 1000).unwrap(), Vec::<Vec<u8>>::new());
    }
    assert_eq!(log.read(1, TOKENS, 0, 1000).unwrap(), Vec::<Vec<u8>>::new());
}

#[test]
fn an_entry_is_replaced_cut_off_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    let long = LogEntry { job: 1, kind: TOKENS, index: 2, bytes: bytes(5, 50_000) };
    log.append(&[entries(1, TOKENS, 0..10), entries(1, EVENTS, 0..10), entries(2, TOKENS, 0..10)].concat())
        .unwrap();
    log.append(std::slice::from_ref(&long)).unwrap();
    assert!(log.read(1, TOKENS, 2, 1).unwrap() == [long.bytes]);
    // A shorter one takes the place of all parts.
    log.append(&[entry(1, TOKENS, 2)]).unwrap();
    assert!(log.read(1, TOKENS, 0, 100).unwrap() == contents(1, TOKENS, 0..10));
    log.cut(1, TOKENS, 4).unwrap();
    assert!(log.read(1, TOKENS, 0, 100).unwrap() == contents(1, TOKENS, 0..4));
    assert!(log.read(1, EVENTS, 0, 100).unwrap() == contents(1, EVENTS, 0..10));
    log.remove(&[1, 77]).unwrap();
    drop(log);
    let mut log = open(dir.path());
    assert_eq!(log.jobs().unwrap(), [2]);
    assert!(log.read(2, TOKENS, 0, 100).unwrap() == contents(2, TOKENS, 0..10));
}

#[test]
fn a_second_daemon_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    let error = TokenLog::open(dir.path()).unwrap_err();
    assert!(matches!(error, TokenLogError::InUse { .. }), "{error}");
    log.append(&entries(1, TOKENS, 0..3)).unwrap();
}

#[test]
fn an_empty_log_gives_its_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    for start in 0..9 {
        let large = (0..1000).map(|index| LogEntry {
            job: start % 3,
            kind: EVENTS,
            index: start * 1000 + index,
            bytes: bytes(index, 10_000),
        });
        log.append(&large.collect::<Vec<_>>()).unwrap();
    }
    let large_bytes = log.disk_bytes();
    assert!(large_bytes > 80 << 20, "{large_bytes}");
    log.remove(&[0, 1]).unwrap();
    assert_eq!(log.jobs().unwrap(), [2]);
    log.remove(&[2]).unwrap();
    assert!(log.disk_bytes() < 2 << 20, "{}", log.disk_bytes());
    log.append(&entries(4, TOKENS, 0..3)).unwrap();
    drop(log);
    assert_eq!(open(dir.path()).read(4, TOKENS, 0, 9).unwrap(), contents(4, TOKENS, 0..3));
}

#[test]
fn what_cannot_be_used_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..2u8 {
        fs::create_dir_all(dir.path().join("tokens")).unwrap();
        fs::write(dir.path().join("tokens/db"), vec![round; 1 << 20]).unwrap();
        fs::write(dir.path().join("tokens/conf"), vec![round; 100]).unwrap();
        let (mut log, notes) = TokenLog::open(dir.path()).unwrap();
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(
            note.contains("it was set aside as tokens.bad, and what is missing is computed again"),
            "{note}"
        );
        assert_eq!(fs::read(dir.path().join("tokens.bad/conf")).unwrap(), vec![round; 100]);
        log.append(&entries(1, TOKENS, 0..3)).unwrap();
        assert!(log.read(1, TOKENS, 0, 9).unwrap() == contents(1, TOKENS, 0..3));
        drop(log);
        assert_eq!(open(dir.path()).jobs().unwrap(), [1]);
    }
}

/// What is written to a file that was removed is lost with the process: it is not called durable.
#[test]
fn a_removed_log_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path());
    log.append(&entries(1, TOKENS, 0..3)).unwrap();
    fs::remove_dir_all(dir.path().join("tokens")).unwrap();
    log.append(&entries(1, TOKENS, 3..5)).unwrap();
    assert!(log.take_notes()[0].contains("its file was taken away"));
    drop(log);
    let mut log = open(dir.path());
    assert!(log.read(1, TOKENS, 0, 9).unwrap().is_empty());
    assert!(log.read(1, TOKENS, 3, 9).unwrap() == contents(1, TOKENS, 3..5));
}
