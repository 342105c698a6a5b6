//! `why`: why a job found what it found in the KV cache, in words.

use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::{output, units};
use zllm_wire::{Answer, CacheOutcome, CacheStory, JobId, Op, TokenTiers};

/// `why`.
pub(crate) fn why(context: &Context, job: JobId) -> Result<(), Failure> {
    match context.ask(Op::Why { job })? {
        Answer::Why(story) if context.json => output::print_json(&story),
        Answer::Why(story) => output::print(&output::foreign(&page(&story))),
        other => Err(unexpected(&other)),
    }
}

fn page(story: &CacheStory) -> String {
    let TokenTiers { device, ram, ssd } = story.cached;
    let found = match story.cached.total() {
        0 => "nothing".into(),
        total => format!("{}: {}", units::count(total, "token"), units::by_place([device, ram, ssd])),
    };
    let mut rows = vec![
        ("job", story.job.to_string()),
        ("prompt", units::count(story.prompt_tokens, "token")),
        ("found", found),
    ];
    if story.outcome != CacheOutcome::Waiting {
        let computed = story.prompt_tokens.saturating_sub(story.cached.total());
        rows.push(("computed", units::count(computed, "token")));
    }
    format!("{}\n{}\n", units::pairs(&rows), reason(&story.outcome))
}

fn reason(outcome: &CacheOutcome) -> String {
    match outcome {
        CacheOutcome::Whole => {
            "There was no more to find: the last token is always computed, because the answer begins with what it gives."
                .into()
        }
        CacheOutcome::Diverged { at, before, kept, asked } => {
            let quoted = units::pairs(&[
                ("  both have", format!("{before:?}")),
                ("  then was kept", format!("{kept:?}")),
                ("  but was asked", format!("{asked:?}")),
            ]);
            let at = units::count(*at, "token");
            format!("The kept timeline that is most like it goes on otherwise after {at}:\n\n{}", quoted.trim_end())
        }
        CacheOutcome::Ended { kept_tokens } => {
            let kept = units::count(*kept_tokens, "token");
            format!("It begins with {kept} that are kept; nothing that is kept goes on like it after them.")
        }
        CacheOutcome::Nothing => "Nothing that is kept begins like it: it was never computed for this model and this \
                                  tenant, or was evicted since."
            .into(),
        CacheOutcome::Computed { ssd_tokens, read_ms, compute_ms } => format!(
            "{} more lay on SSD, but computing them was the faster way: {} instead of {} by the rates measured so far.",
            units::count(*ssd_tokens, "token"),
            units::duration_ms(*compute_ms as f64),
            units::duration_ms(*read_ms as f64)
        ),
        CacheOutcome::Unreadable { reason } => format!("More lay on SSD and could not be read: {reason}."),
        CacheOutcome::Waiting => "It has not begun, so nothing was looked up yet.".into(),
    }
}
