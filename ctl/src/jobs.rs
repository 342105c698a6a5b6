//! `list`, `show`, `cancel`, `evict`: jobs and sessions.

use crate::client::{Context, unexpected};
use crate::events::stats_line;
use crate::failure::Failure;
use crate::output;
use crate::units::{self, Align, Table, bytes_or_dash};
use serde_json::json;
use zllm_wire::{
    Answer, ChoiceEnd, EvictTarget, FinishReason, JobDetail, JobId, JobInfo, JobState, Op, SessionDetail,
    SessionId, SessionInfo, SessionRef, SessionState, ShowTarget, StopCause,
};

/// `list`.
pub(crate) fn list(context: &Context) -> Result<(), Failure> {
    let (sessions, jobs) = match context.ask(Op::List)? {
        Answer::Listing { sessions, jobs } => (sessions, jobs),
        other => return Err(unexpected(&other)),
    };
    if context.json {
        return output::print_json(&json!({ "sessions": sessions, "jobs": jobs }));
    }
    if sessions.is_empty() && jobs.is_empty() {
        eprintln!("no sessions and no jobs");
        return Ok(());
    }
    let tables = [session_table(&sessions), job_table(&jobs)];
    let shown: Vec<_> = tables.into_iter().filter(|table| !table.is_empty()).collect();
    output::print(&output::foreign(&shown.join("\n")))
}

/// `show`.
pub(crate) fn show(context: &Context, id: &str) -> Result<(), Failure> {
    match context.ask(Op::Show(target(id)?))? {
        Answer::Job(job) if context.json => output::print_json(&job),
        Answer::Job(job) => output::print(&output::foreign(&job_page(&job))),
        Answer::Session(session) if context.json => output::print_json(&session),
        Answer::Session(session) => output::print(&output::foreign(&session_page(&session))),
        other => Err(unexpected(&other)),
    }
}

/// `cancel`.
pub(crate) fn cancel(context: &Context, job: JobId) -> Result<(), Failure> {
    match context.ask(Op::Cancel { job: job.clone() })? {
        Answer::Done if context.json => output::print_json(&json!({ "cancelled": job })),
        Answer::Done => output::print(&format!("{job} cancelled\n")),
        other => Err(unexpected(&other)),
    }
}

/// `evict`: one session, or all when there is none named.
pub(crate) fn evict(context: &Context, session: Option<SessionId>) -> Result<(), Failure> {
    let named = |id| EvictTarget::Session(SessionRef { tenant: None, id });
    match context.ask(Op::Evict { target: session.map_or(EvictTarget::All, named), tier: None })? {
        Answer::Evicted { sessions, blocks, bytes } if context.json => {
            output::print_json(&json!({ "sessions": sessions, "blocks": blocks, "bytes": bytes }))
        }
        Answer::Evicted { sessions, blocks, bytes } => output::print(&format!(
            "{}, {}, {} freed\n",
            units::count(sessions.into(), "session"),
            units::count(blocks, "block"),
            units::bytes(bytes)
        )),
        other => Err(unexpected(&other)),
    }
}

fn target(id: &str) -> Result<ShowTarget, Failure> {
    match JobId::new(id) {
        Ok(job) => Ok(ShowTarget::Job(job)),
        Err(_) => {
            let id = SessionId::new(id).map_err(|error| Failure::Usage(error.to_string()))?;
            Ok(ShowTarget::Session(SessionRef { tenant: None, id }))
        }
    }
}

fn session_table(sessions: &[SessionInfo]) -> String {
    if sessions.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        ("SESSION", Align::Left),
        ("MODEL", Align::Left),
        ("STATE", Align::Left),
        ("TOKENS", Align::Right),
        ("DEVICE", Align::Right),
        ("RAM", Align::Right),
        ("SSD", Align::Right),
        ("LAST USE", Align::Left),
    ]);
    for session in sessions {
        table.row([
            session.id.to_string(),
            session.model.clone(),
            session_state(session.state).into(),
            session.tokens.to_string(),
            bytes_or_dash(session.bytes.device),
            bytes_or_dash(session.bytes.ram),
            bytes_or_dash(session.bytes.ssd),
            units::age(session.idle_ms),
        ]);
    }
    table.render()
}

