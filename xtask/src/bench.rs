//! `cargo xtask bench`: how fast models are, ours beside llama.cpp and beside the machine's roofs, in one run.
//!
//! The programs take turns (ours, llama.cpp with flash attention, llama.cpp without, ours, ...), so that a slow minute
//! of the machine hits all alike. Each run is a process of its own that measures every test once after it has warmed up.
//! What counts is the median over the rounds; for llama.cpp the better of its two settings, for each test by itself. Both
//! sides take any token ids and sample nothing. The roofs are measured before and after each model.

mod result;
mod targets;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::result::{Roofs, Row, Run, rates_table, resources_table};
use self::targets::{check, long_targets, targets, targets_table};
use crate::{models, options, process, report};
use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask bench [--long] [--rounds N] [--threads N] [--model NAME]... [--file PATH]... [--no-write] [--check]

  --long        one prompt of 16,384 tokens and a decode behind it, with qwen2.5-coder-0.5b
  --rounds N    how often each program runs (default 3; 1 with --long)
  --threads N   threads of each program (default: the physical cores)
  --model NAME  only this test model; may be given again
  --file PATH   this GGUF file instead of the test models; may be given again
  --no-write    print the tables and leave README.md and docs/PERFORMANCE.md alone
  --check       fail when a target is not reached

ZLLM_PEER_PYTHON names a Python that has llama-cpp-python (built from source, so that it uses this CPU's instructions);
without it ours is measured alone and nothing is written, and with --model or --file neither.
";
/// The tests of a plain run; both sides' other options are as their programs have them.
const TESTS: &[&str] =
    &["--prefill", "128,512,2048", "--depth", "0,2048", "--sessions", "1,2,4,8,16", "--steps", "32"];
/// Batches that llama.cpp may compute at a time: its default, and one whose activations stay nearer.
const PEER_BATCHES: &[&str] = &["--ubatch", "512,128"];
const LONG_MODEL: &str = "qwen2.5-coder-0.5b";
const LONG_TESTS: &[&str] = &["--prefill", "16384", "--depth", "16384", "--decode", "32", "--sessions", ""];
/// Which of llama.cpp's settings is the better one for a long prompt is found with a shorter one.
const LONG_PROBE: &[&str] = &["--prefill", "4096", "--depth", "", "--sessions", "", "--ubatch", "512,128"];
const FLASH_ATTENTION: [&str; 2] = ["on", "off"];

#[derive(Debug, PartialEq)]
struct Options {
    long: bool,
    rounds: usize,
    threads: usize,
    models: Vec<String>,
    files: Vec<PathBuf>,
    write: bool,
    check: bool,
}

/// Measures, prints the tables, and writes them into the documents.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let Some(options) = parse(args)? else { return Ok(()) };
    let models = chosen_models(&options)?;
    let bench = Bench::build(&options)?;
    let measured = models.iter().map(|(name, model)| {
        if options.long { bench.measure_long(name, model) } else { bench.measure(name, model) }
    });
    let rows: Vec<Row> = measured.collect::<Result<_>>()?;

    let reached = if options.long { long_targets(&rows) } else { targets(&rows) };
    let how = format!("{}.\n\n{}", heading(&options, bench.peer.as_deref())?, Roofs::told(&rows));
    let resources = resources_table(&rows);
    let all = format!("{how}\n\n{}\n{resources}\n{}", rates_table(&rows, |_| true), targets_table(&reached));
    println!("{all}");
    if options.write && bench.peer.is_some() && options.models.is_empty() && options.files.is_empty() {
        write(&options, &rows, &how, &all)?;
    }
    if options.check { check(&reached) } else { Ok(()) }
}

