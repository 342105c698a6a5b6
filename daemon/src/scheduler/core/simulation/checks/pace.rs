//! Steps of decodes with prompt tokens among them keep the pace that was promised, and prompts still progress.

use crate::scheduler::core::pace::LEAST_CHUNK;
use crate::scheduler::core::simulation::device::{Costs, is_decode};
use crate::scheduler::plan::StepPlan;
use std::time::Duration;

/// Mixed steps of each model that may be slower: the costs are learnt from them.
const WARM_UP: usize = 50;
/// Mixed steps from which on a percentile means something.
const ENOUGH: usize = 300;

pub(in super::super) struct PaceCheck {
    bound: f64,
    /// Mixed steps so far, by model.
    mixed: Vec<usize>,
    /// What mixed steps took over what their decodes alone should take.
    ratios: Vec<f64>,
}

impl PaceCheck {
    pub(in super::super) fn new(models: usize, bound: f64) -> Self {
        Self { bound, mixed: vec![0; models], ratios: Vec::new() }
    }

    /// A step is planned for a model of which a sequence has so many tokens of its prompt left, at most.
    ///
    /// # Errors
    /// When prompts do not progress.
    pub(in super::super) fn planned(&self, plan: &StepPlan, pending: usize) -> Result<(), String> {
        let prompt = plan.prefill_tokens();
        if prompt < pending.min(LEAST_CHUNK) {
            return Err(format!("a step computes {prompt} of {pending} prompt tokens"));
        }
        Ok(())
    }

    /// A step has ended.
    pub(in super::super) fn stepped(&mut self, model: usize, plan: &StepPlan, costs: &Costs, took: Duration) {
        let mut decodes = plan.rows.iter().filter(|row| is_decode(row)).peekable();
        if plan.prefill_tokens() == 0 || decodes.peek().is_none() {
            return;
        }
        self.mixed[model] += 1;
        if self.mixed[model] > WARM_UP {
            self.ratios.push(took.as_secs_f64() * 1000.0 / costs.of_rows(decodes));
        }
    }

    /// The 99th percentile of how much longer steps with prompt tokens took.
    pub(in super::super) fn p99(&self) -> f64 {
        let mut ratios = self.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() * 99 / 100).copied().unwrap_or(1.0)
    }

    pub(in super::super) fn count(&self) -> usize {
        self.ratios.len()
    }

    /// # Errors
    /// When one in a hundred steps was slower than the bound.
    pub(in super::super) fn check(&self) -> Result<(), String> {
        let p99 = self.p99();
        if self.ratios.len() >= ENOUGH && p99 > self.bound {
            let (count, bound) = (self.ratios.len(), self.bound);
            return Err(format!(
                "of {count} steps with prompt tokens the p99 is {p99:.2} times one without, bound {bound}"
            ));
        }
        Ok(())
    }
}
