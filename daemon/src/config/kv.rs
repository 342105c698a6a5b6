//! What is kept of keys and values beyond the device's memory: where, how much, and which of it.

use super::bytes::{Budget, ByteSize};
use super::cli::Cli;
use super::times::{self, Age};
use crate::limits;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `[kv]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KvTable {
    dir: Option<PathBuf>,
    ssd_budget: Option<Budget>,
    save: Option<SavePolicy>,
    session_ttl: Option<Age>,
    save_seconds: Option<u64>,
    unsaved_budget: Option<ByteSize>,
}

/// Complete and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvSettings {
    /// The tier on SSD; `None`: there is none.
    pub(crate) ssd: Option<SsdSettings>,
    pub(crate) save: SavePolicy,
    /// How long a session that nobody uses is kept; `None`: for ever.
    pub(crate) session_ttl: Option<Duration>,
    /// How long saving may take at the daemon's end.
    pub(crate) save_time: Duration,
    /// Bytes that wait to be written at most: what a crash may lose.
    pub(crate) unsaved_budget_bytes: u64,
}

/// Where the tier on SSD is and what it may take, the file's own needs included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SsdSettings {
    pub(crate) dir: PathBuf,
    pub(crate) budget_bytes: u64,
}

/// What is written to SSD.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SavePolicy {
    /// What named sessions leave, and what is used a second time.
    #[default]
    Sessions,
    /// What is used a second time.
    SecondUse,
    All,
    Never,
}

impl SavePolicy {
    fn in_words(self) -> &'static str {
        match self {
            Self::Sessions => "what named sessions leave and what is used a second time",
            Self::SecondUse => "what is used a second time",
            Self::All => "everything",
            Self::Never => "nothing",
        }
    }
}

impl KvSettings {
    /// `base` is the configuration's folder, where a relative path in the file begins.
    pub(super) fn merge(
        file: KvTable,
        cli: &Cli,
        base: Option<&Path>,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let dir = state_folder(&file, cli, base, variable);
        let ssd = ssd(dir, cli.ssd_budget.or(file.ssd_budget))?;
        let (seconds, most) =
            (file.save_seconds.unwrap_or(limits::DEFAULT_SAVE_SECONDS), limits::MAX_SAVE_SECONDS);
        anyhow::ensure!(seconds <= most, "kv.save_seconds is {seconds}; at most {most} works");
        let unsaved = file.unsaved_budget.map_or(limits::DEFAULT_UNSAVED_BUDGET_BYTES, |budget| budget.0);
        anyhow::ensure!(unsaved > 0, "kv.unsaved_budget is 0; kv.save = \"never\" writes nothing");
        let session_ttl = file.session_ttl.unwrap_or(Age(Some(limits::DEFAULT_SESSION_TTL))).0;
        Ok(Self {
            ssd,
            save: file.save.unwrap_or_default(),
            session_ttl,
            save_time: Duration::from_secs(seconds),
            unsaved_budget_bytes: unsaved,
        })
    }

    /// One line for `--check-config`.
    pub(super) fn summary(&self) -> String {
        let Some(SsdSettings { dir, budget_bytes }) = &self.ssd else {
            return "KV on SSD: off".to_owned();
        };
        let ttl =
            self.session_ttl.map_or("for ever".to_owned(), |ttl| format!("for {}", times::in_words(ttl)));
        format!(
            "KV on SSD: at most {budget_bytes} bytes in {}, where {} is saved; unused sessions are kept {ttl}",
            dir.display(),
            self.save.in_words()
        )
    }
}

/// The folder of what is kept over a restart.
pub(super) fn state_folder(
    file: &KvTable,
    cli: &Cli,
    base: Option<&Path>,
    variable: impl Fn(&str) -> Option<PathBuf>,
) -> Option<PathBuf> {
    let beside = |path: PathBuf| base.map_or_else(|| path.clone(), |base| base.join(&path));
    cli.kv_dir.clone().or(file.dir.clone().map(beside)).or_else(|| state_dir(variable))
}

/// # Errors
/// A budget that was asked for and has no place, or is too small to keep anything.
fn ssd(dir: Option<PathBuf>, budget: Option<Budget>) -> anyhow::Result<Option<SsdSettings>> {
    let budget_bytes = budget.map_or(limits::DEFAULT_SSD_BUDGET_BYTES, |budget| budget.0.0);
    if budget_bytes == 0 {
        return Ok(None);
    }
    let least = zllm_state::SMALLEST_BUDGET_BYTES;
    anyhow::ensure!(
        budget_bytes >= least,
        "kv.ssd_budget is {budget_bytes} bytes; at least {least} works, or \"off\""
    );
    if dir.is_none() && budget.is_some() {
        anyhow::bail!(
            "kv.ssd_budget is set and kv.dir is not, nor $STATE_DIRECTORY, $XDG_STATE_HOME or $HOME; set kv.dir or \
             --kv-dir"
        );
    }
    Ok(dir.map(|dir| SsdSettings { dir, budget_bytes }))
}

/// systemd's state directory for the service, else the user's.
fn state_dir(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // systemd names several directories with colons between them; the unit has one.
    let service = variable("STATE_DIRECTORY").and_then(|dirs| std::env::split_paths(&dirs).next());
    let user = || variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    service.or_else(|| Some(user()?.join("zllm")))
}

#[cfg(test)]
mod tests {
    use super::super::file::ConfigFile;
    use super::*;
    use clap::Parser;

    fn read(text: &str, flags: &[&str]) -> anyhow::Result<KvSettings> {
        read_with(text, flags, &[("HOME", "/users/u")])
    }

    fn read_with(text: &str, flags: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<KvSettings> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value))
        };
        let cli = Cli::parse_from([&["zllmd"], flags].concat());
        KvSettings::merge(ConfigFile::parse(text)?.kv, &cli, Some(Path::new("/etc/zllm")), variable)
    }

    fn ssd_of(settings: anyhow::Result<KvSettings>) -> (PathBuf, u64) {
        let ssd = settings.expect("valid").ssd.expect("a tier on SSD");
        (ssd.dir, ssd.budget_bytes)
    }

    #[test]
    fn the_state_directory_is_the_services_or_the_users() {
        let dir = |variables: &[(&str, &str)]| ssd_of(read_with("", &[], variables)).0;
        let (service, home) = (("STATE_DIRECTORY", "/var/lib/zllm:/other"), ("HOME", "/users/u"));
        assert_eq!(dir(&[service, home]), Path::new("/var/lib/zllm"));
        assert_eq!(dir(&[("XDG_STATE_HOME", "/state"), home]), Path::new("/state/zllm"));
        assert_eq!(dir(&[home]), Path::new("/users/u/.local/state/zllm"));
        assert_eq!(read_with("", &[], &[]).expect("nothing was asked for").ssd, None);
        let error = read_with("[kv]\nssd_budget = \"1GiB\"\n", &[], &[]).expect_err("nowhere").to_string();
        assert!(error.contains("kv.dir") && error.contains("$XDG_STATE_HOME"), "{error}");
    }

    #[test]
    fn flags_go_before_the_file_and_a_path_begins_at_its_folder() {
        let text = "[kv]\ndir = \"kv\"\nssd_budget = \"2GiB\"\n";
        assert_eq!(ssd_of(read(text, &[])), ("/etc/zllm/kv".into(), 2 << 30));
        let flags = ["--kv-dir", "/fast", "--ssd-budget", "1GiB"];
        assert_eq!(ssd_of(read(text, &flags)), ("/fast".into(), 1 << 30));
        for off in ["off", "0"] {
            assert_eq!(read(text, &["--ssd-budget", off]).expect("valid").ssd, None);
        }
        for off in ["\"off\"", "0"] {
            let settings = read(&format!("[kv]\nssd_budget = {off}\n"), &[]).expect("valid");
            assert_eq!((settings.ssd.clone(), settings.summary().as_str()), (None, "KV on SSD: off"));
        }
    }

    #[test]
    fn everything_has_a_default() {
        let settings = read("", &[]).expect("valid");
        assert_eq!(settings.ssd.as_ref().map(|ssd| ssd.budget_bytes), Some(8 << 30));
        assert_eq!((settings.save, settings.unsaved_budget_bytes), (SavePolicy::Sessions, 256 << 20));
        assert_eq!(settings.session_ttl, Some(Duration::from_secs(30 * 24 * 60 * 60)));
        assert_eq!(settings.save_time, Duration::from_secs(10));
        let text =
            "[kv]\nsave = \"second-use\"\nsession_ttl = \"off\"\nsave_seconds = 3\nunsaved_budget = 7\n";
        let settings = read(text, &[]).expect("valid");
        assert_eq!((settings.save, settings.session_ttl), (SavePolicy::SecondUse, None));
        assert_eq!((settings.save_time.as_secs(), settings.unsaved_budget_bytes), (3, 7));
        assert!(
            settings.summary().contains("used a second time is saved; unused sessions are kept for ever")
        );
        assert!(read("", &[]).expect("valid").summary().ends_with("kept for 30d"));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (line, words) in [
            ("save = \"sometimes\"", ["line 2", "`second-use`"]),
            ("session_ttl = \"30\"", ["line 2", "30d"]),
            ("session_ttl = \"0d\"", ["line 2", "off"]),
            ("ssd_budget = \"plenty\"", ["line 2", "\"off\""]),
            ("ssd_budget = \"1MiB\"", ["kv.ssd_budget is 1048576 bytes", "at least"]),
            ("unsaved_budget = 0", ["kv.unsaved_budget", "never"]),
            ("save_seconds = 1000000", ["kv.save_seconds is 1000000", "at most"]),
            ("shape = 3", ["line 2", "shape"]),
        ] {
            let error = read(&format!("[kv]\n{line}\n"), &[]).expect_err(line).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{line}: {error}");
        }
    }
}
