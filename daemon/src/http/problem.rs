//! What is wrong with a request, before an API puts it into its own words.

use crate::device::port::Objection;
use actix_web::ResponseError;
use actix_web::http::StatusCode;
use std::time::Duration;
use zllm_wire::{ErrorCode, Fault};

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    /// What was wrong, where, and what would work; lower case.
    pub(crate) message: String,
    /// The field of the request that it is about.
    pub(crate) param: Option<String>,
}

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request makes no sense, now or later.
    Invalid,
    /// The prompt leaves no room in the context.
    TooLong,
    /// There is no such model.
    NoModel,
    /// There is nothing of that name.
    NotFound,
    /// It is there, and not in a state for this.
    Conflict,
    /// The path is there, but not with this method.
    Method,
    /// The body is larger than it may be.
    TooLarge,
    /// The client took too long to send its request.
    Slow,
    /// A key is missing, or is none.
    Unauthenticated,
    /// Not for this caller.
    Forbidden,
    /// No room now.
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// Loading, or about to stop.
    Unavailable,
    /// The daemon could not, and may be able to later.
    Failed,
    /// The job itself failed or was cancelled: to wait helps nobody.
    Ended {
        /// Whether somebody cancelled it.
        is_cancelled: bool,
    },
}

impl Problem {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// About one field of the request.
    pub(crate) fn of(param: &str, message: impl Into<String>) -> Self {
        Self { kind: Kind::Invalid, message: message.into(), param: Some(param.to_owned()) }
    }

    /// The same of a request that calls this field otherwise.
    pub(super) fn renamed(mut self, field: &str, name: &str) -> Self {
        if self.param.as_deref() == Some(field) {
            self.param = Some(name.to_owned());
        }
        self
    }

    /// The HTTP status.
    pub(super) fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid | Kind::TooLong => StatusCode::BAD_REQUEST,
            Kind::NoModel | Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Conflict => StatusCode::CONFLICT,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Slow => StatusCode::REQUEST_TIMEOUT,
            Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Failed | Kind::Ended { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whole seconds for `Retry-After`, where there is a time.
    pub(crate) fn retry_after_s(&self) -> Option<u64> {
        match self.kind {
            Kind::Busy { retry_after } => Some(retry_after.as_millis().div_ceil(1000).max(1) as u64),
            _ => None,
        }
    }
}

/// `edge` puts it into words.
impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.status()
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let kind = match fault.code {
            ErrorCode::NotFound => Kind::NotFound,
            ErrorCode::Refused { retry_after_ms } => {
                Kind::Busy { retry_after: Duration::from_millis(retry_after_ms) }
            }
            ErrorCode::Invalid => Kind::Invalid,
            ErrorCode::TooLong { .. } => Kind::TooLong,
            ErrorCode::Failed => Kind::Failed,
            ErrorCode::Draining => Kind::Unavailable,
        };
        Self::new(kind, fault.message)
    }
}

impl From<Objection> for Problem {
    fn from(Objection { fault, field }: Objection) -> Self {
        Self { param: field, ..fault.into() }
    }
}
