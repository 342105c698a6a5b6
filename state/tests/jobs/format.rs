//! Files that earlier versions wrote open, and every job in them reads. FORMATS.md has the story of the versions.

use std::fs;
use std::path::Path;

use zllm_state::{JobState, JobStore};

use crate::samples::{FOREVER, fixture};
use crate::twin::Twin;

/// Files in the tree by their format's number, each written by `examples/write_jobs_fixture.rs` of its time.
const FILES: [&str; 1] = ["v1.redb"];

#[test]
fn files_of_earlier_versions_open_and_read() {
    let (mut twin, (jobs, changes)) = (Twin::new(FOREVER), fixture());
    twin.submit(&jobs);
    twin.change(&changes);
    let states: Vec<_> = twin.jobs.values().map(|(job, _)| job.state).collect();
    assert!(JobState::ALL.iter().all(|state| states.contains(state)), "each state is in the file");
    for name in FILES {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/jobs").join(name);
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&file, dir.path().join("jobs.redb")).unwrap();
        let (mut store, opened) = JobStore::open(dir.path(), FOREVER, 0).unwrap();
        assert_eq!((opened.unfinished, opened.last_number), (twin.unfinished(), twin.last_number), "{name}");
        twin.compare(&mut store).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
}
