//! The KV database as the actor has it: off, open, or given up until it is tried again. All work on it runs on blocking
//! threads; what hangs there is left behind.

use crate::clock::Uptime;
use crate::config::SsdSettings;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zllm_state::{
    BlockKey, BlockToStore, DiskContents, DiskError, KvDisk, ReadError, StoredBlock, free_bytes,
};

/// A transaction, with the time in milliseconds since the Unix epoch.
pub(super) trait DiskTask: FnOnce(&KvDisk, u64) -> Result<(), DiskError> + Send + 'static {}
impl<T: FnOnce(&KvDisk, u64) -> Result<(), DiskError> + Send + 'static> DiskTask for T {}

/// Why the disk is given up, and which opening of it is meant.
#[derive(Debug)]
pub(super) struct Failed {
    reason: String,
    opening: u64,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// An attempt to open the database.
pub(super) struct Opened(Result<(KvDisk, DiskContents, Vec<String>, Room), String>);

/// What the file and its file system have room for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    file_bytes: u64,
    /// What may be stored.
    usable_bytes: u64,
    free_bytes: Option<u64>,
}

/// The database.
pub(super) struct Disk {
    /// `None`: it is off.
    settings: Option<SsdSettings>,
    state: State,
    /// Counts openings, so that a failure of an earlier one is not taken for one of this.
    opening: u64,
    /// How long to wait after the next failure.
    patience: Duration,
    file_bytes: u64,
    /// What the file may grow to before its file system has nothing left for others.
    growth_limit_bytes: u64,
}

enum State {
    Off,
    Opening,
    Open(Arc<KvDisk>),
    Down { reason: String, retry_at: Uptime },
}

/// First and longest wait before the database is tried again.
const PATIENCE: std::ops::RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);
/// Bytes of the file system that are left to others.
const RESERVE_BYTES: u64 = 64 << 20;

impl Disk {
    pub(super) fn new(settings: Option<SsdSettings>) -> Self {
        let state = match settings {
            None => State::Off,
            Some(_) => State::Down { reason: "not opened yet".to_owned(), retry_at: Uptime::ZERO },
        };
        Self {
            settings,
            state,
            opening: 0,
            patience: *PATIENCE.start(),
            file_bytes: 0,
            growth_limit_bytes: u64::MAX,
        }
    }

    /// Whether it is time to try it again.
    pub(super) fn is_due(&self, now: Uptime) -> bool {
        matches!(self.state, State::Down { retry_at, .. } if now >= retry_at)
    }

    /// Opens it on a blocking thread; nothing to open is `None`.
    pub(super) fn open(&mut self) -> impl Future<Output = Option<Opened>> + use<> {
        let settings = self.settings.clone().filter(|_| matches!(self.state, State::Down { .. }));
        if settings.is_some() {
            self.state = State::Opening;
            self.opening += 1;
        }
        async move {
            let settings = settings?;
            let opened = tokio::task::spawn_blocking(move || open(&settings)).await;
            Some(Opened(opened.unwrap_or_else(|error| Err(format!("opening it failed: {error}")))))
        }
    }

    /// Takes in an attempt; what was found, if it was one that succeeded.
    pub(super) fn opened(&mut self, opened: Opened, now: Uptime) -> Option<(DiskContents, Room)> {
        match opened.0 {
            Ok((disk, contents, notes, room)) => {
                for note in notes {
                    tracing::warn!(note, "the KV database");
                }
                let (blocks, sessions) = (contents.blocks.len(), contents.sessions.len());
                tracing::info!(dir = %self.dir().display(), blocks, sessions, "the KV database is open");
                self.state = State::Open(Arc::new(disk));
                self.file_bytes = room.file_bytes;
                Some((contents, room))
            }
            Err(reason) => {
                tracing::warn!(dir = %self.dir().display(), reason, "there is no KV database");
                self.wait(reason, now);
                None
            }
        }
    }

