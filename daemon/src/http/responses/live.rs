//! A response that is being made: its job's events come in, its own go out, and at its end it is kept.

use crate::http::problem::{Kind, Problem};
use crate::http::sse;
use crate::http::turn::{Said, Turn};
use crate::limits::STREAM_PING;
use crate::scheduler::DetailOf;
use actix_web::HttpResponse;
use actix_web::web::Bytes;
use zllm_wire::{JobId, JobState};

use super::events::Event;
use super::items::Item;
use super::object::{Response, Status};
use super::scribe::Scribe;
use super::shelf::{Job, Record, Shelf};

/// It. Dropped before its end, it cancels its job, unless that is in the background.
pub(super) struct Live {
    turn: Option<Turn>,
    scribe: Scribe,
    keeper: Keeper,
    stage: Stage,
    /// Why it failed.
    problem: Option<Problem>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Goes,
    Over,
    Kept,
}

/// Keeps a response when it is over.
pub(super) struct Keeper {
    pub(super) shelf: Shelf,
    pub(super) input: Vec<Item>,
    /// Of one in the background, which was kept when it began.
    pub(super) job: Option<Job>,
    /// It as it was kept when it was over, if it is only told again.
    pub(super) kept: Option<Box<Response>>,
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
            match self.stage {
                Stage::New => {
                    self.scribe.begin();
                    self.stage = if self.turn.is_some() { Stage::Goes } else { Stage::Over };
                }
                Stage::Goes => self.hear().await,
                Stage::Over => {
                    self.keeper.keep(&mut self.scribe.response).await;
                    self.scribe.finish();
                    self.stage = Stage::Kept;
                }
                Stage::Kept => return None,
            }
            let events = self.scribe.take_events();
            if !events.is_empty() {
                return Some(events);
            }
        }
    }

    async fn hear(&mut self) {
        let Some(turn) = &mut self.turn else { unreachable!("it goes on") };
        let said = match turn.next().await {
            Ok(said) if said.is_empty() => {
                Err(Problem::new(Kind::Failed, "the job's log ends without an end"))
            }
            said => said,
        };
        match said {
            Ok(said) => {
                for said in said {
                    if matches!(said, Said::Usage(_)) {
                        self.stage = Stage::Over;
                    }
                    self.scribe.hear(said);
                }
            }
            Err(problem) => {
                let is_cancelled = is_cancelled(&self.keeper.shelf, turn.job()).await;
                self.scribe.fail(&problem, is_cancelled);
                self.problem = (!is_cancelled).then_some(problem);
                self.stage = Stage::Over;
            }
        }
        if self.stage == Stage::Over {
            self.turn = None;
        }
    }

    /// All of it, and why it failed if it did.
    pub(super) async fn finish(mut self) -> (Response, Option<Problem>) {
        while self.next().await.is_some() {}
        (self.scribe.response, self.problem)
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

/// Whether somebody ended a job.
async fn is_cancelled(shelf: &Shelf, job: &JobId) -> bool {
    let detail = shelf.http.services.ask_scheduler(DetailOf(job.clone())).await;
    matches!(detail, Ok(Ok((detail, _))) if detail.info.state == JobState::Cancelled)
}

impl Keeper {
    /// A response that cannot be kept says so: it was made all the same.
    async fn keep(&self, response: &mut Response) {
        if let Some(kept) = &self.kept {
            response.clone_from(kept);
            return;
        }
        if response.status == Status::Completed {
            response.completed_at = Some(self.shelf.http.unix_s());
        }
        if !response.store && response.conversation.is_none() {
            return;
        }
        let said = if response.status.is_answer() {
            self.input.iter().chain(&response.output).cloned().collect()
        } else {
            vec![]
        };
        let said = own_ids(said, &response.id);
        let record = Record { response: response.clone(), input: self.input.clone(), job: self.job.clone() };
        if let Err(problem) = self.shelf.keep(&record, self.job.is_none(), said).await {
            tracing::error!(why = problem.message, response = response.id, "a response could not be kept");
            response.store = false;
        }
    }
}

/// Items with ids that no other has: what a client called them may be in a conversation already.
fn own_ids(items: Vec<Item>, response: &str) -> Vec<Item> {
    let number = response.trim_start_matches("resp_");
    let own = |(place, item): (usize, Item)| {
        let id = format!("{}_{number}_c{place}", item.prefix());
        item.with_id(id)
    };
    items.into_iter().enumerate().map(own).collect()
}
