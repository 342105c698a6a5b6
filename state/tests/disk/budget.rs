//! The file never has more of the disk than its budget, inside transactions included, whatever is written and deleted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use zllm_state::{
    BlockKey, DiskError, KvDisk, ReadError, SMALLEST_BUDGET_BYTES, disk_bytes, free_bytes, session_bytes,
    smallest_budget, usable,
};

use crate::random::Random;
use crate::samples::{block, bytes, chain, root, session};

const MIB: u64 = 1 << 20;

/// A store that is filled up to what is usable and turned over, while others read it and look at the file.
struct Churn<'a> {
    disk: &'a KvDisk,
    budget_bytes: u64,
    random: Random,
    /// What is stored: key, bytes, and what it takes of the file at most.
    live: Vec<(BlockKey, usize, u64)>,
    live_bytes: u64,
    seed: u64,
}

impl Churn<'_> {
    /// Deletes up to this share of all blocks and writes as many as then fit in; the bytes written.
    fn turn(&mut self, sizes: &[usize], share: u64) -> u64 {
        let mut deletes = Vec::new();
        for _ in 0..self.random.below(self.live.len() as u64 / share + 2).min(self.live.len() as u64) {
            let (key, _, taken) = self.live.swap_remove(self.random.below(self.live.len() as u64) as usize);
            deletes.push(key);
            self.live_bytes -= taken;
        }
        let mut blocks = Vec::new();
        loop {
            let size = sizes[self.random.below(sizes.len() as u64) as usize];
            let taken = disk_bytes(size as u64);
            if self.live_bytes + taken > usable(self.budget_bytes) {
                break;
            }
            self.seed += 1;
            blocks.push(block(self.seed, size));
            self.live.push((blocks.last().unwrap().0.key, size, taken));
            self.live_bytes += taken;
        }
        self.disk.write(&blocks, &deletes).unwrap();
        assert!(self.disk.file_bytes() <= self.budget_bytes);
        blocks.iter().map(|(block, _)| block.bytes).sum()
    }
}

/// Tells the other threads to end, also when a check fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Turns a store over; returns the most that the file had at any moment that a second thread saw, per cent of budget.
fn churn(budget_bytes: u64, sizes: &[usize]) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (disk, _) = KvDisk::open(dir.path(), budget_bytes).unwrap();
    let (peak, done, readable) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let ends_others = Done(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(disk.file_bytes(), Ordering::Relaxed);
                thread::sleep(Duration::from_micros(100));
            }
        });
        // An open read keeps what is freed meanwhile.
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !done.load(Ordering::Relaxed) {
                let candidate = {
                    let keys = readable.lock().unwrap();
                    keys.get(random.below(keys.len() as u64 + 1) as usize).copied()
                };
                let Some((key, size, _)) = candidate else { continue };
                match disk.read(&key) {
                    Ok(read) => assert!(read == bytes(&key, size)),
                    Err(error) => assert!(matches!(error, ReadError::Missing), "{error}"),
                }
            }
        });
        let mut churn = Churn {
            disk: &disk,
            budget_bytes,
            random: Random::new(budget_bytes ^ sizes[0] as u64),
            live: Vec::new(),
            live_bytes: 0,
            seed: 0,
        };
        let (mut written, mut turns) = (0, 0);
        while written < 2 * budget_bytes {
            written += churn.turn(sizes, [2, 4, 16, 64][turns % 4]);
            readable.lock().unwrap().clone_from(&churn.live);
            turns += 1;
        }
        drop(ends_others);
        let report = disk.check().unwrap();
        assert!(report.is_clean() && report.blocks == churn.live.len() as u64, "{report:?}");
        let stored: u64 = churn.live.iter().map(|(_, size, _)| *size as u64).sum();
        println!(
            "{} MiB, blocks of {sizes:?}, {turns} turns: stored {} %, usable {} %, the file had {} %",
            budget_bytes / MIB,
            stored * 100 / budget_bytes,
            usable(budget_bytes) * 100 / budget_bytes,
            peak.load(Ordering::Relaxed) * 100 / budget_bytes
        );
    });
    let peak = peak.into_inner();
    assert!(peak <= budget_bytes);
    peak * 100 / budget_bytes
}

#[test]
fn churn_stays_within_the_budget() {
    for (budget, sizes) in [
        (SMALLEST_BUDGET_BYTES, &[16_000][..]),
        (32 * MIB, &[300 << 10]),
        (40 * MIB, &[811 << 10]),
        (80 * MIB, &[1536 << 10]),
        (80 * MIB, &[300 << 10, 811 << 10, 1536 << 10, 5000]),
    ] {
        let peak = churn(budget, sizes);
        assert!(peak > 60, "{peak} %: the test comes near to what it is about");
    }
}

