//! Where a database lies: its file, and the file it is made as.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file in a folder, or nowhere: a backend of a test has no files.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    dir: Option<PathBuf>,
    name: &'static str,
}

/// What the system refused to do with a file or folder.
#[derive(Debug)]
pub(crate) struct PlaceError {
    pub(crate) path: PathBuf,
    pub(crate) doing: &'static str,
    pub(crate) source: io::Error,
}

impl PlaceError {
    pub(crate) fn new(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self { path: path.to_owned(), doing, source }
    }
}

impl Place {
    /// A file of this name in the folder, which is made if it is missing.
    pub(crate) fn folder(dir: &Path, name: &'static str) -> Result<Self, PlaceError> {
        make_folder(dir)?;
        Ok(Self { dir: Some(dir.to_owned()), name })
    }

    pub(crate) fn nowhere(name: &'static str) -> Self {
        Self { dir: None, name }
    }

    pub(crate) fn is_nowhere(&self) -> bool {
        self.dir.is_none()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.named("")
    }

    /// A database is made under this name and renamed when it is whole: a power cut in the first two syncs of its making
    /// leaves a file that never opens.
    pub(crate) fn unfinished(&self) -> PathBuf {
        self.named(".new")
    }

    /// The file's path with this behind its name.
    pub(crate) fn named(&self, suffix: &str) -> PathBuf {
        self.dir.as_deref().unwrap_or(Path::new("")).join(format!("{}{suffix}", self.name))
    }

    /// Whether the database's file is there.
    pub(crate) fn exists(&self) -> Result<bool, PlaceError> {
        let file = self.file();
        file.try_exists().map_err(|source| PlaceError::new(&file, "look for the database", source))
    }

    /// Bytes that the database has of the disk: its allocated blocks, for the file is sparse.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.dir.as_ref().map_or(0, |_| allocated_bytes(&self.file()))
    }

    /// An error when the database's file is not where it was, and a restart would not find it: it, its folder or its disk
    /// was taken away. The system goes on writing to a file without a name.
    pub(crate) fn still_there(&self) -> io::Result<()> {
        match &self.dir {
            Some(_) => fs::metadata(self.file()).map(drop),
            None => Ok(()),
        }
    }

    /// Gives the finished database its name, durably.
    pub(crate) fn finish(&self) -> Result<(), PlaceError> {
        let file = self.file();
        let renamed = fs::rename(self.unfinished(), &file).and_then(|()| match &self.dir {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        });
        renamed.map_err(|source| PlaceError::new(&file, "name the new database", source))
    }
}

/// Makes a folder with mode 0700 if it is missing.
pub(crate) fn make_folder(dir: &Path) -> Result<(), PlaceError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| PlaceError::new(dir, "create the folder", source))
}

/// The file for reading and writing; made with mode 0600 if it is to be.
pub(crate) fn open_file(path: &Path, create: bool) -> Result<File, PlaceError> {
    let opened =
        OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path);
    opened.map_err(|source| PlaceError::new(path, "open", source))
}

/// Bytes that a file has of the disk, 0 if it is not there.
pub(crate) fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512)
}
