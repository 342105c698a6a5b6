//! A response that is being made: its job's events come in, its own go out, and at its end it is kept.

use crate::http::problem::{Kind, Problem};
use crate::http::sse;
use crate::http::turn::{Said, Turn};
use crate::limits::STREAM_PING;
use actix_web::HttpResponse;
use actix_web::rt::task::JoinHandle;
use actix_web::web::Bytes;

use super::events::Event;
use super::items::Item;
use super::object::{Response, Status};
use super::scribe::Scribe;
use super::shelf::{Job, Record, Shelf};

/// It. A response that is over is kept even if nobody waits for that. Dropped before its end, it cancels its job, unless that is in the background.
pub(super) struct Live {
    turn: Option<Turn>,
    scribe: Scribe,
    keeper: Keeper,
    stage: Stage,
    /// Why its job could not be followed to the end.
    problem: Option<Problem>,
}

enum Stage {
    New,
    Goes,
    Over,
    Keeping(JoinHandle<Kept>),
    Told,
}

/// What became of keeping a response: the one that was kept before it, if there is one; or nothing is kept.
type Kept = Result<Option<Response>, Problem>;

/// Keeps a response when it is over.
pub(super) struct Keeper {
    pub(super) shelf: Shelf,
    pub(super) input: Vec<Item>,
    /// Of one in the background, which was kept when it began.
    pub(super) job: Option<Job>,
}

impl Live {
    pub(super) fn new(turn: Turn, scribe: Scribe, keeper: Keeper) -> Self {
        Self { turn: Some(turn), scribe, keeper, stage: Stage::New, problem: None }
    }

    /// Without an answer: it is over at once.
    pub(super) fn silent(mut scribe: Scribe, keeper: Keeper) -> Self {
        scribe.response.status = Status::Completed;
        Self { turn: None, scribe, keeper, stage: Stage::New, problem: None }
    }

    pub(super) fn response(&self) -> &Response {
        &self.scribe.response
    }

    /// What it was made from.
    pub(super) fn input(&self) -> &[Item] {
        &self.keeper.input
    }

    /// The next events, at least one; `None` after the last. A call that is given up and made again misses nothing.
    pub(super) async fn next(&mut self) -> Option<Vec<Event>> {
        loop {
            match &mut self.stage {
                Stage::New => {
                    self.scribe.begin();
                    self.stage = if self.turn.is_some() { Stage::Goes } else { Stage::Over };
                }
                Stage::Goes => self.hear().await,
                Stage::Over => self.stage = Stage::Keeping(self.keeper.keep(&mut self.scribe.response)),
                Stage::Keeping(kept) => {
                    let response = &mut self.scribe.response;
                    let gone = |_| Err(Problem::new(Kind::Unavailable, "the daemon is stopping"));
                    match kept.await.unwrap_or_else(gone) {
                        Ok(None) => {}
                        Ok(Some(before)) => *response = before,
                        Err(problem) => {
                            let id = &response.id;
                            tracing::error!(
                                why = problem.message,
                                response = id,
                                "a response could not be kept"
                            );
                            response.store = false;
                        }
                    }
                    self.scribe.finish();
                    self.stage = Stage::Told;
                }
                Stage::Told => return None,
            }
            let events = self.scribe.take_events();
            if !events.is_empty() {
                return Some(events);
            }
        }
    }

    async fn hear(&mut self) {
        let Some(turn) = &mut self.turn else { unreachable!("it goes on") };
        match turn.next().await {
            Ok(said) => {
                for said in said {
                    if matches!(said, Said::Usage(_)) {
                        self.stage = Stage::Over;
                    }
                    self.scribe.hear(said);
                }
            }
            Err(problem) if matches!(problem.kind, Kind::Ended { .. }) => {
                self.scribe.fail(&problem);
                self.stage = Stage::Over;
            }
            // How it ended is not known, so nothing is kept.
            Err(problem) => {
                self.scribe.give_up(&problem);
                self.problem = Some(problem);
                self.stage = Stage::Told;
            }
        }
        if !matches!(self.stage, Stage::Goes) {
            self.turn = None;
        }
    }

    /// All of it, however its job ended.
    ///
    /// # Errors
    /// Why the job cannot be followed to its end now.
    pub(super) async fn finish(mut self) -> Result<Response, Problem> {
        while self.next().await.is_some() {}
        self.problem.map_or(Ok(self.scribe.response), Err)
    }

    /// Answers with its events, those behind the one of this number.
    pub(super) fn stream(self, after: Option<u64>) -> HttpResponse {
        let is_wanted = move |event: &Event| after.is_none_or(|after| event.sequence_number > after);
        sse::response(futures_util::stream::unfold(self, move |mut live| async move {
            loop {
                let Ok(events) = tokio::time::timeout(STREAM_PING, live.next()).await else {
                    return Some((Bytes::from_static(b": still there\n\n"), live));
                };
                let mut out = Vec::new();
                for event in events?.iter().filter(|event| is_wanted(event)) {
                    sse::write(&mut out, Some(event.kind), event);
                }
                if !out.is_empty() {
                    return Some((out.into(), live));
                }
            }
        }))
    }
}

impl Keeper {
    /// Keeps what is over, if it is to be kept. The task goes on when nobody waits for it.
    fn keep(&self, response: &mut Response) -> JoinHandle<Kept> {
        if response.status == Status::Completed {
            response.completed_at = Some(self.shelf.http.unix_s());
        }
        let is_wanted = response.store || response.conversation.is_some();
        let (shelf, job) = (self.shelf.clone(), self.job.clone());
        let record = is_wanted.then(|| Record { response: response.clone(), input: self.input.clone(), job });
        actix_web::rt::spawn(async move {
            let Some(record) = record else { return Ok(None) };
            let response = &record.response;
            let said = record.input.iter().chain(&response.output);
            let said = said.filter(|_| response.status.is_answer()).cloned();
            let said = own_ids(said, &response.id);
            shelf.keep(&record, record.job.is_none(), &said).await
        })
    }
}

/// Items with ids that no other has: what a client called them may be in a conversation already.
fn own_ids(items: impl Iterator<Item = Item>, response: &str) -> Vec<Item> {
    let number = response.trim_start_matches("resp_");
    let own = |(place, item): (usize, Item)| {
        let id = format!("{}_{number}_c{place}", item.prefix());
        item.with_id(id)
    };
    items.enumerate().map(own).collect()
}
