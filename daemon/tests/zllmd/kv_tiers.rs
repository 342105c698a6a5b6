//! Nothing is computed twice: the same answer from the device, from RAM, and from the SSD after a restart or a kill; forks,
//! tenants and other models; and many sessions on small budgets.

use crate::common::kv::{
    BLOCK_BYTES, BLOCK_TOKENS, Drawn, Reference, Rng, Turn, all_from, folder_bytes, ids, request,
    resident_bytes, seed, session, soak,
};
use crate::common::{Builder, Client, Daemon};
use std::os::unix::fs::FileExt;
use zllm_wire::{Answer, CacheOutcome, Op, Prompt, SsdState, Status, Submit, Tenant, Tier, TokenTiers};

/// A prompt, how many tokens follow it, and the session that it is.
pub(crate) struct Talk {
    pub(crate) prompt: Vec<u32>,
    pub(crate) generate: u32,
    pub(crate) id: &'static str,
}

impl Talk {
    pub(crate) fn new(id: &'static str, prompt_tokens: u64, generate: u32) -> Self {
        Self { prompt: Rng::new(prompt_tokens).tokens(prompt_tokens), generate, id }
    }

    pub(crate) fn request(&self) -> Submit {
        request(ids(&self.prompt), self.generate, Some(self.id))
    }

    /// Asked again, all but its last token comes from one tier, and the answer is the same to the last bit.
    pub(crate) fn comes_from(&self, tier: Tier, client: &mut Client, expected: &[Drawn]) {
        let turn = client.turn(self.request());
        let found = self.prompt.len() as u64 - 1;
        assert_eq!(turn.cached(), all_from(tier, found), "{}: {:?}", self.id, client.why(&turn.job));
        assert_eq!(turn.drawn, expected, "{} from {tier:?}", self.id);
        let story = client.why(&turn.job);
        assert_eq!((story.outcome, story.cached.total()), (CacheOutcome::Whole, found), "{}", self.id);
    }
}

/// The prompts end inside of what was kept: in a tail, and in a block that the answer has filled.
#[test]
fn four_ways_to_the_same_tokens() {
    let mut daemon = Builder::new().start();
    let mut client = daemon.connect();
    let talks = [Talk::new("tail", 293, 12), Talk::new("full", 230, 40)];
    let mut cold: Vec<Vec<Drawn>> = Vec::new();
    for talk in &talks {
        let turn = client.turn(talk.request());
        assert_eq!((turn.cached().total(), client.why(&turn.job).outcome), (0, CacheOutcome::Nothing));
        cold.push(turn.drawn);
    }
    for (talk, expected) in talks.iter().zip(&cold) {
        talk.comes_from(Tier::Device, &mut client, expected);
    }
    assert!(client.evict_all(Some(Tier::Device)) > 0);
    for (talk, expected) in talks.iter().zip(&cold) {
        talk.comes_from(Tier::Ram, &mut client, expected);
    }

    daemon.terminate();
    daemon.start_again();
    let mut client = daemon.connect();
    for talk in &talks {
        let info = &client.sessions()[talk.id];
        let computed = talk.prompt.len() as u64 + u64::from(talk.generate) - 1;
        assert_eq!((info.tokens, info.saved, info.bytes.device), (computed, true, 0), "{}", talk.id);
    }
    for (talk, expected) in talks.iter().zip(&cold) {
        talk.comes_from(Tier::Ssd, &mut client, expected);
        talk.comes_from(Tier::Device, &mut client, expected);
    }

    let late = Talk::new("late", 150, 3);
    let expected = client.turn(late.request()).drawn;
    assert_eq!(client.save_all(), 3);
    daemon.kill();
    daemon.start_again();
    let mut client = daemon.connect();
    let report = client.check();
    assert_eq!((report.damaged, report.dangling), (vec![], vec![]));
    assert_eq!((report.sessions, report.complete_sessions), (3, 3));
    late.comes_from(Tier::Ssd, &mut client, &expected);
    talks[0].comes_from(Tier::Ssd, &mut client, &cold[0]);
}

fn tokenized(client: &mut Client, text: &str) -> Vec<u32> {
    let (model, text) = (crate::common::MODEL.to_owned(), text.to_owned());
    match client.ask(Op::Tokenize { model, text, parse_special: false, add_bos: false }) {
        Answer::Tokens(tokens) => tokens.0,
        other => panic!("no tokens but {other:?}"),
    }
}

