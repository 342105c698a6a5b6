//! The disk stops at each sync of a run in turn: what was acknowledged is there, and nothing half-written is.

use crate::flaky::FlakyDisk;

/// How a run ended.
pub(crate) struct Ended<T> {
    /// What it had acknowledged.
    pub(crate) acknowledged: T,
    /// What it would have acknowledged next.
    pub(crate) next: T,
    /// Whether the disk stopped it.
    pub(crate) failed: bool,
}

/// The same at each stop: `run` goes on until an error, `verify` says what an image of the disk lacks or has too much.
pub(crate) fn survives_a_stop_at_each_sync<T>(
    run: impl Fn(FlakyDisk) -> Ended<T>,
    verify: impl Fn(Vec<u8>, &Ended<T>) -> Result<(), String>,
) {
    let whole = FlakyDisk::default();
    let ended = run(whole.clone());
    assert!(!ended.failed);
    verify(whole.durable(), &ended).unwrap();

    let (syncs, mut images) = (whole.syncs(), 0);
    assert!(syncs > 40, "the run has {syncs} syncs");
    for sync in 1..=syncs {
        let disk = FlakyDisk::default().stop_at_sync(sync);
        let ended = run(disk.clone());
        // The last syncs are those of closing.
        assert!(ended.failed || sync + 4 > syncs, "sync {sync} of {syncs}");
        let cuts = (1..=5).map(|cut| disk.after_power_cut(cut * 1000 + sync));
        for image in cuts.chain([disk.durable(), disk.live()]) {
            let verified = verify(image, &ended);
            // A power cut in the first syncs leaves a file that is made again, for it has not got its name yet.
            assert!(verified.is_ok() || sync <= 2, "stopped at sync {sync} of {syncs}: {verified:?}");
            images += 1;
        }
    }
    println!("{syncs} syncs, {images} images");
}

/// The test above must be able to fail: a disk whose syncs do nothing loses what was acknowledged.
pub(crate) fn finds_out_a_disk_that_lies<T>(
    run: impl Fn(FlakyDisk) -> Ended<T>,
    verify: impl Fn(Vec<u8>, &Ended<T>) -> Result<(), String>,
) {
    let disk = FlakyDisk::default().lying();
    let ended = run(disk.clone());
    assert!(!ended.failed);
    assert!((1..=5).any(|cut| verify(disk.after_power_cut(cut), &ended).is_err()));
}
