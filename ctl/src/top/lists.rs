//! The two lists of jobs, line by line. Both have their columns at the same places.

use crate::{output, units, words};
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
        what: &one_line(&words::why(job)),
        when: &job.starts_in_ms.map_or_else(|| "-".into(), |ms| units::duration_ms(ms as f64)),
        waited: &units::duration_ms(job.waited_ms as f64),
        model: &one_line(&job.model),
        tenant: tenant(&job.tenant),
        label: &one_line(job.label.as_deref().unwrap_or_default()),
    }
    .line(wide);
    if job.why == WaitReason::Held { line.dim() } else { line }
}

fn named(job: &JobId, of: Class) -> String {
    format!("{:<18}  {}", job.as_str(), words::class(of))
}

fn tenant(tenant: &Option<Tenant>) -> &str {
    tenant.as_ref().map_or("", Tenant::as_str)
}

/// Text of others on one line, without control characters.
pub(super) fn one_line(text: &str) -> String {
    output::printable(text).replace(['\n', '\t'], " ")
}
