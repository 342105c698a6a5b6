//! `cargo xtask kv-bench`: how soon the first token of a long prompt comes when its keys and values are nowhere, on the
//! device, in RAM, and on the SSD after a restart; and what the KV store costs when it finds nothing.
//!
//! The daemon is a release build with the default settings, asked through `zllmctl`. Two times are told: the daemon's own,
//! from the request to the first token, and what a client sees, from the start of `zllmctl` to the first text it prints.
//! The limits hold for the client's. Medians count. The machine must have nothing else to do.

mod figures;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::figures::{Cost, Rates, Sample, Way, check, cost_table, tiers_table};
use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{clock, models, options, perplexity, process, report};

const USAGE: &str = "usage: cargo xtask kv-bench [--rounds N] [--pairs N] [--no-write]

  --rounds N   how often each of the ways to the first token is taken (default 5)
  --pairs N    how often the store's cost is measured with it on and off (default 7)
  --no-write   print the tables and leave docs/PERFORMANCE.md alone
";
const MODEL: &str = "qwen2.5-coder-0.5b";
/// The prompt whose times llama-server was measured with on the same machine.
const PROMPT_TOKENS: usize = 1835;
/// Tokens of each prompt, tokens of its answer, and prompts in a row, when the cost is measured.
const COST_PROMPT_TOKENS: usize = 512;
const COST_ANSWER_TOKENS: usize = 64;
const COST_PROMPTS: usize = 5;

/// Measures, prints the tables, writes them into the document, and fails when a limit is passed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let Some(options) = parse(args)? else { return Ok(()) };
    process::catch_signals()?;
    models::run(&[MODEL.to_owned()])?;
    let bench = Bench {
        programs: Programs::build(Profile::Release)?,
        model: models::path_of(models::find(MODEL)?, &models::cache_dir()?),
        folder: tempfile::Builder::new().prefix("zllm-kv-bench-").tempdir()?,
    };
    let samples = bench.tiers(options.rounds)?;
    eprintln!("{}", tiers_table(&samples));
    let costs = bench.costs(options.pairs)?;
    let machine = report::machine(None)?;
    let (rounds, pairs) = (options.rounds, options.pairs);
    let text = format!(
        "{machine}; {} threads; `cargo xtask kv-bench --rounds {rounds} --pairs {pairs}`.\n\n{}\n{}",
        report::physical_cores(),
        tiers_table(&samples),
        cost_table(&costs)
    );
    println!("{text}");
    if options.write {
        report::write("docs/PERFORMANCE.md", "kv-bench", &text)?;
    }
    check(&samples, &costs)
}

#[derive(Debug)]
struct Options {
    rounds: usize,
    pairs: usize,
    write: bool,
}

