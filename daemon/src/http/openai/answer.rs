//! Answers of chat completions and completions: whole, or in chunks as they come.

use super::{Refused, error_object};
use crate::http::problem::Problem;
use crate::http::sse;
use crate::http::turn::{Answered, Choice, Turn};
use crate::limits::STREAM_PING;
use actix_web::HttpResponse;
use actix_web::web::Bytes;
use serde_json::{Map, Value, json};
use zllm_wire::{ChoiceEnd, Event, FinishReason, TokenLogprob, Usage};

/// Which of the two is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
}

/// What of a request its answer repeats or depends on.
pub(super) struct Asked {
    pub(super) api: Api,
    pub(super) model: String,
    /// Seconds since the Unix epoch.
    pub(super) created: u64,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// Answers with a job's events.
pub(super) async fn give(turn: Turn, asked: Asked) -> Result<HttpResponse, Refused> {
    let id = format!("{}-{}", asked.api.prefix(), turn.job());
    if !asked.stream {
        return Ok(HttpResponse::Ok().json(whole(&id, &asked, &turn.finish().await?)));
    }
    let stream = Chunks { turn: Some(turn), id, asked, choices: Vec::new() };
    Ok(sse::response(futures_util::stream::unfold(stream, |mut stream| async {
        let bytes = stream.next().await?;
        Some((bytes, stream))
    })))
}

fn whole(id: &str, asked: &Asked, answered: &Answered) -> Value {
    let choices = answered.choices.iter().enumerate().map(|(index, choice)| asked.api.choice(index, choice));
    let choices: Vec<Value> = choices.collect();
    json!({
        "id": id,
        "object": asked.api.object(),
        "created": asked.created,
        "model": asked.model,
        "choices": choices,
        "usage": usage(&answered.usage),
    })
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
    })
}

fn finish_reason(end: &ChoiceEnd) -> &'static str {
    match end.reason {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}

impl Api {
    fn prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Completions => "cmpl",
        }
    }

    fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completions => "text_completion",
        }
    }

    fn choice(self, index: usize, choice: &Choice) -> Value {
        let Choice { text, logprobs, end } = choice;
        // What ended the text is no part of it.
        let of_text: Vec<&TokenLogprob> =
            logprobs.iter().filter(|token| token.offset < text.len() as u64).collect();
        let logprobs = (!logprobs.is_empty()).then(|| self.logprobs(&of_text, text));
        match self {
            Self::Chat => json!({
                "index": index,
                "message": { "role": "assistant", "content": text, "refusal": null },
                "logprobs": logprobs,
                "finish_reason": finish_reason(end),
            }),
            Self::Completions => json!({
                "index": index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": finish_reason(end),
            }),
        }
    }

    /// Log probabilities of tokens of an answer that begins with `text`.
    fn logprobs(self, tokens: &[&TokenLogprob], text: &str) -> Value {
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if self == Self::Chat {
            let told = |bytes: &[u8], logprob: f32| json!({ "token": text_of(bytes), "logprob": logprob, "bytes": bytes });
            let content = tokens.iter().map(|token| {
                let mut entry = told(&token.bytes, token.logprob);
                entry["top_logprobs"] = token.top.iter().map(|top| told(&top.bytes, top.logprob)).collect();
                entry
            });
            return json!({ "content": content.collect::<Vec<_>>(), "refusal": null });
        }
        let tops = tokens.iter().map(|token| {
            let top = token.top.iter().map(|top| (text_of(&top.bytes), Value::from(top.logprob)));
            Value::Object(top.collect::<Map<_, _>>())
        });
        json!({
            "tokens": tokens.iter().map(|token| text_of(&token.bytes)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
            "top_logprobs": tops.collect::<Vec<_>>(),
            // Characters, where the daemon counts bytes.
            "text_offset": tokens.iter().map(|token| chars_before(text, token.offset)).collect::<Vec<_>>(),
        })
    }
}

/// A token may begin within a character: that counts as begun.
fn chars_before(text: &str, byte: u64) -> usize {
    text.char_indices().take_while(|(at, _)| (*at as u64) < byte).count()
}

