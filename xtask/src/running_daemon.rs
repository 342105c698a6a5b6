//! A `zllmd` of our own with a scratch folder: started until it says READY, stopped whatever happens.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{clock, process};

/// Loading a small model takes a second or two; a cold disk may need more.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long the daemon may take to drain before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The two programs of zllm.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) zllmd: PathBuf,
    pub(crate) zllmctl: PathBuf,
}

/// How to build the programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

impl Programs {
    /// Builds both programs.
    pub(crate) fn build(profile: Profile) -> Result<Self> {
        let mut build = process::cargo();
        build.args(["build", "--package", "zllmd", "--package", "zllmctl", "--bins"]);
        let folder = match profile {
            Profile::Dev => "debug",
            Profile::Release => {
                build.arg("--release");
                "release"
            }
        };
        process::run(&mut build)?;
        let folder = process::target_dir()?.join(folder);
        Ok(Self { zllmd: folder.join("zllmd"), zllmctl: folder.join("zllmctl") })
    }
}

/// Dropping it stops the daemon and removes its folder.
#[derive(Debug)]
pub(crate) struct RunningDaemon {
    child: Child,
    programs: Programs,
    folder: TempDir,
    flags: Vec<String>,
}

impl RunningDaemon {
    /// Starts a daemon that has loaded one model when it says READY, and waits for that.
    pub(crate) fn start(programs: &Programs, model: &str, model_path: &Path) -> Result<Self> {
        Self::start_with(programs, model, model_path, &[])
    }

    /// The same with flags, which go before its configuration.
    pub(crate) fn start_with(
        programs: &Programs,
        model: &str,
        model_path: &Path,
        flags: &[&str],
    ) -> Result<Self> {
        Self::start_configured(programs, model, model_path, flags, "")
    }

    /// The same with more of its configuration: keys of the model, then tables.
    pub(crate) fn start_configured(
        programs: &Programs,
        model: &str,
        model_path: &Path,
        flags: &[&str],
        more: &str,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("zllm-").tempdir().context("no scratch folder")?;
        let config = folder.path().join("zllmd.toml");
        fs::write(&config, config_text(folder.path(), model, model_path) + more)?;
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (child, notify) = spawn(programs, folder.path(), &flags)?;
        let mut daemon = Self { child, programs: programs.clone(), folder, flags };
        daemon.wait_until_ready(&notify)?;
        Ok(daemon)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        socket_in(self.folder.path())
    }

    /// Kills the daemon as a power cut would, as far as its memory goes, and starts it again in the same folder.
    pub(crate) fn kill_and_start_again(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        let (child, notify) = spawn(&self.programs, self.folder.path(), &self.flags)?;
        self.child = child;
        self.wait_until_ready(&notify)
    }

    /// `zllmctl` that talks to this daemon.
    pub(crate) fn zllmctl(&self) -> Command {
        let mut command = Command::new(&self.programs.zllmctl);
        command.env("ZLLM_SOCKET", self.socket());
        command
    }

    /// The text of the daemon's `/metrics`, fetched over its Unix socket.
    pub(crate) fn metrics(&self) -> Result<String> {
        let mut stream = UnixStream::connect(http_in(self.folder.path())).context("the HTTP socket")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("reading /metrics")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("/metrics: no HTTP answer")?;
        if !head.lines().next().is_some_and(|status| status.contains(" 200 ")) {
            bail!("/metrics answered {head:?}");
        }
        Ok(body.to_owned())
    }

    /// Asks the daemon to stop, as a user would, and waits until it is gone.
    pub(crate) fn stop(mut self) -> Result<()> {
        process::run(self.zllmctl().arg("stop").stdout(Stdio::null()))?;
        let give_up = clock::now() + STOP_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("zllmd ended with {status}\n{}", self.log_tail());
                }
                break;
            }
            process::check_interrupted()?;
            if clock::now() > give_up {
                bail!("zllmd still runs {STOP_WITHIN:?} after `zllmctl stop`\n{}", self.log_tail());
            }
            std::thread::sleep(process::POLL);
        }
        if self.socket().exists() {
            bail!("zllmd left its socket behind");
        }
        Ok(())
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> Result<String> {
        fs::read_to_string(self.folder.path().join("zllmd.log")).context("the daemon's log")
    }

    /// The last lines of the daemon's log.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn wait_until_ready(&mut self, notify: &UnixDatagram) -> Result<()> {
        let give_up = clock::now() + READY_WITHIN;
        let mut message = [0; 4096];
        while clock::now() < give_up {
            process::check_interrupted()?;
            if let Some(status) = self.child.try_wait()? {
                bail!("zllmd ended before it was ready: {status}\n{}", self.log_tail());
            }
            match notify.recv(&mut message) {
                Ok(length) if says_ready(&message[..length]) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error).context("the notify socket"),
            }
        }
        bail!("zllmd was not ready within {READY_WITHIN:?}\n{}", self.log_tail())
    }
}

