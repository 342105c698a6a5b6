//! The queue: how much may wait, how what runs is paced, and where durable jobs are kept.

use super::bytes::ByteSize;
use super::cli::Cli;
use super::count;
use super::file::LimitsTable;
use super::times::Age;
use crate::limits;
use crate::scheduler::core::{Amount, CoreLimits};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// `[limits.interactive]`, `[limits.normal]`, `[limits.batch]` and `[limits.tenant]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AmountTable {
    queued_jobs: Option<usize>,
    queued_prompt_tokens: Option<usize>,
    queued_bytes: Option<usize>,
}

/// `[scheduler]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulerTable {
    pace: Option<f64>,
    aging_seconds: Option<u64>,
}

/// `[jobs]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobsTable {
    dir: Option<PathBuf>,
    keep: Option<Age>,
    keep_jobs: Option<u64>,
    keep_bytes: Option<ByteSize>,
}

/// Where durable jobs are kept, and how long when they have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobSettings {
    /// `None`: there is no place for them, so no job is durable.
    pub(crate) dir: Option<PathBuf>,
    /// `None`: as long as there is room.
    pub(crate) keep: Option<Duration>,
    pub(crate) keep_jobs: u64,
    pub(crate) keep_bytes: u64,
}

impl JobSettings {
    /// `state` is the folder of what is kept over a restart.
    pub(super) fn merge(
        file: JobsTable,
        state: Option<PathBuf>,
        beside: impl Fn(PathBuf) -> PathBuf,
    ) -> Self {
        Self {
            dir: file.dir.map(beside).or_else(|| Some(state?.join("jobs"))),
            keep: file.keep.unwrap_or(Age(Some(limits::DEFAULT_JOB_AGE))).0,
            keep_jobs: file.keep_jobs.unwrap_or(limits::DEFAULT_ENDED_JOBS),
            keep_bytes: file.keep_bytes.map_or(limits::DEFAULT_ENDED_JOB_BYTES, |bytes| bytes.0),
        }
    }

    /// One line for `--check-config`.
    pub(super) fn summary(&self) -> String {
        match &self.dir {
            Some(dir) => format!("durable jobs: in {}, {} ended ones at most", dir.display(), self.keep_jobs),
            None => "durable jobs: none, there is no folder for them".to_owned(),
        }
    }
}

/// The scheduler's bounds.
///
/// # Errors
/// The first value that cannot work, by name.
pub(super) fn core_limits(
    file: &LimitsTable,
    scheduler: &SchedulerTable,
    cli: &Cli,
) -> anyhow::Result<CoreLimits> {
    let running_jobs = cli.running_jobs.or(file.running_jobs);
    let chunk = cli.prefill_chunk_tokens.or(file.prefill_chunk_tokens);
    let most = limits::MAX_RUNNING_JOBS;
    let given = running_jobs.unwrap_or(0);
    anyhow::ensure!(given <= most, "limits.running_jobs is {given}; at most {most} works");
    let all = AmountTable {
        queued_jobs: file.queued_jobs,
        queued_prompt_tokens: file.queued_prompt_tokens,
        queued_bytes: file.queued_bytes,
    };
    let default = Amount {
        jobs: limits::DEFAULT_QUEUED_JOBS,
        tokens: limits::DEFAULT_QUEUED_PROMPT_TOKENS,
        bytes: limits::DEFAULT_QUEUED_BYTES,
    };
    let queue = amount("limits", &all, default)?;
    // A batch must not keep everybody else out of the queue.
    let half = Amount {
        jobs: queue.jobs.div_ceil(2),
        tokens: queue.tokens.div_ceil(2),
        bytes: queue.bytes.div_ceil(2),
    };
    Ok(CoreLimits {
        queue,
        classes: [
            amount("limits.interactive", &file.interactive, queue)?,
            amount("limits.normal", &file.normal, queue)?,
            amount("limits.batch", &file.batch, half)?,
        ],
        tenant: amount("limits.tenant", &file.tenant, queue)?,
        running_jobs: count("limits.running_jobs", running_jobs, limits::DEFAULT_RUNNING_JOBS)?,
        prefill_chunk_tokens: count(
            "limits.prefill_chunk_tokens",
            chunk,
            limits::DEFAULT_PREFILL_CHUNK_TOKENS,
        )?,
        pace: pace(scheduler.pace)?,
        aging: aging(scheduler.aging_seconds)?,
    })
}