fn job_table(jobs: &[JobInfo]) -> String {
    if jobs.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        ("JOB", Align::Left),
        ("MODEL", Align::Left),
        ("STATE", Align::Left),
        ("PROMPT", Align::Right),
        ("CACHED", Align::Right),
        ("GENERATED", Align::Right),
        ("DEVICE", Align::Right),
        ("RAM", Align::Right),
        ("SSD", Align::Right),
        ("LAST USE", Align::Left),
        ("LABEL", Align::Left),
    ]);
    for job in jobs {
        table.row([
            job.id.to_string(),
            job.model.clone(),
            job_state(job),
            job.prompt_tokens.to_string(),
            job.cached_tokens.to_string(),
            job.generated_tokens.to_string(),
            bytes_or_dash(job.bytes.device),
            bytes_or_dash(job.bytes.ram),
            bytes_or_dash(job.bytes.ssd),
            units::age(job.idle_ms),
            one_line(job.label.as_deref().unwrap_or_default()),
        ]);
    }
    table.render()
}

fn job_page(job: &JobDetail) -> String {
    let info = &job.info;
    let mut rows = vec![("job", info.id.to_string())];
    rows.extend(info.label.as_deref().map(|label| ("label", one_line(label))));
    rows.push(("model", info.model.clone()));
    rows.extend(info.session.as_ref().map(|session| ("session", session.to_string())));
    rows.push(("state", job_state(info)));
    match job.choices.as_slice() {
        [only] => rows.extend(only.end.iter().map(|end| ("ended by", ended_by(end)))),
        _ => rows.extend(job.finish.map(|reason| ("ended by", finish_reason(reason).into()))),
    }
    rows.extend(job.error.clone().map(|error| ("error", error)));
    rows.push(("submitted", units::age(info.age_ms)));
    rows.push(("last use", units::age(info.idle_ms)));
    rows.push(("KV on device", units::bytes(info.bytes.device)));
    rows.push(("KV in RAM", units::bytes(info.bytes.ram)));
    rows.push(("KV on SSD", units::bytes(info.bytes.ssd)));
    rows.push(("events", job.events.to_string()));
    match &job.usage {
        Some(usage) => rows.push(("took", stats_line(usage))),
        None => rows.push((
            "tokens",
            format!(
                "prompt {} ({} cached), generated {}",
                info.prompt_tokens, info.cached_tokens, info.generated_tokens
            ),
        )),
    }
    let mut page = units::pairs(&rows);
    for (number, choice) in job.choices.iter().enumerate() {
        let end = choice.end.as_ref().map(|end| format!(", ended by {}", ended_by(end))).unwrap_or_default();
        if job.choices.len() > 1 {
            page.push_str(&format!("\n--- answer {number}{end}\n"));
        } else if !choice.text.is_empty() {
            page.push('\n');
        }
        page.push_str(&choice.text);
        if !choice.text.is_empty() && !choice.text.ends_with('\n') {
            page.push('\n');
        }
    }
    page
}

fn session_page(session: &SessionDetail) -> String {
    let info = &session.info;
    let mut page = units::pairs(&[
        ("session", info.id.to_string()),
        ("model", info.model.clone()),
        ("state", session_state(info.state).into()),
        ("tokens", info.tokens.to_string()),
        ("last use", units::age(info.idle_ms)),
        ("KV on device", units::bytes(info.bytes.device)),
        ("KV in RAM", units::bytes(info.bytes.ram)),
        ("KV on SSD", units::bytes(info.bytes.ssd)),
    ]);
    if !session.jobs.is_empty() {
        page.push('\n');
        page.push_str(&job_table(&session.jobs));
    }
    page
}

fn job_state(job: &JobInfo) -> String {
    match job.state {
        JobState::Queued if job.queue_position > 0 => format!("queued, {} before it", job.queue_position),
        JobState::Queued => "queued".into(),
        JobState::Running => "running".into(),
        JobState::Done => "done".into(),
        JobState::Failed => "failed".into(),
        JobState::Cancelled => "cancelled".into(),
    }
}

fn session_state(state: SessionState) -> &'static str {
    match state {
        SessionState::Active => "active",
        SessionState::Idle => "idle",
    }
}

fn ended_by(end: &ChoiceEnd) -> String {
    match &end.stop {
        Some(StopCause::EndOfText { token }) => format!("end of text, token {token}"),
        Some(StopCause::Token { token }) => format!("stop token {token}"),
        Some(StopCause::Text { text }) => format!("stop string {text:?}"),
        None => finish_reason(end.reason).into(),
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "end of text or a stop",
        FinishReason::Length => "limit of tokens",
        FinishReason::Cancelled => "a client",
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\t'], " ")
}
