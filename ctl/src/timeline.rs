//! A job's life as `show` tells it: one line a moment, in milliseconds since it was submitted.

use crate::units;
use zllm_wire::{JobDetail, JobState, MomentKind};

/// The lines, each ended; none when nothing is known.
pub(crate) fn timeline(job: &JobDetail) -> String {
    let times: Vec<String> = job.timeline.iter().map(|moment| format!("{:.1}", moment.at_ms)).collect();
    let width = times.iter().map(String::len).max().unwrap_or(0);
    let lines = times.iter().zip(&job.timeline);
    lines.map(|(time, moment)| format!("{time:>width$} ms  {}\n", words(&moment.what, job))).collect()
}

fn words(what: &MomentKind, job: &JobDetail) -> String {
    let info = &job.info;
    match *what {
        MomentKind::Queued => "queued".into(),
        MomentKind::Stored => "stored on disk".into(),
        MomentKind::Held => "held".into(),
        MomentKind::Released => "released".into(),
        MomentKind::PrefixSearched => {
            let cached = units::cached(info.cached_tokens, &info.cached_by_tier);
            format!("prefix looked up: of {} {cached}", units::count(info.prompt_tokens, "token"))
        }
        MomentKind::Restored { ram, ssd } => {
            let from = [(ram, "RAM"), (ssd, "SSD")].into_iter().filter(|(tokens, _)| *tokens > 0);
            let parts = from.map(|(tokens, tier)| format!("{} from {tier}", units::count(tokens, "token")));
            format!("restored: {}", parts.collect::<Vec<_>>().join(", "))
        }
        MomentKind::Started { cached_tokens } => {
            let computed = info.prompt_tokens.saturating_sub(cached_tokens);
            format!("prefill of {} begun", units::count(computed, "token"))
        }
        MomentKind::PrefillDone => "prefill done".into(),
        MomentKind::FirstToken => "first token".into(),
        MomentKind::Parked => "parked, its KV kept".into(),
        MomentKind::Resumed => "resumed".into(),
        MomentKind::Restarted => "daemon restarted".into(),
        MomentKind::Ended => match info.state {
            JobState::Failed => "failed".into(),
            JobState::Cancelled => "cancelled".into(),
            JobState::Queued | JobState::Running | JobState::Done => "ended".into(),
        },
    }
}