#[test]
fn a_timeline_is_forked_and_continued_at_any_token_and_only_by_its_tenant() {
    let mut daemon = Builder::new().start();
    let mut client = daemon.connect();
    let mut reference = Reference::start();
    let talk = Talk::new("trunk", 201, 10);
    let cold = client.turn(talk.request());

    let tenant = Some(Tenant::new("other").expect("a name"));
    let other = client.turn(Submit { tenant: tenant.clone(), ..talk.request() });
    assert_eq!((other.cached().total(), client.why(&other.job).outcome), (0, CacheOutcome::Nothing));
    assert_eq!(other.drawn, cold.drawn);
    let own = client.turn(Submit { tenant, ..talk.request() });
    assert_eq!(own.cached(), all_from(Tier::Device, 200), "it finds its own");

    let fork = Op::Fork { from: session("trunk"), to: session("fork").id, tokens: Some(101) };
    let Answer::Session(detail) = client.ask(fork) else { panic!("no fork") };
    assert_eq!(detail.info.tokens, 101);
    let mut branch = talk.prompt[..101].to_vec();
    branch.extend(Rng::new(7).tokens(60));
    let turn = client.turn(request(ids(&branch), 6, Some("fork")));
    assert_eq!(turn.cached(), all_from(Tier::Device, 101));
    assert_eq!(turn.drawn, reference.answer(&branch, 6));

    // What was drawn last was not computed: it is not part of the timeline.
    let mut timeline = branch.clone();
    timeline.extend(turn.tokens().take(5));
    let text = " and then they went home";
    let kept = timeline.len() as u64;
    timeline.extend(tokenized(&mut client, text));
    for tier in [Tier::Device, Tier::Ssd] {
        let further = |id: &str| {
            let prompt =
                Prompt::Continue { session: session("fork").id, text: text.into(), parse_special: false };
            request(prompt, 7, Some(id))
        };
        let turn = client.turn(further("sibling"));
        assert_eq!(turn.usage.prompt_tokens, timeline.len() as u64);
        assert_eq!(turn.drawn, reference.answer(&timeline, 7));
        if tier == Tier::Device {
            assert_eq!(turn.cached(), all_from(tier, kept));
            daemon.terminate();
            daemon.start_again();
            client = daemon.connect();
        } else {
            assert_eq!(
                turn.cached(),
                all_from(tier, timeline.len() as u64 - 1),
                "the sibling was there before"
            );
        }
    }
}

/// Another file under the model's name: a byte of its weights differs.
fn other_model(daemon: &Daemon) -> std::path::PathBuf {
    let path = daemon.settings.kv_dir.with_file_name("other.gguf");
    std::fs::copy(&daemon.settings.model, &path).expect("a copy");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("it is there");
    let middle = file.metadata().expect("it is there").len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).expect("read");
    file.write_all_at(&[byte[0] ^ 1], middle).expect("written");
    path
}

#[test]
fn another_model_or_kv_format_finds_nothing_and_spoils_nothing() {
    let mut daemon = Builder::new().start();
    let mut client = daemon.connect();
    let talk = Talk::new("a", 170, 5);
    let cold = client.turn(talk.request());
    let nothing = |daemon: &mut Daemon| {
        daemon.terminate();
        daemon.start_again();
        let mut client = daemon.connect();
        let turn = client.turn(talk.request());
        assert_eq!((turn.cached().total(), client.why(&turn.job).outcome), (0, CacheOutcome::Nothing));
        assert_eq!(talk_cached(&mut client, &talk).device, 169);
    };
    daemon.settings.kv_format = "f16";
    nothing(&mut daemon);
    daemon.settings.kv_format = "i16";
    let own = daemon.settings.model.clone();
    daemon.settings.model = other_model(&daemon);
    nothing(&mut daemon);
    daemon.settings.model = own;
    daemon.terminate();
    daemon.start_again();
    talk.comes_from(Tier::Ssd, &mut daemon.connect(), &cold.drawn);
}

fn talk_cached(client: &mut Client, talk: &Talk) -> TokenTiers {
    client.turn(talk.request()).cached()
}

/// How many sessions, how long, how often they are visited, and how many the tiers hold.
struct Plan {
    sessions: u64,
    tokens: u64,
    visits: u64,
    on_device: u64,
    in_ram: u64,
}

/// Tokens that a visit appends, and that are drawn.
const APPENDED: u64 = 3;
const DRAWN: u32 = 2;
/// What a daemon takes beside its model and its blocks: the database's cache, blocks on their way to it, requests. A session
/// that is read back is in memory once more until it is in its slots, and the allocator keeps as much.
const OTHER_BYTES: u64 = 96 << 20;

impl Plan {
    fn blocks_each(&self) -> u64 {
        let visits_each = 3 * self.visits / self.sessions;
        (self.tokens + visits_each * (APPENDED + u64::from(DRAWN))).div_ceil(BLOCK_TOKENS) + 1
    }

    fn bytes(&self, sessions: u64) -> u64 {
        sessions * self.blocks_each() * BLOCK_BYTES
    }
}

