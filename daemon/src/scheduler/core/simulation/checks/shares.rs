//! How the machine is shared between tenants, in windows of time.

use crate::scheduler::core::Time;
use std::collections::BTreeMap;
use std::time::Duration;

pub(in super::super) struct Shares {
    window: Duration,
    /// Tokens computed for each tenant in each window.
    windows: BTreeMap<u64, BTreeMap<String, u64>>,
}

impl Shares {
    pub(in super::super) fn new(window: Duration) -> Self {
        Self { window, windows: BTreeMap::new() }
    }

    pub(in super::super) fn served(&mut self, tenant: &str, tokens: usize, now: Time) {
        let window = (now.as_secs_f64() / self.window.as_secs_f64()) as u64;
        *self.windows.entry(window).or_default().entry(tenant.to_owned()).or_default() += tokens as u64;
    }

    /// What each of these tenants got in each window from one time to another, whole windows only.
    pub(in super::super) fn between(&self, from: Time, to: Time, tenants: &[&str]) -> Vec<Vec<u64>> {
        let window = |time: Time| time.as_secs_f64() / self.window.as_secs_f64();
        let (first, last) = (window(from).ceil() as u64, window(to).floor() as u64);
        let of = |window: u64| {
            let served = self.windows.get(&window);
            let of = |tenant: &&str| served.and_then(|served| served.get(*tenant)).copied().unwrap_or(0);
            tenants.iter().map(of).collect()
        };
        (first..last).map(of).collect()
    }
}

/// Jain's index of fairness: 1 when all have the same, 1/n when one has all.
pub(in super::super) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}
