//! One request's job, from its submission to its last event, whichever API asked: the model's words taken apart into text,
//! reasoning and calls.

use super::caller::Caller;
use super::problem::{Kind, Problem};
use super::{Http, conversation, models};
use crate::scheduler::Submitted;
use crate::scheduler::log::{LogReader, is_terminal};
use crate::services::{Owner, submit};
use std::collections::VecDeque;
use zllm_engine::{Piece, SpeechReader, SpeechStyle};
use zllm_wire::{ChoiceEnd, Event, FinishReason, JobId, Submit, TokenLogprob, Usage};

/// A job and the place in its log. Dropped before the end, it cancels the job, if it is its own.
pub(super) struct Turn {
    /// Kept until the end; `None`: the job goes on without its reader.
    _owner: Option<Owner>,
    job: JobId,
    reader: LogReader,
    waiting: VecDeque<Event>,
    speech: SpeechStyle,
    voices: Vec<Voice>,
    /// Whether all is told.
    is_over: bool,
}

/// What happens, in order; the events of several choices may alternate.
#[derive(Debug)]
pub(super) enum Said {
    /// The prompt is being computed.
    Started { prompt_tokens: u64, cached_tokens: u64 },
    /// More of one answer.
    More {
        choice: usize,
        pieces: Vec<Piece>,
        /// Of the tokens whose text has begun by now.
        logprobs: Vec<TokenLogprob>,
    },
    /// One answer is over.
    End { choice: usize, end: End },
    /// All are: the last of a job.
    Usage(Usage),
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) end: ChoiceEnd,
    /// Whether it calls tools, and waits for their results.
    pub(super) calls: bool,
    /// Tokens of its reasoning.
    pub(super) reasoning_tokens: u64,
}

/// A whole answer.
#[derive(Debug, Default)]
pub(super) struct Answered {
    /// In the order of the choices.
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Usage,
}

/// One of the answers to a prompt.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<conversation::Call>,
    pub(super) logprobs: Vec<TokenLogprob>,
    /// `None` while it goes on.
    pub(super) end: Option<End>,
}

/// One answer as it comes.
struct Voice {
    /// `None` where all is text.
    reader: Option<SpeechReader>,
    /// Bytes of the text so far.
    bytes: u64,
    /// Of tokens whose text has not begun; what ended the answer never does.
    waiting: Vec<TokenLogprob>,
    calls: bool,
    /// Whether what comes is reasoning, as far as one knows.
    reasons: bool,
    reasoning_tokens: u64,
}

