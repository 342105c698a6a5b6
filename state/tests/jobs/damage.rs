//! Bytes change on disk: what is read is right or refused, never wrong, and no damage ends the process.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use zllm_state::{DatabaseError, JobChange, JobRecord, JobState, JobStore, LogEntry, Submitted, TokenLog};

use crate::damage_rig::{Used, change_bits, cut_off};
use crate::flaky::FlakyDisk;
use crate::random::Random;
use crate::samples::{FOREVER, becomes, bytes, done, job};
use crate::twin::Twin;

/// Jobs in all states, with results.
fn stored() -> (Vec<u8>, Twin) {
    let (disk, mut twin) = (FlakyDisk::default(), Twin::new(FOREVER));
    let at = disk.clone();
    let (mut store, _) = JobStore::open_with_backend(move || at.clone(), FOREVER, 0).unwrap();
    let jobs: Vec<_> = (1..=60).map(job).collect();
    store.submit(&jobs).unwrap();
    twin.submit(&jobs);
    let changes: Vec<JobChange> = (1..=60)
        .filter(|number| number % 4 > 0)
        .flat_map(|number| {
            let run = becomes(number, JobState::Running, number);
            let end = done(number, 1000 + number, bytes(number, number as usize * 50));
            [Some(run), (number % 4 > 1).then_some(end)]
        })
        .flatten()
        .collect();
    store.change(&changes).unwrap();
    twin.change(&changes);
    drop(store);
    (disk.durable(), twin)
}

/// Uses changed jobs as a daemon would.
fn use_changed(image: Vec<u8>, twin: &Twin) -> Used {
    let disk = FlakyDisk::of(image);
    let mut refused = false;
    let mut check = |error: DatabaseError| match error {
        DatabaseError::Unusable { .. } => {
            refused = true;
            Ok(())
        }
        other => Err(other.to_string()),
    };
    let (mut store, opened) = match JobStore::open_with_backend(move || disk.clone(), FOREVER, 0) {
        Ok(opened) => opened,
        Err(error) => return check(error).map(|()| true),
    };
    if opened.unfinished != twin.unfinished() || opened.last_number != twin.last_number {
        return Err("other jobs are not finished".to_owned());
    }
    for (number, (job, result)) in &twin.jobs {
        match store.record(*number) {
            Ok(found) if found.as_ref() != Some(job) => return Err(format!("job {number} is another")),
            found => found.map(drop).or_else(&mut check)?,
        }
        match store.result(*number) {
            Ok(found) if found != *result => return Err(format!("job {number} has another result")),
            found => found.map(drop).or_else(&mut check)?,
        }
        if job.key.is_some() {
            let again = JobRecord { number: 1000 + number, ..crate::twin::fresh(job) };
            match store.submit(&[again]) {
                Ok(outcome) if outcome != [Submitted::Known(*number)] => {
                    return Err(format!("the key of job {number} is not known"));
                }
                outcome => outcome.map(drop).or_else(&mut check)?,
            }
        }
    }
    store.submit(&[JobRecord { key: None, ..job(2000) }]).map(drop).or_else(&mut check)?;
    store.change(&[becomes(4, JobState::Cancelled, 5000)]).map(drop).or_else(&mut check)?;
    Ok(refused)
}

#[test]
fn jobs_on_a_damaged_disk_are_right_or_refused() {
    let (image, twin) = stored();
    change_bits(&image, 600, |changed| use_changed(changed, &twin));
}

#[test]
fn a_truncated_file_is_refused_or_right() {
    let (image, twin) = stored();
    cut_off(&image, |cut| use_changed(cut, &twin));
}

/// What the log of this job has at this place.
fn content(job: u64, index: u64) -> Vec<u8> {
    let seed = job * 100_000 + index;
    bytes(seed, (seed * 7 % 300) as usize)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Of a damaged log the first entries of each job are read, or none: never another.
#[test]
fn a_damaged_log_ends_early_and_says_nothing_wrong() {
    const JOBS: u64 = 5;
    const ENTRIES: u64 = 400;
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = TokenLog::open(dir.path()).unwrap();
    for start in (0..ENTRIES).step_by(8) {
        let entry = |job, index| LogEntry { job, kind: 0, index, bytes: content(job, index) };
        let entries: Vec<_> =
            (0..JOBS).flat_map(|job| (start..start + 8).map(move |index| entry(job, index))).collect();
        log.append(&entries).unwrap();
    }
    drop(log);
    let files: Vec<_> = fs::read_dir(dir.path().join("tokens"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name())
        .collect();
    let (mut random, mut whole, mut short, mut set_aside) = (Random::new(3), 0, 0, 0);
    for case in 0..60 {
        let at = tempfile::tempdir().unwrap();
        copy(&dir.path().join("tokens"), &at.path().join("tokens"));
        // The entries are in one of the files; the others are small.
        let other = &files[random.below(files.len() as u64) as usize];
        let file =
            at.path().join("tokens").join(if case % 3 == 0 { other.as_os_str() } else { OsStr::new("db") });
        let mut content_of_file = fs::read(&file).unwrap();
        // One in four is not damaged at all.
        for _ in 0..case % 4 {
            let length = content_of_file.len() as u64;
            let byte = if length == 0 { continue } else { random.below(length) as usize };
            content_of_file[byte] ^= 1 << random.below(8);
        }
        fs::write(&file, content_of_file).unwrap();
        let (mut log, mut notes) = TokenLog::open(at.path()).unwrap();
        let mut found = 0;
        for job in 0..JOBS {
            let entries = log.read(job, 0, 0, usize::MAX).unwrap();
            found += entries.len() as u64;
            for (index, entry) in (0..).zip(entries) {
                assert!(
                    entry == content(job, index),
                    "case {case}, {}: job {job} entry {index}",
                    file.display()
                );
            }
        }
        // What follows is computed again, and kept.
        let last = LogEntry { job: 9, kind: 1, index: 0, bytes: vec![1, 2] };
        log.append(std::slice::from_ref(&last)).unwrap();
        assert_eq!(log.read(9, 1, 0, 9).unwrap(), [last.bytes]);
        notes.extend(log.take_notes());
        match (found == JOBS * ENTRIES, notes.is_empty()) {
            (true, _) => whole += 1,
            (false, true) => short += 1,
            (false, false) => set_aside += 1,
        }
    }
    println!("{whole} whole, {short} short, {set_aside} set aside");
    assert!(whole > 3 && short + set_aside > 20, "{whole} whole, {short} short, {set_aside} set aside");
}
