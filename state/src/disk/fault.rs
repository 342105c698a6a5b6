//! What an error of the database means for the store, and the one way to call the database.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why the database did not do it.
pub(super) enum Fault {
    /// Another process has it open.
    InUse,
    /// The system refused; the database refuses everything from here on.
    Io(io::Error),
    /// It is damaged, of a version that this build does not read, or not a database.
    Unusable(String),
    /// An earlier call met an error of the system.
    Failed,
}

/// Calls the database. Its code may panic over bytes that it did not write, in a debug build it does so on purpose: a
/// damaged file must not take the daemon with it, at each start again.
pub(super) fn attempt<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(fault),
        Err(panic) => {
            let message =
                panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            Err(Fault::Unusable(format!("a panic over its content: {}", message.unwrap_or("no message"))))
        }
    }
}

fn fault(error: redb::Error) -> Fault {
    use redb::Error;
    match error {
        Error::DatabaseAlreadyOpen | Error::LockProtocolMismatch => Fault::InUse,
        Error::PreviousIo => Fault::Failed,
        // No database, or one that ends before its pages do.
        Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            Fault::Unusable(error.to_string())
        }
        Error::Io(error) => Fault::Io(error),
        error => Fault::Unusable(error.to_string()),
    }
}
