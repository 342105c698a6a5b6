//! The disk stops at each sync of a scripted run in turn: what was acknowledged is there, and nothing half-written is.

use zllm_state::{JobRecord, JobStore, JobStoreError, Retention};

use crate::flaky::FlakyDisk;
use crate::history::{Step, verify};
use crate::random::Random;
use crate::samples::{FOREVER, job};
use crate::twin::Twin;

/// Some jobs expire on the way.
const RETENTION: Retention = Retention { max_jobs: 4, ..FOREVER };

/// What the run had acknowledged when it ended, and what it would have acknowledged next.
struct Ended {
    acknowledged: Twin,
    next: Twin,
    error: Option<JobStoreError>,
}

/// Runs a history of this seed until an error.
fn run(disk: FlakyDisk, seed: u64) -> Ended {
    let mut random = Random::new(seed);
    let mut twin = Twin::new(RETENTION);
    let opened = JobStore::open_with_backend(move || disk.clone(), RETENTION, 0);
    let mut store = match opened {
        Ok((store, _)) => store,
        Err(error) => return Ended { acknowledged: twin.clone(), next: twin, error: Some(error) },
    };
    for step in 0..30 {
        let step = Step::random(&mut random, &twin, 1000 + step);
        let mut next = twin.clone();
        let done = match &step {
            Step::Submit(jobs) => store.submit(jobs).map(|_| drop(next.submit(jobs))),
            Step::Change(changes) => store.change(changes).map(|_| drop(next.change(changes))),
            Step::Expire(now_ms) => store.expire(*now_ms).map(|_| drop(next.expire(*now_ms))),
        };
        match done {
            Ok(()) => twin = next,
            Err(error) => {
                match &step {
                    Step::Submit(jobs) => drop(next.submit(jobs)),
                    Step::Change(changes) => drop(next.change(changes)),
                    Step::Expire(now_ms) => drop(next.expire(*now_ms)),
                }
                return Ended { acknowledged: twin, next, error: Some(error) };
            }
        }
    }
    Ended { acknowledged: twin.clone(), next: twin, error: None }
}

/// The image has all that was acknowledged, with or without what the last call did.
fn verify_either(image: Vec<u8>, ended: &Ended) -> Result<(), String> {
    verify(image.clone(), &ended.acknowledged)
        .or_else(|wrong| verify(image, &ended.next).map_err(|other| format!("{wrong}; {other}")))
}

#[test]
fn what_was_acknowledged_survives_a_stop_at_each_sync() {
    let seed = 6;
    let whole = FlakyDisk::default();
    let ended = run(whole.clone(), seed);
    assert!(ended.error.is_none());
    verify(whole.durable(), &ended.acknowledged).unwrap();

    let (syncs, mut images) = (whole.syncs(), 0);
    assert!(syncs > 40, "the script has {syncs} syncs");
    for sync in 1..=syncs {
        let disk = FlakyDisk::default().stop_at_sync(sync);
        let ended = run(disk.clone(), seed);
        // The last syncs are those of closing.
        assert!(ended.error.is_some() || sync + 4 > syncs, "sync {sync} of {syncs}");
        let cuts = (1..=5).map(|cut| disk.after_power_cut(cut * 1000 + sync));
        // A power cut in the first syncs leaves a file that is made again, for it has not got its name yet.
        for image in cuts.chain([disk.durable(), disk.live()]).skip(if sync <= 2 { 7 } else { 0 }) {
            verify_either(image, &ended)
                .unwrap_or_else(|wrong| panic!("stopped at sync {sync} of {syncs}: {wrong}"));
            images += 1;
        }
    }
    println!("{syncs} syncs, {images} images");
}

/// The test above must be able to fail: a disk whose syncs do nothing loses what was acknowledged.
#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    let disk = FlakyDisk::default().lying();
    let ended = run(disk.clone(), 6);
    assert!(ended.error.is_none());
    assert!((1..=5).any(|cut| verify_either(disk.after_power_cut(cut), &ended).is_err()));
}

/// A full disk refuses: nothing of that call is there, all before it is, and once there is room it goes on by itself.
#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let mut refused = 0;
    for capacity in [500_000, 1_200_000, 3_000_000] {
        let disk = FlakyDisk::default().full_at(capacity);
        let (at, mut twin) = (disk.clone(), Twin::new(FOREVER));
        let (mut store, _) = JobStore::open_with_backend(move || at.clone(), FOREVER, 0).unwrap();
        let job = |number| JobRecord { request: vec![number as u8; 100_000], ..job(number) };
        let mut number = 0;
        let error = loop {
            number += 1;
            match store.submit(&[job(number)]) {
                Ok(_) => drop(twin.submit(&[job(number)])),
                Err(error) => break error,
            }
            assert!(number < 100, "the disk is never full");
        };
        assert!(matches!(error, JobStoreError::Io { .. }), "{error}");
        for _ in 0..3 {
            refused += u32::from(store.submit(&[job(number)]).is_err());
            twin.compare(&mut store).unwrap();
        }
        disk.set_capacity(None);
        assert_eq!(store.submit(&[job(number)]).unwrap(), twin.submit(&[job(number)]));
        twin.compare(&mut store).unwrap();
        drop(store);
        verify(disk.durable(), &twin).unwrap();
    }
    assert!(refused >= 3, "{refused}");
}
