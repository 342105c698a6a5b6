//! The results of a batch so far, in segments in the object store; those of each batch are a kind of their own there.
//!
//! The last segment is written anew with each result until it is full, so that there are few. What counts is what is there: a
//! segment that had to give way to other objects is missed when the batch is taken up or its files are made, and its lines are
//! asked again.

use super::ask::Outcome;
use super::record::{Counts, Mark};
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::limits::{BATCH_SEGMENT_BYTES, BATCH_SEGMENTS_READ};
use crate::object_disk::Upload;
use std::collections::HashSet;
use zllm_state::{Object, ObjectName, ObjectOrder};

/// What the segments of a batch are called.
fn kind(batch: &str) -> String {
    format!("batch_results/{batch}")
}

/// They, and which of them are not on disk yet.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Lines that have one.
    done: HashSet<u64>,
    completed: u64,
    failed: u64,
    /// The number of the last segment, what is in it, and about its bytes.
    number: u64,
    last: Vec<Outcome>,
    last_bytes: usize,
    is_saved: bool,
}

impl Results {
    /// Those that an earlier run has written down.
    pub(super) async fn find(http: &Http, caller: &Caller, batch: &str) -> Result<Self, Problem> {
        let (mut results, mut after) = (Self::default(), None);
        loop {
            let page = segments(http, caller, batch, after).await?;
            let Some(last) = page.last() else { break };
            let number = last.name.id.parse::<u64>().map_err(|error| unreadable(&error))?;
            (results.number, after) = (number + 1, Some(last.name.id.clone()));
            for segment in &page {
                outcomes(segment)?.iter().for_each(|outcome| results.count(outcome));
            }
        }
        results.is_saved = true;
        Ok(results)
    }

    fn count(&mut self, outcome: &Outcome) {
        if !self.done.insert(outcome.line) {
            return;
        }
        *(if outcome.good { &mut self.completed } else { &mut self.failed }) += 1;
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        self.count(&outcome);
        self.last_bytes += outcome.told.len();
        self.last.push(outcome);
        self.is_saved = false;
    }

    pub(super) fn has(&self, line: u64) -> bool {
        self.done.contains(&line)
    }

    /// How many of so many lines are through.
    pub(super) fn counts(&self, total: u64) -> Counts {
        Counts { total, completed: self.completed, failed: self.failed }
    }

    /// How many lines are through.
    pub(super) fn count_all(&self) -> u64 {
        self.done.len() as u64
    }

    /// Whether some are not on disk.
    pub(super) fn are_waiting(&self) -> bool {
        !self.is_saved
    }

    /// Whether so many wait that they should be on disk.
    pub(super) fn are_many(&self) -> bool {
        self.last_bytes >= BATCH_SEGMENT_BYTES
    }

    /// What has to be put for all of them to be on disk.
    pub(super) fn segment(&self, http: &Http, caller: &Caller, batch: &str) -> Option<Object> {
        self.are_waiting().then(|| Object {
            name: ObjectName::new(&kind(batch), caller.tenant_name(), &format!("{:08}", self.number)),
            created_ms: http.services.clock.unix_ms(),
            expires_ms: None,
            value: serde_json::to_vec(&self.last).expect("results become JSON"),
            content: None,
        })
    }

    /// It was put.
    pub(super) fn are_saved(&mut self) {
        self.is_saved = true;
        if self.are_many() {
            self.number += 1;
            self.last.clear();
            self.last_bytes = 0;
        }
    }

    /// The contents of the files of answers and of errors; `None` where there are none. All results are on disk.
    ///
    /// # Errors
    /// The disk's, and when some of them have gone.
    pub(super) async fn files(
        &self,
        http: &Http,
        caller: &Caller,
        batch: &str,
    ) -> Result<[Option<Upload>; 2], Problem> {
        let (mut files, mut after, mut written) = ([None, None], None, HashSet::new());
        loop {
            let page = segments(http, caller, batch, after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.id.clone());
            for segment in &page {
                for outcome in outcomes(segment)? {
                    if !written.insert(outcome.line) {
                        continue;
                    }
                    let file = &mut files[usize::from(!outcome.good)];
                    let upload: &mut Upload =
                        file.get_or_insert_with(|| http.services.objects.upload_of_ours());
                    upload.write((outcome.told + "\n").as_bytes()).await?;
                }
            }
        }
        if written != self.done {
            let (there, all) = (written.len(), self.done.len());
            let message =
                format!("only {there} of {all} results are there: others had to give way to other objects");
            return Err(Problem::new(Kind::Failed, message));
        }
        Ok(files)
    }
}

/// Deletes them, and at last the mark, of a batch that is over.
pub(super) async fn clear(http: &Http, caller: &Caller, batch: &str) -> Result<(), Problem> {
    loop {
        let page = segments(http, caller, batch, None).await?;
        let is_last = page.is_empty();
        let names = page.into_iter().map(|segment| segment.name);
        let names: Vec<ObjectName> = if is_last { vec![Mark::name(batch)] } else { names.collect() };
        http.services.objects.with(move |store, _| Ok(store.delete(&names)?)).await?;
        if is_last {
            return Ok(());
        }
    }
}

/// Some segments behind this one, in order.
async fn segments(
    http: &Http,
    caller: &Caller,
    batch: &str,
    after: Option<String>,
) -> Result<Vec<Object>, Problem> {
    let (objects, order) = (&http.services.objects, ObjectOrder::OldestFirst);
    let page =
        objects.list(kind(batch), caller.tenant_name().to_owned(), after, BATCH_SEGMENTS_READ, order).await?;
    page.ok_or_else(|| Problem::new(Kind::Failed, "results went while they were read"))
}

fn outcomes(segment: &Object) -> Result<Vec<Outcome>, Problem> {
    serde_json::from_slice(&segment.value).map_err(|error| unreadable(&error))
}

fn unreadable(error: &dyn std::error::Error) -> Problem {
    Problem::new(Kind::Failed, format!("a batch's results cannot be read: {error}"))
}
