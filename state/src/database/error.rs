//! Why a database that opens again by itself did not do it.

use std::io;
use std::path::PathBuf;

use super::fault::Fault;
use super::guarded::Words;
use super::place::{Place, PlaceError};

/// Why the disk did not do it.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Another process has the file open.
    #[error("{}: another daemon uses it; stop it, or give this one another folder for {records}", path.display())]
    InUse {
        /// The database's file.
        path: PathBuf,
        /// What is in it.
        records: &'static str,
    },
    /// The operating system refused.
    #[error("{}: could not {doing}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The database is damaged, of another version, or none. It is left as it is.
    #[error(
        "{}: the {records} in it cannot be used ({why}). It is left as it is: bring it back from a backup, or move it away, \
         and the daemon starts {without}",
        path.display()
    )]
    Unusable {
        /// The database's file.
        path: PathBuf,
        /// What was found.
        why: String,
        /// What is in it.
        records: &'static str,
        /// How the daemon starts when it is not there.
        without: &'static str,
    },
}

impl From<PlaceError> for DatabaseError {
    fn from(error: PlaceError) -> Self {
        Self::Io { path: error.path, doing: error.doing, source: error.source }
    }
}

impl DatabaseError {
    pub(super) fn new(fault: Fault, doing: &'static str, place: &Place, words: &Words) -> Self {
        let (path, Words { records, without, .. }) = (place.file(), *words);
        match fault {
            Fault::InUse => Self::InUse { path, records },
            Fault::Io(source) => Self::Io { path, doing, source },
            Fault::Place(error) => error.into(),
            Fault::Failed => Self::Io { path, doing, source: io::Error::other("an earlier call failed") },
            Fault::Unusable(why) => Self::Unusable { path, why, records, without },
        }
    }
}
