//! `evict`, `pin`, `unpin`, `ttl`, `save`, `fork`, `check`: what happens to kept sessions.

use crate::cli::{EvictArgs, ForkArgs, SaveArgs, SessionArgs, TimeToLive};
use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::{output, units};
use serde_json::json;
use zllm_wire::{Answer, CheckReport, Op, Tier};

/// `evict`.
pub(crate) fn evict(context: &Context, args: EvictArgs) -> Result<(), Failure> {
    let (target, tier) = args.target()?;
    match context.ask(Op::Evict { target, tier })? {
        Answer::Evicted { sessions, blocks, bytes } if context.json => {
            output::print_json(&json!({ "sessions": sessions, "blocks": blocks, "bytes": bytes }))
        }
        Answer::Evicted { sessions, blocks, bytes } => {
            let place = tier.map(|tier| format!(" {}", units::place(tier))).unwrap_or_default();
            let outcome = match (tier, blocks, bytes) {
                (Some(Tier::Device), 1.., 0) => "moved to RAM".to_owned(),
                _ => format!("{} freed{place}", units::bytes(bytes)),
            };
            let (sessions, blocks) =
                (units::count(sessions.into(), "session"), units::count(blocks, "block"));
            output::print(&format!("{sessions}, {blocks}, {outcome}\n"))
        }
        other => Err(unexpected(&other)),
    }
}

/// `pin`.
pub(crate) fn pin(context: &Context, args: SessionArgs) -> Result<(), Failure> {
    let session = args.named()?;
    match context.ask(Op::Pin { session: session.clone() })? {
        Answer::Done if context.json => output::print_json(&json!({ "pinned": session })),
        Answer::Done => output::print(&format!("{session} pinned\n")),
        other => Err(unexpected(&other)),
    }
}

/// `unpin`.
pub(crate) fn unpin(context: &Context, args: SessionArgs) -> Result<(), Failure> {
    let session = args.named()?;
    match context.ask(Op::Unpin { session: session.clone() })? {
        Answer::Done if context.json => output::print_json(&json!({ "unpinned": session })),
        Answer::Done => output::print(&format!("{session} unpinned\n")),
        other => Err(unexpected(&other)),
    }
}

/// `ttl`.
pub(crate) fn ttl(context: &Context, args: SessionArgs, ttl: TimeToLive) -> Result<(), Failure> {
    let (session, ttl_ms) = (args.named()?, ttl.0);
    match context.ask(Op::Ttl { session: session.clone(), ttl_ms })? {
        Answer::Done if context.json => output::print_json(&json!({ "session": session, "ttl_ms": ttl_ms })),
        Answer::Done => output::print(&match ttl_ms {
            Some(ms) => {
                format!("{session} is forgotten {} after its last use\n", units::duration_ms(ms as f64))
            }
            None => format!("{session} is forgotten when the configuration says\n"),
        }),
        other => Err(unexpected(&other)),
    }
}

/// `save`.
pub(crate) fn save(context: &Context, args: SaveArgs) -> Result<(), Failure> {
    let op = Op::Save { session: args.named()? };
    match ask_with_spinner(context, "saving", op)? {
        Answer::Saved { sessions, blocks, bytes } if context.json => {
            output::print_json(&json!({ "sessions": sessions, "blocks": blocks, "bytes": bytes }))
        }
        Answer::Saved { sessions, blocks, bytes } => output::print(&format!(
            "{} saved, {}, {} written\n",
            units::count(sessions.into(), "session"),
            units::count(blocks, "block"),
            units::bytes(bytes)
        )),
        other => Err(unexpected(&other)),
    }
}

/// `fork`.
pub(crate) fn fork(context: &Context, args: ForkArgs) -> Result<(), Failure> {
    let from = args.from.named()?;
    match context.ask(Op::Fork { from: from.clone(), to: args.new, tokens: args.at })? {
        Answer::Session(detail) if context.json => output::print_json(&detail),
        Answer::Session(detail) => {
            let (id, tokens) = (&detail.info.id, units::count(detail.info.tokens, "token"));
            output::print(&format!("{id} begins with {tokens} of {from}\n"))
        }
        other => Err(unexpected(&other)),
    }
}

/// `check`: what it found goes to stdout, and anything wrong is a failure.
pub(crate) fn check(context: &Context) -> Result<(), Failure> {
    let report = match ask_with_spinner(context, "checking", Op::Check)? {
        Answer::Checked(report) => report,
        other => return Err(unexpected(&other)),
    };
    if context.json {
        output::print_json(&report)?;
    } else {
        output::print(&output::foreign(&check_page(&report)))?;
    }
    let (damaged, dangling) = (report.damaged.len(), report.dangling.len());
    if damaged + dangling == 0 {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "the KV store is not sound: {damaged} damaged, {dangling} dangling; nothing was mended, what is damaged is never \
         used but computed again"
    )))
}

fn check_page(report: &CheckReport) -> String {
    let (sessions, complete) = (report.sessions, report.complete_sessions);
    let mut page = units::pairs(&[
        (
            "blocks",
            format!(
                "{}, {} read in {}",
                report.blocks,
                units::bytes(report.bytes),
                units::duration_ms(report.took_ms as f64)
            ),
        ),
        ("sessions", format!("{sessions}, {complete} with every block")),
        ("damaged", report.damaged.len().to_string()),
        ("dangling", report.dangling.len().to_string()),
    ]);
    let damaged = report.damaged.iter().map(|line| ("damaged", line));
    let dangling = report.dangling.iter().map(|line| ("dangling", line));
    for (number, (what, line)) in damaged.chain(dangling).enumerate() {
        let gap = if number == 0 { "\n" } else { "" };
        page.push_str(&format!("{gap}{what}: {line}\n"));
    }
    page
}

/// Asks what takes a while, and shows so.
fn ask_with_spinner(context: &Context, label: &str, op: Op) -> Result<Answer, Failure> {
    let spinner = output::spinner(label);
    let answer = context.ask(op);
    spinner.finish_and_clear();
    answer
}
