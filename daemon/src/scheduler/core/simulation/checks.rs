//! What must hold beside the answers' text, which `job.rs` judges. Each checker is told what happens and complains with a
//! message; it keeps its own books and takes no number of the core's for granted.

mod bounds;
mod idle;
mod order;
mod pace;
mod promises;
mod shares;
mod starvation;

pub(super) use bounds::Bounds;
pub(super) use idle::Idle;
pub(super) use order::Order;
pub(super) use pace::PaceCheck;
pub(super) use promises::Promises;
pub(super) use shares::{Shares, jain};
pub(super) use starvation::Starvation;

use super::job::Job;
use crate::scheduler::plan::JobNumber;
use std::collections::BTreeMap;

/// The jobs that have not ended.
pub(super) type Jobs = BTreeMap<JobNumber, Job>;

/// Which checker found what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) checker: &'static str,
    pub(super) message: String,
}
