//! What is stored is there after opening again, whole and equal.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use zllm_state::{DiskError, KvDisk, ReadError, SMALLEST_BUDGET_BYTES, StoredBlock, disk_bytes};

use crate::samples::{block, bytes, chain, session};

const BUDGET: u64 = 64 << 20;

#[test]
fn blocks_and_sessions_are_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert!(contents.blocks.is_empty() && contents.sessions.is_empty() && contents.notes.is_empty());
    // Sizes on both sides of a chunk, one of none at all, and a tail at the end.
    let stored: Vec<_> =
        [0, 1, 262_116, 262_117, 830_464].into_iter().zip(1..).flat_map(|(b, s)| chain(s, 150, b)).collect();
    disk.write(&stored, &[]).unwrap();
    disk.put_sessions(&[session("a", 1, 150, 1), session("b", 2, 150, 1)]).unwrap();
    disk.put_sessions(&[session("a", 1, 150, 2)]).unwrap();
    drop(disk);

    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert_eq!(contents.notes, Vec::<String>::new());
    assert_eq!(contents.blocks.len(), stored.len());
    let mut seen = std::collections::HashSet::new();
    for block in &contents.blocks {
        assert!(block.position == 0 || seen.contains(&block.parent), "parents come first");
        seen.insert(block.key);
        assert_eq!(&stored.iter().find(|(stored, _)| stored.key == block.key).unwrap().0, block);
    }
    let mut sessions = contents.sessions;
    sessions.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(sessions, [session("a", 1, 150, 2), session("b", 2, 150, 1)]);
    for (block, bytes) in &stored {
        assert_eq!(&disk.read(&block.key).unwrap(), bytes);
    }
    let report = disk.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.blocks, report.sessions, report.complete_sessions), (15, 2, 2));
    assert_eq!(report.block_bytes, stored.iter().map(|(block, _)| block.bytes).sum::<u64>());
}

#[test]
fn deleting_and_replacing_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, _) = KvDisk::open(dir.path(), BUDGET).unwrap();
    let stored = chain(1, 192, 300_000);
    disk.write(&stored, &[]).unwrap();
    disk.put_sessions(&[session("a", 1, 192, 1)]).unwrap();

    let shorter = StoredBlock { bytes: 1000, ..stored[1].0.clone() };
    let new_bytes = bytes(&shorter.key, 1000);
    disk.write(&[(shorter.clone(), new_bytes.clone())], &[stored[2].0.key, block(9, 1).0.key]).unwrap();
    assert_eq!(disk.read(&shorter.key).unwrap(), new_bytes);
    assert!(matches!(disk.read(&stored[2].0.key), Err(ReadError::Missing)));
    let report = disk.check().unwrap();
    assert!(report.is_clean(), "an evicted block is no fault: {report:?}");
    assert_eq!(
        (report.blocks, report.block_bytes, report.sessions, report.complete_sessions),
        (2, 301_000, 1, 0)
    );

    let keys: Vec<_> = stored.iter().map(|(block, _)| block.key).collect();
    disk.write(&[], &keys).unwrap();
    disk.remove_sessions(&[("tenant".into(), "a".into()), ("tenant".into(), "unknown".into())]).unwrap();
    assert_eq!(disk.check().unwrap(), Default::default());
}

#[test]
fn only_the_owner_may_read_the_file_and_one_daemon_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/deeper");
    let (_disk, _) = KvDisk::open(&folder, BUDGET).unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(folder.clone()), mode(folder.join("kv.redb"))), (0o700, 0o600));
    assert!(!folder.join("kv.redb.new").exists());

    let second = KvDisk::open(&folder, BUDGET).unwrap_err();
    assert!(matches!(second, DiskError::InUse { .. }) && second.is_fatal(), "{second}");
    assert!(folder.join("kv.redb").exists() && !folder.join("kv.redb.bad").exists());
}

#[test]
fn too_small_a_budget_and_too_large_a_block_are_refused_with_figures() {
    let dir = tempfile::tempdir().unwrap();
    let refused = KvDisk::open(dir.path(), SMALLEST_BUDGET_BYTES - 1).unwrap_err().to_string();
    assert!(refused.contains("16777215") && refused.contains("16777216"), "{refused}");

    let (disk, _) = KvDisk::open(dir.path(), SMALLEST_BUDGET_BYTES).unwrap();
    let small = block(1, 1000);
    let refused = disk.write(&[small.clone(), block(2, 3 << 20)], &[]).unwrap_err();
    assert!(matches!(refused, DiskError::NoRoom { needed_bytes, .. } if needed_bytes == disk_bytes(3 << 20)));
    assert!(!refused.is_fatal());
    assert_eq!(disk.read(&small.0.key).unwrap(), small.1, "what came before it is stored");
}

#[test]
fn a_folder_that_may_not_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a file");
    fs::write(&file, "no folder").unwrap();
    let refused = KvDisk::open(&file.join("kv"), BUDGET).unwrap_err().to_string();
    assert!(refused.contains("a file/kv: could not create the folder"), "{refused}");
}
