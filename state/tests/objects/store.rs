//! What the store answers, and what it refuses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zllm_state::{
    DatabaseError, Object, ObjectError, ObjectName, ObjectOrder, ObjectRetention, ObjectStore, PIECE_BYTES,
};

use crate::folder::{Kept, keeps_its_file};
use crate::samples::{FOREVER, bytes, object};

fn plain(id: &str, created_ms: u64, length: usize) -> Object {
    let name = ObjectName::new("file", "t", id);
    Object { name, created_ms, expires_ms: None, value: bytes(created_ms, length), content: None }
}

fn ids(store: &mut ObjectStore, order: ObjectOrder) -> Vec<String> {
    let listed = store.list("file", "t", None, usize::MAX, order).unwrap().unwrap();
    listed.into_iter().map(|object| object.name.id).collect()
}

#[test]
fn objects_come_back_after_a_restart_and_keep_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
    let objects: Vec<_> = (1..=40).map(object).collect();
    store.put(&objects, 0).unwrap();
    let changed = Object { value: b"changed".to_vec(), ..objects[3].clone() };
    store.put(std::slice::from_ref(&changed), 0).unwrap();
    drop(store);
    let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
    for (at, object) in objects.iter().enumerate() {
        let expected = if at == 3 { &changed } else { object };
        assert_eq!(store.get(&object.name).unwrap().as_ref(), Some(expected));
    }
    let listed = store.list(&changed.name.kind, &changed.name.tenant, None, 99, ObjectOrder::OldestFirst);
    let mut expected: Vec<_> = objects.clone();
    expected[3] = changed.clone();
    expected.retain(|object| {
        (&object.name.kind, &object.name.tenant) == (&changed.name.kind, &changed.name.tenant)
    });
    assert_eq!(listed.unwrap(), Some(expected));
    assert_eq!(store.delete(&[changed.name.clone(), object(99).name]).unwrap(), [true, false]);
    assert_eq!(store.get(&changed.name).unwrap(), None);
    assert!(store.file_bytes() > 0);
}

/// 24 MiB go in and out a piece at a time, and what is deleted leaves room for as much again.
#[test]
fn a_large_content_goes_in_and_out_in_pieces_and_its_room_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
    let mut first_bytes = 0;
    for round in 0..3 {
        let mut content = store.begin_content();
        for piece in 0..96 {
            content = store.append(content, &bytes(round * 1000 + piece, PIECE_BYTES)).unwrap();
        }
        content = store.append(content, b"end").unwrap();
        let object = Object { content: Some(content), ..plain("large", round, 10) };
        store.put(std::slice::from_ref(&object), 0).unwrap();
        let found = store.get(&object.name).unwrap().unwrap().content.unwrap();
        assert_eq!((found.pieces(), found.bytes()), (97, 96 * PIECE_BYTES as u64 + 3));
        for piece in [0, 50, 95] {
            let expected = bytes(round * 1000 + u64::from(piece), PIECE_BYTES);
            assert!(store.piece(found, piece).unwrap() == Some(expected), "piece {piece}");
        }
        assert_eq!(store.piece(found, 96).unwrap().as_deref(), Some(&b"end"[..]));
        assert_eq!(store.piece(found, 97).unwrap(), None);
        if round == 0 {
            first_bytes = store.file_bytes();
            assert!(first_bytes < 32 << 20, "{first_bytes}");
        }
        store.delete(&[object.name]).unwrap();
        assert_eq!(store.piece(found, 0).unwrap(), None, "it goes with its object");
    }
    assert!(store.file_bytes() < first_bytes * 3 / 2, "{} after {first_bytes}", store.file_bytes());
}

#[test]
fn a_content_that_nobody_has_is_gone_at_the_next_start_or_when_it_is_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
    let begun = store.begin_content();
    let left = store.append(begun, b"left behind").unwrap();
    let begun = store.begin_content();
    let abandoned = store.append(begun, b"abandoned").unwrap();
    let begun = store.begin_content();
    let kept = store.append(begun, b"kept").unwrap();
    store.put(&[Object { content: Some(kept), ..plain("a", 1, 1) }], 0).unwrap();
    store.abandon(abandoned).unwrap();
    store.abandon(kept).unwrap();
    assert_eq!(store.piece(abandoned, 0).unwrap(), None);
    assert_eq!(store.piece(kept, 0).unwrap().as_deref(), Some(&b"kept"[..]), "it is an object's");
    drop(store);
    let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
    assert_eq!(store.piece(left, 0).unwrap(), None);
    assert_eq!(store.piece(kept, 0).unwrap().as_deref(), Some(&b"kept"[..]));
    // Another's content, an abandoned one, and a piece for an object's are the caller's defects.
    for content in [kept, abandoned] {
        let thief = Object { content: Some(content), ..plain("b", 2, 1) };
        catch_unwind(AssertUnwindSafe(|| store.put(&[thief], 0))).expect_err("it may not have it");
        catch_unwind(AssertUnwindSafe(|| store.append(content, b"x"))).expect_err("it may not grow");
    }
    assert_eq!(store.get(&plain("a", 1, 1).name).unwrap().unwrap().content, Some(kept));
}

