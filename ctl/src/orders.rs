//! `cancel`, `hold`, `resume`, `drain`, `priority`: what a client has the queue do.

use crate::cli::CancelArgs;
use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::{output, units, words};
use serde_json::{Value, json};
use zllm_wire::{Answer, CancelTarget, Class, JobId, Op};

/// `cancel`.
pub(crate) fn cancel(context: &Context, args: CancelArgs) -> Result<(), Failure> {
    let target = args.target()?;
    let jobs = match context.ask(Op::Cancel { target: target.clone() })? {
        Answer::Cancelled { jobs } => jobs,
        other => return Err(unexpected(&other)),
    };
    if context.json {
        let cancelled = match &target {
            CancelTarget::Job(job) => json!(job),
            CancelTarget::Session(session) => json!(session),
            CancelTarget::Batch { batch, .. } => json!(batch),
        };
        return output::print_json(&json!({ "cancelled": cancelled, "jobs": jobs }));
    }
    let count = units::count(jobs.into(), "job");
    output::print(&match &target {
        CancelTarget::Job(job) if jobs == 0 => format!("{job} had ended\n"),
        CancelTarget::Job(job) => format!("{job} cancelled\n"),
        CancelTarget::Session(session) => format!("{count} of session {session} cancelled\n"),
        CancelTarget::Batch { tenant: None, batch } => format!("{count} of batch {batch} cancelled\n"),
        CancelTarget::Batch { tenant: Some(tenant), batch } => {
            format!("{count} of batch {tenant}/{batch} cancelled\n")
        }
    })
}

/// `hold`.
pub(crate) fn hold(context: &Context, job: JobId) -> Result<(), Failure> {
    let told = (format!("{job} held; `zllmctl resume {job}` releases it"), json!({ "held": job }));
    order(context, Op::Hold { job }, told)
}

/// `resume`: releases a job, or ends a drain.
pub(crate) fn resume(context: &Context, job: Option<JobId>) -> Result<(), Failure> {
    match job {
        Some(job) => {
            let told = (format!("{job} released"), json!({ "released": job }));
            order(context, Op::Release { job }, told)
        }
        None => order(context, Op::Resume, ("not draining".into(), json!({ "draining": false }))),
    }
}

/// `drain`.
pub(crate) fn drain(context: &Context) -> Result<(), Failure> {
    order(context, Op::Drain, ("draining; `zllmctl resume` ends it".into(), json!({ "draining": true })))
}

/// `priority`.
pub(crate) fn priority(context: &Context, job: JobId, class: Class) -> Result<(), Failure> {
    let told = (format!("{job} is {} now", words::class(class)), json!({ "job": job, "class": class }));
    order(context, Op::SetClass { job, class }, told)
}

/// Asks for something that is done or refused, and tells a person or a program that it is done.
fn order(context: &Context, op: Op, (text, json): (String, Value)) -> Result<(), Failure> {
    match context.ask(op)? {
        Answer::Done if context.json => output::print_json(&json),
        Answer::Done => output::print(&format!("{text}\n")),
        other => Err(unexpected(&other)),
    }
}
