//! Files that earlier versions wrote open, and every object in them reads. FORMATS.md has the story of the versions.

use std::fs;
use std::path::Path;

use zllm_state::ObjectStore;

use crate::samples::{FOREVER, fixture};

/// Files in the tree by their format's number, each written by `examples/write_objects_fixture.rs` of its time.
const FILES: [&str; 1] = ["v1.redb"];

#[test]
fn files_of_earlier_versions_open_and_read() {
    for name in FILES {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/objects").join(name);
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&file, dir.path().join("objects.redb")).unwrap();
        let mut store = ObjectStore::open(dir.path(), FOREVER, 0).unwrap();
        for (object, pieces) in fixture() {
            let found = store.get(&object.name).unwrap().unwrap();
            assert_eq!((found.created_ms, &found.value), (object.created_ms, &object.value), "{name}");
            assert_eq!(found.content.map_or(0, |content| content.pieces()) as usize, pieces.len());
            for (at, piece) in (0..).zip(pieces) {
                assert_eq!(store.piece(found.content.unwrap(), at).unwrap(), Some(piece), "{name}");
            }
        }
    }
}
