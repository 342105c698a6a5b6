//! Where the database lies: its file, the file it is created as, and the file that an unusable one becomes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::DiskError;

const FILE: &str = "kv.redb";
/// A database is made under this name and renamed when it is whole: a power cut in the first two syncs of its making
/// leaves a file that never opens.
const UNFINISHED: &str = "kv.redb.new";
const SET_ASIDE: &str = "kv.redb.bad";

/// A folder, or nowhere: a backend of a test has no files.
#[derive(Debug, Clone)]
pub(super) struct Place(Option<PathBuf>);

impl Place {
    /// The folder, made with mode 0700 if it is missing.
    pub(super) fn folder(dir: &Path) -> Result<Self, DiskError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| io_error(dir, "create the folder", source))?;
        Ok(Self(Some(dir.to_owned())))
    }

    pub(super) fn nowhere() -> Self {
        Self(None)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.named(FILE)
    }

    pub(super) fn unfinished(&self) -> PathBuf {
        self.named(UNFINISHED)
    }

    fn named(&self, name: &str) -> PathBuf {
        self.0.as_deref().unwrap_or(Path::new("")).join(name)
    }

    /// Bytes that the database has of the disk: its allocated blocks, for the file is sparse.
    pub(super) fn file_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |_| allocated_bytes(&self.file()))
    }

    /// An error when the database's file is not where it was, and a restart would not find it: it, its folder or its disk
    /// was taken away. The system goes on writing to a file without a name.
    pub(super) fn still_there(&self) -> io::Result<()> {
        match &self.0 {
            Some(_) => fs::metadata(self.file()).map(drop),
            None => Ok(()),
        }
    }

    /// Bytes of the disk that an unusable database still has.
    pub(super) fn set_aside_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |_| allocated_bytes(&self.named(SET_ASIDE)))
    }

    /// Takes the database's file out of the way and says what became of it. It is kept for whoever wants to look into
    /// it, unless it would take more than a quarter of the budget.
    pub(super) fn set_aside(&self, budget_bytes: u64) -> String {
        if self.0.is_none() {
            return "nothing was set aside".to_owned();
        }
        let (file, kept) = (self.file(), self.named(SET_ASIDE));
        match fs::rename(&file, &kept) {
            Err(error) => format!("it could not be set aside as {SET_ASIDE}: {error}"),
            Ok(()) if self.drop_large_set_aside(budget_bytes) => {
                "it was removed, for it has more than a quarter of the budget".to_owned()
            }
            Ok(()) => format!("it was set aside as {SET_ASIDE}"),
        }
    }

    /// Removes an earlier unusable database that has more than a quarter of the budget; whether it did.
    pub(super) fn drop_large_set_aside(&self, budget_bytes: u64) -> bool {
        self.set_aside_bytes() > budget_bytes / 4 && fs::remove_file(self.named(SET_ASIDE)).is_ok()
    }

    /// Gives the finished database its name, durably.
    pub(super) fn finish(&self) -> Result<(), DiskError> {
        let file = self.file();
        let renamed = fs::rename(self.unfinished(), &file).and_then(|()| match &self.0 {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        });
        renamed.map_err(|source| io_error(&file, "name the new database", source))
    }
}

/// The file for reading and writing; made with mode 0600 if it is to be.
pub(super) fn open_file(path: &Path, create: bool) -> Result<File, DiskError> {
    let opened =
        OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path);
    opened.map_err(|source| io_error(path, "open", source))
}

pub(super) fn io_error(path: &Path, doing: &'static str, source: io::Error) -> DiskError {
    DiskError::Io { path: path.to_owned(), doing, source }
}

fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512)
}
