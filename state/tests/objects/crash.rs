//! The disk stops at each sync of a scripted run in turn: what was acknowledged is there, and nothing half-written is.

use zllm_state::{DatabaseError, Object, ObjectRetention, ObjectStore};

use crate::crash_rig::{Ended, finds_out_a_disk_that_lies, survives_a_stop_at_each_sync};
use crate::flaky::FlakyDisk;
use crate::history::{Step, verify};
use crate::random::Random;
use crate::samples::{FOREVER, bytes, object};
use crate::twin::Twin;

/// Some objects expire on the way, of the tenant that has most of them more.
const RETENTION: ObjectRetention = ObjectRetention { max_objects: 8, tenant_objects: 5, ..FOREVER };

/// Runs a history until an error.
fn run(disk: FlakyDisk) -> Ended<Twin> {
    let (mut random, mut twin) = (Random::new(6), Twin::new(RETENTION));
    let Ok(mut store) = ObjectStore::open_with_backend(move || disk.clone(), RETENTION, 0) else {
        return Ended { acknowledged: twin.clone(), next: twin, failed: true };
    };
    for now_ms in 1000..1030 {
        let step = Step::random(&mut random, &twin, now_ms);
        let mut next = twin.clone();
        if step.run(&mut store, &mut next, now_ms).is_err() {
            return Ended { acknowledged: twin, next, failed: true };
        }
        twin = next;
    }
    assert!(!twin.objects.is_empty());
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

/// A full disk refuses a piece, keeps all before it, and once there is room it goes on by itself.
#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let disk = FlakyDisk::default().full_at(3_000_000);
    let (at, mut twin) = (disk.clone(), Twin::new(FOREVER));
    let mut store = ObjectStore::open_with_backend(move || at.clone(), FOREVER, 0).unwrap();
    store.put(&[object(1)], 0).unwrap();
    twin.put(&[object(1)], 0);
    let mut content = store.begin_content();
    twin.loose.push((content, Vec::new()));
    let refused = loop {
        let piece = bytes(content.bytes(), 100_000);
        match store.append(content, &piece) {
            Ok(after) => twin.append(content, after, &piece),
            Err(error) => break error,
        }
        content = twin.loose[0].0;
        assert!(content.pieces() < 100, "the disk is never full");
    };
    assert!(matches!(refused, DatabaseError::Io { .. }), "{refused}");
    twin.compare(&mut store).unwrap();
    disk.set_capacity(None);
    let whole = Object { content: Some(content), ..object(2) };
    store.put(std::slice::from_ref(&whole), 0).unwrap();
    twin.put(&[whole], 0);
    twin.compare(&mut store).unwrap();
    drop(store);
    verify(disk.durable(), &twin).unwrap();
}
