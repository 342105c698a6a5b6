//! 46 malformed GGUF files get 46 typed errors: each names the file and what is wrong, soon, and without memory out of
//! proportion to the file.
//!
//! A program of its own without the test harness: the harness's threads reserve address space, and this measures it.

#![allow(clippy::disallowed_methods, reason = "measures how long things take")]

#[path = "bad_gguf/cases.rs"]
mod cases;
mod gguf_writer;

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use zllm_engine::{
    gguf::GgufFile,
    spec::{ModelSpec, SpecError},
};

const MEMORY_BOUND_BYTES: usize = 64 << 20;
const TIME_BOUND: Duration = Duration::from_millis(500);

/// What `key` of this process's status says, in bytes.
fn status_bytes(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has /proc/self/status");
    let line = status.lines().find(|line| line.starts_with(key)).expect("the status has VmPeak and VmSize");
    let kib = line.split_whitespace().nth(1).expect("a number").parse::<usize>().expect("a number");
    kib << 10
}

/// How far the process's address space grew over its present size at most while `work` ran: counts what was
/// allocated, touched or not.
fn peak_growth_bytes(work: impl FnOnce()) -> usize {
    let before = status_bytes("VmSize:");
    work();
    status_bytes("VmPeak:").saturating_sub(before)
}

/// Opens the file and reads the spec of its model.
fn load(path: &Path) -> Result<ModelSpec, SpecError> {
    ModelSpec::read(&GgufFile::open(path)?, None)
}

fn main() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let cases = cases::all();
    assert_eq!(cases.len(), 46);
    let paths: Vec<PathBuf> =
        cases.iter().map(|case| folder.path().join(case.name).with_extension("gguf")).collect();
    for (case, path) in cases.iter().zip(&paths) {
        fs::write(path, &case.bytes).expect("the scratch folder can be written");
    }
    let mut refused = 0;
    let grown = peak_growth_bytes(|| {
        for (case, path) in cases.iter().zip(&paths) {
            let start = Instant::now();
            let result = load(path);
            assert!(start.elapsed() < TIME_BOUND, "{}: took {:?}", case.name, start.elapsed());
            let Err(error) = result else { panic!("{} was accepted", case.name) };
            let message = error.to_string();
            println!("{message}");
            assert!(message.starts_with(&*path.to_string_lossy()), "names the file: {message}");
            for word in case.says {
                assert!(message.contains(word), "{}: `{word}` is not in: {message}", case.name);
            }
            refused += 1;
        }
    });
    assert_eq!(refused, 46);
    assert!(grown < MEMORY_BOUND_BYTES, "{grown} bytes");
    println!("{refused} refused, {grown} bytes");

    // The canary: memory that is taken and never touched must be seen.
    let taken = peak_growth_bytes(|| drop(black_box(Vec::<u8>::with_capacity(8 * MEMORY_BOUND_BYTES))));
    assert!(taken >= 8 * MEMORY_BOUND_BYTES, "{taken} bytes");
}