/// A streamed answer.
struct Chunks {
    /// `None` when all is said.
    turn: Option<Turn>,
    id: String,
    asked: Asked,
    choices: Vec<Streamed>,
}

/// How far one answer is.
#[derive(Default)]
struct Streamed {
    /// Its first chunk is out.
    begun: bool,
    text: String,
    /// Of tokens whose text has not come yet, or never will.
    waiting: Vec<TokenLogprob>,
}

impl Chunks {
    /// The next bytes; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let turn = self.turn.as_mut()?;
            let Ok(events) = tokio::time::timeout(STREAM_PING, turn.next_all()).await else {
                return Some(Bytes::from_static(b": still there\n\n"));
            };
            let mut out = Vec::new();
            match events {
                Ok(events) if events.is_empty() => self.turn = None,
                Ok(events) => events.into_iter().for_each(|event| self.event(event, &mut out)),
                Err(problem) => self.fail(&problem, &mut out),
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn event(&mut self, event: Event, out: &mut Vec<u8>) {
        match event {
            Event::Queued { .. } | Event::Started { .. } | Event::Failed { .. } => {}
            Event::Text { choice, text, logprobs, .. } => {
                let logprobs = self.logprobs(choice as usize, &text, logprobs);
                if !text.is_empty() || logprobs.is_some() {
                    self.say(choice as usize, &text, logprobs, None, out);
                }
            }
            Event::Finished { choices, usage: took, .. } => {
                for (index, end) in choices.iter().enumerate() {
                    self.say(index, "", None, Some(finish_reason(end)), out);
                }
                if self.asked.include_usage {
                    sse::write(out, None, &self.chunk(json!([]), usage(&took)));
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
        }
    }

    fn fail(&mut self, problem: &Problem, out: &mut Vec<u8>) {
        sse::write(out, None, &error_object(problem));
        self.turn = None;
    }

    /// Log probabilities of the tokens whose text has begun; the others wait for it.
    fn logprobs(&mut self, index: usize, text: &str, new: Vec<TokenLogprob>) -> Option<Value> {
        let api = self.asked.api;
        let streamed = self.choice(index);
        streamed.text.push_str(text);
        streamed.waiting.extend(new);
        let told =
            streamed.waiting.iter().take_while(|token| token.offset < streamed.text.len() as u64).count();
        if told == 0 {
            return None;
        }
        let told: Vec<TokenLogprob> = streamed.waiting.drain(..told).collect();
        Some(api.logprobs(&told.iter().collect::<Vec<_>>(), &streamed.text))
    }

    fn choice(&mut self, index: usize) -> &mut Streamed {
        if self.choices.len() <= index {
            self.choices.resize_with(index + 1, Streamed::default);
        }
        &mut self.choices[index]
    }

    fn say(
        &mut self,
        index: usize,
        text: &str,
        logprobs: Option<Value>,
        end: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        let mut choice = match self.asked.api {
            Api::Completions => json!({ "index": index, "text": text }),
            Api::Chat => {
                if !self.choice(index).begun {
                    self.choice(index).begun = true;
                    let first = json!({ "index": index, "delta": { "role": "assistant", "content": "" }, "logprobs": null, "finish_reason": null });
                    sse::write(out, None, &self.chunk(json!([first]), Value::Null));
                }
                let delta = if end.is_some() { json!({}) } else { json!({ "content": text }) };
                json!({ "index": index, "delta": delta })
            }
        };
        choice["logprobs"] = logprobs.unwrap_or(Value::Null);
        choice["finish_reason"] = end.into();
        sse::write(out, None, &self.chunk(json!([choice]), Value::Null));
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let object = match self.asked.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completions => "text_completion",
        };
        let mut chunk = json!({
            "id": self.id,
            "object": object,
            "created": self.asked.created,
            "model": self.asked.model,
            "choices": choices,
        });
        if self.asked.include_usage {
            chunk["usage"] = usage;
        }
        chunk
    }
}
