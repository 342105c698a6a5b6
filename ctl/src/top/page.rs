//! The page: a snapshot as lines of a width, for a terminal and for paper alike.
//!
//! From the top: the daemon; how fast it is; its devices and the tiers of the KV store as bars; the queue by class beside
//! its limits; jobs that run and jobs that wait, which share what lines are left. From [`WIDE`] columns on the lists tell
//! more of a job.

use super::feed::Snapshot;
use super::keys::{Choices, Pane};
use super::lists;
use crate::{units, words};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use zllm_wire::{ClassLoad, DeviceInfo, KvStatus, Percentiles, QueueReport, Speed, SsdState, Status, Tier};

/// Columns from which on the lists tell more.
pub(super) const WIDE: usize = 110;

/// Columns of the names in front of the bars.
const NAME: usize = 11;

/// All that a page shows.
pub(crate) struct View<'a> {
    /// What was seen last.
    pub(crate) snapshot: Option<&'a Snapshot>,
    /// Why there is nothing newer, or what else should be known.
    pub(crate) trouble: Option<&'a str>,
    /// Where the lists begin.
    pub(crate) choices: Choices,
}

/// The page, at most `height` lines; the last one is a foot with what keys do, or the trouble.
pub(crate) fn page(view: &View<'_>, width: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(Snapshot { status, queue }) = view.snapshot {
        lines.extend(top(status, queue, width));
        let left = height.saturating_sub(lines.len() + 1);
        lines.extend(both_lists(status, queue, view.choices, width, left));
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(match view.trouble {
        Some(trouble) => Line::from(lists::one_line(trouble)).red().bold(),
        None => Line::from("q quits, tab changes the list, up and down scroll it").dim(),
    });
    lines
}

/// The page as long as it is, for a printer or a file: every job, and no foot.
pub(crate) fn whole(snapshot: &Snapshot, width: usize) -> Vec<Line<'static>> {
    let Snapshot { status, queue } = snapshot;
    let mut lines = top(status, queue, width);
    let jobs = queue.running.len() + queue.waiting.len();
    lines.extend(both_lists(status, queue, Choices::default(), width, jobs + 2));
    lines.extend(fault(status).map(Line::from));
    lines
}

/// What else should be known of a daemon that answers.
pub(crate) fn fault(status: &Status) -> Option<String> {
    let why = status.jobs_fault.as_deref()?;
    Some(format!("no queue that lasts: {why}"))
}

fn top(status: &Status, queue: &QueueReport, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![title(status, queue)];
    lines.extend(speed(&status.speed));
    lines.extend(status.devices.iter().map(|device| device_line(device, width)));
    lines.extend(tiers(status, width));
    lines.extend(classes(&queue.classes));
    lines
}

fn title(status: &Status, queue: &QueueReport) -> Line<'static> {
    let mut line = Line::from(Span::from(lists::one_line(&format!("zllmd {}", status.version))).bold());
    if queue.draining {
        line.push_span(Span::from(", draining").yellow().bold());
    }
    let uptime = units::duration_ms(status.uptime_ms as f64);
    let mut rest = format!(", process {}, up {uptime}, {} done", status.pid, status.jobs_done);
    for (count, what) in [(status.jobs_failed, "failed"), (status.jobs_refused, "refused")] {
        if count > 0 {
            rest.push_str(&format!(", {count} {what}"));
        }
    }
    line.push_span(rest);
    line
}

fn speed(speed: &Speed) -> [Line<'static>; 3] {
    let row = |name, rate: f32, rows: String, what, times: &Percentiles| {
        let time = |ms: f32| if times.count == 0 { "-".to_owned() } else { format!("{ms:.1}") };
        let (p50, p90, p99) = (time(times.p50_ms), time(times.p90_ms), time(times.p99_ms));
        Line::from(format!(
            "{name:<NAME$}{rate:>9.1}{rows:>7}  {what:<12}{p50:>9}{p90:>9}{p99:>9}{:>8}",
            units::short(times.count)
        ))
    };
    let head = format!(
        "{:<NAME$}{:>9}{:>7}  {:<12}{:>9}{:>9}{:>9}{:>8}",
        "", "TOKENS/S", "BATCH", "", "P50 MS", "P90 MS", "P99 MS", "COUNT"
    );
    [
        heading(head),
        row(
            "decode",
            speed.decode_tokens_per_s,
            format!("{:.1}", speed.batch_rows),
            "first token",
            &speed.first_token,
        ),
        row("prefill", speed.prefill_tokens_per_s, String::new(), "inter-token", &speed.inter_token),
    ]
}

/// Two bars: how busy it is, and how full.
fn device_line(device: &DeviceInfo, width: usize) -> Line<'static> {
    let cells = width.saturating_sub(NAME + 35) / 2;
    let busy = f64::from(device.busy).clamp(0.0, 1.0);
    let mut spans = vec![named(&device.name)];
    spans.extend(bar(cells, busy, 0.0));
    spans.push(format!("{:>4.0} % busy  ", busy * 100.0).into());
    spans.extend(bar(cells, share(device.used_bytes, device.total_bytes), 0.0));
    spans
        .push(format!(" {} of {}", units::bytes(device.used_bytes), units::bytes(device.total_bytes)).into());
    Line::from(spans)
}

