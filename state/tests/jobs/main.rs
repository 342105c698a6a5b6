//! Durable jobs on disk: what the store keeps, and what the log of running jobs keeps.

#[path = "../common/random.rs"]
mod random;
mod samples;
mod store;
mod token_log;
