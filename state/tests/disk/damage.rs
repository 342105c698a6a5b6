//! Bytes change on disk: what is read is right or refused, never wrong, and no damage ends the process.

use std::fs;
use std::path::Path;

use zllm_state::{DiskError, KvDisk, Manifest, ReadError, StoredBlock};

use crate::flaky::FlakyDisk;
use crate::random::Random;
use crate::samples::{block, chain, session};

const BUDGET: u64 = 32 << 20;

type Block = (StoredBlock, Vec<u8>);

/// A store of two sessions in this folder, closed.
fn stored(dir: &Path) -> (Vec<Block>, Vec<Manifest>) {
    let blocks = [chain(1, 640, 5_000), chain(2, 192, 300_000)].concat();
    let sessions = vec![session("a", 1, 640, 1), session("b", 2, 192, 1)];
    let (disk, _) = KvDisk::open(dir, BUDGET).unwrap();
    disk.write(&blocks, &[]).unwrap();
    disk.put_sessions(&sessions).unwrap();
    (blocks, sessions)
}

/// Where these bytes are in the database's file.
fn position(file: &[u8], bytes: &[u8]) -> usize {
    let found: Vec<_> =
        file.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes).collect();
    assert_eq!(found.len(), 1, "the bytes are there once");
    found[0].0
}

fn flip(file: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

/// A bit of a block's bytes is another: that block is damaged, and no other.
#[test]
fn a_changed_chunk_is_damage_of_its_block_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (blocks, _) = stored(dir.path());
    let (victim, bytes) = &blocks[11];
    flip(&dir.path().join("kv.redb"), |file| {
        let at = position(file, &bytes[270_000..270_100]);
        file[at] ^= 0x10;
    });

    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert_eq!((contents.blocks.len(), contents.notes.len()), (13, 0));
    for (block, bytes) in &blocks {
        match disk.read(&block.key) {
            Err(ReadError::Damaged(why)) => assert_eq!((block.key, why), (victim.key, CHUNK_DAMAGE)),
            read => assert_eq!(&read.unwrap(), bytes),
        }
    }
    assert!(matches!(disk.read(&victim.key), Err(ReadError::Damaged(_))));
    let report = disk.check().unwrap();
    assert_eq!(report.damaged, [format!("block {:?}: it has {CHUNK_DAMAGE}", victim.key)]);
    assert_eq!((report.blocks, report.dangling.len(), report.orphans), (12, 0, 0));

    disk.write(&[], &[blocks[12].0.key, victim.key]).unwrap();
    assert!(disk.check().unwrap().is_clean());
}

const CHUNK_DAMAGE: &str = "a chunk with another checksum than its bytes have";

/// Somebody's file under the database's name is out of the way, with every byte that it had.
#[test]
fn a_short_file_is_set_aside_as_it_was() {
    for text in ["", "not a database\n"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kv.redb"), text).unwrap();
        let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
        assert!(contents.notes[0].contains("it was set aside as kv.redb.bad"), "{:?}", contents.notes);
        assert_eq!(fs::read_to_string(dir.path().join("kv.redb.bad")).unwrap(), text);
        assert!(disk.check().unwrap().is_clean());
    }
}

/// What is written to a file that was removed is lost with the process: it is not called durable.
#[test]
fn a_write_to_a_removed_file_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (blocks, sessions) = stored(dir.path());
    let (disk, _) = KvDisk::open(dir.path(), BUDGET).unwrap();
    fs::remove_dir_all(dir.path()).unwrap();
    let failed = disk.put_sessions(&sessions).unwrap_err();
    assert!(failed.is_fatal(), "{failed}");
    assert!(
        failed
            .to_string()
            .ends_with("kv.redb: could not store sessions: No such file or directory (os error 2)")
    );
    drop(disk);
    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert!(contents.blocks.is_empty() && contents.notes.is_empty(), "the folder is made anew");
    disk.write(&blocks, &[]).unwrap();
}

/// A page's own fields are damaged: the whole database is out of the way, at once and by itself.
#[test]
fn a_damaged_tree_is_set_aside_while_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (blocks, _) = stored(dir.path());
    let file = dir.path().join("kv.redb");
    flip(&file, |file| {
        // A page begins with its kind; the bytes follow on 8 of the page's own fields, 12 of a key and 8 of a mark.
        let page = position(file, &blocks[11].1[..100]) - 28;
        assert_eq!((page % 4096, file[page]), (0, 1));
        file[page] = 9;
    });

    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert_eq!((contents.blocks.len(), contents.notes.len()), (13, 0));
    let error = disk.read(&blocks[11].0.key).unwrap_err().to_string();
    assert!(
        error.contains("cannot be used") && error.ends_with("it was set aside as kv.redb.bad"),
        "{error}"
    );
    assert!(!file.exists() && dir.path().join("kv.redb.bad").exists());
    let next = disk.write(&blocks[..1], &[]).unwrap_err();
    assert!(matches!(&next, DiskError::Failed { why, .. } if error.contains(why)), "{next}");

    // Whether the old one is closed by then or not.
    let (again, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert!(contents.blocks.is_empty() && contents.notes.is_empty());
    again.write(&blocks[..1], &[]).unwrap();
    drop(disk);
    assert_eq!(again.read(&blocks[0].0.key).unwrap(), blocks[0].1);
    assert!(again.check().unwrap().is_clean());
}

