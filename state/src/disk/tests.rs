//! Records that should not be there, written past the checks: what opening and checking make of them.

use std::fs;
use std::path::Path;

use redb::ReadableTable;

use super::open::LAYOUT;
use super::record::{BlockRecord, VERSION, encode_block, encode_manifest, session_key};
use super::tables::{BLOCKS, CHUNKS};
use super::*;
use crate::database::{CHUNK_MARK, META, META_FORMAT};
use crate::{Fingerprint, block_keys};

const BUDGET: u64 = 32 << 20;

fn root() -> BlockKey {
    BlockKey::root(Fingerprint([3; 32]), "")
}

fn tokens() -> Vec<u32> {
    (500..800).collect()
}

/// Four full blocks and a tail.
fn chain() -> Vec<(StoredBlock, Vec<u8>)> {
    let tokens = tokens();
    let keys: Vec<_> = block_keys(root(), &tokens).collect();
    let parents = std::iter::once(root()).chain(keys.clone());
    let blocks = tokens.chunks(64).zip(keys).zip(parents).enumerate();
    let stored = blocks.map(|(position, ((tokens, key), parent))| {
        let bytes = vec![position as u8; 300_000];
        let position = position as u32;
        let block =
            StoredBlock { key, parent, position, tokens: tokens.to_vec(), bytes: 300_000, written_ms: 9 };
        (block, bytes)
    });
    stored.collect()
}

fn manifest(id: &str) -> Manifest {
    Manifest {
        tenant: String::new(),
        id: id.into(),
        model: "m".into(),
        root: root(),
        tokens: tokens(),
        keys: block_keys(root(), &tokens()).collect(),
        generation: 1,
        sampled: 2,
        turns: 1,
        hits: 1,
        hit_tokens: 0,
        created_ms: 1,
        last_use_ms: 2,
        pinned: false,
        ttl_ms: None,
    }
}

/// A store with the chain and one session.
fn store(dir: &Path) -> KvDisk {
    let (disk, _) = KvDisk::open(dir, BUDGET).unwrap();
    disk.write(&chain(), &[]).unwrap();
    disk.put_sessions(&[manifest("a")]).unwrap();
    disk
}

/// Changes a block's record and seals it again, or leaves its checksum as it was.
fn change_record(disk: &KvDisk, block: usize, seal: bool, change: impl FnOnce(&mut Vec<u8>)) {
    let key = chain()[block].0.key;
    let change = |tx: &WriteTransaction| {
        let mut table = tx.open_table(BLOCKS)?;
        let mut record = table.get(key.as_bytes())?.unwrap().value().to_vec();
        change(&mut record);
        if seal {
            let body = record.len() - 16;
            let checksum = blake3::Hasher::new().update(key.as_bytes()).update(&record[..body]).finalize();
            record[body..].copy_from_slice(&checksum.as_bytes()[..16]);
        }
        table.insert(key.as_bytes(), record.as_slice())?;
        Ok(())
    };
    disk.run_transaction("change a record", change).unwrap();
}

#[test]
fn an_unreadable_record_takes_its_descendants_and_all_their_bytes_along() {
    for (seal, why) in
        [(false, "another checksum than its bytes have"), (true, "a version that this zllm does not know")]
    {
        let dir = tempfile::tempdir().unwrap();
        let disk = store(dir.path());
        change_record(&disk, 2, seal, |record| record[0] = VERSION + 1);
        let report = disk.check().unwrap();
        assert_eq!((report.damaged.len(), report.dangling.len(), report.orphans), (1, 1, 1), "{report:?}");
        let key = chain()[2].0.key;
        assert!(matches!(disk.read(&key), Err(ReadError::Damaged(found)) if found == why));
        drop(disk);

        let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
        let dropped = format!("the record of {key:?} was dropped: it has {why}");
        assert_eq!(contents.notes, [&dropped, "2 blocks were dropped: a block before them is not there"]);
        assert_eq!(contents.blocks.iter().map(|block| block.position).collect::<Vec<_>>(), [0, 1]);
        let report = disk.check().unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.blocks, report.sessions, report.complete_sessions), (2, 1, 0));
    }
}

#[test]
fn an_unreadable_record_can_be_deleted_with_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = store(dir.path());
    change_record(&disk, 4, false, |record| record.truncate(30));
    disk.write(&[], &[chain()[4].0.key]).unwrap();
    let report = disk.check().unwrap();
    assert!(report.is_clean() && report.blocks == 4, "{report:?}");
}

#[test]
fn an_unreadable_session_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let disk = store(dir.path());
    // Right in itself, but in another session's place.
    let misplaced = encode_manifest(&manifest("a"));
    let insert = |tx: &WriteTransaction| {
        tx.open_table(SESSIONS)?.insert(session_key("", "b"), misplaced.as_slice())?;
        Ok(())
    };
    disk.run_transaction("misplace a session", insert).unwrap();
    assert_eq!(disk.check().unwrap().damaged.len(), 1);
    drop(disk);
    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert_eq!(contents.sessions, [manifest("a")]);
    assert_eq!(
        contents.notes,
        ["a session's record was dropped: it has another checksum than its bytes have"]
    );
    assert!(disk.check().unwrap().is_clean());
}

