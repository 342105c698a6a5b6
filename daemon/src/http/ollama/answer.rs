//! Answers: whole, or in lines of JSON as they come. The last line has what it took.

use super::common::Asked;
use crate::http::Http;
use crate::http::dialect::Dialect;
use crate::http::problem::Problem;
use crate::http::sse;
use crate::http::time::rfc3339;
use crate::http::turn::{Answered, Said, Turn, call_id};
use actix_web::HttpResponse;
use actix_web::web::{self, Bytes};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::convert::Infallible;
use std::time::Duration;
use zllm_engine::Piece;
use zllm_wire::{FinishReason, JobId, Usage};

/// A line of an answer; `Said` is what is said in it, as a chat or a generation words that.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{Said}Line")]
pub(super) struct Line<Said> {
    model: String,
    /// RFC 3339.
    created_at: String,
    #[serde(flatten)]
    said: Said,
    /// Whether it is the last.
    done: bool,
    /// `stop`, `length` or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    took: Option<Took>,
}

/// What an answer took. Durations are nanoseconds.
#[derive(Debug, Serialize, JsonSchema)]
struct Took {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
    prompt_eval_duration: u64,
    eval_count: u64,
    eval_duration: u64,
}

/// What the model says in a line.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Words {
    pub(super) text: String,
    pub(super) thinking: String,
    pub(super) calls: Vec<ToolCall>,
}

/// A tool that the model calls.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OllamaToolCall")]
pub(super) struct ToolCall {
    id: String,
    function: Function,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "OllamaFunctionCall")]
struct Function {
    index: usize,
    name: String,
    arguments: Map<String, Value>,
}

impl Words {
    /// A call. One whose arguments are no object, for it broke off, is told as the text that the model wrote.
    fn call(&mut self, id: String, index: usize, name: String, arguments: &str) {
        match serde_json::from_str(arguments) {
            Ok(arguments) => self.calls.push(ToolCall { id, function: Function { index, name, arguments } }),
            Err(_) => self.text.push_str(&format!(
                "<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}",
                Value::from(name)
            )),
        }
    }
}

/// The answer to a request that has nothing to answer: the model is loaded.
pub(super) fn loaded<W: From<Words> + Serialize>(http: &Http, asked: Asked) -> HttpResponse {
    let (said, created_at) = (Words::default().into(), rfc3339(http.services.clock.time()));
    let line: Line<W> =
        Line { model: asked.model, created_at, said, done: true, done_reason: Some("load"), took: None };
    if asked.stream { ndjson(&line) } else { HttpResponse::Ok().json(line) }
}

fn ndjson(line: &impl Serialize) -> HttpResponse {
    let mut out = Vec::new();
    write(&mut out, line);
    HttpResponse::Ok().content_type(NDJSON).body(out)
}

const NDJSON: &str = "application/x-ndjson";

/// Appends a line. Separators of lines in texts are escaped: Python's client splits at all that Unicode has.
fn write(out: &mut Vec<u8>, line: &impl Serialize) {
    sse::write_json(out, line);
    out.push(b'\n');
}

/// Answers with a job's events.
pub(super) async fn give<W: From<Words> + Serialize + 'static>(
    http: web::Data<Http>,
    turn: Turn,
    asked: Asked,
) -> Result<HttpResponse, Problem> {
    if asked.stream {
        let lines = Lines {
            http,
            turn: Some(turn),
            asked,
            gathering: Gathering::default(),
            reason: FinishReason::Stop,
        };
        let lines = futures_util::stream::unfold(lines, |mut lines| async {
            Some((Ok::<_, Infallible>(lines.next::<W>().await?), lines))
        });
        return Ok(HttpResponse::Ok().content_type(NDJSON).streaming(lines));
    }
    let Answered { choices, usage } = turn.finish().await?;
    let choice = choices.into_iter().next().unwrap_or_default();
    let mut words = Words { text: choice.text, thinking: choice.reasoning, calls: Vec::new() };
    for (index, call) in choice.calls.into_iter().enumerate() {
        words.call(call.id, index, call.name, &call.arguments);
    }
    let reason = choice.end.map_or(FinishReason::Stop, |end| end.end.reason);
    Ok(HttpResponse::Ok().json(last::<W>(&http, &asked, words, reason, &usage)))
}

