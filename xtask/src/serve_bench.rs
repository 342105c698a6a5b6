//! `cargo xtask serve-bench`: how fast the daemon decodes for several sessions at once, beside llama.cpp's batched decode in
//! the same run; and what a long prompt that arrives does to sessions that decode, with the scheduler's bound and without.
//!
//! The daemon is a release build, asked through its socket by `daemon/examples/serve_load.rs`. llama.cpp decodes in a process
//! of its own without a server, a socket or sampling. The programs take turns, so that a slow minute of the machine hits all
//! alike; medians count. The machine must have nothing else to do.

mod figures;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use self::figures::{Gaps, Load, PACE, Row, SESSIONS, check_gaps, check_rates, gaps_table, rates_table};
use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{models, options, process, report};

const USAGE: &str = "usage: cargo xtask serve-bench [--rounds N] [--threads N] [--no-write]

  --rounds N   how often each program runs with each number of sessions, and how often a prompt arrives (default 5)
  --threads N  threads of each program (default: the physical cores)
  --no-write   print the tables and leave docs/PERFORMANCE.md alone

ZLLM_PEER_PYTHON names a Python that has llama-cpp-python (built from source, so that it uses this CPU's instructions);
without it ours is measured alone, nothing is written, and the command fails.
";
const MODEL: &str = "qwen2.5-coder-0.5b";
/// Tokens that each session decodes; llama.cpp's sequences have a prompt first that is about as long as ours.
const DECODE_TOKENS: usize = 128;
/// The prompt that arrives, and how many tokens each session has had by then.
const ARRIVING_TOKENS: usize = 2000;
const ARRIVES_AFTER: usize = 100;
/// What the sessions that it arrives beside may decode: more than they come to.
const LONG_DECODE_TOKENS: usize = 1500;

/// Measures, prints the tables, writes them into the document, and fails when a limit is passed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let Some(options) = parse(args)? else { return Ok(()) };
    process::catch_signals()?;
    models::run(&[MODEL.to_owned()])?;
    let bench = Bench::build(&options)?;
    let rows = bench.rates()?;
    eprintln!("{}", rates_table(&rows));
    let (bounded, unbounded) = bench.arrivals()?;
    let (rounds, threads) = (options.rounds, options.threads);
    let machine = report::machine(bench.peer.as_deref())?;
    let command = format!("cargo xtask serve-bench --rounds {rounds} --threads {threads}");
    let tables = format!("{}\n{}", rates_table(&rows), gaps_table(&bounded, &unbounded));
    let text = format!("{machine}; {MODEL}; {threads} threads; `{command}`.\n\n{tables}");
    println!("{text}");
    if options.write && bench.peer.is_some() {
        report::write("docs/PERFORMANCE.md", "serve-bench", &text)?;
    }
    check_rates(&rows)?;
    check_gaps(&bounded)
}

#[derive(Debug, Clone)]
struct Options {
    rounds: usize,
    threads: usize,
    write: bool,
}