fn parse(args: &[String]) -> Result<Option<Options>> {
    let mut parsed = Options { rounds: 5, pairs: 7, write: true };
    let go_on = options::read(args, USAGE, |option, values| {
        match option {
            "--rounds" => parsed.rounds = values.count()?,
            "--pairs" => parsed.pairs = values.count()?,
            "--no-write" => parsed.write = false,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(go_on.then_some(parsed))
}

struct Bench {
    programs: Programs,
    model: PathBuf,
    folder: tempfile::TempDir,
}

/// What a request gave.
struct Answered {
    text: String,
    seen: Duration,
    usage: Value,
}

impl Answered {
    fn number(&self, key: &str) -> Result<f64> {
        self.usage[key].as_f64().with_context(|| format!("no number {key:?} in {}", self.usage))
    }

    fn cached(&self, tier: &str) -> Result<u64> {
        let cached = &self.usage["cached_by_tier"];
        cached[tier].as_u64().with_context(|| format!("no count of tier {tier:?} in {}", self.usage))
    }
}

impl Bench {
    fn start(&self, flags: &[&str]) -> Result<RunningDaemon> {
        RunningDaemon::start_with(&self.programs, MODEL, &self.model, flags)
    }

    /// Every way to the first token, `rounds` times each.
    fn tiers(&self, rounds: usize) -> Result<Vec<Sample>> {
        let kv_dir = self.folder.path().join("kv");
        let flags = ["--kv-dir", kv_dir.to_str().context("a temporary folder's name is text")?];
        let mut daemon = self.start(&flags)?;
        let prompt = self.prompt(&daemon, "long", PROMPT_TOKENS)?;
        let first = ask(&daemon, &prompt, "bench", 8)?;
        let mut samples = Vec::new();
        for round in 1..=rounds {
            eprintln!("{MODEL}: round {round} of {rounds}");
            evict(&daemon, &[])?;
            for way in [Way::Nowhere, Way::Device, Way::Ram, Way::Ssd, Way::ColdSsd] {
                match way {
                    Way::Nowhere => {}
                    // What was computed is still being written: a second turn comes later than that.
                    Way::Device => save(&daemon)?,
                    Way::Ram => evict(&daemon, &["--tier", "device"])?,
                    Way::Ssd | Way::ColdSsd => {
                        daemon.stop()?;
                        if way == Way::ColdSsd {
                            forget_pages(&kv_dir.join("kv.redb"))?;
                        }
                        daemon = self.start(&flags)?;
                    }
                }
                let answered = ask(&daemon, &prompt, "bench", 8)?;
                let expected = way.expected(PROMPT_TOKENS as u64 - 1);
                let found = (answered.cached("device")?, answered.cached("ram")?, answered.cached("ssd")?);
                if found != expected {
                    bail!("{way:?}: found (device, RAM, SSD) {found:?} tokens, not {expected:?}");
                }
                if answered.text != first.text {
                    bail!("{way:?}: answered {:?}, not {:?}", answered.text, first.text);
                }
                let (own_ms, seen_ms) =
                    (answered.number("first_token_ms")?, 1e3 * answered.seen.as_secs_f64());
                samples.push(Sample { way, own_ms, seen_ms });
            }
        }
        daemon.stop()?;
        Ok(samples)
    }

    /// The rates with the store and without it, one after the other and in turns the other way round.
    fn costs(&self, pairs: usize) -> Result<Vec<Cost>> {
        let kv_dir = self.folder.path().join("kv-cost");
        let kv_dir = kv_dir.to_str().context("a temporary folder's name is text")?;
        let on = self.start(&["--kv-dir", kv_dir])?;
        let off = self.start(&["--ssd-budget", "off", "--ram-budget", "0"])?;
        let mut costs = Vec::new();
        // The first pair warms both up.
        for pair in 0..=pairs {
            eprintln!("{MODEL}: pair {pair} of {pairs}");
            let prompts: Vec<PathBuf> = (0..COST_PROMPTS)
                .map(|number| self.prompt(&on, &format!("p{pair}-{number}"), COST_PROMPT_TOKENS))
                .collect::<Result<_>>()?;
            let with = || {
                let rates = rates(&on, &prompts)?;
                // What is still to be written must not slow the other down.
                save(&on)?;
                anyhow::Ok(rates)
            };
            let without = || rates(&off, &prompts);
            let cost = if pair % 2 == 0 {
                let with = with()?;
                Cost { with, without: without()? }
            } else {
                let without = without()?;
                Cost { with: with()?, without }
            };
            costs.extend((pair > 0).then_some(cost));
        }
        on.stop()?;
        off.stop()?;
        Ok(costs)
    }

    /// A file with a prompt of exactly so many tokens: its name, by which it differs from others, then the documentation.
    fn prompt(&self, daemon: &RunningDaemon, name: &str, tokens: usize) -> Result<PathBuf> {
        let text = format!("{name}: {}", perplexity::documentation(process::root())?);
        let path = self.folder.path().join(name);
        let count = |bytes: usize| -> Result<usize> {
            fs::write(&path, &text[..text.floor_char_boundary(bytes)])?;
            token_count(daemon, &path)
        };
        // English has three to five bytes a token.
        let (mut below, mut above) = (0, (8 * tokens).min(text.len()));
        while below + 1 < above {
            let middle = below.midpoint(above);
            if count(middle)? <= tokens { below = middle } else { above = middle }
        }
        // A character more may also make fewer tokens: look round the place.
        for bytes in (below.saturating_sub(64)..below + 64).rev() {
            if count(bytes)? == tokens {
                return Ok(path);
            }
        }
        bail!("no beginning of the documentation has {tokens} tokens");
    }
}

fn token_count(daemon: &RunningDaemon, text: &Path) -> Result<usize> {
    let mut zllmctl = daemon.zllmctl();
    zllmctl.args(["tokenize", "--model", MODEL, "--special", "--json", "--text-file"]).arg(text);
    let output = zllmctl.output()?;
    if !output.status.success() {
        bail!("zllmctl tokenize: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let ids: Vec<u32> = serde_json::from_slice(&output.stdout).context("zllmctl tokenize --json")?;
    Ok(ids.len())
}

/// Asks through `zllmctl` and notes when its first text comes.
fn ask(daemon: &RunningDaemon, prompt: &Path, session: &str, tokens: usize) -> Result<Answered> {
    let mut zllmctl = daemon.zllmctl();
    zllmctl.args([
        "run",
        MODEL,
        "--json",
        "--raw",
        "--temperature",
        "0",
        "--ignore-eos",
        "--session",
        session,
    ]);
    zllmctl.args(["--max-tokens", &tokens.to_string(), "--prompt-file"]).arg(prompt);
    let start = clock::now();
    let mut child = zllmctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (mut text, mut seen, mut usage) = (String::new(), None, None);
    for line in BufReader::new(child.stdout.take().context("stdout is piped")?).lines() {
        let event: Value = serde_json::from_str(&line?).context("zllmctl run --json")?;
        match event["event"].as_str() {
            Some("text") => {
                seen.get_or_insert_with(|| clock::now() - start);
                text.push_str(event["text"].as_str().unwrap_or_default());
            }
            Some("finished") => usage = Some(event["usage"].clone()),
            _ => {}
        }
    }
    let status = process::wait(&mut child)?;
    let (Some(seen), Some(usage), true) = (seen, usage, status.success()) else {
        bail!("zllmctl run: {status}, answer {text:?}\n{}", daemon.log_tail());
    };
    Ok(Answered { text, seen, usage })
}

fn evict(daemon: &RunningDaemon, flags: &[&str]) -> Result<()> {
    process::run(daemon.zllmctl().args(["evict", "--all"]).args(flags).stdout(Stdio::null()))
}

/// Returns when all that is to be written is on the SSD.
fn save(daemon: &RunningDaemon) -> Result<()> {
    process::run(daemon.zllmctl().arg("save").stdout(Stdio::null()))
}

/// The file's pages leave the system's cache, so that it is read from the SSD.
fn forget_pages(file: &Path) -> Result<()> {
    let input = format!("if={}", file.display());
    process::run(Command::new("dd").args([&input, "iflag=nocache", "count=0", "status=none"]))
}

/// One prompt after the other, each in a session of its own, so that a daemon with a store saves all of it.
fn rates(daemon: &RunningDaemon, prompts: &[PathBuf]) -> Result<Rates> {
    let (mut computed, mut prefill_ms, mut drawn, mut decode_ms) = (0.0, 0.0, 0.0, 0.0);
    for prompt in prompts {
        let name = prompt.file_name().context("a file")?.to_string_lossy();
        let answered = ask(daemon, prompt, &name, COST_ANSWER_TOKENS)?;
        let found = answered.number("cached_tokens")?;
        if found > 64.0 {
            bail!("{found} tokens of {name} were found, though it is new");
        }
        computed += answered.number("prompt_tokens")? - found;
        prefill_ms += answered.number("prefill_ms")?;
        drawn += answered.number("generated_tokens")? - 1.0;
        decode_ms += answered.number("decode_ms")?;
    }
    Ok(Rates { prefill: 1e3 * computed / prefill_ms, decode: 1e3 * drawn / decode_ms })
}
