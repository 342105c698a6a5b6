//! Random histories, on the store and on its twin: restarts, a disk that fails, objects that expire.

use zllm_state::{
    Content, DatabaseError, Object, ObjectError, ObjectName, ObjectRetention, ObjectStore, PIECE_BYTES,
};

use crate::flaky::FlakyDisk;
use crate::random::Random;
use crate::samples::{FOREVER, bytes, object};
use crate::twin::Twin;

/// One call.
#[derive(Debug)]
pub(crate) enum Step {
    Put(Vec<Object>),
    Delete(Vec<ObjectName>),
    Begin,
    Append(Content, Vec<u8>),
    Abandon(Content),
    Expire,
}

impl Step {
    pub(crate) fn random(random: &mut Random, twin: &Twin, now_ms: u64) -> Self {
        let some_loose = |random: &mut Random| {
            let count = twin.loose.len() as u64;
            (count > 0).then(|| twin.loose[random.below(count) as usize].0)
        };
        match (random.below(9), some_loose(random)) {
            (0..4, content) => {
                let mut objects: Vec<_> = (0..=random.below(3)).map(|_| put(random, twin, now_ms)).collect();
                // Most keep what they have; one may get what was uploaded.
                if content.is_some() && random.below(2) == 0 {
                    objects.truncate(1);
                    objects[0].content = content;
                }
                Self::Put(objects)
            }
            (4, _) => Self::Delete((0..=random.below(2)).map(|_| name(random)).collect()),
            (5..8, None) => Self::Begin,
            (5, Some(_)) if random.below(4) == 0 => Self::Begin,
            (5..7, Some(content)) => {
                let longest = if random.below(8) == 0 { PIECE_BYTES } else { 5000 };
                Self::Append(content, bytes(now_ms, 1 + random.below(longest as u64) as usize))
            }
            (7, Some(content)) => Self::Abandon(content),
            _ => Self::Expire,
        }
    }

    /// Does it on the store, and on the twin if it was done or as if it had been.
    pub(crate) fn run(
        &self,
        store: &mut ObjectStore,
        twin: &mut Twin,
        now_ms: u64,
    ) -> Result<(), ObjectError> {
        match self {
            Self::Put(objects) => {
                let may = twin.put(objects, now_ms);
                match store.put(objects, now_ms) {
                    Err(ObjectError::TooMuch { .. }) if !may => Ok(()),
                    done => {
                        assert!(may, "{done:?}: it is too much for a tenant");
                        done
                    }
                }
            }
            Self::Delete(names) => {
                let expected = twin.delete(names);
                assert_eq!(store.delete(names)?, expected);
                Ok(())
            }
            Self::Begin => {
                twin.loose.push((store.begin_content(), Vec::new()));
                Ok(())
            }
            Self::Append(content, piece) => {
                let after = store.append(*content, piece)?;
                twin.append(*content, after, piece);
                assert_eq!(after.bytes(), content.bytes() + piece.len() as u64);
                Ok(())
            }
            Self::Abandon(content) => {
                twin.loose.retain(|(other, _)| other != content);
                Ok(store.abandon(*content)?)
            }
            Self::Expire => {
                twin.expire(now_ms);
                Ok(store.expire(now_ms)?)
            }
        }
    }
}

fn name(random: &mut Random) -> ObjectName {
    object(random.below(30)).name
}

/// A new object, or one that is there with another value.
fn put(random: &mut Random, twin: &Twin, now_ms: u64) -> Object {
    let fresh = Object { created_ms: now_ms, ..object(random.below(30)) };
    let before = twin.objects.iter().map(|(object, _)| object).find(|object| object.name == fresh.name);
    let content = before.and_then(|object| object.content).filter(|_| random.below(3) > 0);
    let expires_ms = fresh.expires_ms.map(|_| now_ms + random.below(2000));
    Object { value: bytes(now_ms, random.below(4000) as usize), content, expires_ms, ..fresh }
}

