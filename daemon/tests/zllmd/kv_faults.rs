//! A disk that is full, cannot be written to, or lies: requests are answered right all the same, and once it is well again the
//! store is, too.

use crate::common::kv::{Drawn, Reference, Rng, ids, request, seed, soak};
use crate::common::{Builder, Client, Daemon, wait_for};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zllm_wire::{Answer, Op, SsdState};

/// Prompts and what is right to answer.
struct Known {
    prompts: Vec<Vec<u32>>,
    answers: Vec<Vec<Drawn>>,
}

const DRAWN: u32 = 3;

impl Known {
    fn new(count: u64, tokens: u64) -> Self {
        let mut reference = Reference::start();
        let prompts: Vec<_> =
            (0..count).map(|number| Rng::new(number + 50).tokens(tokens + number)).collect();
        let answers = prompts.iter().map(|prompt| reference.answer(prompt, DRAWN)).collect();
        Self { prompts, answers }
    }

    /// Asks one of them in a session of its own; tokens that were found.
    fn ask(&self, client: &mut Client, at: usize) -> u64 {
        let turn = client.turn(request(ids(&self.prompts[at]), DRAWN, Some(&format!("s{at}"))));
        assert_eq!(turn.drawn, self.answers[at], "prompt {at}");
        turn.usage.cached_tokens
    }

    fn ask_all(&self, client: &mut Client) -> Vec<u64> {
        (0..self.prompts.len()).map(|at| self.ask(client, at)).collect()
    }

    /// All that can be found.
    fn whole(&self) -> Vec<u64> {
        self.prompts.iter().map(|prompt| prompt.len() as u64 - 1).collect()
    }
}

/// A small file system of its own.
struct Tmpfs {
    folder: tempfile::TempDir,
}

impl Tmpfs {
    /// `None`, and a line that says so, where this user may not mount.
    fn mount(test: &str, bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("scratch folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        println!("{test}: skipped, a tmpfs can be mounted by root alone");
        None
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn remount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.path()).status();
        assert!(status.expect("mount runs").success());
    }

    /// Takes all that is left.
    fn fill(&self) {
        let mut rest = 1 << 20;
        let file = fs::File::create(self.path().join("filler")).expect("scratch file");
        let mut end = 0;
        while rest > 0 {
            match file.write_at(&vec![1; rest], end) {
                Ok(count) => end += count as u64,
                Err(_) => rest /= 2,
            }
        }
    }

