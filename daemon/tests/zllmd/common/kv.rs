//! What the tests of the KV store have in common: prompts of exact lengths, turns that are compared to the last bit, a
//! daemon that never remembers, and the daemon's memory and disk as the system sees them.

use super::{Answered, Builder, Client, Daemon, MODEL};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zllm_wire::{
    Answer, CacheStory, CheckReport, Class, Event, EvictTarget, GenerationParams, JobId, Op, Prompt,
    Residency, SamplingParams, SessionId, SessionInfo, SessionRef, Submit, Tenant, Tier, TokenIds,
    TokenTiers, Usage,
};

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: u64 = 64;

/// Bytes of one of [`MODEL`]'s blocks: 30 layers of 3 heads, each with 64 keys and 64 values of 16 bits and their scales.
pub(crate) const BLOCK_BYTES: u64 = BLOCK_TOKENS * 30 * 3 * 264;

/// Whether the long versions run; they take minutes and want a release build.
pub(crate) fn soak() -> bool {
    std::env::var_os("ZLLM_SOAK").is_some_and(|value| value == "1")
}

/// xorshift64*: small, seeded, the same everywhere.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// `count` tokens that stand for text.
    pub(crate) fn tokens(&mut self, count: u64) -> Vec<u32> {
        (0..count).map(|_| 1000 + self.below(40_000) as u32).collect()
    }
}

/// The seed of a test: `ZLLM_SEED`, or its own. Printed, so that a failure can be had again.
pub(crate) fn seed(test: &str, default: u64) -> u64 {
    let given = std::env::var("ZLLM_SEED").ok().map(|text| text.parse().expect("ZLLM_SEED is a number"));
    let seed = given.unwrap_or(default);
    println!("{test}: seed {seed}");
    seed
}

/// A drawn token and its log probability: what two answers must have in common to the last bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    logprob: f32,
}

/// An answered request.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) job: JobId,
    pub(crate) drawn: Vec<Drawn>,
    pub(crate) usage: Usage,
}

impl Turn {
    /// Tokens of the prompt that were found, by tier.
    pub(crate) fn cached(&self) -> TokenTiers {
        self.usage.cached_by_tier
    }

    /// The ids of what was drawn.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.drawn.iter().map(|drawn| drawn.token)
    }
}

/// So many tokens of a tier and none of the others.
pub(crate) fn all_from(tier: Tier, tokens: u64) -> TokenTiers {
    let mut tiers = TokenTiers::default();
    *match tier {
        Tier::Device => &mut tiers.device,
        Tier::Ram => &mut tiers.ram,
        Tier::Ssd => &mut tiers.ssd,
    } = tokens;
    tiers
}

/// A session of nobody in particular.
pub(crate) fn session(id: &str) -> SessionRef {
    SessionRef { tenant: None, id: SessionId::new(id).expect("an id") }
}

/// A greedy request for exactly `generate` tokens after a prompt.
pub(crate) fn request(prompt: Prompt, generate: u32, id: Option<&str>) -> Submit {
    Submit {
        model: MODEL.into(),
        prompt,
        params: GenerationParams {
            sampling: SamplingParams { temperature: Some(0.0), ..SamplingParams::default() },
            max_tokens: Some(generate),
            ignore_eos: true,
            logprobs: Some(0),
            ..GenerationParams::default()
        },
        session: id.map(|id| session(id).id),
        tenant: None,
        detached: false,
        stream: true,
        label: None,
        class: Class::default(),
        deadline_ms: None,
        max_wait_ms: None,
        key: None,
        batch: None,
    }
}

/// Token ids as a prompt.
pub(crate) fn ids(tokens: &[u32]) -> Prompt {
    Prompt::Tokens(TokenIds(tokens.to_vec()))
}

fn drawn(answered: &Answered) -> Vec<Drawn> {
    let of = |(_, event): &(u64, Event)| match event {
        Event::Text { logprobs, .. } => {
            logprobs.iter().map(|entry| Drawn { token: entry.token, logprob: entry.logprob }).collect()
        }
        _ => Vec::new(),
    };
    answered.events.iter().flat_map(of).collect()
}

