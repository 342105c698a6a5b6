//! One request's job, from its submission to its last event, whichever API asked.

use super::Http;
use super::problem::{Kind, Problem};
use crate::limits::MAX_MODEL_NAME_BYTES;
use crate::scheduler::Submitted;
use crate::scheduler::log::{LogReader, is_terminal};
use crate::services::{Owner, submit};
use std::collections::VecDeque;
use zllm_wire::{ChoiceEnd, Event, FinishReason, JobId, Submit, TokenLogprob, Usage};

/// A job and the place in its log. Dropped before the end, it cancels the job.
pub(super) struct Turn {
    /// Kept until the end: the job is its own.
    _owner: Owner,
    job: JobId,
    reader: LogReader,
    waiting: VecDeque<Event>,
}

/// A whole answer.
#[derive(Debug, Default)]
pub(super) struct Answered {
    /// In the order of the choices.
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Usage,
}

/// One of the answers to a prompt.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) text: String,
    pub(super) logprobs: Vec<TokenLogprob>,
    pub(super) end: ChoiceEnd,
}

impl Turn {
    /// Submits the job.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) async fn begin(http: &Http, request: Submit) -> Result<Self, Problem> {
        let services = &http.services;
        let model = &request.model;
        if model.len() > MAX_MODEL_NAME_BYTES || services.catalog.find(model).is_none() {
            let shown: String = model.chars().take(MAX_MODEL_NAME_BYTES).collect();
            let message = format!("there is no model {shown:?}; /v1/models lists those that are there");
            return Err(Problem { kind: Kind::NoModel, message, param: Some("model".to_owned()) });
        }
        let owner = Owner::new(services.clone());
        let Submitted { job, log, .. } = submit::submit(request, owner.id(), services).await?;
        Ok(Self { _owner: owner, job, reader: log.reader(0), waiting: VecDeque::new() })
    }

    /// The job's id.
    pub(super) fn job(&self) -> &JobId {
        &self.job
    }

    /// The next event; `None` after the last. A job that failed or was cancelled is a problem.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Problem> {
        while self.waiting.is_empty() {
            match self.reader.next().await.map_err(|why| Problem::new(Kind::Failed, why))? {
                Some(events) => self.waiting.extend(events.into_iter().map(|(_, event)| event)),
                None => return Ok(None),
            }
        }
        match self.waiting.pop_front() {
            Some(Event::Failed { message }) => Err(Problem::new(Kind::Failed, message)),
            Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => {
                Err(Problem::new(Kind::Failed, format!("job {} was cancelled", self.job)))
            }
            event => Ok(event),
        }
    }

    /// The events that are there now, at least one; none after the last.
    pub(super) async fn next_all(&mut self) -> Result<Vec<Event>, Problem> {
        let Some(first) = self.next().await? else { return Ok(Vec::new()) };
        let mut events = vec![first];
        // An end stays for the next call, which knows good ends from bad ones.
        while let Some(event) = self.waiting.pop_front_if(|event| !is_terminal(event)) {
            events.push(event);
        }
        Ok(events)
    }

    /// All of it.
    ///
    /// # Errors
    /// The job failed.
    pub(super) async fn finish(mut self) -> Result<Answered, Problem> {
        let mut texts: Vec<(String, Vec<TokenLogprob>)> = Vec::new();
        while let Some(event) = self.next().await? {
            match event {
                Event::Text { choice, text, logprobs, .. } => {
                    let choice = choice as usize;
                    if texts.len() <= choice {
                        texts.resize_with(choice + 1, Default::default);
                    }
                    texts[choice].0.push_str(&text);
                    texts[choice].1.extend(logprobs);
                }
                Event::Finished { choices, usage, .. } => {
                    texts.resize_with(choices.len(), Default::default);
                    let choices = choices.into_iter().zip(texts);
                    let choices =
                        choices.map(|(end, (text, logprobs))| Choice { text, logprobs, end }).collect();
                    return Ok(Answered { choices, usage });
                }
                Event::Queued { .. } | Event::Started { .. } | Event::Failed { .. } => {}
            }
        }
        Err(Problem::new(Kind::Failed, "the job's log ends without an end"))
    }
}
