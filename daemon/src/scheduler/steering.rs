//! How the queue is seen and steered: what the scheduler actor is asked about jobs that wait and run, and what is done to
//! them. Every handler answers at once from memory.

use super::SchedulerActor;
use super::core::{Input, QueueView};
use super::durable::stored_class;
use super::jobs::JobFacts;
use super::messages::job_number;
use super::plan::JobNumber;
use actix::prelude::*;
use std::collections::BTreeMap;
use zllm_wire::limits::{MAX_BATCH_ROWS, MAX_LIST_ROWS};
use zllm_wire::{BatchId, BatchPage, CancelTarget, Class, ErrorCode, Fault, JobId, ModelState, Tenant};

/// Ends jobs, and says how many had not ended; one that has stays as it is.
#[derive(Message)]
#[rtype(result = "Result<u32, Fault>")]
pub(crate) struct CancelJobs(pub(crate) CancelTarget);

/// Keeps a job from starting, parking it if it runs, or lets it go.
#[derive(Message)]
#[rtype(result = "Result<(), Fault>")]
pub(crate) struct HoldJob {
    pub(crate) job: JobId,
    pub(crate) held: bool,
}

/// Gives a job another class.
#[derive(Message)]
#[rtype(result = "Result<(), Fault>")]
pub(crate) struct SetClass {
    pub(crate) job: JobId,
    pub(crate) class: Class,
}

/// Whether nothing that waits starts.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Pause(pub(crate) bool);

/// Who waits and who runs.
#[derive(Message)]
#[rtype(result = "QueueAnswer")]
pub(crate) struct QueueOf;

/// The answer to [`QueueOf`].
pub(crate) struct QueueAnswer {
    pub(crate) view: QueueView,
    /// What is known of the jobs in it.
    pub(crate) facts: BTreeMap<JobNumber, JobFacts>,
    /// Bytes of a KV block of each loaded model, and what those that are not loaded are at.
    pub(crate) block_bytes: BTreeMap<String, u64>,
    pub(crate) models: BTreeMap<String, String>,
}

/// The jobs of a batch that came after one of them, in order of submission.
#[derive(Message)]
#[rtype(result = "Result<BatchPage, Fault>")]
pub(crate) struct BatchJobsOf {
    pub(crate) tenant: Option<Tenant>,
    pub(crate) batch: BatchId,
    pub(crate) after: Option<JobId>,
}

impl Handler<CancelJobs> for SchedulerActor {
    type Result = Result<u32, Fault>;

    fn handle(&mut self, CancelJobs(target): CancelJobs, ctx: &mut Self::Context) -> Self::Result {
        let mut those = self.named_by(&target)?;
        those.retain(|number| self.jobs.get(*number).is_some_and(|record| !record.has_ended()));
        let count = those.len() as u32;
        self.input(Input::Cancel(those), ctx);
        Ok(count)
    }
}

impl Handler<HoldJob> for SchedulerActor {
    type Result = Result<(), Fault>;

    fn handle(&mut self, HoldJob { job, held }: HoldJob, ctx: &mut Self::Context) -> Self::Result {
        let number = self.unfinished(&job)?;
        self.jobs.facts_mut(number).expect("known").held = held;
        if self.journal.contains(number) {
            self.journal.settings(number, |change| change.held = Some(held));
        }
        self.input(Input::Hold { job: number, held }, ctx);
        Ok(())
    }
}

impl Handler<SetClass> for SchedulerActor {
    type Result = Result<(), Fault>;

    fn handle(&mut self, SetClass { job, class }: SetClass, ctx: &mut Self::Context) -> Self::Result {
        let number = self.unfinished(&job)?;
        self.jobs.facts_mut(number).expect("known").class = class;
        if self.journal.contains(number) {
            self.journal.settings(number, |change| change.class = Some(stored_class(class)));
        }
        self.input(Input::SetClass { job: number, class }, ctx);
        Ok(())
    }
}

impl SchedulerActor {
    fn named_by(&self, target: &CancelTarget) -> Result<Vec<JobNumber>, Fault> {
        Ok(match target {
            CancelTarget::Job(id) => vec![self.known(id)?],
            CancelTarget::Session(session) => {
                let of_it = |facts: &JobFacts| facts.session_ref().as_ref() == Some(session);
                let those = self.jobs.latest_first().filter(|(_, record)| of_it(&record.facts));
                those.map(|(number, _)| number).collect()
            }
            CancelTarget::Batch { tenant, batch } => {
                self.durable.has_taken_up()?;
                self.jobs.of_batch(tenant_name(tenant), batch).map(|(number, _)| number).collect()
            }
        })
    }

    fn unfinished(&self, id: &JobId) -> Result<JobNumber, Fault> {
        let number = self.known(id)?;
        let record = self.jobs.get(number).expect("known");
        if record.has_ended() {
            let message = format!("job {id} has ended");
            return Err(Fault { code: ErrorCode::Invalid, message });
        }
        Ok(number)
    }
}

impl Handler<Pause> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Pause(paused): Pause, ctx: &mut Self::Context) {
        self.input(Input::Pause(paused), ctx);
    }
}

impl Handler<QueueOf> for SchedulerActor {
    type Result = MessageResult<QueueOf>;

    fn handle(&mut self, _: QueueOf, _: &mut Self::Context) -> Self::Result {
        let mut view = self.core.view(self.fellows.clock.time());
        view.waiting.truncate(MAX_LIST_ROWS);
        let waiting = view.waiting.iter().map(|job| job.job);
        let numbers = waiting.chain(view.running.iter().map(|job| job.job));
        let facts: BTreeMap<JobNumber, JobFacts> =
            numbers.filter_map(|number| Some((number, self.jobs.get(number)?.facts.clone()))).collect();
        let (mut block_bytes, mut models) = (BTreeMap::new(), BTreeMap::new());
        for facts in facts.values() {
            match self.models.state(&facts.model) {
                Some((_, Some(loaded))) => {
                    block_bytes.insert(facts.model.clone(), loaded.kv_block_bytes);
                }
                Some((ModelState::Failed { message }, _)) => {
                    models.insert(facts.model.clone(), message);
                }
                Some(_) => {
                    models.insert(facts.model.clone(), "it is being loaded".to_owned());
                }
                None => {
                    models.insert(facts.model.clone(), "it is not loaded".to_owned());
                }
            }
        }
        MessageResult(QueueAnswer { view, facts, block_bytes, models })
    }
}

impl Handler<BatchJobsOf> for SchedulerActor {
    type Result = MessageResult<BatchJobsOf>;

    fn handle(&mut self, message: BatchJobsOf, _: &mut Self::Context) -> Self::Result {
        let BatchJobsOf { tenant, batch, after } = message;
        if let Some(why) = self.durable.fault() {
            let message = format!("the jobs of batch {batch} are not known now: {why}");
            return MessageResult(Err(Fault { code: ErrorCode::Failed, message }));
        }
        let after = after.as_ref().and_then(job_number);
        let those = self.jobs.of_batch(tenant_name(&tenant), &batch);
        let mut rest = those.skip_while(|(number, _)| after.is_some_and(|after| *number <= after));
        let jobs = rest.by_ref().take(MAX_BATCH_ROWS).map(|(_, record)| record.batch_job()).collect();
        MessageResult(Ok(BatchPage { jobs, more: rest.next().is_some() }))
    }
}

fn tenant_name(tenant: &Option<Tenant>) -> &str {
    tenant.as_ref().map_or("", Tenant::as_str)
}
