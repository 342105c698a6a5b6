//! Why a command did not do what it was asked, and the exit code that says so.

use crate::units;
use std::io;
use zllm_wire::{ErrorCode, Fault, WireError};

/// Exit code of a command line that makes no sense (`EX_USAGE` of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// Every way a command ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Refused or not found: nothing was done.
    #[error("{0}")]
    Refused(String),
    /// No room now: nothing was done.
    #[error("{message}; try again in {}", units::wait(*.retry_after_ms))]
    Busy {
        /// Why.
        message: String,
        /// When it may be otherwise, as the daemon computed it.
        retry_after_ms: u64,
    },
    /// Tried and failed.
    #[error("{0}")]
    Failed(String),
    /// The connection broke while an answer was awaited.
    #[error("connection to the daemon lost: {0}")]
    Lost(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Whoever read our stdout has gone, which is theirs to decide.
    #[error("stdout is closed")]
    StdoutClosed,
}

impl Failure {
    /// 0 done, 1 refused or not found, 2 failed, 64 usage, 130 interrupted.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::StdoutClosed => 0,
            Self::Refused(_) | Self::Busy { .. } => 1,
            Self::Failed(_) | Self::Lost(_) => 2,
            Self::Usage(_) => USAGE,
            Self::Interrupted => 130,
        }
    }

    /// What to tell on stderr, if anything.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::StdoutClosed | Self::Interrupted => None,
            other => Some(other.to_string()),
        }
    }

    /// A write to stdout that failed.
    pub(crate) fn stdout(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::StdoutClosed,
            _ => Self::Failed(format!("cannot write to stdout: {error}")),
        }
    }

    /// A frame that could not be sent.
    pub(crate) fn sending(error: WireError) -> Self {
        match error {
            WireError::Io(error) => Self::Lost(error.to_string()),
            other => Self::Refused(format!("request not sent: {other}")),
        }
    }

    /// A frame that could not be read.
    pub(crate) fn receiving(error: WireError) -> Self {
        match error {
            WireError::Io(error) => Self::Lost(error.to_string()),
            other => Self::Failed(format!("the daemon does not speak this protocol: {other}")),
        }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault.code {
            ErrorCode::NotFound | ErrorCode::Invalid | ErrorCode::Draining | ErrorCode::TooLong { .. } => {
                Self::Refused(fault.message)
            }
            ErrorCode::Refused { retry_after_ms } => Self::Busy { message: fault.message, retry_after_ms },
            ErrorCode::Failed => Self::Failed(fault.message),
        }
    }
}
