//! The real `zllmd` with a scratch folder, and a client that speaks the socket protocol by itself.

mod client;
mod http;
mod notify;

pub(crate) use client::{Answered, Client, greedy};
pub(crate) use http::{get, sample};
pub(crate) use notify::NotifySocket;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The model of most tests.
pub(crate) const MODEL: &str = "smollm2-135m";

/// How long anything may take that is not itself measured: debug builds on a busy machine are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The clock of the tests.
#[expect(clippy::disallowed_methods, reason = "integration tests measure a real process")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until `done` gives something.
pub(crate) fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let give_up = now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(now() < give_up, "{what} did not happen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The folder of test models; a missing model fails the test that needs it.
pub(crate) fn models_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let folder = set("ZLLM_MODELS_DIR").or_else(|| cache().map(|cache| cache.join("zllm/models")));
    let folder = folder.expect("ZLLM_MODELS_DIR, XDG_CACHE_HOME or HOME names the folder of test models");
    let model = folder.join(format!("{MODEL}.gguf"));
    assert!(model.is_file(), "{} is missing; `cargo xtask models` fetches it", model.display());
    folder
}

/// A running daemon. Dropping it kills it.
pub(crate) struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

/// A daemon before it is started.
pub(crate) struct Builder {
    command: Command,
    folder: tempfile::TempDir,
}

impl Builder {
    /// A daemon with its own scratch folder, a small KV arena, no metrics on TCP, and none of the caller's settings.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("scratch folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_zllmd"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZLLM_") || name == "NOTIFY_SOCKET" {
                command.env_remove(name);
            }
        }
        let config = folder.path().join("zllmd.toml");
        let model = models_dir().join(format!("{MODEL}.gguf"));
        let text = format!(
            "socket = {:?}\nmetrics = \"off\"\nmetrics_socket = {:?}\nthreads = 2\n[models.{MODEL}]\npath = {model:?}\nload = \"start\"\nkv_budget = \"96MiB\"\n",
            folder.path().join("s"),
            folder.path().join("m"),
        );
        std::fs::write(&config, text).expect("scratch file");
        command
            .arg("--config")
            .arg(config)
            .arg("--models-dir")
            .arg(models_dir())
            .arg("--kv-dir")
            .arg(folder.path().join("kv"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Self { command, folder }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Started with a listening socket as descriptor 3. A shell puts it there: the daemon's own id is known only then.
    pub(crate) fn activated(mut self, listener: std::os::unix::net::UnixListener) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec env LISTEN_FDS=1 LISTEN_PID=$$ \"$0\" \"$@\" 3<&0 0</dev/null"]);
        shell.arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.stdin(std::os::fd::OwnedFd::from(listener)).stdout(Stdio::null());
        self.command = shell;
        self
    }

    /// The scratch folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the daemon.
    pub(crate) fn spawn(mut self) -> Daemon {
        let log = std::fs::File::create(self.folder.path().join("log")).expect("scratch file");
        let child = self.command.stderr(log).spawn().expect("zllmd starts");
        Daemon { child, folder: self.folder }
    }

    /// Starts the daemon and waits until it can serve a request.
    pub(crate) fn start(self) -> Daemon {
        let mut daemon = self.spawn();
        wait_for("readiness", || {
            assert!(daemon.child.try_wait().expect("wait").is_none(), "zllmd ended early:\n{}", daemon.log());
            (get(&daemon.metrics_socket(), "/ready").is_some_and(|answer| answer.status == 200)).then_some(())
        });
        daemon
    }
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Builder::new().start()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub(crate) fn metrics_socket(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// One value of a scrape.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = get(&self.metrics_socket(), "/metrics").expect("a scrape");
        sample(&page.body, name).unwrap_or_else(|| panic!("no {name} in\n{}", page.body))
    }

    /// Sends a signal by name, such as `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the daemon's end", || self.child.try_wait().expect("wait"))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}
