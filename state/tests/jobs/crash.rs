//! The disk stops at each sync of a scripted run in turn: what was acknowledged is there, and nothing half-written is.

use zllm_state::{DatabaseError, JobRecord, JobStore, Retention};

use crate::crash_rig::{Ended, finds_out_a_disk_that_lies, survives_a_stop_at_each_sync};
use crate::flaky::FlakyDisk;
use crate::history::{Step, verify};
use crate::random::Random;
use crate::samples::{FOREVER, job};
use crate::twin::Twin;

/// Some jobs expire on the way.
const RETENTION: Retention = Retention { max_jobs: 4, ..FOREVER };

/// Runs a history until an error.
fn run(disk: FlakyDisk) -> Ended<Twin> {
    let (mut random, mut twin) = (Random::new(6), Twin::new(RETENTION));
    let opened = JobStore::open_with_backend(move || disk.clone(), RETENTION, 0);
    let Ok((mut store, _)) = opened else {
        return Ended { acknowledged: twin.clone(), next: twin, failed: true };
    };
    for step in 0..30 {
        let step = Step::random(&mut random, &twin, 1000 + step);
        let mut next = twin.clone();
        step.on_twin(&mut next);
        if step.on_store(&mut store).is_err() {
            return Ended { acknowledged: twin, next, failed: true };
        }
        twin = next;
    }
    Ended { acknowledged: twin.clone(), next: twin, failed: false }
}

/// The image has all that was acknowledged, with or without what the last call did.
fn verify_either(image: Vec<u8>, ended: &Ended<Twin>) -> Result<(), String> {
    verify(image.clone(), &ended.acknowledged)
        .or_else(|wrong| verify(image, &ended.next).map_err(|other| format!("{wrong}; {other}")))
}

#[test]
fn what_was_acknowledged_survives_a_stop_at_each_sync() {
    survives_a_stop_at_each_sync(run, verify_either);
}

#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    finds_out_a_disk_that_lies(run, verify_either);
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
        assert!(matches!(error, DatabaseError::Io { .. }), "{error}");
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
