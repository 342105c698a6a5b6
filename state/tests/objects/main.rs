//! Objects on disk: what the store keeps, refuses, and survives.

mod crash;
mod damage;
#[path = "../common/flaky.rs"]
mod flaky;
mod format;
mod history;
mod killed;
#[path = "../common/random.rs"]
mod random;
mod samples;
mod store;
mod twin;
