//! What survives a power cut: `power_cut [ROUNDS]`, as root, for it mounts file systems.
//!
//! A process stores jobs on a file system in a file. While it stands still the file is copied: the copy has what reached the
//! device, and nothing of what the system still holds in memory, which is what a power cut leaves of a disk without a
//! cache of its own. All that the process had called durable must be in the copy.

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use process::Process;
use random::Random;
use worker::{verify, work};

#[path = "../tests/common/process.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod process;
#[path = "../tests/common/random.rs"]
mod random;
#[path = "../tests/jobs/samples.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod samples;
#[path = "../tests/jobs/worker.rs"]
mod worker;

fn main() {
    // The process that is stopped is this program once more.
    if let Some(folder) = process::folder() {
        work(&folder);
    }
    let rounds = env::args().nth(1).map_or(30, |rounds| rounds.parse().expect("a number of rounds"));
    let dir = tempfile::tempdir().unwrap();
    let (mut random, mut said) = (Random::new(9), 0);
    for round in 0..rounds {
        let lines = cut_power(dir.path(), Duration::from_millis(100 + random.below(1000)));
        said += lines;
        println!("round {round}: {lines} times something was said to be durable, and it is there");
    }
    assert!(said > 0, "nothing was said to be durable");
}

/// One round: how often something was said to be durable.
fn cut_power(dir: &Path, life: Duration) -> usize {
    let [image, copy, mount, copy_mount] =
        ["image", "copy", "mount", "copy_mount"].map(|name| dir.join(name));
    File::create(&image).unwrap().set_len(96 << 20).unwrap();
    run("mkfs.ext4", &[Path::new("-qF"), &image]);
    let _mounted = Mounted::new(&image, &mount);
    let process = Process::start(&[], &mount);
    thread::sleep(life);
    kill(Pid::from_raw(process.child.id() as i32), Signal::SIGSTOP).unwrap();
    fs::copy(&image, &copy).unwrap();
    // All that is read here was said before the copy.
    let said = process.kill();
    let _copy_mounted = Mounted::new(&copy, &copy_mount);
    verify(&copy_mount, &said);
    said.len()
}

/// Runs a program that must succeed.
fn run(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// A file system in a file, mounted until it is dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(image: &Path, at: &'a Path) -> Self {
        fs::create_dir_all(at).unwrap();
        run("mount", &[Path::new("-o"), Path::new("loop"), image, at]);
        Self(at)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        run("umount", &[self.0]);
    }
}