/// No tier has more than it may, as the daemon tells it and as the system sees it.
fn check_budgets(daemon: &Daemon, client: &mut Client, plan: &Plan, resident_at_start: u64) {
    let status: Status = client.status();
    for row in &status.blocks {
        let budget = if row.tier == Tier::Device { plan.on_device } else { plan.in_ram };
        assert!(row.used + row.cached <= row.total, "{row:?}");
        assert!(row.total * row.block_bytes <= plan.bytes(budget), "{row:?}");
    }
    let kv = &status.kv;
    assert_eq!(kv.ssd, SsdState::Ready);
    assert!(kv.ram_used_bytes <= kv.ram_budget_bytes && kv.file_bytes <= kv.budget_bytes, "{kv:?}");
    for tier in client.residency().tiers {
        let blocks: u64 = tier.runs.iter().map(|run| u64::from(run.blocks)).sum();
        assert!(tier.used_bytes <= tier.capacity_bytes && blocks <= tier.capacity_blocks, "{tier:?}");
    }
    let resident = resident_bytes(daemon.pid());
    let most = resident_at_start + plan.bytes(plan.on_device + plan.in_ram + 2) + OTHER_BYTES;
    assert!(resident <= most, "{resident} bytes are resident, {most} may be");
    let (stored, budget) = (folder_bytes(&daemon.settings.kv_dir), daemon.settings.ssd_budget_bytes);
    assert!(stored <= budget, "{stored} bytes on disk, {budget} may be");
}

#[test]
fn many_sessions_on_small_budgets_are_found_again_and_answered_right() {
    let plan = match soak() {
        true => Plan { sessions: 40, tokens: 2000, visits: 400, on_device: 5, in_ram: 15 },
        false => Plan { sessions: 10, tokens: 150, visits: 50, on_device: 2, in_ram: 3 },
    };
    let mut rng = Rng::new(seed("many_sessions", 4));
    let mut reference = match soak() {
        true => Reference::start_roomy(plan.bytes(plan.sessions + 1)),
        false => Reference::start(),
    };
    let mut daemon = Builder::new()
        .with(|settings| {
            settings.kv_budget_bytes = plan.bytes(plan.on_device);
            settings.ram_budget_bytes = plan.bytes(plan.in_ram);
            settings.ssd_budget_bytes = plan.bytes(plan.sessions) * 3 / 2 + (64 << 20);
        })
        .start();
    let mut client = daemon.connect();
    let resident_at_start = resident_bytes(daemon.pid());
    let names: Vec<String> = (0..plan.sessions).map(|number| format!("s{number}")).collect();
    let mut timelines: Vec<Vec<u32>> = names.iter().map(|_| rng.tokens(plan.tokens)).collect();
    let (mut found, mut prompts, mut computed) = (TokenTiers::default(), 0, 0);
    for visit in 0..plan.sessions + plan.visits {
        let first = visit < plan.sessions;
        let at = if first { visit } else { rng.below(plan.sessions) } as usize;
        let kept = if first { 0 } else { timelines[at].len() as u64 - 1 };
        if !first {
            timelines[at].extend(rng.tokens(APPENDED));
        }
        let turn = client.turn(request(ids(&timelines[at]), DRAWN, Some(&names[at])));
        assert_eq!(turn.drawn, reference.answer(&timelines[at], DRAWN), "visit {visit} of {}", names[at]);
        match client.why(&turn.job).outcome {
            CacheOutcome::Computed { .. } => computed += 1,
            outcome => assert_eq!(turn.cached().total(), kept, "visit {visit} of {}: {outcome:?}", names[at]),
        }
        timelines[at].extend(turn.tokens());
        add(&mut found, &turn);
        prompts += if first { 0 } else { turn.usage.prompt_tokens };
        check_budgets(&daemon, &mut client, &plan, resident_at_start);
    }
    let percent = |tokens: u64| 100.0 * tokens as f64 / prompts as f64;
    println!(
        "{} sessions of {} tokens, {} visits; found {:.1} % on the device, {:.1} % in RAM, {:.1} % on the SSD; {computed} \
         visits computed what would have taken longer to read; lost {:?}",
        plan.sessions,
        plan.tokens,
        plan.visits,
        percent(found.device),
        percent(found.ram),
        percent(found.ssd),
        client.status().kv.lost_unsaved_blocks,
    );
    assert!(found.device > 0 && found.ram > 0 && found.ssd > 0, "each tier had its part: {found:?}");
    daemon.terminate();
}

fn add(sum: &mut TokenTiers, turn: &Turn) {
    let TokenTiers { device, ram, ssd } = turn.cached();
    *sum = TokenTiers { device: sum.device + device, ram: sum.ram + ram, ssd: sum.ssd + ssd };
}
