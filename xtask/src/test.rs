//! `cargo xtask test`: the test models, then `cargo test --workspace`, then one closing line over all its binaries.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::{clock, models, process};

/// Fetches the models and runs every test; `args` go to `cargo test`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let started = clock::now();
    models::run(&[])?;

    let mut child = process::cargo()
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(args)
        .env("ZLLM_MODELS_DIR", models::cache_dir()?)
        .stdout(Stdio::piped())
        .spawn()
        .context("could not start `cargo test`")?;
    let mut counts = Counts::default();
    for line in BufReader::new(child.stdout.take().expect("stdout is piped")).lines() {
        let line = line.context("`cargo test`'s output")?;
        println!("{line}");
        counts.read(&line);
    }
    let status = child.wait()?;

    println!("\n{} in {:.0} s", counts.summary(), (clock::now() - started).as_secs_f64());
    if !status.success() {
        bail!("`cargo test` failed: {status}");
    }
    counts.check()
}

/// What the "test result:" lines add up to.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    binaries: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Counts {
    /// Adds one line of libtest's output: "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; ...".
    fn read(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let Some((_, fields)) = result.split_once(". ") else { return };
        self.binaries += 1;
        for field in fields.split("; ") {
            match field.split_once(' ').map(|(count, what)| (count.parse::<usize>(), what)) {
                Some((Ok(count), "passed")) => self.passed += count,
                Some((Ok(count), "failed")) => self.failed += count,
                Some((Ok(count), "ignored")) => self.ignored += count,
                _ => {}
            }
        }
    }

    fn summary(&self) -> String {
        let Self { binaries, passed, failed, ignored } = self;
        format!(
            "xtask test: {passed} passed, {failed} failed, {ignored} ignored, in {binaries} test binaries"
        )
    }

    /// Green means that something ran and nothing failed, also when cargo's exit status says well.
    fn check(&self) -> Result<()> {
        if self.failed > 0 {
            bail!("{} tests failed", self.failed);
        }
        if self.passed == 0 {
            bail!("no test ran");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.read(line));
        counts
    }

    #[test]
    fn sums_over_binaries() {
        let counts = counted(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ]);
        assert_eq!(counts, Counts { binaries: 2, passed: 7, failed: 0, ignored: 1 });
        counts.check().unwrap();
    }

    #[test]
    fn a_failure_or_an_empty_run_is_not_green() {
        let failed = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert!(counted(&[failed]).check().is_err());
        assert!(counted(&[]).check().is_err());
        assert!(counted(&["test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"]).check().is_err());
    }
}
