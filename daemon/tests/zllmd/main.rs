//! The real `zllmd` binary with a real small model, over its real sockets. One test binary, so that it links once.

mod common;
mod generate;
mod inspect;
mod operate;
mod sampling;
mod templates;