impl Client {
    /// Submits and waits for the end; `None` when the daemon is gone before.
    pub(crate) fn try_turn(&mut self, request: Submit) -> Option<Turn> {
        let generate = request.params.max_tokens;
        let (id, job) = self.try_submit(request)?;
        let answered = self.try_finish(id)?;
        let turn = Turn { job, drawn: drawn(&answered), usage: answered.usage.expect("it finished") };
        assert_eq!(Some(turn.drawn.len() as u32), generate, "every token has its log probability");
        assert_eq!(turn.usage.cached_tokens, turn.cached().total());
        Some(turn)
    }

    /// Submits and waits for the end.
    pub(crate) fn turn(&mut self, request: Submit) -> Turn {
        self.try_turn(request).expect("the daemon is there")
    }

    pub(crate) fn why(&mut self, job: &JobId) -> CacheStory {
        match self.ask(Op::Why { job: job.clone() }) {
            Answer::Why(story) => *story,
            other => panic!("no story but {other:?}"),
        }
    }

    pub(crate) fn check(&mut self) -> CheckReport {
        match self.ask(Op::Check) {
            Answer::Checked(report) => *report,
            other => panic!("no report but {other:?}"),
        }
    }

    pub(crate) fn residency(&mut self) -> Residency {
        match self.ask(Op::Residency) {
            Answer::Residency(residency) => *residency,
            other => panic!("no residency but {other:?}"),
        }
    }

    /// Saves all sessions; how many there are.
    pub(crate) fn save_all(&mut self) -> u32 {
        match self.ask(Op::Save { session: None }) {
            Answer::Saved { sessions, .. } => sessions,
            other => panic!("not saved but {other:?}"),
        }
    }

    /// Evicts all there is from a tier, or from everywhere.
    pub(crate) fn evict_all(&mut self, tier: Option<Tier>) -> u64 {
        match self.ask(Op::Evict { target: EvictTarget::All, tier }) {
            Answer::Evicted { blocks, .. } => blocks,
            other => panic!("nothing evicted but {other:?}"),
        }
    }

    /// All sessions by id.
    pub(crate) fn sessions(&mut self) -> HashMap<String, SessionInfo> {
        match self.ask(Op::List) {
            Answer::Listing { sessions, .. } => {
                sessions.into_iter().map(|info| (info.id.to_string(), info)).collect()
            }
            other => panic!("no listing but {other:?}"),
        }
    }
}

/// A daemon without an SSD tier that says what is right. Each of its requests is another tenant's, so that it computes every
/// prompt from its first token; a roomy one goes on from what it has computed, and never evicts.
pub(crate) struct Reference {
    _daemon: Daemon,
    client: Client,
    is_roomy: bool,
    known: HashMap<(Vec<u32>, u32), Vec<Drawn>>,
}

impl Reference {
    pub(crate) fn start() -> Self {
        Self::new(false, Builder::new())
    }

    /// For timelines that are too long to be computed from the start each time; all of them have so many bytes.
    pub(crate) fn start_roomy(bytes: u64) -> Self {
        Self::new(true, Builder::new().with(|settings| settings.kv_budget_bytes = bytes))
    }

    fn new(is_roomy: bool, builder: Builder) -> Self {
        let daemon = builder.with(|settings| settings.ssd_budget_bytes = 0).start();
        Self { client: daemon.connect(), _daemon: daemon, is_roomy, known: HashMap::new() }
    }

    /// What a prompt is answered with.
    pub(crate) fn answer(&mut self, prompt: &[u32], generate: u32) -> Vec<Drawn> {
        let tenant = Tenant::new(format!("t{}", self.known.len())).expect("a name");
        let tenant = (!self.is_roomy).then_some(tenant);
        let (client, is_roomy) = (&mut self.client, self.is_roomy);
        let known = self.known.entry((prompt.to_vec(), generate)).or_insert_with(|| {
            let turn = client.turn(Submit { tenant, ..request(ids(prompt), generate, None) });
            assert!(is_roomy || turn.usage.cached_tokens == 0, "nobody has that tenant");
            turn.drawn
        });
        known.clone()
    }
}

/// Bytes of memory that a process has, as the system counts them.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Bytes that the files of a folder have of the disk.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.filter_map(|entry| entry.ok()?.metadata().ok()).map(|metadata| metadata.blocks() * 512).sum()
}
