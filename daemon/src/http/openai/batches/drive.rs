//! The task of one batch, from a file of requests to files of results.
//!
//! A batch is validating (its lines are read), in progress (some lines are under way, results are written down as they come),
//! finalizing or being cancelled (files are made of the results), and then over: completed, failed, expired or cancelled. Each
//! step begins with what the disk has: the record, the mark, the results, and jobs that the lines' keys lead back to. So
//! whatever ends one, a crash or a disk that fails for a while, the next try goes on. The files and the record that names
//! them are one transaction; a batch that is over only has its results and its mark taken away.

use super::super::files;
use super::ask::{Outcome, Question};
use super::lines::{Line, Lines, endpoint};
use super::record::{self, Batch, LineError, Mark, Status};
use super::results::{self, Results};
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::limits::{
    BATCH_IN_FLIGHT, BATCH_IN_FLIGHT_BYTES, BATCH_RETRY, BATCH_SEGMENT_TIME, HTTP_BODY_BYTES,
    MAX_BATCH_ERRORS,
};
use crate::scheduler::CancelJobs;
use actix_web::web;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{Stream, StreamExt, TryStreamExt};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use zllm_wire::limits::MAX_BATCH_JOBS;
use zllm_wire::{BatchId, CancelTarget, ErrorCode};

/// Drives a batch to its end, as often as it takes. What goes wrong here goes by: what does not is an end of the batch.
pub(super) async fn drive(
    http: &web::Data<Http>,
    caller: &Caller,
    id: &str,
    mut cancelled: watch::Receiver<bool>,
) {
    let mut pause = *BATCH_RETRY.start();
    while let Err(problem) = try_to_end(http, caller, id, cancelled.clone()).await {
        tracing::warn!(batch = %id, why = %problem, "a batch waits and goes on");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = cancelled.changed() => {}
        }
        pause = (pause * 2).min(*BATCH_RETRY.end());
    }
}

async fn try_to_end(
    http: &web::Data<Http>,
    caller: &Caller,
    id: &str,
    cancelled: watch::Receiver<bool>,
) -> Result<(), Problem> {
    match record::find(http, caller, id).await {
        Ok(batch) if batch.status.is_over() => {}
        Ok(batch) => {
            let mark = http.services.objects.get(Mark::name(id)).await?;
            let was_cancelled =
                mark.map(|mark| Mark::of(&mark)).transpose()?.is_some_and(|mark| mark.cancelled);
            let results = Results::find(http, caller, id).await?;
            Driver { http, caller, batch, results, cancelled, was_cancelled, lost: None }.run().await?;
        }
        // It had to give way to other objects: nobody can ask for it.
        Err(problem) if problem.kind == Kind::NotFound => {}
        Err(problem) => return Err(problem),
    }
    results::clear(http, caller, id).await
}

/// A batch that is not over.
struct Driver<'a> {
    http: &'a web::Data<Http>,
    caller: &'a Caller,
    batch: Batch,
    results: Results,
    cancelled: watch::Receiver<bool>,
    /// Before it was taken up.
    was_cancelled: bool,
    /// Why the rest of its lines cannot be read.
    lost: Option<Problem>,
}

