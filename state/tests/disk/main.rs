//! The store on disk: what it keeps, and its budget.

mod budget;
mod crash;
#[path = "../common/crash.rs"]
mod crash_rig;
mod damage;
#[path = "../common/flaky.rs"]
#[expect(dead_code, reason = "the tests of jobs use more of it")]
mod flaky;
mod format;
mod keeps;
#[path = "../common/random.rs"]
mod random;
mod samples;
