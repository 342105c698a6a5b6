//! Responses in the background: a durable job goes on without its client and over a restart of the daemon; who asks for the
//! response is told how far it is.

use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::http::turn::Turn;
use crate::scheduler::{CancelJobs, DetailOf};
use zllm_wire::{CancelTarget, ErrorCode, IdempotencyKey, JobState};

use super::items::Item;
use super::live::{Keeper, Live};
use super::object::{Response, Status};
use super::request::Plan;
use super::scribe::Scribe;
use super::shelf::{Job, Record, Shelf};
use super::tools::Tools;

/// Submits the job of a response and keeps both.
///
/// # Errors
/// Why it is not taken. Then nothing is kept of it.
pub(super) async fn begin(
    shelf: &Shelf,
    caller: &Caller,
    plan: Plan,
    input: Vec<Item>,
) -> Result<Live, Problem> {
    let Plan { mut submit, response, names, carry } = plan;
    submit.key = IdempotencyKey::new(response.id.as_str()).ok();
    let turn = Turn::begin(&shelf.http, caller, submit).await?;
    let job = Job { id: turn.job().clone(), speech: turn.speech(), carry };
    let record = Record { response: response.clone(), input: input.clone(), job: Some(job.clone()) };
    if let Err(problem) = shelf.keep(&record, true, Vec::new()).await {
        // Nobody could ever ask for it.
        let _ = cancel_job(shelf, &job).await;
        return Err(problem);
    }
    watch(shelf.clone(), record);
    let scribe = Scribe::new(response, job.id.clone(), names, carry);
    Ok(Live::new(turn, scribe, Keeper { shelf: shelf.clone(), input, job: Some(job), kept: None }))
}

/// Has a response kept when its job ends, while this daemon runs; after a restart who asks for it does.
fn watch(shelf: Shelf, record: Record) {
    actix_web::rt::spawn(async move {
        if let Ok(Some(live)) = read(&shelf, &record).await {
            live.finish().await;
        }
    });
}

/// A response that is not over, from the beginning of its job's log; `None`: it has no job.
///
/// # Errors
/// The log is not kept any more.
pub(super) async fn read(shelf: &Shelf, record: &Record) -> Result<Option<Live>, Problem> {
    let Some(job) = &record.job else { return Ok(None) };
    let (_, log) = shelf.http.services.ask_scheduler(DetailOf(job.id.clone())).await??;
    let mut response = record.response.clone();
    (response.status, response.output) = (Status::Queued, Vec::new());
    (response.usage, response.error, response.incomplete_details) = (None, None, None);
    response.completed_at = None;
    let names = Tools::read(&response.tools)?.names;
    let scribe = Scribe::new(response, job.id.clone(), names, job.carry);
    let turn = Turn::of_log(job.id.clone(), log.reader(0), job.speech);
    let kept = record.response.status.is_over().then(|| Box::new(record.response.clone()));
    let keeper = Keeper { shelf: shelf.clone(), input: record.input.clone(), job: Some(job.clone()), kept };
    Ok(Some(Live::new(turn, scribe, keeper)))
}

/// A kept response as it is now. One whose job has ended since is kept anew.
pub(super) async fn current(shelf: &Shelf, mut record: Record) -> Result<Record, Problem> {
    let Some(job) = record.job.clone().filter(|_| !record.response.status.is_over()) else {
        return Ok(record);
    };
    let state = match shelf.http.services.ask_scheduler(DetailOf(job.id.clone())).await? {
        Ok((detail, _)) => detail.info.state,
        Err(fault) if fault.code == ErrorCode::NotFound => {
            let problem = Problem::new(Kind::Failed, "what it answered is not kept any more");
            let mut scribe = Scribe::new(record.response, job.id, Default::default(), false);
            scribe.fail(&problem, false);
            record.response = scribe.response;
            shelf.keep(&record, false, Vec::new()).await?;
            return Ok(record);
        }
        Err(fault) => return Err(fault.into()),
    };
    match state {
        JobState::Queued => {}
        JobState::Running => record.response.status = Status::InProgress,
        JobState::Done | JobState::Failed | JobState::Cancelled => {
            if let Some(live) = read(shelf, &record).await? {
                record.response = live.finish().await.0;
            }
        }
    }
    Ok(record)
}

/// Ends a response that is not over.
///
/// # Errors
/// It is not in the background.
pub(super) async fn cancel(shelf: &Shelf, record: Record) -> Result<Response, Problem> {
    let record = current(shelf, record).await?;
    let Some(job) = record.job.clone() else {
        let message =
            "only a response in the background can be cancelled; another one ends with its connection";
        return Err(Problem::new(Kind::Invalid, message));
    };
    if record.response.status.is_over() {
        return Ok(record.response);
    }
    cancel_job(shelf, &job).await?;
    match read(shelf, &record).await? {
        // Its end comes at once.
        Some(live) => Ok(live.finish().await.0),
        None => Ok(record.response),
    }
}

/// Ends a job, if it goes on.
pub(super) async fn cancel_job(shelf: &Shelf, job: &Job) -> Result<(), Problem> {
    shelf.http.services.ask_scheduler(CancelJobs(CancelTarget::Job(job.id.clone()))).await??;
    Ok(())
}