#[test]
fn another_format_is_set_aside_by_its_number() {
    for format in [LAYOUT.format + 1, LAYOUT.format - 1] {
        let dir = tempfile::tempdir().unwrap();
        let disk = store(dir.path());
        let set = |tx: &WriteTransaction| {
            tx.open_table(META)?.insert(META_FORMAT, format)?;
            Ok(())
        };
        disk.run_transaction("change the format", set).unwrap();
        drop(disk);
        let (_, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
        assert!(contents.blocks.is_empty());
        let [note] = &contents.notes[..] else { panic!("{:?}", contents.notes) };
        assert!(note.contains(&format!("it has format {format}, and this zllm reads format 1")), "{note}");
        assert!(dir.path().join("kv.redb.bad").exists());
    }
}

#[test]
fn what_is_no_database_is_set_aside_and_an_older_one_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (file, kept) = (dir.path().join("kv.redb"), dir.path().join("kv.redb.bad"));
    let large = vec![b'x'; 9 << 20];
    for (content, is_kept) in
        [(&b"no database"[..], true), (b"", true), (&large[..1 << 20], true), (&large, false)]
    {
        fs::write(&file, content).unwrap();
        let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
        assert_eq!(contents.notes.len(), 1);
        assert_eq!(kept.exists(), is_kept, "{:?}", contents.notes);
        if is_kept {
            assert!(fs::metadata(&kept).unwrap().len() <= content.len().max(128 << 10) as u64);
            assert!(disk.usable_bytes() <= usable(BUDGET));
        }
        disk.write(&chain(), &[]).unwrap();
        drop(disk);
        let (_, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
        assert_eq!((contents.blocks.len(), contents.notes.len()), (5, 0));
    }
}

/// A file of an earlier try that a power cut ended.
#[test]
fn an_unfinished_database_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kv.redb.new"), vec![7; 100_000]).unwrap();
    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert!(contents.notes.is_empty() && !dir.path().join("kv.redb.new").exists());
    assert_eq!(disk.check().unwrap(), CheckReport::default());
}

#[test]
fn a_check_names_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let disk = store(dir.path());
    let chain = chain();
    let mut wrong_chunk = chain[1].1[..CHUNK_MARK.len() + 100].to_vec();
    wrong_chunk[..CHUNK_MARK.len()].copy_from_slice(&CHUNK_MARK);
    let foreign = manifest("foreign keys");
    let foreign = Manifest { keys: vec![foreign.keys[1]], ..foreign };
    let partial = manifest("last tokens not computed");
    let parent = partial.keys[3];
    let partial =
        Manifest { keys: [&partial.keys[..4], &[parent.child(&tokens()[256..270])]].concat(), ..partial };
    disk.put_sessions(&[foreign, partial]).unwrap();
    let change = |tx: &WriteTransaction| {
        let mut chunks = tx.open_table(CHUNKS)?;
        // Blocks have the numbers 0 to 4: a chunk of the second is short, one of the fourth is missing, and there are
        // chunks of a block that nobody knows.
        chunks.insert((1, 1), wrong_chunk.as_slice())?;
        chunks.remove((3, 0))?;
        chunks.insert((77, 0), wrong_chunk.as_slice())?;
        chunks.insert((77, 1), wrong_chunk.as_slice())?;
        tx.open_table(BLOCKS)?.remove(chain[2].0.key.as_bytes())?;
        Ok(())
    };
    disk.run_transaction("damage", change).unwrap();

    let report = disk.check().unwrap();
    let key = |block: usize| chain[block].0.key;
    let mut damaged = [
        format!("block {:?}: it has a chunk with another checksum than its bytes have", key(1)),
        format!("block {:?}: it has a chunk less than its record says", key(3)),
    ];
    damaged.sort();
    assert_eq!(report.damaged, damaged);
    assert_eq!(
        report.dangling,
        [
            format!("block {:?}: the block before it, {:?}, is not there", key(3), key(2)),
            "session \"foreign keys\" of tenant \"\": its keys are not those of its tokens".to_owned(),
        ]
    );
    assert_eq!((report.blocks, report.sessions, report.complete_sessions, report.orphans), (2, 3, 1, 2));
    assert!(!report.is_clean());
}

/// The record's layout is a stored format: the bytes are compared with FORMATS.md.
#[test]
fn a_record_has_the_documented_bytes() {
    let block = StoredBlock { bytes: 3, ..chain()[1].0.clone() };
    let record = BlockRecord { block: block.clone(), number: 0x0102, checksums: vec![[5; 16]] };
    let mut bytes = vec![1];
    bytes.extend(block.parent.as_bytes());
    bytes.extend([1, 0, 0, 0]);
    bytes.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    bytes.extend([3, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([64, 0, 0, 0]);
    (564u32..628).for_each(|token| bytes.extend(token.to_le_bytes()));
    bytes.extend([5; 16]);
    let checksum = blake3::Hasher::new().update(block.key.as_bytes()).update(&bytes).finalize();
    bytes.extend(&checksum.as_bytes()[..16]);
    assert_eq!(encode_block(&record), bytes);
}