fn retention(random: &mut Random) -> ObjectRetention {
    let mut bound = |limit| if random.below(3) == 0 { u64::MAX } else { random.below(limit) };
    ObjectRetention {
        max_age_ms: bound(3000),
        max_objects: bound(20),
        max_bytes: bound(60_000),
        tenant_objects: bound(12),
        tenant_bytes: bound(30_000),
    }
}

fn open(disk: &FlakyDisk, retention: ObjectRetention, now_ms: u64) -> Result<ObjectStore, String> {
    let disk = disk.clone();
    ObjectStore::open_with_backend(move || disk.clone(), retention, now_ms).map_err(|error| error.to_string())
}

/// Opens what is on this disk, which must be what the twin has, and nothing more or less.
pub(crate) fn verify(image: Vec<u8>, twin: &Twin) -> Result<(), String> {
    let mut store = open(&FlakyDisk::of(image), FOREVER, 0)?;
    Twin { loose: Vec::new(), ..twin.clone() }.compare(&mut store)?;
    for (content, _) in &twin.loose {
        if store.piece(*content, 0).map_err(|error| error.to_string())?.is_some() {
            return Err(format!("{content:?} is there after a restart"));
        }
    }
    // And it goes on.
    store.put(&[object(77)], 0).map_err(|error| error.to_string())
}

/// One history; now and then the daemon is started again, and the disk may stop and work again.
fn run(seed: u64, steps: u32, disk_fails: bool) -> (u32, u32) {
    let mut random = Random::new(seed);
    let (disk, mut now_ms) = (FlakyDisk::default(), 1000);
    let mut twin = Twin::new(retention(&mut random));
    let mut store = open(&disk, twin.retention, now_ms).unwrap();
    let (mut done, mut failed) = (0, 0);
    for step_number in 0..steps {
        let place = format!("ZLLM_SEED={seed} step {step_number}");
        now_ms += 1 + random.below(400);
        if random.below(12) == 0 {
            drop(store);
            twin.retention = retention(&mut random);
            store = open(&disk, twin.retention, now_ms).unwrap_or_else(|error| panic!("{place}: {error}"));
            twin.loose.clear();
            twin.expire(now_ms);
        }
        let step = Step::random(&mut random, &twin, now_ms);
        if disk_fails && random.below(3) == 0 {
            disk.stop_after_calls(random.below(60));
        }
        let mut after = twin.clone();
        let outcome = step.run(&mut store, &mut after, now_ms);
        disk.work_again(random.below(2) == 0);
        match outcome {
            Ok(()) => {
                (twin, done) = (after, done + 1);
                twin.compare(&mut store).unwrap_or_else(|wrong| panic!("{place}: {wrong} after {step:?}"));
            }
            // All of it has happened, or nothing.
            Err(error) => {
                assert!(
                    disk_fails && matches!(error, ObjectError::Database(DatabaseError::Io { .. })),
                    "{place}: {error}"
                );
                failed += 1;
                if let Err(not_before) = twin.compare(&mut store) {
                    let compared = after.compare(&mut store);
                    compared.unwrap_or_else(|wrong| panic!("{place}: {not_before}; {wrong}: {step:?}"));
                    twin = after;
                }
            }
        }
    }
    drop(store);
    verify(disk.durable(), &twin).unwrap_or_else(|wrong| panic!("ZLLM_SEED={seed}: {wrong}"));
    (done, failed)
}

/// The seeds of this run.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("ZLLM_SEED") {
        Ok(seed) => vec![seed.parse().expect("ZLLM_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

#[test]
fn the_store_answers_as_a_list_in_memory_would() {
    for seed in seeds(25) {
        assert_eq!(run(seed, 60, false), (60, 0));
    }
}

#[test]
fn what_a_failing_disk_refused_has_happened_whole_or_not_at_all() {
    let (mut done, mut failed) = (0, 0);
    for seed in seeds(40) {
        let run = run(seed, 60, true);
        (done, failed) = (done + run.0, failed + run.1);
    }
    println!("{done} steps done, {failed} failed");
    assert!(failed > done / 20, "{done} steps done, {failed} failed");
}
