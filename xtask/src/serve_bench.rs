//! `cargo xtask serve-bench`: how fast the daemon decodes for several sessions at once, beside llama.cpp's batched decode in
//! the same run; and what a long prompt that arrives does to sessions that decode, with the scheduler's bound and without.
//!
//! The daemon is a release build, asked through its socket by `daemon/examples/serve_load.rs`. llama.cpp decodes in a process
//! of its own without a server, a socket or sampling. The programs take turns, so that a slow minute of the machine hits all
//! alike; medians count. The machine must have nothing else to do.

mod figures;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::figures::{Gaps, Load, PACE, Row, SESSIONS, check_gaps, check_rates, gaps_table, rates_table};
use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{bench, models, process};

const USAGE: &str = "usage: cargo xtask serve-bench [--rounds N] [--threads N] [--no-write]

  --rounds N   how often each program runs with each number of sessions, and how often a prompt arrives (default 5)
  --threads N  threads of each program (default: the physical cores)
  --no-write   print the tables and leave docs/PERFORMANCE.md alone

ZLLM_PEER_PYTHON names a Python that has llama-cpp-python (built from source, so that it uses this CPU's instructions);
without it ours is measured alone, nothing is written, and the command fails.
";
const MODEL: &str = "qwen2.5-coder-0.5b";
/// Tokens that each session decodes; llama.cpp's sequences have a prompt first that is as long as ours about.
const DECODE_TOKENS: usize = 128;
const PROMPT_TOKENS: usize = 8;
/// The prompt that arrives, and how many tokens each session has had by then.
const ARRIVING_TOKENS: usize = 2000;
const ARRIVES_AFTER: usize = 100;
/// What the sessions that it arrives beside may decode: more than they come to.
const LONG_DECODE_TOKENS: usize = 1500;

/// Measures, prints the tables, writes them into the document, and fails when a limit is passed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{USAGE}");
        return Ok(());
    }
    let options = parse(args)?;
    process::catch_signals()?;
    models::run(&[MODEL.to_owned()])?;
    let bench = Bench::build(&options)?;
    let rows = bench.rates()?;
    eprintln!("{}", rates_table(&rows));
    let (bounded, unbounded) = bench.arrivals()?;
    let (rounds, threads) = (options.rounds, options.threads);
    let machine = bench::machine(bench.peer.as_deref())?;
    let command = format!("cargo xtask serve-bench --rounds {rounds} --threads {threads}");
    let tables = format!("{}\n{}", rates_table(&rows), gaps_table(&bounded, &unbounded));
    let text = format!("{machine}; {MODEL}; {threads} threads; `{command}`.\n\n{tables}");
    println!("{text}");
    if options.write && bench.peer.is_some() {
        let path = process::root().join("docs/PERFORMANCE.md");
        let document = fs::read_to_string(&path)?;
        fs::write(&path, bench::spliced(&document, "serve-bench", &text)?)?;
        println!("written to docs/PERFORMANCE.md");
    }
    check_rates(&rows)?;
    check_gaps(&bounded)
}

#[derive(Debug, Clone, PartialEq)]
struct Options {
    rounds: usize,
    threads: usize,
    write: bool,
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 5, threads: bench::physical_cores(), write: true };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
            "--threads" => options.threads = value()?.parse().context("--threads")?,
            "--no-write" => options.write = false,
            _ => bail!("no option {arg:?}\n{USAGE}"),
        }
    }
    if options.rounds == 0 || options.threads == 0 {
        bail!("--rounds and --threads must be at least 1");
    }
    Ok(options)
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
            peer: bench::peer_python(),
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
        let text = printed(&mut load).with_context(|| daemon.log_tail())?;
        Load::parse(&text)
    }

    /// llama.cpp's tokens per second with so many sequences in one batch.
    fn peer_rate(&self, sequences: usize, flash_attention: &str) -> Result<f64> {
        process::check_interrupted()?;
        let script: &Path = &process::root().join("xtask/peer/llama_cpp_batch.py");
        let mut python = Command::new(self.peer.as_ref().context("ZLLM_PEER_PYTHON")?);
        python.arg(script).arg(&self.model).args(["--flash-attn", flash_attention]);
        let threads = self.options.threads;
        for (option, value) in [
            ("--sequences", sequences),
            ("--prompt", PROMPT_TOKENS),
            ("--decode", DECODE_TOKENS),
            ("--threads", threads),
        ] {
            python.args([option, &value.to_string()]);
        }
        let object: Value = serde_json::from_str(&printed(&mut python)?)?;
        object["tokens_per_s"].as_f64().filter(|rate| *rate > 0.0).context("llama.cpp's side told no rate")
    }
}

/// What a program prints on stdout.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("could not start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_refused() {
        let parsed = |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        let expected = Options { rounds: 3, threads: 2, write: false };
        assert_eq!(parsed(&["--rounds", "3", "--threads", "2", "--no-write"]).unwrap(), expected);
        for bad in [&["--rounds"][..], &["--rounds", "0"], &["--threads", "x"], &["--fast"]] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }
}