/// More than is usable ends at the budget, without harm: deleting and shrinking make room again.
#[test]
fn what_is_too_much_is_refused_and_can_be_made_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let (mut disk, _) = KvDisk::open(dir.path(), SMALLEST_BUDGET_BYTES).unwrap();
    let mut stored = Vec::new();
    let refused = loop {
        let next = block(stored.len() as u64, 100_000);
        match disk.write(std::slice::from_ref(&next), &[]) {
            Ok(()) => stored.push(next),
            Err(refused) => break refused,
        }
        assert!(disk.file_bytes() <= SMALLEST_BUDGET_BYTES);
    };
    assert!(matches!(refused, DiskError::NoRoom { .. }) && !refused.is_fatal());
    assert!(stored.len() as u64 * disk_bytes(100_000) > usable(SMALLEST_BUDGET_BYTES));
    let session = session("a", 1, 50_000, 1);
    assert!(matches!(disk.put_sessions(std::slice::from_ref(&session)), Err(DiskError::NoRoom { .. })));

    let (gone, kept) = stored.split_at(stored.len() / 2);
    let keys: Vec<_> = gone.iter().map(|(block, _)| block.key).collect();
    disk.write(&[], &keys).unwrap();
    disk.shrink().unwrap();
    let limit = kept.len() as u64 * disk_bytes(100_000) + SMALLEST_BUDGET_BYTES / 8;
    assert!(disk.file_bytes() <= limit, "{} of {limit}", disk.file_bytes());
    disk.write(&gone[..10], &[]).unwrap();
    disk.put_sessions(&[session]).unwrap();
    let report = disk.check().unwrap();
    assert!(report.is_clean() && report.blocks == kept.len() as u64 + 10, "{report:?}");
}

/// Manifests are rewritten at each turn of a session and grow with it.
#[test]
fn sessions_count_for_the_budget_too() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, _) = KvDisk::open(dir.path(), SMALLEST_BUDGET_BYTES).unwrap();
    let (mut random, mut lengths) = (Random::new(5), vec![0; 60]);
    let stored =
        |lengths: &[usize]| lengths.iter().map(|length| session_bytes(&session("10", 1, *length, 1))).sum();
    for turn in 0..300 {
        let id = random.below(60) as usize;
        lengths[id] += random.below(4000) as usize;
        if usable(SMALLEST_BUDGET_BYTES) < stored(&lengths) {
            lengths.iter_mut().for_each(|length| *length /= 3);
        }
        disk.put_sessions(&[session(&format!("{id:02}"), 1, lengths[id], turn)]).unwrap();
        assert!(disk.file_bytes() <= SMALLEST_BUDGET_BYTES);
    }
    assert!(disk.check().unwrap().is_clean());
}

#[test]
fn the_smallest_budget_of_a_block_takes_it_beside_a_database_that_was_set_aside() {
    let budget = smallest_budget(830_464);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("kv.redb"), vec![1; budget as usize / 4 - 4096]).unwrap();
    let (disk, contents) = KvDisk::open(dir.path(), budget).unwrap();
    assert!(contents.notes.len() == 1 && disk.usable_bytes() < usable(budget));
    disk.write(&[block(1, 830_464)], &[]).unwrap();
}

#[test]
fn the_file_system_says_how_much_it_has_left() {
    let dir = tempfile::tempdir().unwrap();
    assert!(free_bytes(dir.path()).unwrap() > 0);
    assert!(free_bytes(&dir.path().join("nothing")).is_err());
}

#[test]
fn a_smaller_budget_lets_what_is_oldest_go_and_gives_the_space_back() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, _) = KvDisk::open(folder.path(), 128 * MIB).unwrap();
    // Two sequences of 64 blocks; the second is newer.
    for (seed, written_ms) in [(1, 1000), (2, 2000)] {
        let mut blocks = chain(seed, 64 * 64, 300_000);
        blocks.iter_mut().for_each(|(block, _)| block.written_ms = written_ms);
        disk.write(&blocks, &[]).unwrap();
    }
    disk.put_sessions(&[session("s", 2, 100, 1)]).unwrap();
    assert!(disk.file_bytes() > 36 * MIB);
    drop(disk);

    let (disk, contents) = KvDisk::open(folder.path(), 36 * MIB).unwrap();
    assert!(disk.file_bytes() <= 36 * MIB, "{} bytes", disk.file_bytes());
    let taken: u64 = contents.blocks.iter().map(|block| disk_bytes(block.bytes)).sum();
    assert!(taken <= usable(36 * MIB) && taken > usable(36 * MIB) / 2, "{taken} bytes are kept");
    assert!(contents.notes[0].contains("over the budget"), "{:?}", contents.notes);
    assert_eq!(contents.sessions.len(), 1);
    let newer = contents.blocks.iter().filter(|block| block.written_ms == 2000).count();
    assert_eq!(newer, 64, "the older sequence goes first");
    let mut parents = vec![root()];
    for block in &contents.blocks {
        assert!(parents.contains(&block.parent), "what is kept hangs together");
        assert_eq!(disk.read(&block.key).unwrap(), bytes(&block.key, 300_000));
        parents.push(block.key);
    }
    assert!(disk.check().unwrap().is_clean());
}