fn parse(args: &[String]) -> Result<Option<Options>> {
    let (mut rounds, mut threads) = (None, None);
    let mut parsed = Options {
        long: false,
        rounds: 3,
        threads: 1,
        models: Vec::new(),
        files: Vec::new(),
        write: true,
        check: false,
    };
    let go_on = options::read(args, USAGE, |option, values| {
        match option {
            "--long" => parsed.long = true,
            "--rounds" => rounds = Some(values.count()?),
            "--threads" => threads = Some(values.count()?),
            "--model" => parsed.models.push(models::find(values.text()?)?.name.to_owned()),
            "--file" => parsed.files.push(std::path::absolute(values.text()?)?),
            "--no-write" => parsed.write = false,
            "--check" => parsed.check = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    parsed.rounds = rounds.unwrap_or(if parsed.long { 1 } else { 3 });
    parsed.threads = threads.unwrap_or_else(report::physical_cores);
    if parsed.check && !parsed.files.is_empty() {
        bail!("--check: there are no targets for the models of --file");
    }
    Ok(go_on.then_some(parsed))
}

/// Names and files of what is to be measured; they are fetched, and in memory.
fn chosen_models(options: &Options) -> Result<Vec<(String, PathBuf)>> {
    let names = if !options.models.is_empty() || !options.files.is_empty() {
        options.models.clone()
    } else if options.long {
        vec![LONG_MODEL.to_owned()]
    } else {
        models::MODELS.iter().map(|model| model.name.to_owned()).collect()
    };
    let mut chosen = Vec::new();
    if !names.is_empty() {
        models::run(&names)?;
        let folder = models::cache_dir()?;
        for name in names {
            let path = models::path_of(models::find(&name)?, &folder);
            chosen.push((name, path));
        }
    }
    for file in &options.files {
        let name = file.file_stem().context("--file names no file")?.to_string_lossy().into_owned();
        chosen.push((name, file.clone()));
    }
    for (_, path) in &chosen {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        io::copy(&mut file, &mut io::sink())?;
    }
    Ok(chosen)
}

fn heading(options: &Options, peer: Option<&Path>) -> Result<String> {
    let (rounds, threads) = (options.rounds, options.threads);
    let long = if options.long { " --long" } else { "" };
    let command = format!("cargo xtask bench{long} --rounds {rounds} --threads {threads}");
    Ok(format!("{}; {threads} threads; medians of {rounds} rounds; `{command}`", report::machine(peer)?))
}

fn write(options: &Options, rows: &[Row], how: &str, all: &str) -> Result<()> {
    if options.long {
        return report::write("docs/PERFORMANCE.md", "bench --long", all);
    }
    let short = format!("{how}\n\n{}", rates_table(rows, |test| targets::TESTS.contains(&test)));
    report::write("README.md", "bench", &short)?;
    report::write("docs/PERFORMANCE.md", "bench", all)
}

struct Bench<'a> {
    options: &'a Options,
    ours: PathBuf,
    roofs: PathBuf,
    peer: Option<PathBuf>,
}

impl<'a> Bench<'a> {
    fn build(options: &'a Options) -> Result<Self> {
        for (package, example) in [("zllm-engine", "bench"), ("zllm-kernels", "roofs")] {
            let build = ["build", "--release", "--package", package, "--example", example];
            process::run(process::cargo().args(build))?;
        }
        let folder = process::target_dir()?.join("release/examples");
        let (ours, roofs) = (folder.join("bench"), folder.join("roofs"));
        process::catch_signals()?;
        Ok(Self { options, ours, roofs, peer: report::peer_python() })
    }

    /// All tests in every round, the programs in turns.
    fn measure(&self, name: &str, model: &Path) -> Result<Row> {
        let mut row = Row::new(name, self.roofs()?);
        row.peer = vec![Vec::new(); if self.peer.is_some() { FLASH_ATTENTION.len() } else { 0 }];
        for round in 1..=self.options.rounds {
            eprintln!("{name}: round {round} of {}", self.options.rounds);
            row.ours.push(self.our_run(model, TESTS)?);
            for (runs, flash_attention) in row.peer.iter_mut().zip(FLASH_ATTENTION) {
                runs.push(self.peer_run(model, flash_attention, &[TESTS, PEER_BATCHES].concat())?);
            }
        }
        row.roofs.push(self.roofs()?);
        Ok(row)
    }

    /// The long prompt; llama.cpp's with the setting that is the better one at a quarter of its length.
    fn measure_long(&self, name: &str, model: &Path) -> Result<Row> {
        let mut row = Row::new(name, self.roofs()?);
        let mut probes = Vec::new();
        if self.peer.is_some() {
            eprintln!("{name}: which setting of llama.cpp is the better one");
            for flash_attention in FLASH_ATTENTION {
                let run = self.peer_run(model, flash_attention, LONG_PROBE)?;
                probes.push((run.rate("prefill 4096").context("no probe")?, flash_attention));
            }
            row.peer.push(Vec::new());
        }
        let better = probes.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        for round in 1..=self.options.rounds {
            eprintln!("{name}: a long prompt, round {round} of {}", self.options.rounds);
            row.ours.push(self.our_run(model, LONG_TESTS)?);
            if let Some((_, flash_attention)) = better {
                row.peer[0].push(self.peer_run(model, flash_attention, LONG_TESTS)?);
            }
        }
        row.roofs.push(self.roofs()?);
        Ok(row)
    }

    fn our_run(&self, model: &Path, tests: &[&str]) -> Result<Run> {
        let mut command = Command::new(&self.ours);
        self.finished(command.arg(model).arg("--json").args(tests))
    }

    fn peer_run(&self, model: &Path, flash_attention: &str, tests: &[&str]) -> Result<Run> {
        let mut command = Command::new(self.peer.as_ref().context("ZLLM_PEER_PYTHON")?);
        command.arg(process::root().join("xtask/peer/llama_cpp_bench.py")).arg(model);
        self.finished(command.args(["--flash-attn", flash_attention]).args(tests))
    }

    fn finished(&self, command: &mut Command) -> Result<Run> {
        command.args(["--threads", &self.options.threads.to_string()]);
        Run::parse(&process::json(command)?).with_context(|| format!("{command:?}"))
    }

    fn roofs(&self) -> Result<Roofs> {
        Roofs::parse(&process::json(Command::new(&self.roofs).arg(self.options.threads.to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_work_are_refused() {
        let parsed = |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        let options = parsed(&["--rounds", "2", "--model", "gemma3-270m"]).unwrap().unwrap();
        assert_eq!((options.rounds, options.models), (2, vec!["gemma3-270m".to_owned()]));
        assert_eq!(parsed(&["--long"]).unwrap().unwrap().rounds, 1);
        for bad in [&["--model", "gpt"][..], &["--file", "/x.gguf", "--check"], &["--at-least", "1"]] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }
}
