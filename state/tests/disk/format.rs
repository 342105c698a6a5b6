//! Files that earlier versions wrote open, and every block in them reads. FORMATS.md has the story of the versions.

use std::fs;
use std::path::Path;

use zllm_state::{KvDisk, SMALLEST_BUDGET_BYTES};

use crate::samples::fixture;

/// Files in the tree by their format's number, each written by `examples/write_fixture.rs` of its time.
const FILES: [&str; 1] = ["v1.redb"];

#[test]
fn files_of_earlier_versions_open_and_read() {
    for name in FILES {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kv_store").join(name);
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&file, dir.path().join("kv.redb")).unwrap();
        let (disk, contents) = KvDisk::open(dir.path(), SMALLEST_BUDGET_BYTES).unwrap();
        let (blocks, sessions) = fixture();
        assert_eq!(contents.notes, Vec::<String>::new(), "{name}");
        assert_eq!(contents.sessions, sessions, "{name}");
        assert_eq!(contents.blocks.len(), blocks.len(), "{name}");
        for (block, bytes) in &blocks {
            assert!(contents.blocks.contains(block), "{name}: {block:?}");
            assert!(disk.read(&block.key).unwrap() == *bytes, "{name}: {block:?}");
        }
        let report = disk.check().unwrap();
        assert!(report.is_clean() && report.complete_sessions == 1, "{name}: {report:?}");
    }
}
