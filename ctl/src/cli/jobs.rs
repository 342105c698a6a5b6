//! Arguments that are about jobs: how urgent they are, how long they may take, which are meant.

use super::sessions::{session_ref, with_tenant};
use super::{PromptArgs, TenantArgs};
use crate::failure::Failure;
use crate::units;
use clap::{Args, ValueEnum};
use std::time::Duration;
use zllm_wire::{BatchId, CancelTarget, Class, IdempotencyKey, JobId, SessionRef, Tenant};

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// How urgent it is
    #[arg(long, value_enum, default_value_t = ClassArg::Interactive)]
    pub(crate) class: ClassArg,
    #[command(flatten)]
    pub(crate) times: TimesArgs,
    // Last: what follows a heading stands under it.
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
}

/// `submit`.
#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// Stream the answer; Ctrl-C leaves the job running
    #[arg(long)]
    pub(crate) wait: bool,
    /// A name to recognise the job by
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// How urgent it is
    #[arg(long, value_enum, default_value_t = ClassArg::Normal)]
    pub(crate) class: ClassArg,
    #[command(flatten)]
    pub(crate) times: TimesArgs,
    /// Make no second job when one was submitted with this key before, but print that one's id
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<IdempotencyKey>,
    /// The batch that it is a part of: `cancel --batch` ends all of it
    #[arg(long, value_name = "ID")]
    pub(crate) batch: Option<BatchId>,
    /// With --wait, how long to try to read on when the daemon goes away; 0s: not at all
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = reconnect_for, requires = "wait")]
    pub(crate) reconnect_for: Duration,
    // Last: what follows a heading stands under it.
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
}

/// How long a job may take.
#[derive(Debug, Args)]
pub(crate) struct TimesArgs {
    /// Fail when it has not ended after so long, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_ms)]
    pub(crate) deadline: Option<u64>,
    /// Fail when it has not started after so long, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_ms)]
    pub(crate) max_wait: Option<u64>,
}

/// A class by the name that people give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassArg {
    /// Somebody waits for it
    Interactive,
    /// Neither
    Normal,
    /// Whenever there is room; may be parked for the others
    Batch,
}

impl From<ClassArg> for Class {
    fn from(class: ClassArg) -> Self {
        match class {
            ClassArg::Interactive => Self::Interactive,
            ClassArg::Normal => Self::Normal,
            ClassArg::Batch => Self::Batch,
        }
    }
}

/// `attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The job's id
    pub(crate) job: JobId,
    /// Offset of the first event to read
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) from: u64,
    /// How long to try to read on when the daemon goes away; 0s: not at all
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = reconnect_for)]
    pub(crate) reconnect_for: Duration,
}

/// `cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The job's id
    #[arg(required_unless_present_any = ["session", "batch"])]
    #[arg(conflicts_with_all = ["session", "batch", "tenant"])]
    job: Option<JobId>,
    /// All jobs of this session: its id, or TENANT/ID
    #[arg(long, value_name = "ID", value_parser = session_ref, conflicts_with = "batch")]
    session: Option<SessionRef>,
    /// All jobs of this batch
    #[arg(long, value_name = "ID")]
    batch: Option<BatchId>,
    #[command(flatten)]
    tenant: TenantArgs,
}

impl CancelArgs {
    /// What to cancel.
    pub(crate) fn target(self) -> Result<CancelTarget, Failure> {
        let tenant: Option<Tenant> = self.tenant.tenant;
        match (self.job, self.session, self.batch) {
            (Some(job), _, _) => Ok(CancelTarget::Job(job)),
            (None, Some(session), _) => Ok(CancelTarget::Session(with_tenant(session, tenant)?)),
            (None, None, Some(batch)) => Ok(CancelTarget::Batch { tenant, batch }),
            (None, None, None) => Err(Failure::Usage("cancel needs a job's id, --session or --batch".into())),
        }
    }
}

/// A duration, or none at all.
fn reconnect_for(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        _ => units::parse_duration_ms(text).map(Duration::from_millis),
    }
}
