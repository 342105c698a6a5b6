//! Writes the store that `testdata/kv_store` keeps a copy of: `write_fixture FOLDER`. The tests open it as a file of an
//! earlier version, so once it is in the tree it stays as it is; a new format gets a file of its own.

use std::path::Path;

use zllm_state::{KvDisk, SMALLEST_BUDGET_BYTES};

#[path = "../tests/common/random.rs"]
mod random;
#[path = "../tests/disk/samples.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod samples;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: write_fixture FOLDER")?;
    let (disk, contents) = KvDisk::open(Path::new(&folder), SMALLEST_BUDGET_BYTES)?;
    if !contents.blocks.is_empty() {
        return Err("the folder has a store already".into());
    }
    let (blocks, sessions) = samples::fixture();
    disk.write(&blocks, &[])?;
    disk.put_sessions(&sessions)?;
    Ok(())
}
