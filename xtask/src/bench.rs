//! `cargo xtask bench`: prefill and decode of the test models, ours beside llama.cpp, in one run.
//!
//! The programs take turns (ours, llama.cpp with flash attention, llama.cpp without, ours, ...), so that a slow minute
//! of the machine hits all alike. Each run is a process of its own that measures three times and gives the fastest. What
//! counts is the median over the rounds; for llama.cpp the better of its two settings, for each test by itself. Both
//! sides prefill any token ids into an empty context and decode one token at a time beginning with an empty context,
//! without sampling.

mod result;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::result::{Median, Row, Run, check_ratios, rates_table, resources_table};
use crate::{models, process};
use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask bench [--rounds N] [--threads N] [--model NAME]... [--no-write] [--at-least RATIO]

  --rounds N        how often each program runs (default 5)
  --threads N       threads of each program (default: the physical cores)
  --model NAME      only this model; may be given again
  --no-write        print the tables and leave README.md and docs/PERFORMANCE.md alone
  --at-least RATIO  fail when ours / llama.cpp is below this anywhere

ZLLM_PEER_PYTHON names a Python that has llama-cpp-python (built from source, so that it uses this CPU's instructions);
without it ours is measured alone and nothing is written.
";
const PREFILL_TOKENS: u32 = 512;
const DECODE_TOKENS: u32 = 128;
/// Measurements in one process, of which the fastest counts.
const REPEAT: u32 = 3;

#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    threads: usize,
    models: Vec<String>,
    write: bool,
    at_least: f64,
}

/// Measures, prints the tables, and writes them into the documents.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{USAGE}");
        return Ok(());
    }
    let options = parse(args)?;
    let peer = peer_python();
    let names = if options.models.is_empty() {
        models::MODELS.iter().map(|model| model.name.to_owned()).collect()
    } else {
        options.models.clone()
    };
    models::run(&names)?;
    process::run(process::cargo().args([
        "build",
        "--release",
        "--package",
        "zllm-engine",
        "--example",
        "bench",
    ]))?;
    let ours = process::target_dir()?.join("release/examples/bench");

    let folder = models::cache_dir()?;
    let mut rows = Vec::new();
    for name in &names {
        let model = models::path_of(models::find(name)?, &folder);
        rows.push(measure(name, &model, &ours, peer.as_deref(), &options)?);
    }
    let (rounds, threads) = (options.rounds, options.threads);
    let command = format!("cargo xtask bench --rounds {rounds} --threads {threads}");
    let how =
        format!("{}; {threads} threads; medians of {rounds} rounds; `{command}`.", machine(peer.as_deref())?);
    let short = format!("{how}\n\n{}", rates_table(&rows));
    let long = format!("{short}\n{}", resources_table(&rows));
    println!("{long}");
    if options.write && peer.is_some() && options.models.is_empty() {
        for (name, text) in [("README.md", &short), ("docs/PERFORMANCE.md", &long)] {
            let path = process::root().join(name);
            let document = fs::read_to_string(&path).context(name)?;
            fs::write(&path, spliced(&document, "bench", text).context(name)?)?;
            println!("written to {name}");
        }
    }
    check_ratios(&rows, options.at_least)
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options =
        Options { rounds: 5, threads: physical_cores(), models: Vec::new(), write: true, at_least: 0.0 };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
            "--threads" => options.threads = value()?.parse().context("--threads")?,
            "--model" => options.models.push(models::find(value()?)?.name.to_owned()),
            "--no-write" => options.write = false,
            "--at-least" => options.at_least = value()?.parse().context("--at-least")?,
            _ => bail!("no option {arg:?}\n{USAGE}"),
        }
    }
    if options.rounds == 0 || options.threads == 0 {
        bail!("--rounds and --threads must be at least 1");
    }
    Ok(options)
}

