//! What a simulated daemon has, who uses it and what goes wrong.

use super::super::{Amount, CoreLimits, Time};
use super::clients::ClientPlan;
use super::device::Costs;
use super::mutants::Mutant;
use super::store::Blocks;
use std::time::Duration;

/// A model, and the devices that it computes on.
#[derive(Debug, Clone)]
pub(super) struct ModelPlan {
    pub(super) blocks: Blocks,
    pub(super) devices: Vec<u16>,
}

/// What goes wrong, and what the operator does. Times are means between two of a kind; none never happens.
#[derive(Debug, Clone, Default)]
pub(super) struct Trouble {
    /// Leases refused without a reason, of a thousand.
    pub(super) not_now: usize,
    /// Leases that are read from disk, of a thousand.
    pub(super) slow_leases: usize,
    /// Writes that fail, of a thousand, and jobs that cannot be stored.
    pub(super) failed_writes: usize,
    /// Rows that the device fails in, of 100,000.
    pub(super) device_faults: usize,
    /// Jobs that their clients cancel, leave, hold or move to another class, of a thousand.
    pub(super) fates: usize,
    /// Jobs with a deadline or a longest wait, of a thousand.
    pub(super) deadlines: usize,
    pub(super) drains: Option<Duration>,
    pub(super) restarts: Option<Duration>,
    pub(super) kills: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) limits: CoreLimits,
    pub(super) models: Vec<ModelPlan>,
    pub(super) costs: Costs,
    pub(super) clients: Vec<ClientPlan>,
    pub(super) trouble: Trouble,
    /// Answers between these many tokens are the longest that clients ask for.
    pub(super) longest_job: Duration,
    /// How fairness is measured.
    pub(super) window: Duration,
    pub(super) mutant: Option<Mutant>,
    /// The core's own invariants are checked after every so many inputs.
    pub(super) check_every: u64,
}

pub(super) const AGING: Duration = Duration::from_secs(60);
pub(super) const PACE: f64 = 2.0;

pub(super) const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// A bound of so many jobs of a usual size.
pub(super) const fn limits_of(jobs: usize) -> Amount {
    Amount { jobs, tokens: jobs * 800, bytes: jobs * 4000 }
}

fn limits() -> CoreLimits {
    CoreLimits {
        queue: limits_of(256),
        classes: [limits_of(64), limits_of(96), limits_of(200)],
        tenant: limits_of(128),
        running_jobs: 6,
        prefill_chunk_tokens: 128,
        pace: Some(PACE),
        aging: Some(AGING),
    }
}

impl Scenario {
    /// One model on one device, undisturbed and without clients.
    pub(super) fn quiet() -> Self {
        let blocks = Blocks { device: 160, ram: 80 };
        Self {
            limits: limits(),
            models: vec![ModelPlan { blocks, devices: vec![0] }],
            costs: Costs { step: 60.0, row: 8.0, prompt_token: 1.5, depth: 1.0, noise: 0.04 },
            clients: Vec::new(),
            trouble: Trouble::default(),
            longest_job: minutes(2),
            window: minutes(10),
            mutant: None,
            check_every: 1,
        }
    }
}

/// When a run ends.
pub(super) fn hours(hours: f64) -> Time {
    Duration::from_secs_f64(3600.0 * hours)
}
