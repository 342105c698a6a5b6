//! The disk stops at each sync of a scripted run in turn: what was acknowledged is there, and nothing half-written is.

use std::collections::{BTreeSet, HashMap};

use zllm_state::{BlockKey, DiskError, KvDisk, Manifest, ReadError, SMALLEST_BUDGET_BYTES, StoredBlock};

use crate::crash_rig::{Ended, finds_out_a_disk_that_lies, survives_a_stop_at_each_sync};
use crate::flaky::FlakyDisk;
use crate::samples::{block, bytes, chain, session};

/// Small, so that the script's larger writes are several transactions.
const BUDGET: u64 = SMALLEST_BUDGET_BYTES;

type Block = (StoredBlock, Vec<u8>);

enum Step {
    Write(Vec<Block>, Vec<BlockKey>),
    Put(Vec<Manifest>),
    Remove(&'static str),
}

/// What is stored.
#[derive(Debug, Clone, Default)]
struct Model {
    blocks: HashMap<BlockKey, Vec<u8>>,
    sessions: HashMap<String, Manifest>,
}

/// Sessions that come, go on, and go; blocks that are written before a manifest names them, replaced and evicted.
fn script() -> Vec<Step> {
    let (a, b) = (chain(1, 300, 9_000), chain(2, 140, 270_000));
    let keys = |blocks: &[Block]| blocks.iter().rev().map(|(block, _)| block.key).collect::<Vec<_>>();
    let large: Vec<_> = (10..15).map(|seed| block(seed, 300_000)).collect();
    let replaced = StoredBlock { bytes: 700, ..large[1].0.clone() };
    let replaced_bytes = bytes(&replaced.key, 700);
    vec![
        Step::Write(a[..3].to_vec(), vec![]),
        Step::Put(vec![session("a", 1, 150, 1)]),
        Step::Write(b.clone(), vec![]),
        Step::Put(vec![session("b", 2, 140, 1), session("a", 1, 192, 2)]),
        Step::Write(a[3..].to_vec(), vec![]),
        Step::Write(large.clone(), vec![a[4].0.key]),
        Step::Put(vec![session("a", 1, 300, 3)]),
        Step::Write(vec![(replaced, replaced_bytes)], keys(&b)),
        Step::Remove("b"),
        Step::Write(chain(3, 200, 9_000), keys(&large[2..])),
        Step::Put(vec![session("c", 3, 200, 1)]),
    ]
}

impl Step {
    fn run(&self, disk: &KvDisk) -> Result<(), DiskError> {
        match self {
            Step::Write(blocks, deletes) => disk.write(blocks, deletes),
            Step::Put(manifests) => disk.put_sessions(manifests),
            Step::Remove(id) => disk.remove_sessions(&[("tenant".into(), (*id).into())]),
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Step::Write(blocks, deletes) => {
                model.blocks.retain(|key, _| !deletes.contains(key));
                model.blocks.extend(blocks.iter().map(|(block, bytes)| (block.key, bytes.clone())));
            }
            Step::Put(manifests) => {
                model.sessions.extend(manifests.iter().map(|session| (session.id.clone(), session.clone())));
            }
            Step::Remove(id) => drop(model.sessions.remove(*id)),
        }
    }
}

/// Runs the script until it ends or a step fails.
fn run(disk: FlakyDisk) -> Ended<Model> {
    let mut ended = Ended { acknowledged: Model::default(), next: Model::default(), failed: false };
    let Ok((disk, _)) = KvDisk::open_with_backend(disk, BUDGET) else {
        return Ended { failed: true, ..ended };
    };
    for step in script() {
        step.apply(&mut ended.next);
        if let Err(error) = step.run(&disk) {
            assert!(error.is_fatal());
            // Nothing works before it is opened again, reading included.
            let some_key = block(1, 1).0.key;
            assert!(matches!(disk.read(&some_key), Err(ReadError::Io(DiskError::Failed { .. }))));
            assert!(matches!(step.run(&disk), Err(DiskError::Failed { .. })));
            return Ended { failed: true, ..ended };
        }
        step.apply(&mut ended.acknowledged);
    }
    ended
}

/// Whether a disk of this image holds what was acknowledged, and nothing else but what may have been on its way.
fn verify(image: Vec<u8>, ended: &Ended<Model>) -> Result<(), String> {
    let (disk, contents) = KvDisk::open_with_backend(FlakyDisk::of(image), BUDGET)
        .map_err(|error| format!("does not open: {error}"))?;
    if !contents.notes.is_empty() {
        return Err(format!("notes: {:?}", contents.notes));
    }
    let (before, after) = (&ended.acknowledged, &ended.next);
    let listed: BTreeSet<_> = contents.blocks.iter().map(|block| block.key).collect();
    for key in before.blocks.keys().chain(after.blocks.keys()).chain(&listed) {
        let read = match disk.read(key) {
            Ok(bytes) => Some(bytes),
            Err(ReadError::Missing) => None,
            Err(error) => return Err(format!("{key:?}: {error}")),
        };
        if read.as_ref() != before.blocks.get(key) && read.as_ref() != after.blocks.get(key) {
            return Err(format!("{key:?} is neither as it was nor as it was to be"));
        }
        if read.is_some() != listed.contains(key) {
            return Err(format!("{key:?} is not both listed and readable"));
        }
    }
    let sessions: HashMap<_, _> =
        contents.sessions.iter().map(|session| (session.id.clone(), session)).collect();
    for id in before.sessions.keys().chain(after.sessions.keys()).chain(sessions.keys()) {
        let found = sessions.get(id).copied();
        if found != before.sessions.get(id) && found != after.sessions.get(id) {
            return Err(format!("session {id} is neither as it was nor as it was to be"));
        }
    }
    let report = disk.check().map_err(|error| error.to_string())?;
    if !report.is_clean() {
        return Err(format!("{report:?}"));
    }
    // And it goes on.
    let (new, new_bytes) = block(99, 10_000);
    disk.write(&[(new.clone(), new_bytes.clone())], &[]).map_err(|error| error.to_string())?;
    (disk.read(&new.key).unwrap() == new_bytes).then_some(()).ok_or("a new block differs".to_owned())
}

#[test]
fn what_was_acknowledged_survives_a_stop_at_each_sync() {
    survives_a_stop_at_each_sync(run, verify);
}

/// A full disk refuses to let the file grow: the store ends as with any other error, and what it has stays.
#[test]
fn what_was_acknowledged_survives_a_full_disk() {
    let mut refused = 0;
    for capacity in (0..4 << 20).step_by(200 << 10) {
        let disk = FlakyDisk::default().full_at(capacity);
        let ended = run(disk.clone());
        refused += u32::from(ended.failed);
        let roomy = disk.live();
        verify(roomy, &ended).unwrap_or_else(|wrong| panic!("full at {capacity} bytes: {wrong}"));
    }
    assert!(refused >= 5, "{refused} runs met the end of the disk");
}

#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    finds_out_a_disk_that_lies(run, verify);
}
