//! Brings a batch's requests to the daemon and its results back, over one connection with several requests in flight.
//!
//! A request is submitted under a key, so one that was sent before a connection broke (or by a command before this one) is
//! the job that it was. When the daemon refuses, its own time is waited for and then one request goes first; with each that
//! is taken twice as many may be in flight. What has ended is learnt from listings of the batch, and its log is read from
//! the beginning.
//!
//! Invariants: a request without result is in exactly one place: unsent, in flight, open or ended. Whatever is in flight
//! when the connection breaks goes back to where it came from.

use super::answer::{Answering, Outcome};
use super::input::Input;
use super::progress::{Counts, Progress};
use super::results::Results;
use crate::client::{Connection, Context, unexpected};
use crate::clock;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::limits::{
    FAULT_WAIT, MAX_FAULTS, MAX_OUTAGE, MAX_READS_IN_FLIGHT, MAX_RETRY_WAIT, MAX_SUBMITS_IN_FLIGHT,
    MIN_RETRY_WAIT, POLL_PERIOD, POLL_SHARE, PROGRESS_PERIOD, RECONNECT_DELAY, RECONNECT_DELAY_MAX,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};
use zllm_wire::{Answer, BatchJob, BatchPage, Class, ErrorCode, Fault, JobId, JobState, Op, Submit, Tenant};

/// A batch on its way. Requests are named by their place in the input.
pub(crate) struct Drive<'a> {
    context: &'a Context,
    interrupt: &'a Interrupt,
    input: &'a Input,
    tenant: Option<Tenant>,
    results: &'a mut Results,
    progress: Progress,
    /// Requests that are no jobs yet.
    unsent: BTreeSet<usize>,
    /// Jobs that are not known to have ended.
    open: BTreeMap<JobId, Open>,
    /// Jobs whose results can be read.
    ended: VecDeque<Ended>,
    in_flight: HashMap<u64, Asked>,
    /// Submissions that may be in flight.
    window: usize,
    submit_at: Instant,
    read_at: Instant,
    listing: Listing,
    outage: Option<Outage>,
    /// How often the daemon has failed since it last took a request.
    faults: u32,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    place: usize,
    /// Listings that had been asked for when it was made.
    listings: u64,
    /// Whether we saw it before it ended.
    watched: bool,
}

#[derive(Debug, Clone)]
struct Ended {
    job: JobId,
    place: usize,
    watched: bool,
}

/// What a request in flight is about.
enum Asked {
    Submit { place: usize, accepted: Option<(JobId, bool)> },
    List { number: u64, after: Option<JobId>, at: Instant },
    Read { ended: Ended, answering: Answering },
}

/// When and from where on the batch's jobs are listed.
struct Listing {
    at: Instant,
    asked: u64,
    /// Every job up to this one has ended.
    from: Option<JobId>,
    /// The last job of the page before, when there are more.
    page: Option<JobId>,
}

/// Since when the daemon does not answer.
struct Outage {
    since: Instant,
    delay: Duration,
}

impl<'a> Drive<'a> {
    /// Everything that has no result yet is to be done.
    pub(crate) fn new(
        context: &'a Context,
        interrupt: &'a Interrupt,
        input: &'a Input,
        tenant: Option<Tenant>,
        results: &'a mut Results,
    ) -> Self {
        let now = clock::now();
        let unsent = (0..input.len()).filter(|place| !results.has(*place)).collect();
        Self {
            context,
            interrupt,
            input,
            tenant,
            results,
            progress: Progress::new(input.len(), now),
            unsent,
            open: BTreeMap::new(),
            ended: VecDeque::new(),
            in_flight: HashMap::new(),
            window: MAX_SUBMITS_IN_FLIGHT,
            submit_at: now,
            read_at: now,
            listing: Listing { at: now + POLL_PERIOD, asked: 0, from: None, page: None },
            outage: None,
            faults: 0,
        }
    }

    /// Requests that are no jobs yet, as far as is known.
    pub(crate) fn unsent(&self) -> usize {
        let in_flight = self.in_flight.values().filter(|asked| matches!(asked, Asked::Submit { .. })).count();
        self.unsent.len() + in_flight
    }