#[test]
fn a_damaged_page_of_records_is_set_aside_when_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (blocks, _) = stored(dir.path());
    flip(&dir.path().join("kv.redb"), |file| {
        let tokens: Vec<u8> = blocks[3].0.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        // With their count in front, as a block's record has them.
        let at = position(file, &[&64u32.to_le_bytes()[..], &tokens].concat());
        file[at + 50] ^= 1;
    });
    let (disk, contents) = KvDisk::open(dir.path(), BUDGET).unwrap();
    assert!(contents.blocks.is_empty() && contents.sessions.is_empty());
    let [note] = &contents.notes[..] else { panic!("{:?}", contents.notes) };
    assert!(
        note.contains("has other bytes than were written") && note.contains("set aside as kv.redb.bad"),
        "{note}"
    );
    disk.write(&blocks, &[]).unwrap();
    assert_eq!(disk.check().unwrap().blocks, 13);
}

#[test]
fn a_byte_changed_anywhere_is_never_read_as_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let (blocks, sessions) = stored(dir.path());
    let image = fs::read(dir.path().join("kv.redb")).unwrap();
    // Pages of records and trees are few among those of chunks: they get half of the changes.
    let pages: Vec<_> = (0..image.len()).step_by(4096).filter(|at| matches!(image[*at], 1 | 2)).collect();
    let (mut random, mut unharmed, mut damaged, mut unusable) = (Random::new(11), 0, 0, 0);
    for case in 0..400 {
        let at = match case % 2 {
            0 => random.below(image.len() as u64) as usize,
            _ => pages[random.below(pages.len() as u64) as usize] + random.below(600) as usize,
        };
        let mut changed = image.clone();
        changed[at] ^= 1 + random.below(255) as u8;
        let used =
            use_changed(changed, &blocks, &sessions).unwrap_or_else(|wrong| panic!("byte {at}: {wrong}"));
        match used {
            Use::Unharmed => unharmed += 1,
            Use::Damaged => damaged += 1,
            Use::Unusable => unusable += 1,
        }
    }
    println!("{unharmed} unharmed, {damaged} damaged, {unusable} unusable");
    assert!(
        unharmed > 50 && damaged > 50 && unusable > 20,
        "{unharmed} unharmed, {damaged} damaged, {unusable} unusable"
    );
}

/// What a change did.
enum Use {
    Unharmed,
    Damaged,
    Unusable,
}

/// Uses a changed store as a daemon would; an error is a wrong answer.
fn use_changed(image: Vec<u8>, blocks: &[Block], sessions: &[Manifest]) -> Result<Use, String> {
    let (disk, contents) = match KvDisk::open_with_backend(FlakyDisk::of(image), BUDGET) {
        Ok(opened) => opened,
        Err(DiskError::Unusable { .. }) => return Ok(Use::Unusable),
        Err(error) => return Err(error.to_string()),
    };
    let mut unharmed = contents.notes.is_empty() && contents.blocks.len() == blocks.len();
    unharmed &= contents.sessions.len() == sessions.len();
    if let Some(session) = contents.sessions.iter().find(|session| !sessions.contains(session)) {
        return Err(format!("another session: {session:?}"));
    }
    if let Some(other) = contents.blocks.iter().find(|found| blocks.iter().all(|(block, _)| *found != block))
    {
        return Err(format!("another block: {other:?}"));
    }
    for (block, bytes) in blocks {
        match disk.read(&block.key) {
            Ok(read) if read != *bytes => return Err(format!("other bytes of {:?}", block.key)),
            Err(ReadError::Io(error @ (DiskError::InUse { .. } | DiskError::Io { .. }))) => {
                return Err(error.to_string());
            }
            read => unharmed &= read.is_ok(),
        }
    }
    let report = disk.check();
    unharmed &= report.is_ok_and(|report| report.is_clean());
    let (new, new_bytes) = block(77, 9_000);
    let wrote = disk.write(&[(new.clone(), new_bytes.clone())], &[blocks[12].0.key, blocks[9].0.key]);
    match disk.read(&new.key) {
        Ok(read) if wrote.is_ok() && read != new_bytes => return Err("other bytes of a new block".to_owned()),
        read => unharmed &= read.is_ok(),
    }
    Ok(if unharmed { Use::Unharmed } else { Use::Damaged })
}