fn measure(name: &str, model: &Path, ours: &Path, peer: Option<&Path>, options: &Options) -> Result<Row> {
    let script = process::root().join("xtask/peer/llama_cpp_bench.py");
    let (mut our_runs, mut peer_runs) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 1..=options.rounds {
        eprintln!("{name}: round {round} of {}", options.rounds);
        let mut command = Command::new(ours);
        command.arg(model).arg("--json");
        our_runs.push(measured(&mut command, options)?);
        if let Some(python) = peer {
            for (runs, setting) in peer_runs.iter_mut().zip(["on", "off"]) {
                let mut command = Command::new(python);
                command.arg(&script).arg(model).args(["--flash-attn", setting]);
                runs.push(measured(&mut command, options)?);
            }
        }
    }
    let peer = peer.map(|_| Median::of(&peer_runs[0]).better(&Median::of(&peer_runs[1])));
    Ok(Row { model: name.to_owned(), ours: Median::of(&our_runs), peer })
}

/// Runs one program, which prints one JSON object.
fn measured(command: &mut Command, options: &Options) -> Result<Run> {
    command.args(["--prefill", &PREFILL_TOKENS.to_string(), "--decode", &DECODE_TOKENS.to_string()]);
    command.args(["--threads", &options.threads.to_string(), "--repeat", &REPEAT.to_string()]);
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("could not start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", output.status);
    }
    Run::parse(&String::from_utf8_lossy(&output.stdout)).with_context(|| format!("{command:?}"))
}

/// The Python that has llama.cpp.
pub(crate) fn peer_python() -> Option<PathBuf> {
    std::env::var_os("ZLLM_PEER_PYTHON").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The document with what stands between the two markers of `cargo xtask COMMAND` replaced.
pub(crate) fn spliced(document: &str, command: &str, text: &str) -> Result<String> {
    let [begin, end] = ["begin", "end"].map(|place| format!("<!-- cargo xtask {command}: {place} -->"));
    let (before, rest) = document.split_once(&begin).with_context(|| format!("no line {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}\n\n{}\n\n{end}{after}", text.trim()))
}

/// CPU, commit and peer in one line.
pub(crate) fn machine(peer: Option<&Path>) -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = field(&cpuinfo, "model name").next().unwrap_or("unknown CPU").to_owned();
    let commit =
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(process::root()).output()?;
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    let Some(python) = peer else { return Ok(format!("{cpu}; zllm {commit}")) };
    let ask = ["-c", "import llama_cpp; print(llama_cpp.__version__)"];
    let version = Command::new(python).args(ask).output().context("ZLLM_PEER_PYTHON")?;
    if !version.status.success() {
        bail!("ZLLM_PEER_PYTHON has no llama_cpp: {}", String::from_utf8_lossy(&version.stderr).trim());
    }
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    Ok(format!("{cpu}; zllm {commit}; llama.cpp of llama-cpp-python {version}"))
}

/// Cores, not hyper-threads: a second thread on a core brings these kernels nothing.
pub(crate) fn physical_cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores: BTreeSet<_> = field(&cpuinfo, "physical id").zip(field(&cpuinfo, "core id")).collect();
    if cores.is_empty() { allowed } else { cores.len().min(allowed) }
}

fn field<'a>(cpuinfo: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    cpuinfo.lines().filter_map(move |line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_changes() {
        let [begin, end] = ["<!-- cargo xtask bench: begin -->", "<!-- cargo xtask bench: end -->"];
        let document = format!("# P\n{begin}\nold\n{end}\nrest\n");
        let wanted = format!("# P\n{begin}\n\nnew\n\n{end}\nrest\n");
        assert_eq!(spliced(&document, "bench", "new\n").unwrap(), wanted);
        assert!(spliced(&document, "perplexity", "new").is_err());
        assert!(spliced(&format!("# P\n{begin}\n"), "bench", "new").is_err());
    }

    #[test]
    fn wrong_options_are_refused() {
        let parsed = |args: &[&str]| parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(parsed(&["--rounds", "3", "--model", "gemma3-270m"]).unwrap().models, ["gemma3-270m"]);
        for bad in
            [&["--rounds"][..], &["--rounds", "0"], &["--rounds", "x"], &["--model", "gpt"], &["--fast"]]
        {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }
}