fn amount(name: &str, given: &AmountTable, default: Amount) -> anyhow::Result<Amount> {
    let key = |key: &str| format!("{name}.{key}");
    Ok(Amount {
        jobs: count(&key("queued_jobs"), given.queued_jobs, default.jobs)?,
        tokens: count(&key("queued_prompt_tokens"), given.queued_prompt_tokens, default.tokens)?,
        bytes: count(&key("queued_bytes"), given.queued_bytes, default.bytes)?,
    })
}

fn pace(given: Option<f64>) -> anyhow::Result<Option<f64>> {
    let pace = given.unwrap_or(limits::DEFAULT_PACE);
    anyhow::ensure!(
        pace == 0.0 || (1.0..=limits::MAX_PACE).contains(&pace),
        "scheduler.pace is {pace}; from 1 to {} works, such as 2 for steps of twice the time, or 0 for no bound",
        limits::MAX_PACE
    );
    Ok((pace > 0.0).then_some(pace))
}

fn aging(given: Option<u64>) -> anyhow::Result<Option<Duration>> {
    let seconds = given.unwrap_or(limits::DEFAULT_AGING_SECONDS);
    let most = limits::MAX_AGING_SECONDS;
    anyhow::ensure!(
        (1..=most).contains(&seconds),
        "scheduler.aging_seconds is {seconds}; from 1 to {most} works: without aging a class could wait for ever"
    );
    Ok(Some(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::super::file::ConfigFile;
    use super::*;
    use clap::Parser;

    fn read(text: &str) -> anyhow::Result<CoreLimits> {
        let file = ConfigFile::parse(text)?;
        core_limits(&file.limits, &file.scheduler, &Cli::parse_from(["zllmd"]))
    }

    #[test]
    fn classes_and_tenants_may_have_what_the_queue_has_and_batches_half_of_it() {
        let limits = read("[limits]\nqueued_jobs = 100\n[limits.tenant]\nqueued_jobs = 7\n").expect("valid");
        assert_eq!((limits.queue.jobs, limits.classes[0].jobs, limits.classes[2].jobs), (100, 100, 50));
        assert_eq!(limits.tenant, Amount { jobs: 7, ..limits.queue });
    }

    #[test]
    fn pace_and_aging_have_ranges() {
        let limits = read("").expect("valid");
        assert_eq!((limits.pace, limits.aging), (Some(2.0), Some(Duration::from_secs(60))));
        assert_eq!(read("[scheduler]\npace = 0\n").expect("off").pace, None);
        for (line, words) in [
            ("pace = 0.5", "scheduler.pace is 0.5"),
            ("pace = 1e9", "scheduler.pace is 1000000000"),
            ("aging_seconds = 0", "scheduler.aging_seconds is 0"),
        ] {
            let error = read(&format!("[scheduler]\n{line}\n")).expect_err(line).to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = read("[limits.batch]\nqueued_jobs = 0\n").expect_err("none").to_string();
        assert!(error.contains("limits.batch.queued_jobs"), "{error}");
    }

    #[test]
    fn jobs_are_kept_beside_the_keys_and_values_unless_they_have_a_folder() {
        let of = |text: &str, state: Option<&str>| {
            let file = ConfigFile::parse(text).expect("valid");
            JobSettings::merge(file.jobs, state.map(PathBuf::from), |path| {
                PathBuf::from("/etc/zllm").join(path)
            })
        };
        assert_eq!(of("", Some("/state")).dir, Some("/state/jobs".into()));
        assert_eq!(of("[jobs]\ndir = \"own\"\n", Some("/state")).dir, Some("/etc/zllm/own".into()));
        assert_eq!(of("", None).dir, None);
        let settings = of("[jobs]\nkeep = \"off\"\nkeep_jobs = 5\nkeep_bytes = \"1MiB\"\n", None);
        assert_eq!((settings.keep, settings.keep_jobs, settings.keep_bytes), (None, 5, 1 << 20));
    }
}
