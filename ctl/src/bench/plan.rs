//! What `bench` measures: each test is some jobs at once, alike in the lengths of prompt and answer.

use crate::cli::BenchArgs;
use crate::units;
use std::fmt;
use zllm_wire::{BlockUsage, ModelInfo, QueueReport, Tier};

/// Tokens of a KV block.
const BLOCK_TOKENS: u64 = 64;
/// Prompt of what begins without a depth.
const SHORT_PROMPT_TOKENS: u32 = 8;

/// One test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// How fast a prompt of so many tokens is computed.
    Prefill(u32),
    /// How fast a session alone decodes so many tokens behind a prompt of `depth`.
    Decode { tokens: u32, depth: u32 },
    /// How fast several sessions decode so many tokens each.
    Sessions { count: u32, tokens: u32 },
}

/// All that the command line asks for.
pub(super) fn all(args: &BenchArgs) -> Vec<Test> {
    let tokens = args.decode;
    let prefills = args.prefill.iter().map(|tokens| Test::Prefill(*tokens));
    let decodes = args.depth.iter().map(|depth| Test::Decode { tokens, depth: *depth });
    let sessions = args.sessions.iter().map(|count| Test::Sessions { count: *count, tokens });
    prefills.chain(decodes).chain(sessions).collect()
}

impl Test {
    pub(super) fn jobs(self) -> u32 {
        if let Self::Sessions { count, .. } = self { count } else { 1 }
    }

    pub(super) fn prompt_tokens(self) -> u32 {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Decode { depth, .. } => depth.max(SHORT_PROMPT_TOKENS),
            Self::Sessions { .. } => SHORT_PROMPT_TOKENS,
        }
    }

    pub(super) fn answer_tokens(self) -> u32 {
        match self {
            Self::Prefill(_) => 1,
            Self::Decode { tokens, .. } | Self::Sessions { tokens, .. } => tokens,
        }
    }

    /// Why it cannot be measured, if so: it must fit the model's context, run at once, and leave alone what is kept of others.
    pub(super) fn refusal(
        self,
        model: &ModelInfo,
        queue: &QueueReport,
        blocks: &[BlockUsage],
    ) -> Option<String> {
        let tokens = u64::from(self.prompt_tokens()) + u64::from(self.answer_tokens());
        if let Some(context) = model.context_tokens.filter(|context| tokens > u64::from(*context)) {
            return Some(format!("it takes {tokens} tokens, the model's context has {context}"));
        }
        let (jobs, limit) = (u64::from(self.jobs()), u64::from(queue.running_limit));
        if jobs > limit {
            return Some(format!("the daemon runs at most {} at once", units::count(limit, "job")));
        }
        let row = blocks.iter().find(|row| row.model == model.name && row.tier == Tier::Device)?;
        let (needed, free) = (jobs * tokens.div_ceil(BLOCK_TOKENS), row.total - row.used - row.cached);
        (needed > free).then(|| {
            let total = units::count(row.total, "block");
            format!("it takes {needed} of the {total} for KV and {free} are free; `zllmctl evict` makes room")
        })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill(tokens) => write!(f, "prefill {tokens}"),
            Self::Decode { tokens, depth: 0 } => write!(f, "decode {tokens}"),
            Self::Decode { tokens, depth } => write!(f, "decode {tokens} at {depth}"),
            Self::Sessions { count: 1, .. } => f.write_str("1 session"),
            Self::Sessions { count, .. } => write!(f, "{count} sessions"),
        }
    }
}
