//! Objects on disk: what the store keeps, refuses, and survives.

mod crash;
#[path = "../common/crash.rs"]
mod crash_rig;
mod damage;
#[path = "../common/damage.rs"]
mod damage_rig;
#[path = "../common/flaky.rs"]
mod flaky;
#[path = "../common/folder.rs"]
mod folder;
mod format;
mod history;
mod killed;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/random.rs"]
mod random;
mod samples;
mod store;
mod twin;
