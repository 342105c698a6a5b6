//! `queue`: who runs, who waits and why, and how full the queue is. A page fits [`QUEUE_COLUMNS`] columns.

use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::limits::{QUEUE_COLUMNS, QUEUE_ROWS};
use crate::units::{self, Align, Table};
use crate::{output, words};
use zllm_wire::{Answer, Class, Op, QueueLoad, QueueReport, RunningJob, TenantLoad, WaitingJob};

/// Characters of a tenant's name in its column.
const TENANT_CHARS: usize = 14;

const AGED: &str = "/0, /1: has waited so long that it counts as interactive (0) or normal (1)\n";

/// `queue`.
pub(crate) fn queue(context: &Context, all: bool) -> Result<(), Failure> {
    match context.ask(Op::Queue)? {
        Answer::Queue(report) if context.json => output::print_json(&report),
        Answer::Queue(report) => output::print(&output::foreign(&page(&report, all))),
        other => Err(unexpected(&other)),
    }
}

fn page(report: &QueueReport, all: bool) -> String {
    let queued: u64 = report.classes.iter().map(|load| load.queued.jobs).sum();
    let waiting = queued.max(report.waiting.len() as u64);
    let draining = if report.draining { "; draining: nothing that waits starts" } else { "" };
    let (running, limit) = (report.running.len(), report.running_limit);
    let mut page = format!("{running} of at most {limit} running, {waiting} waiting{draining}\n");
    if !report.running.is_empty() {
        page.push_str(&format!("\n{}", running_table(&report.running)));
    }
    if !report.waiting.is_empty() {
        let shown = if all { report.waiting.len() } else { report.waiting.len().min(QUEUE_ROWS) };
        let shown = &report.waiting[..shown];
        page.push_str(&format!("\n{}", waiting_table(shown)));
        let more = waiting - shown.len() as u64;
        if more > 0 {
            let how = if shown.len() < report.waiting.len() { "; --all shows them" } else { "" };
            page.push_str(&format!("and {more} more{how}\n"));
        }
        if shown.iter().any(is_aged) {
            page.push_str(AGED);
        }
    }
    page.push_str(&format!("\n{}", class_table(report)));
    if !report.tenants.is_empty() {
        page.push_str(&format!("\n{}", tenant_table(&report.tenants)));
    }
    page.lines().map(|line| units::cut(line, QUEUE_COLUMNS) + "\n").collect()
}

fn running_table(jobs: &[RunningJob]) -> String {
    let mut table = Table::new([
        ("RUNNING", Align::Left),
        ("CLASS", Align::Left),
        ("AT", Align::Left),
        ("ROOM", Align::Right),
        ("KV", Align::Right),
        ("FOR", Align::Right),
    ]);
    for job in jobs {
        table.row([
            job.job.to_string(),
            words::class(job.class).into(),
            words::phase(job),
            units::short(job.ticket_tokens),
            units::bytes(job.ticket_bytes),
            units::span(job.since_ms),
        ]);
    }
    table.render()
}

fn waiting_table(jobs: &[WaitingJob]) -> String {
    let mut table = Table::new([
        ("#", Align::Right),
        ("WAITING", Align::Left),
        ("CLASS", Align::Left),
        ("AGE", Align::Right),
        ("TOKENS", Align::Right),
        ("STARTS", Align::Right),
        ("WHY", Align::Left),
    ]);
    for job in jobs {
        let class = words::class(job.class);
        table.row([
            (u64::from(job.position) + 1).to_string(),
            job.job.to_string(),
            if is_aged(job) { format!("{class}/{}", job.level) } else { class.into() },
            units::span(job.waited_ms),
            units::short(job.prompt_tokens + job.max_tokens),
            job.starts_in_ms.map_or_else(|| "-".into(), units::span),
            words::why(job),
        ]);
    }
    table.render()
}

/// Whether it counts as of a more urgent class than its own.
fn is_aged(job: &WaitingJob) -> bool {
    let own = match job.class {
        Class::Interactive => 0,
        Class::Normal => 1,
        Class::Batch => 2,
    };
    job.level < own
}

fn class_table(report: &QueueReport) -> String {
    let mut table = Table::new([
        ("CLASS", Align::Left),
        ("JOBS", Align::Right),
        ("TOKENS", Align::Right),
        ("MEMORY", Align::Right),
    ]);
    for load in &report.classes {
        let [jobs, tokens, bytes] = beside(load.queued, load.limit);
        table.row([words::class(load.class).into(), jobs, tokens, bytes]);
    }
    table.render()
}

fn tenant_table(tenants: &[TenantLoad]) -> String {
    let mut table = Table::new([
        ("TENANT", Align::Left),
        ("JOBS", Align::Right),
        ("TOKENS", Align::Right),
        ("MEMORY", Align::Right),
        ("RUNNING", Align::Right),
        ("SERVED", Align::Right),
    ]);
    for load in tenants {
        let [jobs, tokens, bytes] = beside(load.queued, load.limit);
        let name = load.tenant.as_ref().map_or("-", |tenant| tenant.as_str());
        let (running, served) = (load.running_jobs.to_string(), units::short(load.served_tokens));
        table.row([units::cut(name, TENANT_CHARS), jobs, tokens, bytes, running, served]);
    }
    table.render()
}

/// What waits beside what may: jobs, tokens, memory.
fn beside(queued: QueueLoad, limit: QueueLoad) -> [String; 3] {
    [
        format!("{} of {}", units::short(queued.jobs), units::short(limit.jobs)),
        format!("{} of {}", units::short(queued.tokens), units::short(limit.tokens)),
        format!("{} of {}", units::bytes(queued.bytes), units::bytes(limit.bytes)),
    ]
}
