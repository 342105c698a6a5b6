//! What is kept of a batch: its record, which is what clients are shown, a mark while it is not over, and its results so far.

use super::super::files::ExpiresAfter;
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::limits::{BATCH_WINDOW, MAX_BATCH_PAGE_ROWS};
use crate::object_disk::DAEMON;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zllm_state::{Object, ObjectName, ObjectOrder};

/// What batches are called in the object store.
pub(super) const KIND: &str = "batch";
/// What marks of those that are not over are called there; they are nobody's.
const MARK_KIND: &str = "running_batch";

/// A batch.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(in crate::http::openai) struct Batch {
    pub(super) id: String,
    /// `batch`.
    object: String,
    pub(super) endpoint: String,
    errors: Option<Errors>,
    pub(super) input_file_id: String,
    completion_window: String,
    pub(super) status: Status,
    pub(super) output_file_id: Option<String>,
    pub(super) error_file_id: Option<String>,
    /// Seconds since the Unix epoch, as all times here.
    created_at: u64,
    in_progress_at: Option<u64>,
    pub(super) expires_at: u64,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    pub(super) request_counts: Counts,
    metadata: BTreeMap<String, String>,
    /// How long its files are kept, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) output_expires_after: Option<ExpiresAfter>,
}

/// Where a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BatchStatus")]
pub(super) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "being cancelled",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How many of its requests are through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchCounts")]
pub(super) struct Counts {
    pub(super) total: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
}

/// Why its input cannot be used.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchErrors")]
struct Errors {
    /// `list`.
    object: String,
    data: Vec<LineError>,
}

/// What is wrong with one line.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchLineError")]
pub(super) struct LineError {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) param: Option<String>,
    /// From 1.
    pub(super) line: Option<u64>,
}

/// The mark of a batch that is not over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) tenant: String,
    /// Somebody has cancelled it.
    pub(super) cancelled: bool,
}

impl Mark {
    pub(super) fn object(&self, id: &str, now: u64) -> Object {
        Object {
            name: Self::name(id),
            created_ms: now * 1000,
            expires_ms: None,
            value: serde_json::to_vec(self).expect("a mark becomes JSON"),
            content: None,
        }
    }

    pub(super) fn of(object: &Object) -> Result<Self, Problem> {
        serde_json::from_slice(&object.value).map_err(unreadable)
    }

    pub(super) fn name(id: &str) -> ObjectName {
        ObjectName::new(MARK_KIND, DAEMON, id)
    }
}

/// Tenants and ids of all batches that have a mark.
pub(super) async fn marked(http: &Http) -> Result<Vec<(String, String)>, Problem> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let order = ObjectOrder::OldestFirst;
        let page =
            http.services.objects.list(MARK_KIND, DAEMON.into(), after, MAX_BATCH_PAGE_ROWS, order).await?;
        let gone = || Problem::new(Kind::Failed, "the marks of batches went while they were read");
        let page = page.ok_or_else(gone)?;
        let Some(last) = page.last() else { return Ok(all) };
        after = Some(last.name.id.clone());
        for mark in page {
            match Mark::of(&mark) {
                Ok(whose) => all.push((whose.tenant, mark.name.id)),
                Err(problem) => tracing::error!(batch = mark.name.id, why = %problem, "it does not go on"),
            }
        }
    }
}

/// Marks a batch as cancelled if it is not over; `None` when there is none.
///
/// # Errors
/// The disk's.
pub(super) async fn mark_cancelled(http: &Http, caller: &Caller, id: &str) -> Result<Option<Batch>, Problem> {
    let name = ObjectName::new(KIND, caller.tenant_name(), id);
    let mark = Mark { tenant: caller.tenant_name().to_owned(), cancelled: true }.object(id, http.unix_s());
    // With nobody in between: a batch that is over has its mark taken away once.
    let found = http.services.objects.with(move |store, now_ms| {
        let Some(batch) = store.get(&name)?.map(|object| Batch::of(&object)) else { return Ok(None) };
        if batch.as_ref().is_ok_and(|batch| !batch.status.is_over()) {
            store.put(&[mark], now_ms)?;
        }
        Ok(Some(batch))
    });
    found.await?.transpose()
}

/// A batch of this caller's.
///
/// # Errors
/// There is none, or the disk fails.
pub(super) async fn find(http: &Http, caller: &Caller, id: &str) -> Result<Batch, Problem> {
    let object = http.services.objects.get(ObjectName::new(KIND, caller.tenant_name(), id)).await?;
    Batch::of(&object.ok_or_else(|| none(id))?)
}

/// There is no batch of this name.
pub(super) fn none(id: &str) -> Problem {
    let shown: String = id.chars().take(100).collect();
    Problem::new(Kind::NotFound, format!("there is no batch {shown:?}"))
}

fn unreadable(error: serde_json::Error) -> Problem {
    Problem::new(Kind::Failed, format!("a batch's record cannot be read: {error}"))
}

impl Batch {
    pub(super) fn new(
        id: String,
        endpoint: String,
        input_file_id: String,
        metadata: BTreeMap<String, String>,
        now: u64,
    ) -> Self {
        Self {
            id,
            object: "batch".to_owned(),
            endpoint,
            errors: None,
            input_file_id,
            completion_window: "24h".to_owned(),
            status: Status::Validating,
            output_file_id: None,
            error_file_id: None,
            created_at: now,
            in_progress_at: None,
            expires_at: now + BATCH_WINDOW.as_secs(),
            finalizing_at: None,
            completed_at: None,
            failed_at: None,
            expired_at: None,
            cancelling_at: None,
            cancelled_at: None,
            request_counts: Counts::default(),
            metadata,
            output_expires_after: None,
        }
    }

    pub(super) fn of(object: &Object) -> Result<Self, Problem> {
        serde_json::from_slice(&object.value).map_err(unreadable)
    }

    pub(super) fn object(&self, caller: &Caller) -> Object {
        Object {
            name: ObjectName::new(KIND, caller.tenant_name(), &self.id),
            created_ms: self.created_at * 1000,
            expires_ms: None,
            value: serde_json::to_vec(self).expect("a batch becomes JSON"),
            content: None,
        }
    }

    /// Gives it another status, and notes when it had it first.
    pub(super) fn become_(&mut self, status: Status, now: u64) {
        self.status = status;
        let since = match status {
            Status::Validating => return,
            Status::Failed => &mut self.failed_at,
            Status::InProgress => &mut self.in_progress_at,
            Status::Finalizing => &mut self.finalizing_at,
            Status::Completed => &mut self.completed_at,
            Status::Expired => &mut self.expired_at,
            Status::Cancelling => &mut self.cancelling_at,
            Status::Cancelled => &mut self.cancelled_at,
        };
        since.get_or_insert(now);
    }

    /// Its input cannot be used.
    pub(super) fn fail(&mut self, errors: Vec<LineError>, now: u64) {
        self.become_(Status::Failed, now);
        self.errors = Some(Errors { object: "list".to_owned(), data: errors });
    }
}
