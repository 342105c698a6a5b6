//! Responses in the background: a durable job goes on without its client and over a restart of the daemon; who asks for the
//! response is told how far it is.

use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::http::turn::Turn;
use crate::limits::{MAX_WATCH_PAUSE, WATCH_PAUSE};
use crate::scheduler::{CancelJobs, DetailOf};
use actix_web::web;
use zllm_wire::{CancelTarget, ErrorCode, IdempotencyKey, JobState};

use super::items::Item;
use super::live::{Keeper, Live};
use super::object::{Response, Status};
use super::request::Plan;
use super::scribe::Scribe;
use super::shelf::{Job, Record, Shelf};
use super::tools::{Names, Tools};

/// Submits the job of a response and keeps both, also when the client does not wait for it: no job is left behind that nobody
/// knows of.
///
/// # Errors
/// Why it is not taken. Then nothing is kept of it.
pub(super) async fn begin(
    shelf: &Shelf,
    caller: &Caller,
    plan: Plan,
    input: Vec<Item>,
) -> Result<Live, Problem> {
    let begun = actix_web::rt::spawn(submit(shelf.clone(), caller.clone(), plan, input));
    begun.await.map_err(|_| Problem::new(Kind::Unavailable, "the daemon is stopping"))?
}

async fn submit(shelf: Shelf, caller: Caller, plan: Plan, input: Vec<Item>) -> Result<Live, Problem> {
    let Plan { mut submit, response, names, carry } = plan;
    submit.key = IdempotencyKey::new(response.id.as_str()).ok();
    let turn = super::turn(&shelf.http, &caller, submit).await?;
    let job = Job { id: turn.job().clone(), speech: turn.speech(), carry };
    let record = Record { response, input, job: Some(job.clone()) };
    if let Err(problem) = shelf.keep(&record, true, &[]).await {
        // Nobody could ever ask for it.
        let _ = cancel_job(&shelf, &job).await;
        return Err(problem);
    }
    watch(shelf.clone(), record.response.id.clone());
    let Record { response, input, job } = record;
    Ok(Live::new(turn, Scribe::new(response, names, carry), Keeper { shelf, input, job }))
}

/// Has a response kept when its job ends. While the store or the job's log cannot be read or written, it is tried again.
fn watch(shelf: Shelf, id: String) {
    actix_web::rt::spawn(async move {
        let mut pause = WATCH_PAUSE;
        while let Err(problem) = follow(&shelf, &id).await {
            tracing::debug!(why = %problem, response = id, "it is followed again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_WATCH_PAUSE);
        }
    });
}

/// Waits for the end of a response, which is kept then.
async fn follow(shelf: &Shelf, id: &str) -> Result<(), Problem> {
    let record = match shelf.response(id).await {
        // It was deleted, or has expired; so has its mark.
        Err(problem) if problem.kind == Kind::NotFound => return shelf.forget(id).await,
        record => record?,
    };
    let live = match read(shelf, &record).await {
        // The job is gone, and the response says so from now on.
        Err(problem) if problem.kind == Kind::NotFound => return current(shelf, record).await.map(drop),
        live => live?,
    };
    let Some(live) = live else { return Ok(()) };
    let is_kept = live.finish().await?.store;
    is_kept.then_some(()).ok_or_else(|| Problem::new(Kind::Failed, "it could not be kept"))
}

/// Goes on watching what an earlier run of the daemon has begun.
pub(in crate::http) async fn resume(http: web::Data<Http>) {
    let mut pause = WATCH_PAUSE;
    let marked = loop {
        match Shelf::marked(&http).await {
            Ok(marked) => break marked,
            Err(problem) if pause == WATCH_PAUSE => {
                tracing::error!(why = %problem, "responses in the background are not known yet");
            }
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_WATCH_PAUSE);
    };
    marked.into_iter().for_each(|(shelf, id)| watch(shelf, id));
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
    let scribe = Scribe::new(response, names, job.carry);
    let turn = Turn::of_log(job.id.clone(), log.reader(0), job.speech);
    let keeper = Keeper { shelf: shelf.clone(), input: record.input.clone(), job: Some(job.clone()) };
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
            let problem =
                Problem::new(Kind::Ended { is_cancelled: false }, "what it answered is not kept any more");
            let mut scribe = Scribe::new(record.response, Names::default(), false);
            scribe.fail(&problem);
            record.response = scribe.response;
            if let Some(kept) = shelf.keep(&record, false, &[]).await? {
                record.response = kept;
            }
            return Ok(record);
        }
        Err(fault) => return Err(fault.into()),
    };
    match state {
        JobState::Queued => {}
        JobState::Running => record.response.status = Status::InProgress,
        JobState::Done | JobState::Failed | JobState::Cancelled => {
            if let Some(live) = read(shelf, &record).await? {
                record.response = live.finish().await?;
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
        Some(live) => live.finish().await,
        None => Ok(record.response),
    }
}

/// Ends a job, if it goes on.
pub(super) async fn cancel_job(shelf: &Shelf, job: &Job) -> Result<(), Problem> {
    shelf.http.services.ask_scheduler(CancelJobs(CancelTarget::Job(job.id.clone()))).await??;
    Ok(())
}