fn parse(args: &[String]) -> Result<Option<Options>> {
    let mut parsed = Options { rounds: 5, threads: report::physical_cores(), write: true };
    let go_on = options::read(args, USAGE, |option, values| {
        match option {
            "--rounds" => parsed.rounds = values.count()?,
            "--threads" => parsed.threads = values.count()?,
            "--no-write" => parsed.write = false,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(go_on.then_some(parsed))
}

struct Bench {
    options: Options,
    programs: Programs,
    /// The client that keeps the sessions running.
    load: PathBuf,
    model: PathBuf,
    peer: Option<PathBuf>,
}

impl Bench {
    fn build(options: &Options) -> Result<Self> {
        let programs = Programs::build(Profile::Release)?;
        let example = ["build", "--release", "--package", "zllmd", "--example", "serve_load"];
        process::run(process::cargo().args(example))?;
        Ok(Self {
            options: options.clone(),
            programs,
            load: process::target_dir()?.join("release/examples/serve_load"),
            model: models::path_of(models::find(MODEL)?, &models::cache_dir()?),
            peer: report::peer_python(),
        })
    }

    /// A daemon with room for the eight sessions and the prompt that arrives.
    fn start(&self, pace: f64) -> Result<RunningDaemon> {
        let threads = self.options.threads.to_string();
        let flags = ["--threads", &threads, "--running-jobs", "9", "--ssd-budget", "off"];
        let more = format!("[scheduler]\npace = {pace:?}\n");
        RunningDaemon::start_configured(&self.programs, MODEL, &self.model, &flags, &more)
    }

    /// Every number of sessions, `rounds` times each, ours and llama.cpp's settings in turns.
    fn rates(&self) -> Result<Vec<Row>> {
        let daemon = self.start(PACE)?;
        let settings: &[&str] = if self.peer.is_some() { &["on", "off"] } else { &[] };
        let row = |sessions| Row { sessions, ours: Vec::new(), peer: vec![Vec::new(); settings.len()] };
        let mut rows = SESSIONS.map(row);
        self.load(&daemon, 8, DECODE_TOKENS, &[])?;
        for round in 1..=self.options.rounds {
            eprintln!("{MODEL}: rates, round {round} of {}", self.options.rounds);
            for row in &mut rows {
                let load = self.load(&daemon, row.sessions, DECODE_TOKENS, &[])?;
                row.ours.push(load.tokens_per_s());
                for (runs, flash_attention) in row.peer.iter_mut().zip(settings) {
                    runs.push(self.peer_rate(row.sessions, flash_attention)?);
                }
            }
        }
        daemon.stop()?;
        Ok(rows.into())
    }

    /// Gaps with the bound and without it, of two daemons that take turns.
    fn arrivals(&self) -> Result<(Gaps, Gaps)> {
        let daemons = [self.start(PACE)?, self.start(0.0)?];
        let mut gaps = [Gaps::default(), Gaps::default()];
        // The first round warms both up, and lets them measure how long their steps take.
        for round in 0..=self.options.rounds {
            eprintln!("{MODEL}: a prompt arrives, round {round} of {}", self.options.rounds);
            for (daemon, gaps) in daemons.iter().zip(&mut gaps) {
                let [prompt, after] = [ARRIVING_TOKENS, ARRIVES_AFTER].map(|count| count.to_string());
                let seed = (round + 1).to_string();
                let arrival = ["--arrive", &prompt, "--after", &after, "--seed", &seed];
                let load = self.load(daemon, 8, LONG_DECODE_TOKENS, &arrival)?;
                let measured = load.gaps()?;
                if round > 0 {
                    gaps.extend(measured);
                }
            }
        }
        for daemon in daemons {
            daemon.stop()?;
        }
        let [bounded, unbounded] = gaps;
        Ok((bounded, unbounded))
    }

    fn load(&self, daemon: &RunningDaemon, sessions: usize, tokens: usize, more: &[&str]) -> Result<Load> {
        process::check_interrupted()?;
        let mut load = Command::new(&self.load);
        load.arg("--socket").arg(daemon.socket()).args(["--model", MODEL]).args(more);
        load.args(["--sessions", &sessions.to_string(), "--tokens", &tokens.to_string()]);
        let text = process::printed(&mut load).with_context(|| daemon.log_tail())?;
        Load::parse(&text)
    }

    /// llama.cpp's tokens per second with so many sequences in one batch.
    fn peer_rate(&self, sequences: usize, flash_attention: &str) -> Result<f64> {
        process::check_interrupted()?;
        let mut python = Command::new(self.peer.as_ref().context("ZLLM_PEER_PYTHON")?);
        python.arg(process::root().join("xtask/peer/llama_cpp_bench.py")).arg(&self.model);
        python.args(["--flash-attn", flash_attention, "--prefill", "", "--depth", ""]);
        let threads = self.options.threads;
        for (option, value) in [("--sessions", sequences), ("--steps", DECODE_TOKENS), ("--threads", threads)]
        {
            python.args([option, &value.to_string()]);
        }
        let rate = process::json(&mut python)?["tests"][format!("{sequences} sessions")].as_f64();
        rate.filter(|rate| *rate > 0.0).context("llama.cpp's side told no rate")
    }
}
