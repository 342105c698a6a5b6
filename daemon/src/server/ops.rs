//! The operations of the socket protocol: each request to the service that answers it, and its answers to the client.

use super::connection::{Gone, Replies};
use crate::scheduler::core::ConnectionId;
use crate::scheduler::log::LogReader;
use crate::scheduler::models::LoadState;
use crate::scheduler::{CancelJobs, HoldJob, ReadLog, SetClass, Submitted};
use crate::services::{Evicted, Saved, Services, fault, not_found, submit};
use crate::stop::StopReason;
use zllm_wire::{Answer, ErrorCode, Fault, Op, ShowTarget, Submit, TokenIds};

/// Why a request has no good last answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    Fault(Fault),
    Gone,
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Gone> for Unanswered {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

/// The operation's name, for the log.
pub(super) fn name(op: &Op) -> &'static str {
    match op {
        Op::Models => "models",
        Op::Load { .. } => "load",
        Op::Unload { .. } => "unload",
        Op::Submit(_) => "submit",
        Op::Attach { .. } => "attach",
        Op::Cancel { .. } => "cancel",
        Op::List => "list",
        Op::Show(_) => "show",
        Op::Evict { .. } => "evict",
        Op::Status => "status",
        Op::Tokenize { .. } => "tokenize",
        Op::Stop { .. } => "stop",
        Op::Inspect(_) => "inspect",
        Op::Residency => "residency",
        Op::Fork { .. } => "fork",
        Op::Pin { .. } => "pin",
        Op::Unpin { .. } => "unpin",
        Op::Ttl { .. } => "ttl",
        Op::Save { .. } => "save",
        Op::Check => "check",
        Op::Why { .. } => "why",
        Op::Queue => "queue",
        Op::Hold { .. } => "hold",
        Op::Release { .. } => "release",
        Op::SetClass { .. } => "set class",
        Op::Drain => "drain",
        Op::Resume => "resume",
        Op::BatchJobs { .. } => "batch jobs",
        Op::Keys => "keys",
        Op::AddKey(_) => "add key",
        Op::RevokeKey { .. } => "revoke key",
    }
}

