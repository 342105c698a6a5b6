//! `cargo xtask clients`: the vendors' own clients, unmodified and pinned, against a real daemon over TCP: `clients/`.
//!
//! Each suite is one process that prints TAP; every test in it is at least one call. A suite may have the daemon killed and
//! started again: it connects to `ZLLM_RESTART` and waits for a line.

mod packages;
mod tap;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{clock, models, process};
use tap::Counts;

const MODEL: &str = "smollm2-135m";
/// A hanging suite must not hang whoever waits for this.
const SUITE_WITHIN: Duration = Duration::from_secs(600);
/// Fewer calls than this and somebody has lost a suite.
const MIN_CALLS: usize = 140;

/// Installs the clients, starts a daemon, runs every suite and says how many calls there were.
pub(crate) fn run() -> Result<()> {
    process::catch_signals()?;
    let Some(suites) = packages::suites()? else { return Ok(()) };
    let programs = Programs::build(Profile::Dev)?;
    let folder = models::cache_dir()?;
    let model = models::find(MODEL)?;
    models::ensure(&[model], &folder, || Command::new(&programs.zllmctl))?;

    let address = free_address()?;
    let flags = ["--http", &address.to_string()];
    let path = models::path_of(model, &folder);
    let mut daemon = RunningDaemon::start_configured(&programs, MODEL, &path, &flags, &settings())?;
    let restarts = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for restarts")?;
    restarts.set_nonblocking(true)?;

    let started = clock::now();
    let mut counts = Counts::default();
    for (name, mut suite) in suites {
        println!("# {name}");
        suite.env("ZLLM_URL", format!("http://{address}"));
        suite.env("ZLLM_MODEL", MODEL);
        suite.env("ZLLM_RESTART", restarts.local_addr()?.to_string());
        // For keys, which are made and taken back over the daemon's socket alone.
        suite.env("ZLLM_CTL", &programs.zllmctl).env("ZLLM_SOCKET", daemon.socket());
        let ran = run_suite(&mut suite, || restart_if_asked(&restarts, &mut daemon))
            .with_context(|| format!("{name}; the last lines of zllmd's log:\n{}", daemon.log_tail()))?;
        counts.add(ran);
    }
    daemon.stop()?;
    let seconds = (clock::now() - started).as_secs_f64();
    println!("clients: {} calls, {} failed, in {seconds:.0} s", counts.calls(), counts.failed);
    check(counts)
}

fn check(counts: Counts) -> Result<()> {
    if counts.failed > 0 {
        bail!("{} of {} calls failed", counts.failed, counts.calls());
    }
    if counts.calls() < MIN_CALLS {
        bail!("only {} calls were made, not {MIN_CALLS}", counts.calls());
    }
    Ok(())
}

/// What the suites' daemon is told beside its model: a template with tools and reasoning, and a queue that can be filled.
fn settings() -> String {
    let template = process::root().join("clients/template.jinja");
    let template = toml::Value::from(template.to_string_lossy().into_owned());
    format!("template = {template}\n\n[limits]\nqueued_jobs = 24\n")
}

/// An address that nobody listened on just now. It must stay the same over restarts, so the daemon cannot choose it.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?)
}

/// Runs a suite to its end, calling `attend` again and again meanwhile.
fn run_suite(suite: &mut Command, attend: impl FnMut() -> Result<()>) -> Result<Counts> {
    let program = suite.get_program().to_owned();
    let mut child = suite.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let child = child.as_mut().map_err(|error| anyhow::anyhow!("could not start {program:?}: {error}"))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let reader = std::thread::spawn(move || read(stdout));
    let ended = attend_until_end(child, attend);
    if ended.is_err() {
        process::terminate(child, Duration::from_secs(5))?;
    }
    let counts = reader.join().expect("reading lines does not panic")?;
    let ended_well = ended?;
    if !ended_well && counts.failed == 0 {
        bail!("{program:?} failed, and none of its tests");
    }
    Ok(counts)
}

/// Waits for the suite; whether it says that all is well.
fn attend_until_end(child: &mut Child, mut attend: impl FnMut() -> Result<()>) -> Result<bool> {
    let give_up = clock::now() + SUITE_WITHIN;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        process::check_interrupted()?;
        attend()?;
        if clock::now() > give_up {
            bail!("the suite still runs after {SUITE_WITHIN:?}");
        }
        std::thread::sleep(process::POLL);
    }
}

/// Counts the results and shows them, with all that belongs to those that failed.
fn read(stdout: ChildStdout) -> Result<Counts> {
    let mut counts = Counts::default();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("a suite's output")?;
        if counts.read(&line) {
            println!("{line}");
        }
    }
    Ok(counts)
}

/// Kills and starts the daemon when a suite has connected, and tells it when that is done.
fn restart_if_asked(restarts: &TcpListener, daemon: &mut RunningDaemon) -> Result<()> {
    match restarts.accept() {
        Ok((mut asked, _)) => {
            daemon.kill_and_start_again()?;
            asked.write_all(b"ready\n").context("the suite that asked for a restart is gone")
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error).context("the port for restarts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(script: &str) -> Result<Counts> {
        run_suite(Command::new("sh").args(["-c", script]), || Ok(()))
    }

    #[test]
    fn a_suite_is_as_good_as_its_tests_and_its_end() {
        assert_eq!(suite("echo ok - a; echo ok - b").unwrap(), Counts { passed: 2, failed: 0, shows: false });
        assert_eq!(suite("echo not ok - a; exit 1").unwrap().failed, 1);
        assert!(suite("echo ok - a; exit 1").unwrap_err().to_string().contains("none of its tests"));
        let error = run_suite(Command::new("sleep").arg("600"), || bail!("no daemon")).unwrap_err();
        assert_eq!(error.to_string(), "no daemon");
    }

    #[test]
    fn a_failed_call_or_a_lost_suite_fails() {
        check(Counts { passed: MIN_CALLS, ..Counts::default() }).unwrap();
        assert!(check(Counts { passed: MIN_CALLS, failed: 1, ..Counts::default() }).is_err());
        assert!(check(Counts { passed: MIN_CALLS - 1, ..Counts::default() }).is_err());
    }
}
