//! Answers: a message, whole or as the events that Anthropic's clients put one together from.
//!
//! - A stream begins with `message_start` when the prompt is being computed: only then its usage is known. Until then, and
//!   whenever nothing happens, it says `ping`, which both of Anthropic's SDKs pass over wherever it comes.
//! - Then come the blocks in the order in which the model makes them (thinking, text, calls of tools), never two at a time,
//!   then `message_delta` with the reason of the end and the final usage, then `message_stop`. A fault is an `error` event, the
//!   last.
//! - The arguments of a call are streamed as the model writes them. Whole, they are an object; what is none (the answer was cut
//!   within it, say) stands in an object as [`BROKEN`], as Anthropic advises clients to hand such a text on.
//!
//! Invariant: both are made from the same events by [`Answer::hear`], so they have the same blocks.

use super::marks::Marked;
use crate::http::dialect::Dialect;
use crate::http::problem::Problem;
use crate::http::sse;
use crate::http::turn::{End, Said, Turn};
use crate::limits::STREAM_PING;
use actix_web::HttpResponse;
use actix_web::web::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use zllm_engine::Piece;
use zllm_wire::{FinishReason, JobId, StopCause};

/// The name under which arguments stand that are no JSON object.
const BROKEN: &str = "INVALID_JSON";
/// Clients send it back with what the model thought. Anthropic signs its models' thoughts; ours are taken as they come.
const SIGNATURE: &str = "unsigned";

/// A whole answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesAnswer")]
pub(super) struct Message {
    id: String,
    /// `message`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// `assistant`.
    role: &'static str,
    model: String,
    content: Vec<Block>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    stop_reason: Option<&'static str>,
    /// The one that ended it.
    stop_sequence: Option<String>,
    usage: Usage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessagesAnswerBlock")]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Thinking { thinking: String, signature: &'static str },
    Text { text: String },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// What an answer took, in tokens. All that is not output is the prompt, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "MessagesUsage")]
struct Usage {
    /// Those that were computed and stand before no mark.
    input_tokens: u64,
    /// Those that were computed and stand before a mark.
    cache_creation_input_tokens: u64,
    /// Those that were not computed again, marked or not.
    cache_read_input_tokens: u64,
    cache_creation: CacheCreation,
    output_tokens: u64,
}

/// `cache_creation_input_tokens` by the time that they are held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "MessagesCacheCreation")]
struct CacheCreation {
    ephemeral_5m_input_tokens: u64,
    ephemeral_1h_input_tokens: u64,
}

impl Usage {
    fn new(marked: Marked, prompt: u64, cached: u64, output_tokens: u64) -> Self {
        // The marks were counted at another time: a template that writes the date may have had another one.
        let created = marked.tokens.min(prompt).saturating_sub(cached);
        let for_an_hour = marked.hour_tokens.min(prompt).saturating_sub(cached);
        Self {
            input_tokens: prompt - cached - created,
            cache_creation_input_tokens: created,
            cache_read_input_tokens: cached,
            cache_creation: CacheCreation {
                ephemeral_5m_input_tokens: created - for_an_hour,
                ephemeral_1h_input_tokens: for_an_hour,
            },
            output_tokens,
        }
    }
}

/// What a stream tells.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: &'a Message },
    ContentBlockStart { index: usize, content_block: &'a Block },
    Ping,
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageEnd<'a>, usage: Usage },
    MessageStop,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "input_json_delta")]
    Arguments { partial_json: &'a str },
}

#[derive(Debug, Serialize)]
struct MessageEnd<'a> {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
}

impl Event<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let name = match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::Ping => "ping",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        };
        sse::write(out, Some(name), self);
    }
}

/// Answers with a job's events.
pub(super) async fn give(
    mut turn: Turn,
    model: String,
    stream: bool,
    marked: Marked,
) -> Result<HttpResponse, Problem> {
    let mut answer = Answer::new(turn.job(), model, marked);
    if stream {
        let events = Events { turn: Some(turn), answer };
        return Ok(sse::response(futures_util::stream::unfold(events, |mut events| async {
            let bytes = events.next().await?;
            Some((bytes, events))
        })));
    }
    while !answer.is_over {
        turn.next().await?.into_iter().for_each(|said| answer.hear(said, &mut |_| {}));
    }
    Ok(HttpResponse::Ok().json(answer.message))
}

/// An answer as far as it is.
struct Answer {
    message: Message,
    marked: Marked,
    /// What its calls are named after.
    job: String,
    has_begun: bool,
    /// Whether the last block may still get more.
    is_open: bool,
    /// Of the last block, where it is a call.
    arguments: String,
    is_over: bool,
}