    fn unfill(&self) {
        fs::remove_file(self.path().join("filler")).expect("it was filled");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn ssd(client: &mut Client) -> SsdState {
    client.status().kv.ssd
}

fn is_down(state: &SsdState) -> bool {
    matches!(state, SsdState::Down { .. })
}

#[test]
fn a_full_disk_costs_only_what_it_would_have_kept() {
    let Some(tmpfs) = Tmpfs::mount("a_full_disk", 160 << 20) else { return };
    let known = Known::new(6, 140);
    let mut daemon = Builder::new().with(|settings| settings.kv_dir = tmpfs.path().join("kv")).start();
    let mut client = daemon.connect();
    known.ask(&mut client, 0);
    known.ask(&mut client, 1);
    assert_eq!(client.save_all(), 2);

    tmpfs.fill();
    known.ask_all(&mut client);
    // What fits into the room that the file has already may be saved, and then it is.
    let acknowledged = match client.ask(Op::Save { session: None }) {
        Answer::Error(fault) => {
            println!("saving to a full disk: {fault}");
            false
        }
        Answer::Saved { sessions: 6, .. } => true,
        other => panic!("no outcome but {other:?}"),
    };
    assert_eq!(known.ask_all(&mut client), known.whole(), "memory keeps what the disk cannot");
    println!("a full disk: {:?}", ssd(&mut client));

    // Started on a full disk.
    daemon.kill();
    daemon.start_again();
    let mut client = daemon.connect();
    println!("started on a full disk: {:?}", ssd(&mut client));
    let found = known.ask_all(&mut client);
    assert!(!acknowledged || found == known.whole(), "what was saved is there: {found:?}");

    tmpfs.unfill();
    daemon.terminate();
    daemon.start_again();
    let mut client = daemon.connect();
    assert_eq!(ssd(&mut client), SsdState::Ready);
    known.ask_all(&mut client);
    assert_eq!(client.save_all(), 6);
    daemon.kill();
    daemon.start_again();
    let mut client = daemon.connect();
    let report = client.check();
    assert_eq!((report.damaged, report.dangling), (vec![], vec![]));
    assert_eq!(known.ask_all(&mut client), known.whole(), "it is well again");
}

#[test]
fn a_folder_that_cannot_be_made_is_told_and_costs_nothing_else() {
    let known = Known::new(2, 100);
    let builder = Builder::new();
    let in_the_way = builder.folder().join("kv");
    fs::write(&in_the_way, "a file").expect("scratch file");
    let daemon = builder.start();
    let mut client = daemon.connect();
    let SsdState::Down { reason } = ssd(&mut client) else { panic!("a file is no folder") };
    println!("a file in the way: {reason}");
    known.ask_all(&mut client);
    assert_eq!(known.ask_all(&mut client), known.whole());
    assert!(matches!(client.ask(Op::Save { session: None }), Answer::Error(_)), "nothing can be saved");
    assert_eq!(fs::read(&in_the_way).expect("still there"), b"a file");
}

#[test]
fn a_folder_that_can_only_be_read_is_told_and_costs_nothing_else() {
    let Some(tmpfs) = Tmpfs::mount("a_folder_that_can_only_be_read", 160 << 20) else { return };
    let known = Known::new(2, 100);
    let mut daemon = Builder::new().with(|settings| settings.kv_dir = tmpfs.path().join("kv")).start();
    known.ask_all(&mut daemon.connect());
    daemon.terminate();

    tmpfs.remount("ro");
    daemon.start_again();
    let mut client = daemon.connect();
    assert!(is_down(&ssd(&mut client)));
    known.ask_all(&mut client);
    assert_eq!(known.ask_all(&mut client), known.whole());

    // It is tried again, without a restart.
    tmpfs.remount("rw");
    wait_for("the SSD tier", || (ssd(&mut client) == SsdState::Ready).then_some(()));
    assert_eq!(client.save_all(), 2);
    daemon.kill();
    daemon.start_again();
    assert_eq!(known.ask_all(&mut daemon.connect()), known.whole());
}

/// A folder of a daemon that has ended in order, with something of every prompt.
fn prepared(known: &Known) -> (Daemon, PathBuf) {
    let mut daemon = Builder::new().start();
    known.ask_all(&mut daemon.connect());
    daemon.terminate();
    let saved = daemon.settings.kv_dir.with_file_name("saved");
    copy_folder(&daemon.settings.kv_dir, &saved);
    (daemon, saved)
}

fn copy_folder(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).expect("scratch folder");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a kind").is_dir() {
            // The durable jobs', of which there are none.
            continue;
        }
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// Flips one bit of a byte; the byte's place in the file.
fn flip(file: &Path, rng: &mut Rng, number: u64) -> u64 {
    let length = fs::metadata(file).expect("the database").len();
    // One in four near the beginning, where the database keeps what it finds everything else by.
    let offset = if number.is_multiple_of(4) { rng.below(32 << 10) } else { rng.below(length) };
    let file = fs::File::options().read(true).write(true).open(file).expect("the database");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("within it");
    byte[0] ^= 1 << rng.below(8);
    file.write_all_at(&byte, offset).expect("written");
    offset
}

#[test]
fn a_flipped_byte_anywhere_is_at_most_a_miss() {
    let (flips, prompts) = if soak() { (100, 6) } else { (6, 3) };
    let mut rng = Rng::new(seed("a_flipped_byte", 5));
    let known = Known::new(prompts, 140);
    let (mut daemon, saved) = prepared(&known);
    let (mut unharmed, mut partly, mut nothing, mut told) = (0, 0, 0, 0);
    for number in 0..flips {
        copy_folder(&saved, &daemon.settings.kv_dir);
        let offset = flip(&daemon.settings.kv_dir.join("kv.redb"), &mut rng, number);
        daemon.start_again();
        let mut client = daemon.connect();
        // Every other time before anything has met the damage.
        let report = number.is_multiple_of(2).then(|| client.check());
        told += u64::from(report.is_some_and(|report| !report.damaged.is_empty()));
        let found = known.ask_all(&mut client);
        match found {
            _ if found == known.whole() => unharmed += 1,
            _ if found.iter().all(|tokens| *tokens == 0) => nothing += 1,
            _ => partly += 1,
        }
        assert_eq!(known.ask_all(&mut client), known.whole(), "with byte {offset} flipped");
        daemon.kill();
    }
    println!(
        "{flips} bytes flipped: all was found {unharmed} times, a part {partly}, nothing {nothing}; {told} times `check` told"
    );

    // What was written over the damage is good.
    daemon.start_again();
    let mut client = daemon.connect();
    known.ask_all(&mut client);
    client.save_all();
    daemon.kill();
    daemon.start_again();
    assert_eq!(known.ask_all(&mut daemon.connect()), known.whole());
}
