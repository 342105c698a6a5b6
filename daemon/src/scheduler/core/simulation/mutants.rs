//! Cores with a fault, for the tests that the checkers find it.

use super::super::{Action, CoreLimits, Input, Refusal};
use crate::limits::RETRY_AFTER;
use crate::scheduler::plan::JobNumber;
use std::collections::HashMap;
use zllm_wire::{Class, Event};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Each hundredth lease is not given back.
    KeepsLeases,
    /// Each hundredth question for a lease is not asked.
    ForgetsToAsk,
    /// What is asked for at once is treated as batch work, and the other way round.
    InvertsClasses,
    /// All tenants take their turns as one.
    IgnoresTenants,
    /// Each hundredth text is said twice.
    RepeatsText,
    /// Each hundredth answer to a text comes after the next one.
    SwapsText,
    /// A sequence that goes on does so one token before.
    LosesATokenOnResume,
    /// Ends twice.
    EndsTwice,
    /// Takes twice as much as it may.
    WidensBounds,
    /// Tells whom it refuses to come back at once.
    PromisesTooMuch,
}

/// A mutant at work.
#[derive(Debug, Default)]
pub(super) struct Sabotage {
    count: usize,
    swapped: Option<Action>,
    /// What jobs' tenants were before all were made one.
    tenants: HashMap<JobNumber, String>,
}

impl Sabotage {
    /// The limits that the core goes by.
    pub(super) fn limits(mutant: Option<Mutant>, limits: &CoreLimits) -> CoreLimits {
        let mut limits = limits.clone();
        if mutant == Some(Mutant::WidensBounds) {
            for bound in limits.classes.iter_mut().chain([&mut limits.queue, &mut limits.tenant]) {
                (bound.jobs, bound.tokens, bound.bytes) = (2 * bound.jobs, 2 * bound.tokens, 2 * bound.bytes);
            }
        }
        limits
    }

    pub(super) fn of_input(&mut self, mutant: Option<Mutant>, input: &mut Input) {
        if let Input::Submit(job) = input {
            match mutant {
                Some(Mutant::InvertsClasses) => {
                    job.class = match job.class {
                        Class::Interactive => Class::Batch,
                        Class::Normal => Class::Normal,
                        Class::Batch => Class::Interactive,
                    };
                }
                Some(Mutant::IgnoresTenants) => {
                    let tenant = std::mem::replace(&mut job.tenant, "everybody".to_owned());
                    self.tenants.insert(job.id, tenant);
                }
                _ => {}
            }
        }
    }

    pub(super) fn of_actions(&mut self, mutant: Option<Mutant>, actions: Vec<Action>) -> Vec<Action> {
        let Some(mutant) = mutant else { return actions };
        let mut done = Vec::new();
        for mut action in actions {
            if let Action::Lease { sequence, tenant, .. } = &mut action
                && let Some(before) = self.tenants.get(&sequence.job)
            {
                tenant.clone_from(before);
            }
            if !self.is_target(mutant, &action) {
                done.push(action);
                done.extend(self.swapped.take_if(|_| is_text(done.last())));
                continue;
            }
            match (mutant, action) {
                (Mutant::RepeatsText | Mutant::EndsTwice, Action::Event { job, event }) => {
                    done.push(Action::Event { job, event: event.clone() });
                    done.push(Action::Event { job, event });
                }
                (_, Action::Refused { job, mut refusal }) => {
                    if let Refusal::QueueFull { retry_after, .. } = &mut refusal {
                        *retry_after = *RETRY_AFTER.start();
                    }
                    done.push(Action::Refused { job, refusal });
                }
                (Mutant::SwapsText, action) => self.swapped = Some(action),
                (_, Action::Resume { sequence, model, prompt, mut generated, state }) => {
                    generated.pop();
                    done.push(Action::Resume { sequence, model, prompt, generated, state });
                }
                (_, _dropped) => {}
            }
        }
        done
    }

    fn is_target(&mut self, mutant: Mutant, action: &Action) -> bool {
        let (fits, each) = match mutant {
            Mutant::KeepsLeases => (matches!(action, Action::Release { .. }), 100),
            Mutant::ForgetsToAsk => (matches!(action, Action::Lease { .. }), 100),
            Mutant::RepeatsText | Mutant::SwapsText => (is_text(Some(action)), 100),
            Mutant::LosesATokenOnResume => (matches!(action, Action::Resume { .. }), 1),
            Mutant::EndsTwice => (matches!(action, Action::Event { event: Event::Finished { .. }, .. }), 20),
            Mutant::PromisesTooMuch => (matches!(action, Action::Refused { .. }), 1),
            Mutant::InvertsClasses | Mutant::IgnoresTenants | Mutant::WidensBounds => (false, 1),
        };
        self.count += usize::from(fits);
        fits && self.count.is_multiple_of(each)
    }
}

fn is_text(action: Option<&Action>) -> bool {
    matches!(action, Some(Action::Event { event: Event::Text { .. }, .. }))
}