    /// Works until every request is a job, and with `to_the_end` until each has its result.
    pub(crate) fn run(&mut self, mut connection: Connection, to_the_end: bool) -> Result<(), Failure> {
        loop {
            let served = self.serve(&mut connection, to_the_end);
            let why = match served.map_err(|failure| self.interrupt.explain(failure)) {
                Err(Failure::Lost(why)) => why,
                other => return other,
            };
            self.take_back();
            connection = self.reconnect(why)?;
        }
    }

    fn serve(&mut self, connection: &mut Connection, to_the_end: bool) -> Result<(), Failure> {
        loop {
            let now = clock::now();
            self.progress.show(self.counts(), now);
            self.ask(connection, now)?;
            let results_wanted = to_the_end && !(self.open.is_empty() && self.ended.is_empty());
            // What is in flight is about one of them, but for a listing.
            let in_flight = self.in_flight.values().any(|asked| match asked {
                Asked::Submit { .. } => true,
                Asked::List { .. } => false,
                Asked::Read { .. } => to_the_end,
            });
            if self.unsent.is_empty() && !results_wanted && !in_flight {
                return Ok(());
            }
            if let Some((id, answer)) = connection.any_answer(self.patience(now))? {
                self.take(id, answer)?;
            }
        }
    }

    fn counts(&self) -> Counts {
        let (done, failed) = self.results.counts();
        let total = self.input.len();
        Counts { total, submitted: total - self.unsent(), done, failed }
    }

