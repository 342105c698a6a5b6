//! Words for what a job is, does and waits for.

use zllm_wire::{Class, Phase, RunningJob, WaitReason, WaitingJob};

/// A class by its name on the command line.
pub(crate) fn class(class: Class) -> &'static str {
    match class {
        Class::Interactive => "interactive",
        Class::Normal => "normal",
        Class::Batch => "batch",
    }
}

/// What a job waits for.
pub(crate) fn why(job: &WaitingJob) -> String {
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

/// What a job is at: `prefill 512/2048`, `decode 17/1024`.
pub(crate) fn phase(job: &RunningJob) -> String {
    match job.phase {
        Phase::Prefill { done, total } => format!("prefill {done}/{total}"),
        Phase::Decode => format!("decode {}/{}", job.generated_tokens, job.max_tokens),
    }
}

/// Text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(['\n', '\t'], " ")
}