impl Answer {
    fn new(job: &JobId, model: String, marked: Marked) -> Self {
        let job = job.as_str().trim_start_matches("j-").to_owned();
        let message = Message {
            id: format!("msg_{job}"),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage::new(Marked::default(), 0, 0, 0),
        };
        let (has_begun, is_open, arguments, is_over) = (false, false, String::new(), false);
        Self { message, marked, job, has_begun, is_open, arguments, is_over }
    }

    fn hear(&mut self, said: Said, tell: &mut impl FnMut(Event<'_>)) {
        match said {
            // One that gave way to others starts again.
            Said::Started { .. } if self.has_begun => {}
            Said::Started { prompt_tokens, cached_tokens } => {
                self.has_begun = true;
                self.message.usage = Usage::new(self.marked, prompt_tokens, cached_tokens, 0);
                tell(Event::MessageStart { message: &self.message });
            }
            Said::More { pieces, .. } => pieces.into_iter().for_each(|piece| self.piece(piece, tell)),
            Said::End { end, .. } => {
                self.close(tell);
                (self.message.stop_reason, self.message.stop_sequence) = stop(end);
            }
            Said::Usage(usage) => {
                let zllm_wire::Usage { prompt_tokens, cached_tokens, generated_tokens, .. } = usage;
                self.message.usage = Usage::new(self.marked, prompt_tokens, cached_tokens, generated_tokens);
                let stop_sequence = self.message.stop_sequence.as_deref();
                let delta = MessageEnd { stop_reason: self.message.stop_reason, stop_sequence };
                tell(Event::MessageDelta { delta, usage: self.message.usage });
                tell(Event::MessageStop);
                self.is_over = true;
            }
        }
    }

    fn piece(&mut self, piece: Piece, tell: &mut impl FnMut(Event<'_>)) {
        match piece {
            Piece::Text(more) => {
                if !matches!(self.open(), Some(Block::Text { .. })) {
                    self.begin(Block::Text { text: String::new() }, tell);
                }
                self.delta(Delta::Text { text: &more }, tell);
                if let Some(Block::Text { text }) = self.open() {
                    text.push_str(&more);
                }
            }
            Piece::Reasoning(more) => {
                if !matches!(self.open(), Some(Block::Thinking { .. })) {
                    self.begin(Block::Thinking { thinking: String::new(), signature: "" }, tell);
                }
                self.delta(Delta::Thinking { thinking: &more }, tell);
                if let Some(Block::Thinking { thinking, .. }) = self.open() {
                    thinking.push_str(&more);
                }
            }
            Piece::Call { index, name } => {
                let id = format!("toolu_{}_{index}", self.job);
                self.begin(Block::ToolUse { id, name, input: Map::new() }, tell);
            }
            Piece::Arguments { json, .. } => {
                self.delta(Delta::Arguments { partial_json: &json }, tell);
                self.arguments.push_str(&json);
            }
            Piece::CallEnd { .. } => self.close(tell),
        }
    }

    fn open(&mut self) -> Option<&mut Block> {
        self.message.content.last_mut().filter(|_| self.is_open)
    }

    fn begin(&mut self, block: Block, tell: &mut impl FnMut(Event<'_>)) {
        self.close(tell);
        let index = self.message.content.len();
        tell(Event::ContentBlockStart { index, content_block: &block });
        if index == 0 {
            tell(Event::Ping);
        }
        self.message.content.push(block);
        self.is_open = true;
    }

    fn delta(&self, delta: Delta<'_>, tell: &mut impl FnMut(Event<'_>)) {
        tell(Event::ContentBlockDelta { index: self.message.content.len() - 1, delta });
    }

    fn close(&mut self, tell: &mut impl FnMut(Event<'_>)) {
        if !self.is_open {
            return;
        }
        let index = self.message.content.len() - 1;
        match self.message.content.last_mut() {
            Some(Block::Thinking { signature, .. }) => {
                *signature = SIGNATURE;
                tell(Event::ContentBlockDelta { index, delta: Delta::Signature { signature: SIGNATURE } });
            }
            Some(Block::ToolUse { input, .. }) => *input = object(std::mem::take(&mut self.arguments)),
            _ => {}
        }
        tell(Event::ContentBlockStop { index });
        self.is_open = false;
    }
}

/// A call's arguments, whatever the model wrote.
fn object(arguments: String) -> Map<String, Value> {
    if arguments.trim().is_empty() {
        return Map::new();
    }
    let object: Result<Map<String, Value>, _> = serde_json::from_str(&arguments);
    object.unwrap_or_else(|_| Map::from_iter([(BROKEN.to_owned(), Value::String(arguments))]))
}

/// Why an answer is over, and the stop sequence that ended it.
fn stop(end: End) -> (Option<&'static str>, Option<String>) {
    let End { end, calls, .. } = end;
    let (reason, sequence) = match (end.reason, end.stop) {
        (FinishReason::Length, _) => ("max_tokens", None),
        (_, Some(StopCause::Text { text })) => ("stop_sequence", Some(text)),
        _ if calls => ("tool_use", None),
        _ => ("end_turn", None),
    };
    (Some(reason), sequence)
}

/// A streamed answer.
struct Events {
    /// `None` when all is said.
    turn: Option<Turn>,
    answer: Answer,
}

impl Events {
    /// The next bytes; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        let turn = self.turn.as_mut()?;
        let mut out = Vec::new();
        match tokio::time::timeout(STREAM_PING, turn.next()).await {
            Err(_) => Event::Ping.write(&mut out),
            Ok(Ok(said)) if said.is_empty() => {
                self.turn = None;
                return None;
            }
            Ok(Ok(said)) => {
                let tell = &mut |event: Event<'_>| event.write(&mut out);
                said.into_iter().for_each(|said| self.answer.hear(said, tell));
            }
            Ok(Err(problem)) => {
                sse::write(&mut out, Some("error"), &Dialect::Anthropic.error(&problem));
                self.turn = None;
            }
        }
        Some(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::log::JobLog;
    use serde_json::json;
    use zllm_engine::{CallStyle, SpeechStyle};
    use zllm_wire::ChoiceEnd;

    const SPEECH: SpeechStyle =
        SpeechStyle { reasoning: true, calls: CallStyle::Hermes, starts_in_reasoning: false };

    fn ended(reason: FinishReason, stop: Option<StopCause>) -> zllm_wire::Event {
        let usage = zllm_wire::Usage {
            prompt_tokens: 10,
            cached_tokens: 4,
            generated_tokens: 9,
            ..zllm_wire::Usage::default()
        };
        zllm_wire::Event::Finished { reason, choices: vec![ChoiceEnd { reason, stop }], usage }
    }

    fn end_of_text() -> zllm_wire::Event {
        ended(FinishReason::Stop, Some(StopCause::EndOfText { token: 1 }))
    }

    /// The events of an answer, and the whole.
    async fn told(texts: &[&str], last: zllm_wire::Event) -> (Vec<Value>, Value) {
        let log = JobLog::in_memory();
        let started = || zllm_wire::Event::Started {
            cached_tokens: 4,
            cached_by_tier: Default::default(),
            prompt_tokens: 10,
        };
        log.append(started());
        for text in texts {
            log.append(zllm_wire::Event::Text {
                choice: 0,
                text: (*text).into(),
                tokens: 1,
                logprobs: Vec::new(),
            });
        }
        log.append(last);
        let job = JobId::new("j-0007").expect("an id");
        let mut turn = Turn::of_log(job.clone(), log.reader(0), SPEECH);
        let mut answer = Answer::new(&job, "m".into(), Marked { tokens: 7, hour_tokens: 5 });
        let mut events = Vec::new();
        while !answer.is_over {
            for said in turn.next().await.expect("a good end") {
                answer.hear(said, &mut |event| events.push(serde_json::to_value(event).expect("JSON")));
            }
        }
        (events, serde_json::to_value(answer.message).expect("JSON"))
    }

    /// What a client makes of events, as Anthropic's SDKs do it.
    fn put_together(events: &[Value]) -> Value {
        let mut message = events[0]["message"].clone();
        let mut json = String::new();
        for event in &events[1..] {
            let at = event["index"].as_u64().unwrap_or_default() as usize;
            match event["type"].as_str().expect("a type") {
                "ping" => {}
                "content_block_start" => {
                    let content = message["content"].as_array_mut().expect("a list");
                    assert_eq!(content.len(), at);
                    content.push(event["content_block"].clone());
                    json.clear();
                }
                "content_block_delta" => {
                    let (block, delta) = (&mut message["content"][at], &event["delta"]);
                    let more = |field: &str| {
                        let before = block[field].as_str().expect("a text");
                        Value::from(format!("{before}{}", delta[field].as_str().expect("a text")))
                    };
                    match delta["type"].as_str().expect("a type") {
                        "text_delta" => block["text"] = more("text"),
                        "thinking_delta" => block["thinking"] = more("thinking"),
                        "signature_delta" => block["signature"] = delta["signature"].clone(),
                        "input_json_delta" => {
                            json.push_str(delta["partial_json"].as_str().expect("a text"));
                            if let Ok(input) = serde_json::from_str(&json) {
                                block["input"] = input;
                            }
                        }
                        other => panic!("{other}"),
                    }
                }
                "content_block_stop" => {
                    assert_eq!(message["content"].as_array().expect("a list").len(), at + 1)
                }
                "message_delta" => {
                    for field in ["stop_reason", "stop_sequence"] {
                        message[field] = event["delta"][field].clone();
                    }
                    message["usage"] = event["usage"].clone();
                }
                "message_stop" => {}
                other => panic!("{other}"),
            }
        }
        message
    }

    fn types(events: &[Value]) -> Vec<&str> {
        events
            .iter()
            .map(|event| {
                event["delta"]["type"].as_str().unwrap_or_else(|| event["type"].as_str().expect("a type"))
            })
            .collect()
    }

    #[tokio::test]
    async fn a_stream_has_the_events_that_clients_expect_and_means_the_whole() {
        let texts = [
            "<think>\nhm",
            " so</think>\n\nLook",
            ": <tool_call>\n{\"name\": \"f\", \"argu",
            "ments\": {\"a\": ",
            "[1]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>",
        ];
        let (events, whole) = told(&texts, end_of_text()).await;
        let wanted = "message_start content_block_start ping thinking_delta thinking_delta signature_delta \
                      content_block_stop content_block_start text_delta text_delta content_block_stop content_block_start \
                      input_json_delta input_json_delta content_block_stop content_block_start input_json_delta \
                      content_block_stop message_delta message_stop";
        let wanted: Vec<&str> = wanted.split_whitespace().collect();
        assert_eq!(types(&events), wanted);
        assert_eq!(put_together(&events), whole);
        let content = json!([
            {"type": "thinking", "thinking": "hm so", "signature": SIGNATURE},
            {"type": "text", "text": "Look: "},
            {"type": "tool_use", "id": "toolu_0007_0", "name": "f", "input": {"a": [1]}},
            {"type": "tool_use", "id": "toolu_0007_1", "name": "g", "input": {}},
        ]);
        assert_eq!((&whole["content"], &whole["stop_reason"]), (&content, &json!("tool_use")));
        assert_eq!(whole["id"], "msg_0007");
        let begun = &events[0]["message"];
        assert_eq!((&begun["content"], &begun["stop_reason"]), (&json!([]), &Value::Null));
        // 10 tokens, 4 of them cached, 7 before a mark, 5 before one for an hour.
        let usage = |output: u64| {
            json!({
                "input_tokens": 3, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4,
                "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 1},
                "output_tokens": output,
            })
        };
        assert_eq!((&begun["usage"], &whole["usage"]), (&usage(0), &usage(9)));
    }

    #[tokio::test]
    async fn an_answer_says_why_it_is_over() {
        let stopped = ended(FinishReason::Stop, Some(StopCause::Text { text: "END".into() }));
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
        for (text, last, reason, sequence) in [
            ("a", end_of_text(), "end_turn", Value::Null),
            ("a", ended(FinishReason::Length, None), "max_tokens", Value::Null),
            ("a", stopped, "stop_sequence", json!("END")),
            (call, end_of_text(), "tool_use", Value::Null),
            (call, ended(FinishReason::Length, None), "max_tokens", Value::Null),
            ("", end_of_text(), "end_turn", Value::Null),
        ] {
            let (events, whole) = told(&[text], last).await;
            assert_eq!(
                (&whole["stop_reason"], &whole["stop_sequence"]),
                (&json!(reason), &sequence),
                "{text}"
            );
            assert_eq!(put_together(&events), whole);
        }
    }

    #[tokio::test]
    async fn broken_arguments_are_an_object_all_the_same() {
        for (text, input) in [
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, ", json!({BROKEN: "{\"a\": [1, "})),
            ("<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", json!({BROKEN: "[1]"})),
            ("<tool_call>{\"name\": \"f\"", json!({})),
        ] {
            let (events, whole) = told(&[text], ended(FinishReason::Length, None)).await;
            assert_eq!(whole["content"][0]["input"], input);
            let types = types(&events);
            assert!(types.ends_with(&["content_block_stop", "message_delta", "message_stop"]), "{types:?}");
        }
    }

    #[test]
    fn usage_adds_up_to_the_prompt() {
        for prompt in 0..6 {
            for (cached, marked) in
                (0..=prompt).flat_map(|cached| (0..=prompt).map(move |marked| (cached, marked)))
            {
                for hour_tokens in 0..=marked {
                    let usage = Usage::new(Marked { tokens: marked, hour_tokens }, prompt, cached, 1);
                    let Usage { input_tokens, cache_creation_input_tokens, cache_read_input_tokens, .. } =
                        usage;
                    assert_eq!(input_tokens + cache_creation_input_tokens + cache_read_input_tokens, prompt);
                    let CacheCreation { ephemeral_5m_input_tokens, ephemeral_1h_input_tokens } =
                        usage.cache_creation;
                    assert_eq!(
                        ephemeral_5m_input_tokens + ephemeral_1h_input_tokens,
                        cache_creation_input_tokens
                    );
                    assert_eq!(input_tokens, prompt - cached.max(marked));
                }
            }
        }
    }
}
