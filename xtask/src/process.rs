//! Running other programs: paths of the workspace, `cargo`, and waiting in a way that a Ctrl-C can end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How often a waiting xtask looks at its child and at the signals.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// The workspace's root folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the workspace's root")
}

/// `cargo` of the toolchain that runs xtask, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let output =
        cargo().args(["metadata", "--format-version=1", "--no-deps"]).output().context("cargo metadata")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")?;
    let folder = metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(folder))
}

/// A folder that outlives checkouts: the one that `variable` names, else `zllm/NAME` in the user's cache.
pub(crate) fn cache(variable: &str, name: &str) -> Result<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = given(variable) {
        return std::path::absolute(folder).context(variable.to_owned());
    }
    let cache = given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")));
    let cache = cache.with_context(|| format!("none of {variable}, XDG_CACHE_HOME and HOME is set"))?;
    Ok(cache.join("zllm").join(name))
}

/// Is there a program of this name on PATH?
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs the command to its end and fails when it failed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let mut child = command.spawn().with_context(|| format!("could not start `{shown}`"))?;
    let status = wait(&mut child)?;
    if !status.success() {
        bail!("`{shown}` failed: {status}");
    }
    Ok(())
}

/// Runs a program to its end; gives what it prints on stdout, and fails when it failed.
pub(crate) fn printed(command: &mut Command) -> Result<String> {
    check_interrupted()?;
    let shown = shown(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("could not start `{shown}`"))?;
    check_interrupted()?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The same of a program that prints JSON.
pub(crate) fn json(command: &mut Command) -> Result<Value> {
    let text = printed(command)?;
    serde_json::from_str(&text).with_context(|| format!("`{}` printed no JSON: {text:?}", shown(command)))
}

/// Waits for the child. When a signal for xtask arrives first, the child gets a SIGTERM and this is an error.
pub(crate) fn wait(child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            check_interrupted()?;
            return Ok(status);
        }
        if let Err(error) = check_interrupted() {
            terminate(child, Duration::from_secs(5))?;
            return Err(error);
        }
        std::thread::sleep(POLL);
    }
}

/// SIGTERM, then SIGKILL when the child still runs after `patience`. Returns how it ended.
pub(crate) fn terminate(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
    let give_up = crate::clock::now() + patience;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    // A child that nobody has waited for keeps its pid, so the signal cannot hit a stranger.
    if child.try_wait()?.is_none() {
        kill(pid, Signal::SIGTERM).with_context(|| format!("could not signal process {pid}"))?;
    }
    while crate::clock::now() < give_up {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(POLL);
    }
    child.kill()?;
    Ok(child.wait()?)
}

/// From here on SIGINT, SIGTERM and SIGHUP no longer end xtask at once; `check_interrupted` reports them, so that what
/// was started is also stopped.
pub(crate) fn catch_signals() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signal_hook::flag::register(signal as i32, Arc::clone(interrupted()))?;
    }
    Ok(())
}

/// An error once a caught signal has arrived.
pub(crate) fn check_interrupted() -> Result<()> {
    if interrupted().load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

fn interrupted() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_an_error_that_names_it() {
        run(&mut Command::new("true")).expect("true succeeds");
        let error = run(&mut Command::new("false")).expect_err("false fails").to_string();
        assert!(error.starts_with("`false` failed"), "{error}");
        assert_eq!(json(Command::new("echo").arg("[1, 2]")).unwrap()[1], 2);
        assert!(json(Command::new("echo").arg("fast")).is_err());
        let error = json(&mut Command::new("false")).expect_err("false fails").to_string();
        assert!(error.starts_with("`false` failed"), "{error}");
        let error = run(&mut Command::new("no-such-program-of-ours")).expect_err("not there").to_string();
        assert!(error.contains("no-such-program-of-ours"), "{error}");
    }

    #[test]
    fn terminate_ends_a_child_that_ignores_sigterm() {
        let mut child =
            Command::new("sh").args(["-c", "trap '' TERM; while :; do sleep 0.05; done"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let status = terminate(&mut child, Duration::from_millis(200)).unwrap();
        assert!(!status.success());
    }
}