impl Turn {
    /// Submits the caller's job.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) async fn begin(http: &Http, caller: &Caller, mut request: Submit) -> Result<Self, Problem> {
        let services = &http.services;
        models::known(http, &request.model)?;
        caller.own(&mut request);
        let owner = (!request.detached).then(|| Owner::new(services.clone()));
        let connection = owner.as_ref().map_or_else(|| services.connection_id(), Owner::id);
        let (Submitted { job, log, .. }, speech) = submit::submit(request, connection, services).await?;
        Ok(Self { _owner: owner, ..Self::of_log(job, log.reader(0), speech) })
    }

    /// A job that somebody has submitted; its answers are written in this style.
    pub(super) fn of_log(job: JobId, reader: LogReader, speech: SpeechStyle) -> Self {
        let (waiting, voices) = (VecDeque::new(), Vec::new());
        Self { _owner: None, job, reader, waiting, speech, voices, is_over: false }
    }

    /// The job's id.
    pub(super) fn job(&self) -> &JobId {
        &self.job
    }

    /// How its answers are written.
    pub(super) fn speech(&self) -> SpeechStyle {
        self.speech
    }

    /// What has happened since, at least one thing; nothing after the last. Given up and asked again, it misses nothing.
    ///
    /// # Errors
    /// The job failed or was cancelled ([`Kind::Ended`]); or its log cannot be read, and may be asked again.
    pub(super) async fn next(&mut self) -> Result<Vec<Said>, Problem> {
        let mut said = Vec::new();
        while said.is_empty() {
            while self.waiting.is_empty() {
                match self.reader.next().await.map_err(|why| Problem::new(Kind::Failed, why))? {
                    Some(events) => self.waiting.extend(events.into_iter().map(|(_, event)| event)),
                    None if self.is_over => return Ok(said),
                    None => {
                        return Err(Problem::new(
                            Kind::Ended { is_cancelled: false },
                            "the job's log ends without an end",
                        ));
                    }
                }
            }
            // A bad end stays for the next call: what came before it is told first.
            while let Some(event) = self.waiting.pop_front_if(|event| said.is_empty() || !is_terminal(event))
            {
                self.hear(event, &mut said)?;
            }
        }
        Ok(said)
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(super) async fn finish(mut self) -> Result<Answered, Problem> {
        let mut answered = Answered::default();
        loop {
            for said in self.next().await? {
                if let Said::Usage(_) = said {
                    answered.take(said, &self.job);
                    return Ok(answered);
                }
                answered.take(said, &self.job);
            }
        }
    }

    fn hear(&mut self, event: Event, said: &mut Vec<Said>) -> Result<(), Problem> {
        match event {
            Event::Queued { .. } => {}
            Event::Started { prompt_tokens, cached_tokens, .. } => {
                said.push(Said::Started { prompt_tokens, cached_tokens });
            }
            Event::Text { choice, text, tokens, logprobs } => {
                let choice = choice as usize;
                let voice = self.voice(choice);
                let (pieces, logprobs) = voice.hear(text, logprobs);
                voice.reasoning_tokens += if voice.reasons { u64::from(tokens) } else { 0 };
                if !pieces.is_empty() || !logprobs.is_empty() {
                    said.push(Said::More { choice, pieces, logprobs });
                }
            }
            Event::Finished { reason: FinishReason::Cancelled, .. } => {
                let message = format!("job {} was cancelled", self.job);
                return Err(Problem::new(Kind::Ended { is_cancelled: true }, message));
            }
            Event::Finished { choices, usage, .. } => {
                for (choice, end) in choices.into_iter().enumerate() {
                    let voice = self.voice(choice);
                    let pieces = voice.finish();
                    let (calls, reasoning_tokens) = (voice.calls, voice.reasoning_tokens);
                    if !pieces.is_empty() {
                        said.push(Said::More { choice, pieces, logprobs: Vec::new() });
                    }
                    said.push(Said::End { choice, end: End { end, calls, reasoning_tokens } });
                }
                said.push(Said::Usage(usage));
                self.is_over = true;
            }
            Event::Failed { message } => {
                return Err(Problem::new(Kind::Ended { is_cancelled: false }, message));
            }
        }
        Ok(())
    }

    fn voice(&mut self, choice: usize) -> &mut Voice {
        if self.voices.len() <= choice {
            let speech = self.speech;
            self.voices.resize_with(choice + 1, || Voice::new(speech));
        }
        &mut self.voices[choice]
    }
}

impl Voice {
    fn new(speech: SpeechStyle) -> Self {
        let reader = (speech != SpeechStyle::default()).then(|| SpeechReader::new(speech));
        let reasons = speech.reasoning && speech.starts_in_reasoning;
        Self { reader, bytes: 0, waiting: Vec::new(), calls: false, reasons, reasoning_tokens: 0 }
    }

    fn hear(&mut self, text: String, logprobs: Vec<TokenLogprob>) -> (Vec<Piece>, Vec<TokenLogprob>) {
        self.bytes += text.len() as u64;
        self.waiting.extend(logprobs);
        let begun = self.waiting.iter().take_while(|token| token.offset < self.bytes).count();
        let begun = self.waiting.drain(..begun).collect();
        let pieces = match &mut self.reader {
            Some(reader) => reader.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(text)],
        };
        self.note(&pieces);
        (pieces, begun)
    }

    fn finish(&mut self) -> Vec<Piece> {
        let pieces = self.reader.as_mut().map(SpeechReader::finish).unwrap_or_default();
        self.note(&pieces);
        pieces
    }

    fn note(&mut self, pieces: &[Piece]) {
        if let Some(last) = pieces.last() {
            self.reasons = matches!(last, Piece::Reasoning(_));
        }
        self.calls |= pieces.iter().any(|piece| matches!(piece, Piece::Call { .. }));
    }
}

impl Answered {
    /// Adds what was said next.
    pub(super) fn take(&mut self, said: Said, job: &JobId) {
        match said {
            Said::Started { .. } => {}
            Said::More { choice, pieces, logprobs } => {
                let index = choice;
                let choice = self.choice(choice);
                choice.logprobs.extend(logprobs);
                for piece in pieces {
                    choice.take(piece, job, index);
                }
            }
            Said::End { choice, end } => self.choice(choice).end = Some(end),
            Said::Usage(usage) => self.usage = usage,
        }
    }