/// The last line.
fn last<W: From<Words>>(
    http: &Http,
    asked: &Asked,
    words: Words,
    reason: FinishReason,
    usage: &Usage,
) -> Line<W> {
    let ns = |time: Duration| time.as_nanos() as u64;
    let ms = |ms: f64| (ms * 1e6) as u64;
    Line {
        model: asked.model.clone(),
        created_at: rfc3339(http.services.clock.time()),
        said: words.into(),
        done: true,
        done_reason: Some(match reason {
            FinishReason::Length => "length",
            FinishReason::Stop | FinishReason::Cancelled => "stop",
        }),
        took: Some(Took {
            total_duration: ns(http.services.clock.now().saturating_sub(asked.began)),
            load_duration: ns(asked.load),
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: ms(usage.prefill_ms),
            eval_count: usage.generated_tokens,
            eval_duration: ms(usage.decode_ms),
        }),
    }
}

/// A streamed answer.
struct Lines {
    http: web::Data<Http>,
    /// `None` when all is said.
    turn: Option<Turn>,
    asked: Asked,
    gathering: Gathering,
    reason: FinishReason,
}

impl Lines {
    /// The next lines; `None` after the last.
    async fn next<W: From<Words> + Serialize>(&mut self) -> Option<Bytes> {
        loop {
            let turn = self.turn.as_mut()?;
            let (said, job) = (turn.next().await, turn.job().clone());
            let mut out = Vec::new();
            match said {
                Ok(said) if said.is_empty() => self.turn = None,
                Ok(said) => {
                    for said in said {
                        self.tell::<W>(said, &job, &mut out);
                    }
                }
                Err(problem) => {
                    write(&mut out, &Dialect::Ollama.error(&problem));
                    self.turn = None;
                }
            }
            if !out.is_empty() {
                return Some(out.into());
            }
        }
    }

    fn tell<W: From<Words> + Serialize>(&mut self, said: Said, job: &JobId, out: &mut Vec<u8>) {
        match said {
            Said::Started { .. } => {}
            Said::More { pieces, .. } => {
                let words = self.gathering.words(pieces, job);
                if words != Words::default() {
                    let line: Line<W> = Line {
                        model: self.asked.model.clone(),
                        created_at: rfc3339(self.http.services.clock.time()),
                        said: words.into(),
                        done: false,
                        done_reason: None,
                        took: None,
                    };
                    write(out, &line);
                }
            }
            Said::End { end, .. } => self.reason = end.end.reason,
            Said::Usage(usage) => {
                write(out, &last::<W>(&self.http, &self.asked, Words::default(), self.reason, &usage));
            }
        }
    }
}

/// Pieces of an answer on their way to a line.
#[derive(Default)]
struct Gathering {
    /// The call that is being made: its name and arguments.
    open: Option<(String, String)>,
}

impl Gathering {
    /// What is told of pieces; of a call nothing until it is whole.
    fn words(&mut self, pieces: Vec<Piece>, job: &JobId) -> Words {
        let mut words = Words::default();
        for piece in pieces {
            match piece {
                Piece::Text(text) => words.text.push_str(&text),
                Piece::Reasoning(text) => words.thinking.push_str(&text),
                Piece::Call { name, .. } => self.open = Some((name, String::new())),
                Piece::Arguments { json, .. } => {
                    if let Some((_, arguments)) = &mut self.open {
                        arguments.push_str(&json);
                    }
                }
                Piece::CallEnd { index } => {
                    if let Some((name, arguments)) = self.open.take() {
                        words.call(call_id(job, 0, index), index as usize, name, &arguments);
                    }
                }
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_when_it_is_whole_and_as_text_when_it_breaks_off() {
        let job = JobId::new("j-7").expect("an id");
        let mut gathering = Gathering::default();
        let call = Piece::Call { index: 0, name: "f".into() };
        let arguments = |json: &str| Piece::Arguments { index: 0, json: json.into() };
        let said = vec![
            Piece::Reasoning("hm".into()),
            Piece::Text("Look: ".into()),
            call.clone(),
            arguments("{\"a\""),
        ];
        let words = Words { text: "Look: ".into(), thinking: "hm".into(), calls: Vec::new() };
        assert_eq!(gathering.words(said, &job), words);
        let told = gathering.words(vec![arguments(": 1}"), Piece::CallEnd { index: 0 }], &job);
        let told = serde_json::to_value(&told.calls).expect("JSON");
        let wanted = serde_json::json!([
            {"id": "call_7_0_0", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
        ]);
        assert_eq!(told, wanted);
        let broken = gathering.words(vec![call, arguments("{\"a\": "), Piece::CallEnd { index: 0 }], &job);
        assert_eq!(broken.text, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ");
        assert!(broken.calls.is_empty());
    }
}
