//! The file never has more of the disk than its budget, inside transactions included, whatever is written and deleted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use zllm_state::{BlockKey, KvDisk, disk_bytes, usable};

use crate::samples::{Random, block};

const MIB: u64 = 1 << 20;

/// Fills the store up to what is usable and turns its content over; returns the most that the file had, seen after each
/// write and by a second thread in between.
fn churn(budget_bytes: u64, sizes: &[usize], turnover_bytes: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (disk, _) = KvDisk::open(dir.path(), budget_bytes).unwrap();
    let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(disk.file_bytes(), Ordering::Relaxed);
                thread::sleep(Duration::from_micros(200));
            }
        });
        let mut random = Random::new(budget_bytes ^ sizes[0] as u64);
        let mut live: Vec<(BlockKey, u64)> = Vec::new();
        let (mut live_bytes, mut written, mut seed) = (0, 0, 0);
        while written < turnover_bytes {
            // From a few blocks up to a third of all, as many as then fit in again.
            let mut deletes = Vec::new();
            for _ in 0..random.below(live.len() as u64 / 3 + 1) {
                let (key, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
                deletes.push(key);
                live_bytes -= bytes;
            }
            let mut blocks = Vec::new();
            loop {
                let size = sizes[random.below(sizes.len() as u64) as usize];
                let taken = disk_bytes(size as u64);
                if live_bytes + taken > usable(budget_bytes) {
                    break;
                }
                seed += 1;
                blocks.push(block(seed, size));
                live.push((blocks.last().unwrap().0.key, taken));
                live_bytes += taken;
                written += size as u64;
            }
            disk.write(&blocks, &deletes).unwrap();
            peak.fetch_max(disk.file_bytes(), Ordering::Relaxed);
            assert!(disk.file_bytes() <= budget_bytes, "{} of {budget_bytes}", disk.file_bytes());
        }
        done.store(true, Ordering::Relaxed);
        let report = disk.check().unwrap();
        assert!(report.is_clean() && report.blocks == live.len() as u64, "{report:?}");
    });
    let peak = peak.into_inner();
    println!(
        "{sizes:?}: the file had {} % of {} MiB, usable {} %",
        peak * 100 / budget_bytes,
        budget_bytes / MIB,
        usable(budget_bytes) * 100 / budget_bytes
    );
    assert!(peak <= budget_bytes);
    peak
}

#[test]
fn churn_stays_within_the_budget() {
    for (budget, sizes) in [
        (16, &[16_000][..]),
        (32, &[300 << 10]),
        (32, &[811 << 10]),
        (64, &[1536 << 10]),
        (64, &[300 << 10, 811 << 10, 1536 << 10, 5000]),
    ] {
        churn(budget * MIB, sizes, 6 * budget * MIB);
    }
}
