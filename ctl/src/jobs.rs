//! `list`, `show`: jobs and sessions.

use crate::cli::{Listed, session_ref, with_tenant};
use crate::client::{Context, unexpected};
use crate::events::stats_line;
use crate::failure::Failure;
use crate::timeline::timeline;
use crate::units::{self, Align, Table, bytes_or_dash};
use crate::{output, words};
use serde_json::json;
use zllm_wire::{
    Answer, ChoiceEnd, FinishReason, JobDetail, JobId, JobInfo, JobState, Op, SessionDetail, SessionInfo,
    SessionRef, SessionState, ShowTarget, StopCause, Tenant, Tier,
};

/// `list`: all, or only one kind, or only those of one tenant.
pub(crate) fn list(context: &Context, what: Option<Listed>, tenant: Option<Tenant>) -> Result<(), Failure> {
    let (mut sessions, mut jobs) = match context.ask(Op::List)? {
        Answer::Listing { sessions, jobs } => (sessions, jobs),
        other => return Err(unexpected(&other)),
    };
    if tenant.is_some() {
        sessions.retain(|session| session.tenant == tenant);
        jobs.retain(|job| job.tenant == tenant);
    }
    if context.json {
        return match what {
            Some(Listed::Sessions) => output::print_json(&json!({ "sessions": sessions })),
            Some(Listed::Jobs) => output::print_json(&json!({ "jobs": jobs })),
            None => output::print_json(&json!({ "sessions": sessions, "jobs": jobs })),
        };
    }
    match what {
        Some(Listed::Sessions) => jobs.clear(),
        Some(Listed::Jobs) => sessions.clear(),
        None => {}
    }
    if sessions.is_empty() && jobs.is_empty() {
        eprintln!(
            "{}",
            match what {
                Some(Listed::Sessions) => "no sessions",
                Some(Listed::Jobs) => "no jobs",
                None => "no sessions and no jobs",
            }
        );
        return Ok(());
    }
    let tables = [session_table(&sessions), job_table(&jobs)];
    let shown: Vec<_> = tables.into_iter().filter(|table| !table.is_empty()).collect();
    output::print(&output::foreign(&shown.join("\n")))
}

/// `show`.
pub(crate) fn show(context: &Context, id: &str, tenant: Option<Tenant>) -> Result<(), Failure> {
    match context.ask(Op::Show(target(id, tenant)?))? {
        Answer::Job(job) if context.json => output::print_json(&job),
        Answer::Job(job) => output::print(&output::foreign(&job_page(&job))),
        Answer::Session(session) if context.json => output::print_json(&session),
        Answer::Session(session) => output::print(&output::foreign(&session_page(&session))),
        other => Err(unexpected(&other)),
    }
}

fn target(id: &str, tenant: Option<Tenant>) -> Result<ShowTarget, Failure> {
    match JobId::new(id) {
        Ok(job) if tenant.is_none() => Ok(ShowTarget::Job(job)),
        Ok(job) => Err(Failure::Usage(format!("{job} is a job, which is found without its tenant"))),
        Err(_) => {
            let session = session_ref(id).map_err(Failure::Usage)?;
            Ok(ShowTarget::Session(with_tenant(session, tenant)?))
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
        ("KEPT", Align::Left),
    ]);
    for session in sessions {
        table.row([
            name(session).to_string(),
            session.model.clone(),
            session_state(session.state).into(),
            session.tokens.to_string(),
            bytes_or_dash(session.bytes.device),
            bytes_or_dash(session.bytes.ram),
            bytes_or_dash(session.bytes.ssd),
            units::age(session.idle_ms),
            kept_briefly(session),
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
        ("CLASS", Align::Left),
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
            words::class(job.class).into(),
            job_state(job),
            job.prompt_tokens.to_string(),
            job.cached_tokens.to_string(),
            job.generated_tokens.to_string(),
            bytes_or_dash(job.bytes.device),
            bytes_or_dash(job.bytes.ram),
            bytes_or_dash(job.bytes.ssd),
            units::age(job.idle_ms),
            words::one_line(job.label.as_deref().unwrap_or_default()),
        ]);
    }
    table.render()
}