/// Carries one operation out: sends the answers that are not final, returns the one that is.
pub(super) async fn answer(
    op: Op,
    replies: &Replies,
    connection: ConnectionId,
    services: &Services,
) -> Result<Answer, Unanswered> {
    match op {
        Op::Models => Ok(Answer::Models(services.models().await?)),
        Op::Load { model } => load(&model, replies, services).await,
        Op::Unload { model } => done(services.unload(&model).await),
        Op::Submit(request) => submit(*request, replies, connection, services).await,
        Op::Attach { job, from } => {
            let log = services.ask_scheduler(ReadLog(job)).await??;
            stream(log.reader(from), replies).await
        }
        Op::Cancel { target } => {
            let jobs = services.ask_scheduler(CancelJobs(target)).await??;
            Ok(Answer::Cancelled { jobs })
        }
        Op::List => {
            let (sessions, jobs) = services.list().await?;
            Ok(Answer::Listing { sessions, jobs })
        }
        Op::Show(ShowTarget::Job(job)) => Ok(Answer::Job(Box::new(services.show_job(job).await?))),
        Op::Show(ShowTarget::Session(session)) => {
            Ok(Answer::Session(Box::new(services.show_session(session).await?)))
        }
        Op::Evict { target, tier } => {
            let Evicted { sessions, blocks, bytes } = services.evict(target, tier).await?;
            Ok(Answer::Evicted { sessions, blocks, bytes })
        }
        Op::Residency => Ok(Answer::Residency(Box::new(services.residency().await?))),
        Op::Fork { from, to, tokens } => {
            Ok(Answer::Session(Box::new(services.fork(from, to, tokens).await?)))
        }
        Op::Pin { session } => done(services.pin(&session, true).await),
        Op::Unpin { session } => done(services.pin(&session, false).await),
        Op::Ttl { session, ttl_ms } => done(services.set_ttl(&session, ttl_ms).await),
        Op::Save { session } => {
            let Saved { sessions, blocks, bytes } = services.save(session.as_ref()).await?;
            Ok(Answer::Saved { sessions, blocks, bytes })
        }
        Op::Check => Ok(Answer::Checked(Box::new(services.check_disk().await?))),
        Op::Why { job } => Ok(Answer::Why(Box::new(services.why(job).await?))),
        Op::Status => Ok(Answer::Status(Box::new(services.status().await?))),
        Op::Tokenize { model, text, parse_special, add_bos } => {
            let tokens = services.tokenize(&model, text, parse_special, add_bos).await?;
            Ok(Answer::Tokens(TokenIds(tokens)))
        }
        Op::Inspect(target) => Ok(Answer::Inspection { json: submit::inspect(target, services).await? }),
        Op::Queue => Ok(Answer::Queue(Box::new(services.queue().await?))),
        Op::Hold { job } => done(services.change_job(HoldJob { job, held: true }).await),
        Op::Release { job } => done(services.change_job(HoldJob { job, held: false }).await),
        Op::SetClass { job, class } => done(services.change_job(SetClass { job, class }).await),
        Op::Drain => done(services.pause(true).await),
        Op::Resume => done(services.pause(false).await),
        Op::BatchJobs { tenant, batch, after } => {
            Ok(Answer::BatchJobs(services.batch_jobs(tenant, batch, after).await?))
        }
        Op::Keys => Ok(Answer::Keys(services.keys.list())),
        Op::AddKey(settings) => Ok(Answer::NewKey { key: services.add_key(settings).await? }),
        Op::RevokeKey { name } => done(services.revoke_key(name).await),
        Op::Stop { drain } => {
            services.stop.stop(if drain { StopReason::Drain } else { StopReason::Now });
            Ok(Answer::Done)
        }
    }
}

/// The answer to what has no other.
fn done(outcome: Result<(), Fault>) -> Result<Answer, Unanswered> {
    outcome.map(|()| Answer::Done).map_err(Unanswered::Fault)
}

/// Makes a job and, when asked, streams its events.
async fn submit(
    request: Submit,
    replies: &Replies,
    connection: ConnectionId,
    services: &Services,
) -> Result<Answer, Unanswered> {
    let streamed = request.stream;
    let (Submitted { job, log, known }, _) =
        submit::submit(request, connection, services).await.map_err(|objection| objection.fault)?;
    replies.send(Answer::Accepted { job, known }).await?;
    if streamed { stream(log.reader(0), replies).await } else { Ok(Answer::Done) }
}

/// Sends a log's events from a reader's place to the end.
async fn stream(mut reader: LogReader, replies: &Replies) -> Result<Answer, Unanswered> {
    while let Some(events) = reader.next().await.map_err(|why| fault(ErrorCode::Failed, why))? {
        for (offset, event) in events {
            replies.send(Answer::Event { offset, event }).await?;
        }
    }
    Ok(Answer::Done)
}

/// Loads a model and tells how far that is.
async fn load(name: &str, replies: &Replies, services: &Services) -> Result<Answer, Unanswered> {
    let mut watch = services.want(name).await?;
    loop {
        let state = watch.borrow_and_update().clone();
        match state {
            LoadState::Loading(at) => {
                let (stage, done_bytes, total_bytes) = (at.stage, at.done_bytes, at.total_bytes);
                replies.send(Answer::Progress { stage, done_bytes, total_bytes }).await?;
            }
            LoadState::Failed(fault) => return Err(fault.into()),
            LoadState::Ready(_) => break,
        }
        watch.changed().await.map_err(|_| fault(ErrorCode::Failed, "the load was given up"))?;
    }
    let models = services.models().await?;
    let info = models.into_iter().find(|info| info.name == name).ok_or_else(|| not_found("model", name))?;
    Ok(Answer::Model(info))
}
