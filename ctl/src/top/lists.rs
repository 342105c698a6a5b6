//! The two lists of jobs, line by line. Both have their columns at the same places.

use super::page::class;
use crate::output;
use crate::units;
use ratatui::style::Stylize;
use ratatui::text::Line;
use zllm_wire::{Class, JobId, Phase, QueueReport, RunningJob, Status, Tenant, WaitReason, WaitingJob};

/// The columns of a line, in their order.
struct Row<'a> {
    /// The job and its class, or a heading over both.
    first: &'a str,
    what: &'a str,
    when: &'a str,
    /// Only on a wide page.
    waited: &'a str,
    model: &'a str,
    tenant: &'a str,
    label: &'a str,
}

impl Row<'_> {
    fn line(&self, wide: bool) -> Line<'static> {
        let Self { first, what, when, waited, model, tenant, label } = self;
        let mut line = format!("{first:<31}  {what:<22.22}  {when:<11}  ");
        if wide {
            line.push_str(&format!("{waited:<11}  {model:<18.18}  "));
        }
        if wide && !tenant.is_empty() {
            line.push_str(&format!("{tenant}: "));
        }
        line.push_str(label);
        Line::from(line.trim_end().to_owned())
    }
}

pub(super) fn running_head(queue: &QueueReport, wide: bool) -> Line<'static> {
    let count = format!("RUNNING {} of {}", queue.running.len(), queue.running_limit);
    let head = Row {
        first: &count,
        what: "AT",
        when: "FOR",
        waited: "KV",
        model: "MODEL",
        tenant: "TENANT",
        label: "LABEL",
    };
    head.line(wide)
}

pub(super) fn running_line(job: &RunningJob, wide: bool) -> Line<'static> {
    let at = match job.phase {
        Phase::Prefill { done, total } => format!("prefill {done} of {total}"),
        Phase::Decode => format!("decode {} of {}", job.generated_tokens, job.max_tokens),
    };
    Row {
        first: &named(&job.job, job.class),
        what: &at,
        when: &units::duration_ms(job.since_ms as f64),
        waited: &units::bytes(job.ticket_bytes),
        model: &one_line(&job.model),
        tenant: tenant(&job.tenant),
        label: &one_line(job.label.as_deref().unwrap_or_default()),
    }
    .line(wide)
}

pub(super) fn waiting_head(status: &Status, wide: bool) -> Line<'static> {
    let mut count = format!("WAITING {}", status.queued_jobs);
    for (jobs, what) in [(status.held_jobs, "held"), (status.parked_jobs, "parked")] {
        if jobs > 0 {
            count.push_str(&format!(", {jobs} {what}"));
        }
    }
    let head = Row {
        first: &count,
        what: "WHY",
        when: "STARTS IN",
        waited: "WAITED",
        model: "MODEL",
        tenant: "TENANT",
        label: "LABEL",
    };
    head.line(wide)
}

pub(super) fn waiting_line(job: &WaitingJob, wide: bool) -> Line<'static> {
    let line = Row {
        first: &named(&job.job, job.class),
        what: &why(job),
        when: &job.starts_in_ms.map_or_else(|| "-".into(), |ms| units::duration_ms(ms as f64)),
        waited: &units::duration_ms(job.waited_ms as f64),
        model: &one_line(&job.model),
        tenant: tenant(&job.tenant),
        label: &one_line(job.label.as_deref().unwrap_or_default()),
    }
    .line(wide);
    if job.why == WaitReason::Held { line.dim() } else { line }
}

fn why(job: &WaitingJob) -> String {
    match &job.why {
        WaitReason::Turn => format!("{} before it", job.position),
        WaitReason::Places => "all places are taken".into(),
        WaitReason::Memory { blocks, free } => format!("{blocks} blocks, {free} free"),
        WaitReason::Reading => "reading its KV".into(),
        WaitReason::Model { state } => format!("model: {}", one_line(state)),
        WaitReason::Held => "held".into(),
        WaitReason::Draining => "draining".into(),
        WaitReason::Storing => "being stored".into(),
        WaitReason::Parked => format!("parked at token {}", job.generated_tokens),
    }
}

fn named(job: &JobId, of: Class) -> String {
    format!("{:<18}  {}", job.as_str(), class(of))
}

fn tenant(tenant: &Option<Tenant>) -> &str {
    tenant.as_ref().map_or("", Tenant::as_str)
}

/// Text of others on one line, without control characters.
pub(super) fn one_line(text: &str) -> String {
    output::printable(text).replace(['\n', '\t'], " ")
}

/// `999`, `12.3k`, `1.05M`: three digits are enough to compare by.
pub(super) fn short(number: u64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1.00k"),
            (12_345, "12.3k"),
            (99_960, "100k"),
            (999_600, "1.00M"),
            (1_048_576, "1.05M"),
            (u64::MAX, "18446744T"),
        ];
        for (number, text) in cases {
            assert_eq!(short(number), text);
        }
    }
}
