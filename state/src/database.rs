//! What the databases have in common: where a file lies, the pages below redb, its errors, and the bytes of a record.
//!
//! Invariant: redb never sees a byte that it did not write ([`Sealed`]), it is called only through [`attempt`], each
//! transaction is synced, and a file has its name only once it is whole ([`make`]).

mod fault;
mod fields;
mod file;
mod place;
mod sealed;

pub(crate) use fault::{Fault, attempt, catch};
pub(crate) use fields::{CHECKSUM_BYTES, Checksum, Reader, Writer, half};
pub(crate) use file::{make, open, open_sealed, transaction};
pub(crate) use place::{Place, PlaceError, allocated_bytes, make_folder, open_file};
pub(crate) use sealed::CHUNK_MARK;