fn job_page(job: &JobDetail) -> String {
    let info = &job.info;
    let mut rows = vec![("job", info.id.to_string())];
    rows.extend(info.label.as_deref().map(|label| ("label", words::one_line(label))));
    rows.push(("model", info.model.clone()));
    rows.extend(info.tenant.as_ref().map(|tenant| ("tenant", tenant.to_string())));
    rows.extend(info.session.as_ref().map(|session| ("session", session.to_string())));
    rows.extend(info.batch.as_ref().map(|batch| ("batch", batch.to_string())));
    rows.extend(job.key.as_ref().map(|key| ("key", key.to_string())));
    rows.push(("class", words::class(info.class).into()));
    rows.push(("state", job_state(info)));
    match job.choices.as_slice() {
        [only] => rows.extend(only.end.iter().map(|end| ("ended by", ended_by(end)))),
        _ => rows.extend(job.finish.map(|reason| ("ended by", finish_reason(reason).into()))),
    }
    rows.extend(job.error.clone().map(|error| ("error", error)));
    rows.push(("submitted", units::age(info.age_ms)));
    rows.extend(job.max_wait_ms.map(|ms| ("must start", format!("within {}", units::wait(ms)))));
    rows.extend(job.deadline_ms.map(|ms| ("must end", format!("within {}", units::wait(ms)))));
    if job.attempts > 1 {
        rows.push(("attempts", job.attempts.to_string()));
    }
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
                "prompt {} ({}), generated {}",
                info.prompt_tokens,
                units::cached(info.cached_tokens, &info.cached_by_tier),
                info.generated_tokens
            ),
        )),
    }
    let mut page = units::pairs(&rows);
    if !job.timeline.is_empty() {
        page.push_str(&format!("\n{}", timeline(job)));
    }
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
    let (info, blocks) = (&session.info, &session.blocks);
    let turns = match session.hits {
        0 => info.turns.to_string(),
        hits => {
            let tokens = units::count(info.hit_tokens, "token");
            format!("{}, {hits} of which found {tokens} in the cache", info.turns)
        }
    };
    let kv = |bytes, count| match count {
        0 => "-".to_owned(),
        _ => format!("{}, {}", units::bytes(bytes), units::count(count, "block")),
    };
    let mut rows = vec![("session", info.id.to_string())];
    rows.extend(info.tenant.as_ref().map(|tenant| ("tenant", tenant.to_string())));
    rows.extend([
        ("model", info.model.clone()),
        ("state", session_state(info.state).into()),
        ("tokens", info.tokens.to_string()),
        ("turns", turns),
        ("created", units::age(session.created_ms_ago)),
        ("last use", units::age(info.idle_ms)),
        ("kept", kept(info)),
        ("saved", saved(session)),
        ("KV on device", kv(info.bytes.device, blocks.device)),
        ("KV in RAM", kv(info.bytes.ram, blocks.ram)),
        ("KV on SSD", kv(info.bytes.ssd, blocks.ssd)),
    ]);
    if session.shared_blocks > 0 {
        let with: Vec<String> = session.shared_with.iter().map(ToString::to_string).collect();
        let blocks = units::count(session.shared_blocks, "block");
        rows.push(("shared", format!("{blocks} with {}", with.join(", "))));
    }
    let mut page = units::pairs(&rows);
    if !session.jobs.is_empty() {
        page.push('\n');
        page.push_str(&job_table(&session.jobs));
    }
    page
}

fn name(session: &SessionInfo) -> SessionRef {
    SessionRef { tenant: session.tenant.clone(), id: session.id.clone() }
}

/// How long a session stays.
fn kept(session: &SessionInfo) -> String {
    let ttl = session.ttl_ms.map(|ms| units::duration_ms(ms as f64));
    match (session.pinned, ttl) {
        (true, None) => "until it is unpinned".into(),
        (true, Some(ttl)) => format!("until it is unpinned, and then at most {ttl} after its last use"),
        (false, None) => "until the room is needed, or the configuration's time is over".into(),
        (false, Some(ttl)) => format!("until the room is needed, and at most {ttl} after its last use"),
    }
}

/// Whether it would be found after a restart.
fn saved(session: &SessionDetail) -> String {
    let waiting = match session.unsaved_blocks {
        0 => String::new(),
        blocks => format!(", {} not {}", units::count(blocks, "block"), units::place(Tier::Ssd)),
    };
    match session.saved_generation {
        Some(_) if session.info.saved => "yes".into(),
        Some(saved) if saved == session.generation => {
            format!("its tokens and {}{waiting}", units::count(session.blocks.ssd, "block"))
        }
        Some(saved) => format!("as it was at change {saved} of {}{waiting}", session.generation),
        None => format!("no{waiting}"),
    }
}

/// The same in a cell.
fn kept_briefly(session: &SessionInfo) -> String {
    let pinned = session.pinned.then(|| "pinned".to_owned());
    let saved = session.saved.then(|| "saved".to_owned());
    let ttl = session.ttl_ms.map(|ms| format!("for {}", units::duration_ms(ms as f64)));
    [pinned, saved, ttl].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn job_state(job: &JobInfo) -> String {
    match job.state {
        JobState::Queued if job.held => "held".into(),
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
