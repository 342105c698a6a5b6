//! Durable jobs on disk: what the store keeps, and what the log of running jobs keeps.

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
mod token_log;
mod twin;
mod worker;
