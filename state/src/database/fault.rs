//! What an error of the database means for the store, and the one way to call the database.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::place::PlaceError;

/// Why the database did not do it.
pub(crate) enum Fault {
    /// Another process has it open.
    InUse,
    /// The system refused; the database refuses everything from here on.
    Io(io::Error),
    /// The system refused this, before there was a database.
    Place(PlaceError),
    /// It is damaged, of a version that this build does not read, or not a database.
    Unusable(String),
    /// An earlier call met an error of the system.
    Failed,
}

impl From<PlaceError> for Fault {
    fn from(error: PlaceError) -> Self {
        Self::Place(error)
    }
}

/// Calls the database. Its code may panic over bytes that it did not write, in a debug build it does so on purpose: a
/// damaged file must not take the daemon with it, at each start again.
pub(crate) fn attempt<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, Fault> {
    catch(|| call().map_err(fault))
}

/// The same of a database that has errors of its own.
pub(crate) fn catch<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(Fault::Unusable(format!("a panic over its content: {}", panic_message(&*panic))))
    })
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
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