/// A bar for each tier of the KV store; on the device what jobs hold and what is cached behind it.
fn tiers(status: &Status, width: usize) -> [Line<'static>; 3] {
    let kv: &KvStatus = &status.kv;
    let cells = width.saturating_sub(NAME + 24);
    let line = |name, used: f64, cached: f64, told: String| {
        let mut spans = vec![named(name)];
        spans.extend(bar(cells, used, cached));
        spans.push(format!(" {told}").into());
        Line::from(spans)
    };
    let (mut used, mut cached, mut total) = (0, 0, 0);
    for row in status.blocks.iter().filter(|row| row.tier == Tier::Device) {
        used += row.used * row.block_bytes;
        cached += row.cached * row.block_bytes;
        total += row.total * row.block_bytes;
    }
    let of = |used, total| format!("{} of {}", units::bytes(used), units::bytes(total));
    let ssd = match &kv.ssd {
        SsdState::Off => line("KV SSD", 0.0, 0.0, "off".into()),
        SsdState::Down { reason } => line("KV SSD", 0.0, 0.0, format!("down: {}", lists::one_line(reason))),
        SsdState::Ready => {
            line("KV SSD", share(kv.file_bytes, kv.budget_bytes), 0.0, of(kv.file_bytes, kv.budget_bytes))
        }
    };
    let (ram_used, ram) = (kv.ram_used_bytes, kv.ram_budget_bytes);
    [
        line("KV device", share(used, total), share(cached, total), of(used + cached, total)),
        line("KV RAM", share(ram_used, ram), 0.0, of(ram_used, ram)),
        ssd,
    ]
}

fn classes(classes: &[ClassLoad]) -> Vec<Line<'static>> {
    let head = format!("{:<NAME$}{:>18}{:>20}{:>24}", "QUEUE", "JOBS", "TOKENS", "MEMORY");
    let mut lines = vec![heading(head)];
    lines.extend(classes.iter().map(|load| {
        let (queued, limit) = (load.queued, load.limit);
        let jobs = format!("{} of {}", queued.jobs, limit.jobs);
        let tokens = format!("{} of {}", units::short(queued.tokens), units::short(limit.tokens));
        let bytes = format!("{} of {}", units::bytes(queued.bytes), units::bytes(limit.bytes));
        let line =
            Line::from(format!("{:<NAME$}{jobs:>18}{tokens:>20}{bytes:>24}", words::class(load.class)));
        if queued.jobs > 0 { line } else { line.dim() }
    }));
    lines
}

/// Both lists in so many lines: each gets half, and what the other one leaves.
fn both_lists(
    status: &Status,
    queue: &QueueReport,
    choices: Choices,
    width: usize,
    lines: usize,
) -> Vec<Line<'static>> {
    let rows = lines.saturating_sub(2);
    let half = rows / 2;
    let running = queue.running.len().min(half.max(rows.saturating_sub(queue.waiting.len())));
    let chosen = |pane| if choices.pane == pane { Style::new().reversed() } else { Style::new() };
    let wide = width >= WIDE;
    let mut all = vec![lists::running_head(queue, wide).patch_style(chosen(Pane::Running)).bold()];
    let from = choices.running_from;
    all.extend(queue.running.iter().skip(from).take(running).map(|job| lists::running_line(job, wide)));
    all.push(lists::waiting_head(status, wide).patch_style(chosen(Pane::Waiting)).bold());
    let from = choices.waiting_from;
    let waiting = rows - running;
    all.extend(queue.waiting.iter().skip(from).take(waiting).map(|job| lists::waiting_line(job, wide)));
    all
}

fn heading(text: String) -> Line<'static> {
    Line::from(text).bold()
}

fn named(name: &str) -> Span<'static> {
    // A name that is too long is cut, so that the bars stand in a column.
    Span::from(format!("{:<NAME$.10}", lists::one_line(name)))
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).clamp(0.0, 1.0) }
}

/// A bar of so many cells: a part that is full, a part behind it that could be had, the rest. What is not nothing shows.
fn bar(cells: usize, full: f64, cached: f64) -> [Span<'static>; 3] {
    let width = |share: f64| if share > 0.0 { ((share * cells as f64).round() as usize).max(1) } else { 0 };
    let full = width(full).min(cells);
    let cached = width(cached).min(cells - full);
    [
        Span::from("█".repeat(full)).green(),
        Span::from("▒".repeat(cached)).cyan(),
        Span::from("░".repeat(cells - full - cached)).dim(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_what_is_not_nothing() {
        let text =
            |full, cached| bar(10, full, cached).iter().map(|span| span.content.as_ref()).collect::<String>();
        assert_eq!(text(0.0, 0.0), "░░░░░░░░░░");
        assert_eq!(text(0.001, 0.001), "█▒░░░░░░░░");
        assert_eq!(text(0.5, 0.25), "█████▒▒▒░░");
        assert_eq!(text(1.0, 1.0), "██████████");
        assert_eq!(share(5, 0), 0.0);
    }
}
