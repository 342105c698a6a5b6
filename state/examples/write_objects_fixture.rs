//! Writes the objects that `testdata/objects` keeps a copy of: `write_objects_fixture FOLDER`. The tests open it as a file of
//! an earlier version, so once it is in the tree it stays as it is; a new format gets a file of its own.

use std::path::Path;

use zllm_state::{Object, ObjectStore};

#[path = "../tests/common/random.rs"]
mod random;
#[path = "../tests/objects/samples.rs"]
mod samples;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: write_objects_fixture FOLDER")?;
    let mut store = ObjectStore::open(Path::new(&folder), samples::FOREVER, 0)?;
    for (object, pieces) in samples::fixture() {
        let mut content = None;
        for piece in pieces {
            let before = content.unwrap_or_else(|| store.begin_content());
            content = Some(store.append(before, &piece)?);
        }
        store.put(&[Object { content, ..object }], 0)?;
    }
    Ok(())
}