    /// Asks for all that may be asked for now.
    fn ask(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Failure> {
        let (mut submits, mut reads, mut listed) = (0, 0, false);
        for asked in self.in_flight.values() {
            match asked {
                Asked::Submit { .. } => submits += 1,
                Asked::Read { .. } => reads += 1,
                Asked::List { .. } => listed = true,
            }
        }
        while now >= self.read_at && reads < MAX_READS_IN_FLIGHT {
            let Some(ended) = self.ended.pop_front() else { break };
            let op = Op::Attach { job: ended.job.clone(), from: 0 };
            self.post(connection, op, Asked::Read { ended, answering: Answering::default() })?;
            reads += 1;
        }
        if !listed && now >= self.listing.at && !self.open.is_empty() {
            self.listing.asked += 1;
            let after = self.listing.page.clone().or_else(|| self.listing.from.clone());
            let op = Op::BatchJobs {
                tenant: self.tenant.clone(),
                batch: self.input.batch.clone(),
                after: after.clone(),
            };
            self.post(connection, op, Asked::List { number: self.listing.asked, after, at: now })?;
        }
        while now >= self.submit_at && submits < self.window {
            let Some(place) = self.unsent.pop_first() else { break };
            let op = Op::Submit(Box::new(self.submission(place)));
            self.post(connection, op, Asked::Submit { place, accepted: None })?;
            submits += 1;
        }
        Ok(())
    }

    /// Sends a request. It is in flight also when that fails, so that nothing is lost.
    fn post(&mut self, connection: &mut Connection, op: Op, asked: Asked) -> Result<(), Failure> {
        let id = connection.next_id();
        self.in_flight.insert(id, asked);
        connection.send(op)
    }

    fn submission(&self, place: usize) -> Submit {
        let body = self.input.body(place);
        Submit {
            model: body.model,
            prompt: body.prompt,
            params: body.params,
            session: None,
            tenant: self.tenant.clone(),
            detached: true,
            stream: false,
            label: Some(label(self.input.custom_id(place))),
            class: Class::Batch,
            deadline_ms: None,
            max_wait_ms: None,
            key: Some(self.input.key(place)),
            batch: Some(self.input.batch.clone()),
        }
    }

    /// How long an answer may be waited for: until something may be asked for that may not be now. What may be now and was
    /// not asked for waits for an answer itself.
    fn patience(&self, now: Instant) -> Duration {
        let times = [
            (!self.unsent.is_empty()).then_some(self.submit_at),
            (!self.ended.is_empty()).then_some(self.read_at),
            (!self.open.is_empty()).then_some(self.listing.at),
        ];
        let waits = times.into_iter().flatten().filter(|at| *at > now).map(|at| at - now);
        waits.min().unwrap_or(PROGRESS_PERIOD).min(PROGRESS_PERIOD)
    }

    fn take(&mut self, id: u64, answer: Answer) -> Result<(), Failure> {
        let asked = self
            .in_flight
            .remove(&id)
            .ok_or_else(|| Failure::Failed("the daemon sent an answer that nothing was asked for".into()))?;
        if let Answer::Error(Fault { code: ErrorCode::Draining, message }) = answer {
            // As if it were gone already: the next one takes it.
            self.in_flight.insert(id, asked);
            return Err(Failure::Lost(message));
        }
        self.outage = None;
        match asked {
            Asked::Submit { place, accepted } => self.take_submitted(id, place, accepted, answer),
            Asked::List { number, after, at } => match answer {
                Answer::BatchJobs(page) => {
                    self.take_listed(number, after, at, page);
                    Ok(())
                }
                // Of a batch none of whose jobs are kept.
                Answer::Error(Fault { code: ErrorCode::NotFound, .. }) => {
                    self.take_listed(number, after, at, BatchPage { jobs: Vec::new(), more: false });
                    Ok(())
                }
                Answer::Error(fault) => {
                    self.listing.at = self.later(fault)?;
                    Ok(())
                }
                other => Err(unexpected(&other)),
            },
            Asked::Read { ended, answering } => self.take_read(id, ended, answering, answer),
        }
    }

    fn take_submitted(
        &mut self,
        id: u64,
        place: usize,
        accepted: Option<(JobId, bool)>,
        answer: Answer,
    ) -> Result<(), Failure> {
        match (accepted, answer) {
            (None, Answer::Accepted { job, known }) => {
                self.in_flight.insert(id, Asked::Submit { place, accepted: Some((job, known)) });
            }
            (Some((job, known)), Answer::Done) => {
                self.window = (self.window * 2).min(MAX_SUBMITS_IN_FLIGHT);
                self.faults = 0;
                if self.listing.from.as_ref().is_some_and(|from| *from >= job) {
                    self.listing.from = None;
                }
                let listings = self.listing.asked;
                self.open.insert(job, Open { place, listings, watched: !known });
            }
            (_, Answer::Error(Fault { code: ErrorCode::Invalid, message })) => {
                self.fail(place, None, "invalid_request", message)?;
            }
            (_, Answer::Error(Fault { code: ErrorCode::NotFound, message })) => {
                self.fail(place, None, "not_found", message)?;
            }
            (_, Answer::Error(fault)) => {
                self.unsent.insert(place);
                self.window = 1;
                self.submit_at = self.later(fault)?.max(self.submit_at);
            }
            (_, other) => return Err(unexpected(&other)),
        }
        Ok(())
    }

    /// Moves the jobs that have ended: those that are listed so, and those that should be listed and are not, because the
    /// daemon keeps them no longer. Reading these says so.
    fn take_listed(&mut self, number: u64, after: Option<JobId>, asked_at: Instant, page: BatchPage) {
        let last = page.jobs.last().map(|row| row.job.clone());
        let mut rows: HashMap<JobId, JobState> =
            page.jobs.into_iter().map(|BatchJob { job, state, .. }| (job, state)).collect();
        let is_covered = |job: &JobId| {
            after.as_ref().is_none_or(|after| job > after)
                && (!page.more || last.as_ref().is_some_and(|last| job <= last))
        };
        let mut ended = Vec::new();
        for (job, open) in &mut self.open {
            match rows.remove(job) {
                Some(JobState::Queued | JobState::Running) => open.watched = true,
                None if !is_covered(job) || open.listings >= number => {}
                Some(JobState::Done | JobState::Failed | JobState::Cancelled) | None => {
                    ended.push(job.clone())
                }
            }
        }
        for job in ended {
            let Some(Open { place, watched, .. }) = self.open.remove(&job) else { continue };
            if self.open.first_key_value().is_none_or(|(first, _)| job < *first) {
                self.listing.from = self.listing.from.take().max(Some(job.clone()));
            }
            self.ended.push_back(Ended { job, place, watched });
        }
        self.listing.page = if page.more { last } else { None };
        let now = clock::now();
        self.listing.at = match self.listing.page {
            Some(_) => now,
            // A long listing is not asked for all the time.
            None => now + POLL_PERIOD.max(now.duration_since(asked_at) * POLL_SHARE),
        };
    }

    fn take_read(
        &mut self,
        id: u64,
        ended: Ended,
        mut answering: Answering,
        answer: Answer,
    ) -> Result<(), Failure> {
        match answer {
            Answer::Event { offset, event } => {
                answering.event(offset, event)?;
                self.in_flight.insert(id, Asked::Read { ended, answering });
            }
            Answer::Done => {
                let Ended { job, place, watched } = ended;
                let (endpoint, model) = (self.input.endpoint(place), self.input.body(place).model);
                let outcome = answering.outcome(endpoint, &job, &model, clock::unix_seconds())?;
                self.results.write(self.input, place, Some(&job), &outcome)?;
                if watched {
                    self.progress.result(match outcome {
                        Outcome::Done { tokens, .. } => tokens,
                        Outcome::Failed { .. } => 0,
                    });
                }
            }
            Answer::Error(Fault { code: ErrorCode::NotFound, .. }) => {
                let message = format!(
                    "the daemon no longer keeps job {}; run the line again with --id, and have results kept longer",
                    ended.job
                );
                self.fail(ended.place, Some(&ended.job), "batch_expired", message)?;
            }
            Answer::Error(fault) => {
                self.ended.push_front(ended);
                self.read_at = self.later(fault)?;
            }
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }

    /// When to ask again for what the daemon could not give.
    ///
    /// # Errors
    /// Never: it said so, or has failed too often.
    fn later(&mut self, fault: Fault) -> Result<Instant, Failure> {
        let wait = match fault.code {
            ErrorCode::Refused { retry_after_ms } => {
                Duration::from_millis(retry_after_ms).clamp(MIN_RETRY_WAIT, MAX_RETRY_WAIT)
            }
            ErrorCode::Failed if self.faults < MAX_FAULTS => {
                self.faults += 1;
                FAULT_WAIT
            }
            _ => return Err(fault.into()),
        };
        Ok(clock::now() + wait)
    }

    fn fail(
        &mut self,
        place: usize,
        job: Option<&JobId>,
        code: &'static str,
        message: String,
    ) -> Result<(), Failure> {
        self.results.write(self.input, place, job, &Outcome::Failed { code, message })
    }

    /// Puts what was in flight back to where it came from.
    fn take_back(&mut self) {
        for asked in std::mem::take(&mut self.in_flight).into_values() {
            match asked {
                Asked::Submit { place, .. } => drop(self.unsent.insert(place)),
                Asked::Read { ended, .. } => self.ended.push_front(ended),
                Asked::List { .. } => {}
            }
        }
        (self.listing.page, self.listing.at) = (None, clock::now());
    }

    /// Tries until the daemon is there again.
    ///
    /// # Errors
    /// It was not for [`MAX_OUTAGE`], or Ctrl-C came.
    fn reconnect(&mut self, mut why: String) -> Result<Connection, Failure> {
        loop {
            let now = clock::now();
            let first = self.outage.is_none();
            let outage = self.outage.get_or_insert(Outage { since: now, delay: RECONNECT_DELAY });
            if first {
                self.progress.say(&format!("the daemon is not there ({why}); waiting for it"));
            }
            if now.duration_since(outage.since) >= MAX_OUTAGE {
                let minutes = MAX_OUTAGE.as_secs() / 60;
                return Err(Failure::Lost(format!("{why}; gave up after {minutes} min")));
            }
            let delay = outage.delay;
            outage.delay = (delay * 2).min(RECONNECT_DELAY_MAX);
            self.interrupt.sleep(delay)?;
            match self.context.connect().and_then(|connection| {
                self.interrupt.guard(connection.stream())?;
                Ok(connection)
            }) {
                Ok(connection) => return Ok(connection),
                Err(Failure::Lost(reason) | Failure::Refused(reason)) => why = reason,
                Err(other) => return Err(other),
            }
        }
    }
}

/// As much of a request's name as a label may have.
fn label(custom_id: &str) -> String {
    custom_id[..custom_id.floor_char_boundary(zllm_wire::limits::MAX_LABEL_BYTES)].to_owned()
}