#[test]
fn the_oldest_expire_by_count_age_bytes_and_their_own_time() {
    // Ten objects are made at 10, 20, ... 100, each of 1000 bytes.
    let made = |number: u64| plain(&number.to_string(), number * 10, 1000);
    for (retention, now_ms, kept) in [
        (ObjectRetention { max_objects: 3, ..FOREVER }, 100, 8..=10),
        (ObjectRetention { max_age_ms: 40, ..FOREVER }, 100, 6..=10),
        (ObjectRetention { max_bytes: 2500, ..FOREVER }, 100, 9..=10),
        (ObjectRetention { max_bytes: 10, ..FOREVER }, 100, 10..=10),
        (FOREVER, u64::MAX, 1..=10),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = ObjectStore::open(dir.path(), retention, 0).unwrap();
        (1..10).for_each(|number| store.put(&[made(number)], number * 10).unwrap());
        store.put(&[made(10)], now_ms).unwrap();
        let expected: Vec<_> = kept.map(|number| number.to_string()).collect();
        assert_eq!(ids(&mut store, ObjectOrder::OldestFirst), expected, "{retention:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
    let due = |id: &str, expires_ms| Object { expires_ms: Some(expires_ms), ..plain(id, 1, 10) };
    store.put(&[due("a", 50), due("b", 40), plain("c", 1, 10)], 0).unwrap();
    store.expire(39).unwrap();
    assert_eq!(ids(&mut store, ObjectOrder::NewestFirst), ["c", "b", "a"]);
    store.expire(40).unwrap();
    assert_eq!(ids(&mut store, ObjectOrder::OldestFirst), ["a", "c"]);
    // Put again with another time, it goes by that one.
    store.put(&[due("a", 90)], 45).unwrap();
    store.expire(60).unwrap();
    drop(store);
    let mut store = ObjectStore::open(dir.path(), FOREVER, 89).unwrap();
    assert_eq!(ids(&mut store, ObjectOrder::OldestFirst), ["a", "c"]);
    store.expire(90).unwrap();
    assert_eq!(ids(&mut store, ObjectOrder::OldestFirst), ["c"]);
}

/// Of each tenant the oldest go, and only its own; what alone is too much is refused and changes nothing.
#[test]
fn a_tenant_has_a_bound_of_its_own() {
    let of = |tenant: &str, id: u64, length| Object {
        name: ObjectName::new("file", tenant, &id.to_string()),
        ..plain("", id, length)
    };
    let ids = |store: &mut ObjectStore, tenant: &str| -> Vec<u64> {
        let listed = store.list("file", tenant, None, usize::MAX, ObjectOrder::OldestFirst);
        listed.unwrap().unwrap().iter().map(|object| object.name.id.parse().unwrap()).collect()
    };
    let bounds = ObjectRetention { max_objects: 7, tenant_objects: 4, tenant_bytes: 4000, ..FOREVER };
    let dir = tempfile::tempdir().unwrap();
    let mut store = ObjectStore::open(dir.path(), bounds, 0).unwrap();
    (1..=2).for_each(|id| store.put(&[of("quiet", id, 100)], 0).unwrap());
    (3..=20).for_each(|id| store.put(&[of("busy", id, 100)], 0).unwrap());
    assert_eq!((ids(&mut store, "quiet"), ids(&mut store, "busy")), (vec![1, 2], vec![17, 18, 19, 20]));
    // Larger again, it counts as that.
    store.put(&[of("busy", 20, 3900)], 0).unwrap();
    assert_eq!(ids(&mut store, "busy"), [19, 20]);
    // Contents count as well.
    let begun = store.begin_content();
    let content = Some(store.append(begun, &bytes(1, 3950)).unwrap());
    store.put(&[Object { content, ..of("busy", 21, 20) }], 0).unwrap();
    assert_eq!(ids(&mut store, "busy"), [21]);

    let refused = [
        (
            vec![of("quiet", 1, 5), of("busy", 22, 4001)],
            "a tenant may have 4000 bytes kept, and here are 4001",
        ),
        ((1..=5).map(|id| of("quiet", id, 1)).collect(), "a tenant may have 4 objects kept, and here are 5"),
    ];
    for (objects, why) in refused {
        let error = store.put(&objects, 0).unwrap_err();
        assert!(matches!(error, ObjectError::TooMuch { .. }) && error.to_string() == why, "{error}");
        assert_eq!(store.get(&objects[0].name).unwrap(), Some(of("quiet", 1, 100)), "none of it is put");
    }
    // Several of one name are one.
    store
        .put(&(1..=9).map(|made| Object { created_ms: made, ..of("quiet", 3, 900) }).collect::<Vec<_>>(), 0)
        .unwrap();
    (4..=6).for_each(|id| store.put(&[of("third", id, 10)], 0).unwrap());
    assert_eq!(ids(&mut store, "quiet"), [1, 2, 3]);

    // A restart with other bounds: again each loses its own, and the common bound comes after.
    drop(store);
    let bounds = ObjectRetention { max_objects: 4, tenant_objects: 2, ..bounds };
    let mut store = ObjectStore::open(dir.path(), bounds, 0).unwrap();
    let kept = ["quiet", "busy", "third"].map(|tenant| ids(&mut store, tenant));
    assert_eq!(kept, [vec![3], vec![21], vec![5, 6]]);
}

impl Kept for ObjectStore {
    const FILE: &'static str = "objects.redb";
    const WITHOUT: &'static str = "without objects";

    fn open(dir: &Path) -> Result<Self, DatabaseError> {
        Self::open(dir, FOREVER, 0)
    }

    fn put(&mut self, number: u64) -> Result<(), DatabaseError> {
        self.put(&[object(number)], 0).map_err(|error| match error {
            ObjectError::Database(error) => error,
            other => panic!("{other}"),
        })
    }

    fn has(&mut self, number: u64) -> bool {
        self.get(&object(number).name).unwrap() == Some(object(number))
    }
}

#[test]
fn it_keeps_its_file() {
    keeps_its_file::<ObjectStore>();
}
