//! What the databases have in common: where a file lies, the pages below redb, its errors, and the bytes of a record.
//!
//! Invariant: redb never sees a byte that it did not write ([`Sealed`]), it is called only through [`attempt`], each
//! transaction is synced, and a file has its name only once it is whole ([`make`]).

mod error;
mod fault;
mod fields;
mod file;
mod guarded;
mod meta;
mod place;
mod sealed;

pub use error::DatabaseError;
pub(crate) use fault::{Fault, attempt, catch};
pub(crate) use fields::{CHECKSUM_BYTES, Checksum, Reader, Writer, half};
pub(crate) use file::{Handle, Layout, make, open, open_on, transaction};
pub(crate) use guarded::{Books, Guarded, Words};
#[cfg(test)]
pub(crate) use meta::META_FORMAT;
pub(crate) use meta::{META, META_LAST, check_format, last_number};
pub(crate) use place::{Place, PlaceError, allocated_bytes, make_folder, open_file};
pub(crate) use sealed::CHUNK_MARK;
