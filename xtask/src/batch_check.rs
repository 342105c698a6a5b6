//! `cargo xtask batch-check`: a batch whose command and whose daemon are killed in the middle gives, to the byte, the
//! answers of one that is left alone, and none of its requests becomes two jobs. With the real binaries and a real model.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{clock, models, process};

const MODEL: &str = "smollm2-135m";
/// Enough that some are done, some run and some wait when the crash comes.
const REQUESTS: usize = 40;
const MAX_TOKENS: usize = 48;
/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds the programs, runs both batches and compares.
pub(crate) fn run() -> Result<()> {
    process::catch_signals()?;
    let programs = Programs::build(Profile::Dev)?;
    let folder = models::cache_dir()?;
    let model = models::find(MODEL)?;
    models::ensure(&[model], &folder, || Command::new(&programs.zllmctl))?;
    let mut daemon = RunningDaemon::start(&programs, MODEL, &models::path_of(model, &folder))?;
    let work = tempfile::tempdir()?;
    let checked = check(&mut daemon, work.path());
    checked.with_context(|| format!("the last lines of zllmd's log:\n{}", daemon.log_tail()))?;
    daemon.stop()
}

fn check(daemon: &mut RunningDaemon, folder: &Path) -> Result<()> {
    fs::write(folder.join("in.jsonl"), requests())?;
    process::run(batch(daemon, folder, "calm").stdout(Stdio::null()))?;
    let calm = results(&folder.join("calm.jsonl"))?;

    let mut command = batch(daemon, folder, "rough").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let early = wait_for_results(&folder.join("rough.jsonl.partial"));
    command.kill()?;
    command.wait()?;
    let early = early?;
    daemon.kill_and_start_again()?;
    process::run(batch(daemon, folder, "rough").stdout(Stdio::null()))?;
    let rough = results(&folder.join("rough.jsonl"))?;

    same(&calm, &rough)?;
    let jobs = jobs_of(daemon, "rough")?;
    ensure!(jobs == REQUESTS, "{REQUESTS} requests became {jobs} jobs");
    let page = daemon.zllmctl().args(["top", "--once"]).output()?;
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    ensure!(page.contains("\nRUNNING 0 of ") && page.contains("\nWAITING 0"), "top --once printed:\n{page}");
    println!("batch-check: {REQUESTS} answers, {early} of them before the crash, the same to the byte");
    Ok(())
}

/// Drawn, not the likeliest tokens: a lost or doubled draw would show.
fn requests() -> String {
    let line = |number: usize| {
        let body = json!({
            "model": MODEL, "seed": number, "temperature": 1.0, "max_tokens": MAX_TOKENS,
            "messages": [{ "role": "user", "content": format!("Tell me about the number {number}.") }],
        });
        let line = json!({
            "custom_id": format!("n{number}"), "method": "POST", "url": "/v1/chat/completions", "body": body,
        });
        format!("{line}\n")
    };
    (0..REQUESTS).map(line).collect()
}

fn batch(daemon: &RunningDaemon, folder: &Path, id: &str) -> Command {
    let mut command = daemon.zllmctl();
    let output = format!("{id}.jsonl");
    command.args(["batch", "in.jsonl", "--id", id, "--output", &output, "--errors", "errors.jsonl"]);
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Waits for the first results, and counts them.
fn wait_for_results(partial: &Path) -> Result<usize> {
    let give_up = clock::now() + PATIENCE;
    while clock::now() < give_up {
        process::check_interrupted()?;
        let lines = fs::read_to_string(partial).unwrap_or_default().lines().count();
        if lines > 0 {
            ensure!(lines < REQUESTS, "the batch had ended before it could be killed");
            return Ok(lines);
        }
        std::thread::sleep(process::POLL);
    }
    bail!("no result within {PATIENCE:?}")
}

/// What each request was answered: its name, and its choices.
fn results(path: &Path) -> Result<Vec<(String, Value)>> {
    let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let result = |line: &str| {
        let line: Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line:?}"))?;
        let name = line["custom_id"].as_str().context("no custom_id")?.to_owned();
        Ok((name, line["response"]["body"]["choices"].clone()))
    };
    text.lines().map(result).collect()
}

fn same(calm: &[(String, Value)], rough: &[(String, Value)]) -> Result<()> {
    ensure!(calm.len() == REQUESTS, "{} of {REQUESTS} requests were answered", calm.len());
    ensure!(rough.len() == REQUESTS, "{} of {REQUESTS} requests were answered over the crash", rough.len());
    for (calm, rough) in calm.iter().zip(rough) {
        ensure!(calm == rough, "over the crash an answer became another:\n{calm:?}\n{rough:?}");
    }
    Ok(())
}

fn jobs_of(daemon: &RunningDaemon, batch: &str) -> Result<usize> {
    let output = daemon.zllmctl().args(["list", "jobs", "--json"]).output()?;
    let listing: Value = serde_json::from_slice(&output.stdout).context("zllmctl list jobs --json")?;
    let jobs = listing["jobs"].as_array().context("no jobs in the listing")?;
    Ok(jobs.iter().filter(|job| job["batch"] == batch).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_and_another_one_are_found() {
        let answers: Vec<_> =
            (0..REQUESTS).map(|number| (format!("n{number}"), json!([{ "text": number }]))).collect();
        same(&answers, &answers).unwrap();
        let error = same(&answers, &answers[1..]).unwrap_err().to_string();
        assert!(error.contains("39 of 40 requests were answered over the crash"), "{error}");
        let mut other = answers.clone();
        other[7].1 = json!([{ "text": "x" }]);
        let error = same(&answers, &other).unwrap_err().to_string();
        assert!(error.contains("became another") && error.contains("n7"), "{error}");
    }

    #[test]
    fn every_request_is_a_line_of_its_own() {
        let text = requests();
        assert_eq!(text.lines().count(), REQUESTS);
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    }
}