    fn choice(&mut self, choice: usize) -> &mut Choice {
        if self.choices.len() <= choice {
            self.choices.resize_with(choice + 1, Choice::default);
        }
        &mut self.choices[choice]
    }
}

impl Choice {
    fn take(&mut self, piece: Piece, job: &JobId, choice: usize) {
        match piece {
            Piece::Text(text) => self.text.push_str(&text),
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Call { index, name } => {
                let id = call_id(job, choice, index);
                self.calls.push(conversation::Call { id, name, arguments: String::new() });
            }
            Piece::Arguments { index, json } => self.calls[index as usize].arguments.push_str(&json),
            Piece::CallEnd { .. } => {}
        }
    }
}

/// What a call is named, so that its result can name it: the same whenever the answer is read.
pub(super) fn call_id(job: &JobId, choice: usize, index: u32) -> String {
    let job = job.as_str().trim_start_matches("j-");
    format!("call_{job}_{choice}_{index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::log::JobLog;
    use zllm_engine::CallStyle;
    use zllm_wire::StopCause;

    const SPEECH: SpeechStyle =
        SpeechStyle { reasoning: true, calls: CallStyle::Hermes, starts_in_reasoning: false };

    fn turn(texts: &[(u32, &str)], last: Event) -> Turn {
        let log = JobLog::in_memory();
        log.append(Event::Started { cached_tokens: 2, cached_by_tier: Default::default(), prompt_tokens: 5 });
        for &(choice, text) in texts {
            log.append(Event::Text { choice, text: text.into(), tokens: 1, logprobs: Vec::new() });
        }
        log.append(last);
        Turn::of_log(JobId::new("j-0007").expect("an id"), log.reader(0), SPEECH)
    }

    fn finished(choices: usize) -> Event {
        let end = ChoiceEnd { reason: FinishReason::Stop, stop: Some(StopCause::EndOfText { token: 1 }) };
        let (reason, choices) = (FinishReason::Stop, vec![end; choices]);
        Event::Finished { reason, choices, usage: Usage { generated_tokens: 9, ..Usage::default() } }
    }

    #[tokio::test]
    async fn what_the_model_says_is_taken_apart_for_each_choice() {
        let texts = [
            (0, "<think>\nhm</thi"),
            (1, "plain <b"),
            (0, "nk>\n\nLook: <tool_call>\n{\"name\": \"f\", \"argu"),
            (0, "ments\": {\"a\": 1}}\n</tool_call>"),
        ];
        let answered = turn(&texts, finished(2)).finish().await.expect("an answer");
        let [first, second] = &answered.choices[..] else { panic!("{answered:?}") };
        assert_eq!((first.reasoning.as_str(), first.text.as_str()), ("hm", "Look: "));
        let call = conversation::Call {
            id: "call_0007_0_0".into(),
            name: "f".into(),
            arguments: "{\"a\": 1}".into(),
        };
        assert_eq!(first.calls, [call]);
        assert!(first.end.as_ref().is_some_and(|end| end.calls));
        // What was held back, in case a tag came, comes at the end.
        assert_eq!(second.text, "plain <b");
        assert!(second.end.as_ref().is_some_and(|end| !end.calls));
        assert_eq!(answered.usage.generated_tokens, 9);
    }

    #[tokio::test]
    async fn what_was_said_is_told_before_a_bad_end() {
        let failed = || Event::Failed { message: "no more".into() };
        let mut failing = turn(&[(0, "a")], failed());
        let said = failing.next().await.expect("what came before");
        assert!(matches!(
            said[..],
            [Said::Started { prompt_tokens: 5, cached_tokens: 2 }, Said::More { .. }]
        ));
        let end = failing.next().await.expect_err("a bad end");
        assert_eq!((end.message.as_str(), end.kind), ("no more", Kind::Ended { is_cancelled: false }));
        let end = ChoiceEnd { reason: FinishReason::Cancelled, stop: None };
        let (reason, choices) = (FinishReason::Cancelled, vec![end]);
        let cancelled = Event::Finished { reason, choices, usage: Usage::default() };
        for (last, kind) in
            [(failed(), Kind::Ended { is_cancelled: false }), (cancelled, Kind::Ended { is_cancelled: true })]
        {
            let end = turn(&[], last).finish().await.expect_err("a bad end");
            assert_eq!(end.kind, kind, "{end:?}");
        }
        let mut good = turn(&[(0, "a")], finished(1));
        while !good.next().await.expect("a good end").is_empty() {}
    }
}
