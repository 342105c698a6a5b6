//! `cargo xtask ci`: what must pass before a change lands, the quick checks first, the tests last.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{batch_check, canaries, clients, clock, inlining, process, quickstart, test, tidy};

/// Runs every step; the first that fails ends it.
pub(crate) fn run() -> Result<()> {
    let started = clock::now();
    step("cargo fmt --check", || process::run(process::cargo().args(["fmt", "--all", "--check"])))?;
    step("tidy", tidy::run)?;
    step("clippy", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"];
        process::run(process::cargo().args(clippy))
    })?;
    step("canaries", canaries::run)?;
    step("inlining", inlining::run)?;
    step("rustdoc", || {
        let rustdoc = ["doc", "--quiet", "--workspace", "--no-deps", "--locked"];
        process::run(process::cargo().args(rustdoc).env("RUSTDOCFLAGS", "--deny warnings"))
    })?;
    step("cargo deny", cargo_deny)?;
    step("systemd units", systemd_units)?;
    step("smoke run and metrics", smoke)?;
    step("a batch over crashes", batch_check::run)?;
    step("the vendors' clients", clients::run)?;
    step("tests", || test::run(&[]))?;
    println!("ci: all green in {:.0} s", (clock::now() - started).as_secs_f64());
    Ok(())
}

fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    // Steps print through their own processes too; keep the order.
    std::io::stdout().flush()?;
    run().with_context(|| format!("ci step {name:?}"))
}

/// Licences, advisories, duplicates and sources; needs a tool that takes minutes to build, so it is not demanded.
fn cargo_deny() -> Result<()> {
    if !process::installed("cargo-deny") {
        println!("skipped: cargo-deny is not installed (`cargo install cargo-deny`)");
        return Ok(());
    }
    process::run(process::cargo().args(["deny", "--all-features", "check"]))
}

/// `systemd-analyze verify` of the units as they would be installed, but for the program, which is not installed here.
fn systemd_units() -> Result<()> {
    if !process::installed("systemd-analyze") {
        println!("skipped: systemd-analyze is not installed");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut units = Vec::new();
    for entry in fs::read_dir(process::root().join("systemd")).context("systemd/")? {
        let path = entry?.path();
        let name = path.file_name().context("a unit without a name")?.to_string_lossy().into_owned();
        if name.ends_with(".service") || name.ends_with(".socket") {
            let copy = folder.path().join(name);
            fs::write(&copy, with_program(&fs::read_to_string(&path)?, Path::new("/bin/true")))?;
            units.push(copy);
        }
    }
    if units.is_empty() {
        bail!("systemd/ has no units");
    }
    let output = Command::new("systemd-analyze").arg("verify").args(&units).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    // A misspelt setting is only a warning to systemd-analyze, and its exit status says success.
    let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("zllm")).collect();
    if !output.status.success() || !about_ours.is_empty() {
        bail!("systemd-analyze verify: {}\n{said}", output.status);
    }
    println!("systemd-analyze verify: {} units", units.len());
    Ok(())
}

/// The unit with every program of an `Exec...=` line replaced.
fn with_program(unit: &str, program: &Path) -> String {
    let mut made = String::with_capacity(unit.len());
    for line in unit.lines() {
        match line.split_once('=') {
            Some((key, command)) if key.starts_with("Exec") => {
                let arguments = command.trim().split_once(' ').map_or("", |(_, arguments)| arguments);
                made.push_str(&format!("{key}={} {arguments}", program.display()));
            }
            _ => made.push_str(line),
        }
        made.push('\n');
    }
    made
}

/// The quickstart's way with the dev binaries; Prometheus' own checker judges the metrics.
fn smoke() -> Result<()> {
    let metrics = quickstart::smoke()?;
    if !process::installed("promtool") {
        println!("metrics not checked: promtool is not installed (Debian's package prometheus)");
        return Ok(());
    }
    check_metrics(&metrics)?;
    println!("promtool check metrics: {} lines", metrics.lines().count());
    Ok(())
}

fn check_metrics(metrics: &str) -> Result<()> {
    let mut promtool = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn()?;
    promtool.stdin.take().expect("stdin is piped").write_all(metrics.as_bytes())?;
    let status = promtool.wait()?;
    if !status.success() {
        bail!("promtool check metrics: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_of_exec_lines_is_replaced() {
        let unit = "[Service]\nType=notify\nExecStart=/usr/bin/zllmd --config /etc/zllm/zllmd.toml\nExecReload=/bin/kill\n";
        let expected = "[Service]\nType=notify\nExecStart=/bin/true --config /etc/zllm/zllmd.toml\nExecReload=/bin/true \n";
        assert_eq!(with_program(unit, Path::new("/bin/true")), expected);
    }

    #[test]
    fn a_step_that_fails_is_named() {
        let error = step("x", || bail!("no")).unwrap_err();
        assert_eq!(format!("{error:#}"), "ci step \"x\": no");
    }
}
