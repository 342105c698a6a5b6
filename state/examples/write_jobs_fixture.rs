//! Writes the jobs that `testdata/jobs` keeps a copy of: `write_jobs_fixture FOLDER`. The tests open it as a file of an
//! earlier version, so once it is in the tree it stays as it is; a new format gets a file of its own.

use std::path::Path;

use zllm_state::JobStore;

#[path = "../tests/common/random.rs"]
mod random;
#[path = "../tests/jobs/samples.rs"]
mod samples;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: write_jobs_fixture FOLDER")?;
    let (mut store, opened) = JobStore::open(Path::new(&folder), samples::FOREVER, 0)?;
    if opened.last_number > 0 {
        return Err("the folder has jobs already".into());
    }
    let (jobs, changes) = samples::fixture();
    store.submit(&jobs)?;
    store.change(&changes)?;
    Ok(())
}
