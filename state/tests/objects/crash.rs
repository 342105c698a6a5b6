//! The disk stops at each sync of a scripted run in turn: what was acknowledged is there, and nothing half-written is.

use zllm_state::{Object, ObjectRetention, ObjectStore, ObjectStoreError};

use crate::flaky::FlakyDisk;
use crate::history::{Step, verify};
use crate::random::Random;
use crate::samples::{FOREVER, bytes, object};
use crate::twin::Twin;

/// Some objects expire on the way.
const RETENTION: ObjectRetention = ObjectRetention { max_objects: 8, ..FOREVER };

/// What the run had acknowledged when it ended, and what it would have acknowledged next.
struct Ended {
    acknowledged: Twin,
    next: Twin,
    error: Option<ObjectStoreError>,
}

/// Runs a history of this seed until an error.
fn run(disk: FlakyDisk, seed: u64) -> Ended {
    let (mut random, mut twin) = (Random::new(seed), Twin::new(RETENTION));
    let mut store = match ObjectStore::open_with_backend(move || disk.clone(), RETENTION, 0) {
        Ok(store) => store,
        Err(error) => return Ended { acknowledged: twin.clone(), next: twin, error: Some(error) },
    };
    for now_ms in 1000..1030 {
        let step = Step::random(&mut random, &twin, now_ms);
        let mut next = twin.clone();
        match step.run(&mut store, &mut next, now_ms) {
            Ok(()) => twin = next,
            Err(error) => return Ended { acknowledged: twin, next, error: Some(error) },
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
    assert!(ended.error.is_none() && !ended.acknowledged.objects.is_empty());
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
    assert!(matches!(refused, ObjectStoreError::Io { .. }), "{refused}");
    twin.compare(&mut store).unwrap();
    disk.set_capacity(None);
    let whole = Object { content: Some(content), ..object(2) };
    store.put(std::slice::from_ref(&whole), 0).unwrap();
    twin.put(&[whole], 0);
    twin.compare(&mut store).unwrap();
    drop(store);
    verify(disk.durable(), &twin).unwrap();
}
