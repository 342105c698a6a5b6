//! Arguments that are about sessions and the KV that is kept of them.

use crate::failure::Failure;
use crate::units;
use clap::{Args, ValueEnum};
use zllm_wire::{EvictTarget, SessionId, SessionRef, Tenant, Tier};

/// What `list` lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listed {
    Sessions,
    Jobs,
}

/// A session that must be named.
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// The session's id, or TENANT/ID
    #[arg(value_parser = session_ref)]
    session: SessionRef,
    #[command(flatten)]
    tenant: TenantArgs,
}

/// Whose sessions are meant.
#[derive(Debug, Args)]
pub(crate) struct TenantArgs {
    /// Whose it is
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<Tenant>,
}

/// `evict`.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// The session's id, or TENANT/ID
    #[arg(value_parser = session_ref)]
    #[arg(required_unless_present_any = ["all", "older_than"], conflicts_with_all = ["all", "older_than"])]
    session: Option<SessionRef>,
    /// Whose it is
    #[arg(long, value_name = "NAME", conflicts_with_all = ["all", "older_than"])]
    tenant: Option<Tenant>,
    /// Everything that no running job holds and no pin keeps
    #[arg(long, conflicts_with = "older_than")]
    all: bool,
    /// Sessions that were not used for so long, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration_ms)]
    older_than: Option<u64>,
    /// From this tier only
    #[arg(long, value_name = "TIER")]
    tier: Option<TierArg>,
}

/// `save`.
#[derive(Debug, Args)]
pub(crate) struct SaveArgs {
    /// The session's id, or TENANT/ID; all when there is none
    #[arg(value_parser = session_ref)]
    session: Option<SessionRef>,
    /// Whose it is
    #[arg(long, value_name = "NAME", requires = "session")]
    tenant: Option<Tenant>,
}

/// `fork`.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    #[command(flatten)]
    pub(crate) from: SessionArgs,
    /// The new session's id
    pub(crate) new: SessionId,
    /// How many of its tokens to take [default: all]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) at: Option<u64>,
}

/// How long a session is kept after its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeToLive(pub(crate) Option<u64>);

/// A tier by the name that people give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TierArg {
    Device,
    Ram,
    Ssd,
}

impl From<TierArg> for Tier {
    fn from(tier: TierArg) -> Self {
        match tier {
            TierArg::Device => Self::Device,
            TierArg::Ram => Self::Ram,
            TierArg::Ssd => Self::Ssd,
        }
    }
}

impl SessionArgs {
    /// The session that is meant.
    pub(crate) fn named(self) -> Result<SessionRef, Failure> {
        with_tenant(self.session, self.tenant.tenant)
    }
}

impl EvictArgs {
    /// What to evict, and from where only.
    pub(crate) fn target(self) -> Result<(EvictTarget, Option<Tier>), Failure> {
        let target = match (self.session, self.older_than) {
            (Some(session), _) => EvictTarget::Session(with_tenant(session, self.tenant)?),
            (None, Some(idle_ms)) => EvictTarget::OlderThan { idle_ms },
            (None, None) => EvictTarget::All,
        };
        Ok((target, self.tier.map(Tier::from)))
    }
}

impl SaveArgs {
    /// The session that is meant; `None`: all.
    pub(crate) fn named(self) -> Result<Option<SessionRef>, Failure> {
        self.session.map(|session| with_tenant(session, self.tenant)).transpose()
    }
}

/// A session as listings name it: `ID`, or `TENANT/ID`.
pub(crate) fn session_ref(text: &str) -> Result<SessionRef, String> {
    let (tenant, id) = match text.split_once('/') {
        Some((tenant, id)) => (Some(Tenant::new(tenant).map_err(|error| error.to_string())?), id),
        None => (None, text),
    };
    Ok(SessionRef { tenant, id: SessionId::new(id).map_err(|error| error.to_string())? })
}

/// A session with the tenant of `--tenant`.
///
/// # Errors
/// Its own name has another one.
pub(crate) fn with_tenant(session: SessionRef, tenant: Option<Tenant>) -> Result<SessionRef, Failure> {
    let Some(tenant) = tenant else { return Ok(session) };
    match &session.tenant {
        Some(own) if *own != tenant => {
            Err(Failure::Usage(format!("session {session} is none of tenant {tenant}; name one tenant")))
        }
        _ => Ok(SessionRef { tenant: Some(tenant), ..session }),
    }
}

/// A duration, or `off`.
pub(crate) fn time_to_live(text: &str) -> Result<TimeToLive, String> {
    match text {
        "off" => Ok(TimeToLive(None)),
        _ => {
            let ms = units::parse_duration_ms(text).map_err(|error| format!("{error}; or \"off\""))?;
            Ok(TimeToLive(Some(ms)))
        }
    }
}
