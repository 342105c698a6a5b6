//! This program once more, as a process that is killed: what it said to be durable must be found.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Names the folder to that process.
const FOLDER: &str = "ZLLM_TEST_FOLDER";
/// Comes before what is durable.
const DURABLE: &str = "DURABLE ";

/// The folder to work in, for whoever is that process.
pub(crate) fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

/// Says what is durable, once it is.
pub(crate) fn say(what: &str) {
    println!("{DURABLE}{what}");
}

/// The process.
pub(crate) struct Process {
    pub(crate) child: Child,
    reader: JoinHandle<Vec<String>>,
    begins: mpsc::Receiver<()>,
}

impl Process {
    /// Starts this program again.
    pub(crate) fn start(arguments: &[&str], folder: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(arguments)
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (began, begins) = mpsc::sync_channel(1);
        let reader = thread::spawn(move || {
            let (mut said, mut line) = (Vec::new(), String::new());
            // A line that the kill cut off was not said.
            while out.read_line(&mut line).unwrap_or(0) > 0 && line.ends_with('\n') {
                // The test's own line may have no end before it.
                if let Some((_, what)) = line.trim_end().split_once(DURABLE) {
                    said.push(what.to_owned());
                    let _ = began.try_send(());
                }
                line.clear();
            }
            said
        });
        Self { child, reader, begins }
    }

    /// Waits until it has said something; a busy machine may take long to start it.
    pub(crate) fn wait_until_it_works(&self) {
        self.begins.recv_timeout(Duration::from_secs(60)).expect("it says something");
    }

    /// Kills it; all that it said.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        assert!(!self.child.wait().unwrap().success());
        self.reader.join().unwrap()
    }
}