impl Drop for RunningDaemon {
    fn drop(&mut self) {
        if let Err(error) = process::terminate(&mut self.child, STOP_WITHIN) {
            eprintln!("could not stop zllmd (process {}): {error:#}", self.child.id());
        }
    }
}

/// Starts a daemon with the configuration in `folder`; what it tells systemd comes from the socket.
fn spawn(programs: &Programs, folder: &Path, flags: &[String]) -> Result<(Child, UnixDatagram)> {
    let notify_path = folder.join("notify");
    // The one before may have left it.
    let _ = fs::remove_file(&notify_path);
    let notify = UnixDatagram::bind(&notify_path).context("no notify socket")?;
    notify.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut zllmd = Command::new(&programs.zllmd);
    // The environment goes before the file, so the user's own settings must not reach this daemon.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZLLM_") {
            zllmd.env_remove(name);
        }
    }
    let child = zllmd
        .arg("--config")
        .arg(folder.join("zllmd.toml"))
        .args(flags)
        .env("NOTIFY_SOCKET", &notify_path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::options().create(true).append(true).open(folder.join("zllmd.log"))?)
        .spawn()
        .with_context(|| format!("could not start {}", programs.zllmd.display()))?;
    Ok((child, notify))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// systemd's protocol: lines of `KEY=value` in one datagram.
fn says_ready(message: &[u8]) -> bool {
    message.split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("zllmd.sock")
}

fn http_in(folder: &Path) -> PathBuf {
    folder.join("http.sock")
}

/// Everything that the daemon listens on lies in the scratch folder, so that it meets no other daemon.
fn config_text(folder: &Path, model: &str, model_path: &Path) -> String {
    let quoted = |path: &Path| toml::Value::from(path.to_string_lossy().into_owned()).to_string();
    format!(
        "socket = {}\n\n[http]\nlisten = \"off\"\nsocket = {}\n\n[kv]\ndir = {}\n\n[jobs]\ndir = {}\n\n[models.\"{model}\"]\npath = {}\nload = \"start\"\n",
        quoted(&socket_in(folder)),
        quoted(&http_in(folder)),
        quoted(&folder.join("kv")),
        quoted(&folder.join("jobs")),
        quoted(model_path),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A "zllmd" that is a shell script.
    fn script(folder: &Path, text: &str) -> Programs {
        let zllmd = folder.join("zllmd");
        fs::write(&zllmd, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&zllmd, fs::Permissions::from_mode(0o755)).unwrap();
        Programs { zllmd, zllmctl: PathBuf::from("true") }
    }

    #[test]
    fn a_daemon_that_dies_before_it_is_ready_is_an_error_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let programs = script(folder.path(), "echo no such model >&2; exit 3");
        let error =
            RunningDaemon::start(&programs, "small", Path::new("small.gguf")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such model"), "{error}");
    }

    #[test]
    fn a_dropped_daemon_is_gone_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = folder.path().to_owned();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
        let programs = script(&scratch, "true");
        drop(RunningDaemon { child, programs, folder, flags: vec![] });
        assert_eq!(nix::sys::signal::kill(pid, None), Err(nix::errno::Errno::ESRCH));
        assert!(!scratch.exists());
    }

    #[test]
    fn only_ready_is_ready() {
        assert!(says_ready(b"STATUS=loading\nREADY=1\n"));
        assert!(!says_ready(b"STATUS=READY=1\n"));
        assert!(!says_ready(b"READY=10"));
    }
}