impl Driver<'_> {
    async fn run(mut self) -> Result<(), Problem> {
        if self.batch.status == Status::Validating && self.due_end().is_none() {
            let errors = self.validate().await?;
            let now = self.http.unix_s();
            if !errors.is_empty() {
                self.batch.fail(errors, now);
                return self.save().await;
            }
            self.batch.become_(Status::InProgress, now);
            self.save().await?;
        }
        let end = self.answer_all().await?;
        if end != Status::Completed {
            self.cancel_jobs().await?;
        }
        self.finalize(end).await
    }

    /// How the batch ends, if it does now. With all its results it does not expire.
    fn due_end(&self) -> Option<Status> {
        let total = self.batch.request_counts.total;
        if self.was_cancelled || *self.cancelled.borrow() {
            Some(Status::Cancelled)
        } else if self.batch.status != Status::Validating && self.results.count_all() >= total {
            Some(Status::Completed)
        } else if self.http.unix_s() >= self.batch.expires_at {
            Some(Status::Expired)
        } else {
            None
        }
    }

    /// Reads all lines and counts them; what is wrong with them.
    async fn validate(&mut self) -> Result<Vec<LineError>, Problem> {
        let (mut errors, mut ids, mut total) = (Vec::new(), HashMap::new(), 0);
        let mut lines = self.lines();
        while errors.len() < MAX_BATCH_ERRORS && total <= MAX_BATCH_JOBS {
            let (number, text) = match lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(problem) if matches!(problem.kind, Kind::Invalid | Kind::NotFound) => {
                    errors.push(LineError::of_file(problem));
                    break;
                }
                Err(problem) => return Err(problem),
            };
            total += 1;
            match Line::parse(number, text, &self.batch.endpoint) {
                Ok(line) => {
                    if let Some(first) = ids.insert(line.custom_id, number) {
                        errors.push(LineError {
                            code: "duplicate_custom_id".to_owned(),
                            message: format!("line {first} has the same custom_id"),
                            param: Some("custom_id".to_owned()),
                            line: Some(number),
                        });
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        let about_the_file = |message: String| LineError::of_file(Problem::of("input_file_id", message));
        if total == 0 && errors.is_empty() {
            errors.push(about_the_file("the file has no requests".to_owned()));
        }
        if total > MAX_BATCH_JOBS {
            errors.push(about_the_file(format!("the file has more than {MAX_BATCH_JOBS} requests")));
        }
        self.batch.request_counts.total = if errors.is_empty() { total as u64 } else { 0 };
        Ok(errors)
    }

    /// The input's lines, from the first on.
    fn lines(&self) -> Lines<impl Stream<Item = Result<Vec<u8>, Problem>> + Unpin + use<>> {
        let (http, caller, file) = (self.http.clone(), self.caller.clone(), self.batch.input_file_id.clone());
        let pieces = async move {
            let file = files::find(&http, &caller, &file).await?;
            Ok::<_, Problem>(files::pieces(http, file))
        };
        Lines::new(Box::pin(stream::once(pieces).try_flatten()))
    }

    /// Asks all lines that have no result; how the batch ends.
    async fn answer_all(&mut self) -> Result<Status, Problem> {
        let (mut lines, mut next) = (self.lines(), None);
        let mut under_way = FuturesUnordered::new();
        let mut cancelled = self.cancelled.clone();
        let mut save = tokio::time::interval(BATCH_SEGMENT_TIME);
        let room = Arc::new(Semaphore::new(BATCH_IN_FLIGHT_BYTES / 1024));
        loop {
            if let Some(end) = self.due_end() {
                return Ok(end);
            }
            while under_way.len() < BATCH_IN_FLIGHT {
                if next.is_none() {
                    next = self.next_line(&mut lines).await?;
                }
                let Some((_, line)) = &next else { break };
                let Some(room) = self.take_room(&room, line) else { break };
                let (number, line) = next.take().expect("it was looked at");
                under_way.push(self.question(number, line, room)?.answer());
            }
            if under_way.is_empty() && next.is_none() {
                let fewer = || Problem::of("input_file_id", "the file has fewer lines than it had");
                self.lost.get_or_insert_with(fewer);
                return Ok(Status::Failed);
            }
            tokio::select! {
                Some(outcome) = under_way.next() => {
                    self.results.add(outcome);
                    if self.results.are_many() {
                        self.save().await?;
                    }
                }
                _ = save.tick() => if self.results.are_waiting() {
                    self.save().await?;
                },
                Ok(()) = cancelled.changed() => {}
            }
        }
    }

    /// The next line that has no result; `None` also when it cannot be read any more.
    async fn next_line(
        &mut self,
        lines: &mut Lines<impl Stream<Item = Result<Vec<u8>, Problem>> + Unpin>,
    ) -> Result<Option<(u64, Line)>, Problem> {
        while self.lost.is_none() {
            match lines.next().await {
                Ok(None) => break,
                Ok(Some((number, _))) if self.results.has(number) => {}
                Ok(Some((number, text))) => match Line::parse(number, text, &self.batch.endpoint) {
                    Ok(line) => return Ok(Some((number, line))),
                    // It was right for the daemon that took the batch.
                    Err(error) => {
                        let (name, request_id) = (String::new(), self.http.fresh_id("req_"));
                        let problem = Problem::new(Kind::Invalid, error.message);
                        let of = (self.batch.id.as_str(), number, name);
                        self.results.add(Outcome::new(of, request_id, Err(problem)));
                    }
                },
                Err(problem) if problem.kind == Kind::NotFound => self.lost = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        Ok(None)
    }

    /// Room for a line, of the batch's own and of that of all; `None` when there is none now.
    fn take_room(&self, own: &Arc<Semaphore>, line: &Line) -> Option<[OwnedSemaphorePermit; 2]> {
        const _: () = assert!(BATCH_IN_FLIGHT_BYTES > HTTP_BODY_BYTES, "each line finds room alone");
        let kib = (line.bytes() / 1024 + 1) as u32;
        let own = own.clone().try_acquire_many_owned(kib).ok()?;
        Some([own, self.http.batches.room.clone().try_acquire_many_owned(kib).ok()?])
    }

    fn question(
        &self,
        number: u64,
        line: Line,
        room: [OwnedSemaphorePermit; 2],
    ) -> Result<Question, Problem> {
        let endpoint = endpoint(&self.batch.endpoint)?;
        let (http, caller, batch) = (self.http.clone(), self.caller.clone(), self.batch.id.clone());
        Ok(Question { http, caller, batch, endpoint, number, line, _room: room })
    }

    /// Ends what is under way: nobody will ask for it.
    async fn cancel_jobs(&self) -> Result<(), Problem> {
        let batch = BatchId::new(self.batch.id.clone()).expect("an id of ours");
        let target = CancelTarget::Batch { tenant: self.caller.tenant.clone(), batch };
        self.http.services.ask_scheduler(CancelJobs(target)).await??;
        Ok(())
    }

    /// Puts the record, with the results that wait.
    async fn save(&mut self) -> Result<(), Problem> {
        self.batch.request_counts = self.results.counts(self.batch.request_counts.total);
        let mut objects = vec![self.batch.object(self.caller)];
        objects.extend(self.results.segment(self.http, self.caller, &self.batch.id));
        self.http.services.objects.put(objects).await?;
        self.results.are_saved();
        Ok(())
    }

    /// Makes the files and the record as it stays.
    async fn finalize(mut self, end: Status) -> Result<(), Problem> {
        let on_the_way = if end == Status::Cancelled { Status::Cancelling } else { Status::Finalizing };
        self.batch.become_(on_the_way, self.http.unix_s());
        self.save().await?;
        let [answers, errors] = self.results.files(self.http, self.caller, &self.batch.id).await?;
        let mut uploads = Vec::new();
        for (upload, what) in [(answers, "output"), (errors, "errors")] {
            let Some(upload) = upload else { continue };
            let name = format!("{}_{what}.jsonl", self.batch.id);
            let expires_after = self.batch.output_expires_after.as_ref();
            let file = files::record(self.http, self.caller, (&name, "batch_output"), expires_after);
            let id =
                if what == "output" { &mut self.batch.output_file_id } else { &mut self.batch.error_file_id };
            *id = Some(file.name.id.clone());
            uploads.push((upload, file));
        }
        let now = self.http.unix_s();
        match self.lost.take() {
            Some(problem) if end == Status::Failed => self.batch.fail(vec![LineError::of_file(problem)], now),
            _ => self.batch.become_(end, now),
        }
        let record = self.batch.object(self.caller);
        match self.http.services.objects.put_uploads(uploads, vec![record]).await {
            // The files are more than the tenant may have kept: no later try fares better.
            Err(fault) if fault.code == ErrorCode::Invalid => {
                (self.batch.output_file_id, self.batch.error_file_id) = (None, None);
                let code = "output_too_large".to_owned();
                self.batch.fail(vec![LineError { code, ..LineError::of_file(fault.into()) }], now);
                self.save().await
            }
            put => Ok(put?),
        }
    }
}

impl LineError {
    fn of_file(problem: Problem) -> Self {
        Self { code: "invalid_file".to_owned(), message: problem.message, param: problem.param, line: None }
    }
}
