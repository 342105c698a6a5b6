//! The real `zllmd` with a scratch folder, and a client that speaks the socket protocol by itself.

mod client;
pub(crate) mod durable;
pub(crate) mod http;
pub(crate) mod kv;
mod notify;
mod settings;
pub(crate) mod websocket;

pub(crate) use client::{Answered, Client, greedy};
pub(crate) use http::{get, sample};
pub(crate) use notify::NotifySocket;
pub(crate) use settings::Settings;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The model of most tests.
pub(crate) const MODEL: &str = "smollm2-135m";

/// How long anything may take that is not itself measured: debug builds on a busy machine are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tools, then turns with what the assistant thought and called: the model's own template has none of these.
const TEMPLATE: &str = "\
{%- for tool in tools or [] %}{{ '<tool>' + (tool | tojson) + '\n' }}{% endfor %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

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
    command: Command,
    folder: tempfile::TempDir,
    /// Of its next start.
    pub(crate) settings: Settings,
}

/// A daemon before it is started.
pub(crate) struct Builder {
    command: Command,
    folder: tempfile::TempDir,
    settings: Settings,
}

impl Builder {
    /// A daemon with its own scratch folder, where it keeps its state too, small budgets, no metrics on TCP, and none of
    /// the caller's settings.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("scratch folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_zllmd"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZLLM_") || name == "NOTIFY_SOCKET" {
                command.env_remove(name);
            }
        }
        command
            .arg("--config")
            .arg(folder.path().join("zllmd.toml"))
            .arg("--models-dir")
            .arg(models_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let settings = Settings::new(folder.path());
        Self { command, folder, settings }
    }

    /// With other settings in its file.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
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
        let child = spawn(&mut self.command, self.folder.path(), &self.settings);
        Daemon { child, command: self.command, folder: self.folder, settings: self.settings }
    }

    /// Starts the daemon and waits until it can serve a request.
    pub(crate) fn start(self) -> Daemon {
        let mut daemon = self.spawn();
        daemon.wait_until_ready();
        daemon
    }
}

/// Starts it with these settings; its log goes behind that of an earlier start.
fn spawn(command: &mut Command, folder: &Path, settings: &Settings) -> Child {
    std::fs::write(folder.join("zllmd.toml"), settings.text(folder)).expect("scratch file");
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log"));
    command.stderr(log.expect("scratch file")).spawn().expect("zllmd starts")
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Builder::new().start()
    }

    /// One whose model takes tools, and mostly copies calls that it has made before.
    pub(crate) fn with_tools() -> Self {
        let builder = Builder::new();
        std::fs::write(builder.folder().join("tools.jinja"), TEMPLATE).expect("scratch file");
        builder.with(|settings| settings.more = "template = \"tools.jinja\"\n".into()).start()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub(crate) fn http_socket(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self) {
        wait_for("readiness", || {
            assert!(self.child.try_wait().expect("wait").is_none(), "zllmd ended early:\n{}", self.log());
            (get(&self.http_socket(), "/ready").is_some_and(|answer| answer.status == 200)).then_some(())
        });
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it has ended");
    }

    /// Ends it as systemd does, and waits for an orderly end.
    pub(crate) fn terminate(&mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0), "{}", self.log());
    }

    /// Starts one that has ended again, on the same folder, with the settings that it has now.
    pub(crate) fn start_again(&mut self) {
        assert!(!self.is_running());
        self.child = spawn(&mut self.command, self.folder.path(), &self.settings);
        self.wait_until_ready();
    }

    /// Starts one that has ended again, and kills it so long after that: before it is ready, mostly.
    pub(crate) fn kill_while_it_starts(&mut self, after: Duration) {
        assert!(!self.is_running());
        self.child = spawn(&mut self.command, self.folder.path(), &self.settings);
        std::thread::sleep(after);
        self.kill();
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// One value of a scrape.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = get(&self.http_socket(), "/metrics").expect("a scrape");
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
