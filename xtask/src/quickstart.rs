//! `cargo xtask quickstart`: from a fresh clone to a streamed answer, with nothing left running.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{models, process};

const MODEL: &str = "smollm2-135m";
/// The likeliest tokens: of so small a model, the most sensible answer, and everywhere the same.
const QUESTION: [&str; 5] =
    ["run", MODEL, "Explain in two sentences why the sky is blue.", "--temperature", "0"];

/// Builds zllm in release, pulls the model, starts a daemon, streams one answer, stops the daemon.
pub(crate) fn run() -> Result<()> {
    process::catch_signals()?;
    eprintln!("building zllmd and zllmctl (the first time takes a few minutes)");
    let programs = Programs::build(Profile::Release)?;
    let daemon = start(&programs)?;
    let [run, model, prompt, flag, value] = QUESTION;
    eprintln!("zllmctl {run} {model} {prompt:?} {flag} {value}\n");
    if let Err(error) = process::run(daemon.zllmctl().args(QUESTION)) {
        process::check_interrupted()?;
        bail!("{error:#}; the last lines of zllmd's log:\n{}", daemon.log_tail());
    }
    daemon.stop()?;
    eprintln!("\nthe daemon is stopped; README.md says how to start one that stays");
    Ok(())
}

/// The same with the binaries of the dev profile and the output checked; returns the daemon's metrics after the run.
pub(crate) fn smoke() -> Result<String> {
    process::catch_signals()?;
    let daemon = start(&Programs::build(Profile::Dev)?)?;
    let output = daemon.zllmctl().args(QUESTION).stdin(Stdio::null()).output()?;
    let (answer, rest) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() || answer.trim().is_empty() {
        bail!("zllmctl run: {}, answer {answer:?}, stderr {rest:?}\n{}", output.status, daemon.log_tail());
    }
    let metrics = daemon.metrics()?;
    smoke_bench(&daemon)?;
    daemon.stop()?;
    println!("smoke: {:?}", answer.trim());
    Ok(metrics)
}

/// A small `zllmctl bench`: it measures all that it was asked for, and leaves no session and no KV.
fn smoke_bench(daemon: &RunningDaemon) -> Result<()> {
    process::run(daemon.zllmctl().args(["evict", "--all"]).stdout(Stdio::null()))?;
    let sizes =
        ["--prefill", "16,32", "--depth", "0,64", "--decode", "32", "--sessions", "1,2", "--repeat", "1"];
    let report = process::json(daemon.zllmctl().args(["bench", MODEL, "--json"]).args(sizes))?;
    let rates = report["tests"].as_array().context("no \"tests\"")?;
    if rates.len() != 6
        || rates.iter().any(|test| !test["tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0))
    {
        bail!("zllmctl bench: {report}");
    }
    let status = process::json(daemon.zllmctl().args(["status", "--json"]))?;
    let blocks = status["blocks"].as_array().context("no \"blocks\"")?;
    if status["sessions"] != 0 || blocks.iter().any(|row| row["used"] != 0 || row["cached"] != 0) {
        bail!("zllmctl bench left something behind: {status}");
    }
    Ok(())
}

fn start(programs: &Programs) -> Result<RunningDaemon> {
    let folder = models::cache_dir()?;
    let model = models::find(MODEL)?;
    models::ensure(&[model], &folder, || Command::new(&programs.zllmctl))?;
    RunningDaemon::start(programs, MODEL, &models::path_of(model, &folder))
}