    /// Runs a task on a blocking thread.
    pub(super) fn run<T, F>(&self, task: F) -> impl Future<Output = Result<T, Failed>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&KvDisk) -> Result<T, DiskError> + Send + 'static,
    {
        let disk = match &self.state {
            State::Open(disk) => Some(disk.clone()),
            _ => None,
        };
        let opening = self.opening;
        let failed = move |reason: String| Failed { reason, opening };
        let running = disk.map(|disk| tokio::task::spawn_blocking(move || task(&disk)));
        async move {
            let Some(running) = running else { return Err(failed("it is not open".to_owned())) };
            match running.await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(error)) => Err(failed(error.to_string())),
                Err(error) => Err(failed(format!("work on it failed: {error}"))),
            }
        }
    }

    /// A task that has not come back.
    pub(super) fn hung(&self, what: &str, after: Duration) -> Failed {
        let reason = format!("it has not done a {what} within {} s", after.as_secs());
        Failed { reason, opening: self.opening }
    }

    /// Closes it, unless what failed was closed before; why, for the log.
    pub(super) fn give_up(&mut self, failed: Failed, now: Uptime) -> Option<String> {
        if failed.opening != self.opening || !matches!(self.state, State::Open(_)) {
            return None;
        }
        self.wait(failed.reason.clone(), now);
        Some(failed.reason)
    }

    fn wait(&mut self, reason: String, now: Uptime) {
        self.state = State::Down { reason, retry_at: now + self.patience };
        self.patience = (self.patience * 2).min(*PATIENCE.end());
    }

    /// A transaction has succeeded: what fails from here on is tried again soon.
    pub(super) fn has_worked(&mut self) {
        self.patience = *PATIENCE.start();
    }

    /// Bytes that may be stored: as the budget says, and never so much that the file system has nothing left.
    pub(super) fn budget(&mut self, room: &Room) -> u64 {
        self.file_bytes = room.file_bytes;
        let free = room.free_bytes.unwrap_or(u64::MAX);
        self.growth_limit_bytes = room.file_bytes.saturating_add(free.saturating_sub(RESERVE_BYTES));
        room.usable_bytes.min(self.growth_limit_bytes)
    }

    /// Bytes that the file may take: its budget, or less on a file system that is nearly full. As of the last transaction.
    pub(super) fn limit_bytes(&self) -> u64 {
        let budget = self.settings.as_ref().map_or(0, |settings| settings.budget_bytes);
        budget.min(self.growth_limit_bytes)
    }

    /// Why it is not open; `None` when it is, or is meant to be off.
    pub(super) fn trouble(&self) -> Option<&str> {
        match &self.state {
            State::Off | State::Open(_) => None,
            State::Opening => Some("being opened"),
            State::Down { reason, .. } => Some(reason),
        }
    }

    /// Where it is; `None`: it is off.
    pub(super) fn settings(&self) -> Option<&SsdSettings> {
        self.settings.as_ref()
    }

    pub(super) fn dir(&self) -> &Path {
        self.settings.as_ref().map_or(Path::new(""), |settings| &settings.dir)
    }

    /// What the file has of the disk, as of the last transaction.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

fn open(settings: &SsdSettings) -> Result<(KvDisk, DiskContents, Vec<String>, Room), String> {
    let opened = KvDisk::open(&settings.dir, settings.budget_bytes);
    let (disk, contents) = opened.map_err(|error| error.to_string())?;
    let room = room(&disk, &settings.dir);
    Ok((disk, DiskContents { blocks: contents.blocks, sessions: contents.sessions }, contents.notes, room))
}

/// What there is room for now.
pub(super) fn room(disk: &KvDisk, dir: &Path) -> Room {
    Room {
        file_bytes: disk.file_bytes(),
        usable_bytes: disk.usable_bytes(),
        free_bytes: free_bytes(dir).ok(),
    }
}

/// The bytes of blocks, in order, until there are `enough_bytes`; and whether it ended before that at one that is not there or
/// is damaged.
pub(super) fn read_some(
    disk: &KvDisk,
    keys: &[BlockKey],
    enough_bytes: usize,
) -> Result<(Vec<Vec<u8>>, bool), DiskError> {
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    for key in keys {
        match disk.read(key) {
            Ok(block) => {
                bytes += block.len();
                blocks.push(block);
            }
            Err(ReadError::Io(error)) => return Err(error),
            Err(ReadError::Missing | ReadError::Damaged(_)) => return Ok((blocks, true)),
        }
        if bytes >= enough_bytes {
            break;
        }
    }
    Ok((blocks, false))
}

/// Stores blocks whose bytes came from a device.
pub(super) fn write_blocks(
    disk: &KvDisk,
    blocks: Vec<BlockToStore>,
    bytes: Vec<Vec<u8>>,
    delete: &[BlockKey],
    now_ms: u64,
) -> Result<(), DiskError> {
    let stored = |(block, bytes): (BlockToStore, Vec<u8>)| {
        let BlockToStore { key, parent, position, tokens, slot: _ } = block;
        let size = bytes.len() as u64;
        (StoredBlock { key, parent, position, tokens, bytes: size, written_ms: now_ms }, bytes)
    };
    let blocks: Vec<(StoredBlock, Vec<u8>)> = blocks.into_iter().zip(bytes).map(stored).collect();
    disk.write(&blocks, delete)
}
