//! `cache_control`: marks in a request, up to which its prompt is to be kept for a while.
//!
//! A mark ends a prefix of the prompt as the template writes it: the tokens that the prompt has in common with one that ends
//! at the mark. What templates write before the messages counts to tools and system text alike. Its KV is pinned for the
//! mark's time ([`crate::services`]), and again whenever the same prefix is marked.

use super::content::{Content, Message};
use super::request::Asked;
use crate::http::Http;
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;
use zllm_wire::Prompt;

/// Marks that a request may have, as Anthropic allows.
const MAX_MARKS: usize = 4;
const FIVE_MINUTES: Duration = Duration::from_secs(5 * 60);
const ONE_HOUR: Duration = Duration::from_secs(60 * 60);

/// A mark.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "MessagesCacheControl")]
pub(super) struct CacheControl {
    /// `ephemeral`.
    #[serde(rename = "type")]
    kind: String,
    /// `5m`, which is meant without one, or `1h`.
    ttl: Option<String>,
}

/// Where a mark is, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    place: Place,
    ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// After a tool.
    Tool(usize),
    /// After a block of the system text.
    System(usize),
    /// After a block of a message.
    Message(usize, usize),
    /// After everything.
    End,
}

/// Tokens of a prompt up to its marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marked {
    /// Up to the last one.
    pub(super) tokens: u64,
    /// Up to the last one that is for an hour.
    pub(super) hour_tokens: u64,
}

impl CacheControl {
    fn mark(&self, place: Place, field: &str) -> Result<Mark, Problem> {
        let refused = |name: &str, value: &str, known: &str| {
            let (param, value) =
                (format!("{field}.cache_control.{name}"), value.chars().take(40).collect::<String>());
            Err(Problem::of(&param, format!("{param} is {value:?}; {known}")))
        };
        if self.kind != "ephemeral" {
            return refused("type", &self.kind, "only \"ephemeral\" works");
        }
        match self.ttl.as_deref() {
            None | Some("5m") => Ok(Mark { place, ttl: FIVE_MINUTES }),
            Some("1h") => Ok(Mark { place, ttl: ONE_HOUR }),
            Some(other) => refused("ttl", other, "\"5m\" and \"1h\" work"),
        }
    }
}

impl Asked {
    /// Its marks, in the order of the request.
    ///
    /// # Errors
    /// There are too many, or one is not as it should be.
    pub(super) fn marks(&self) -> Result<Vec<Mark>, Problem> {
        let mut marks = Vec::new();
        let mut add = |control: &Option<CacheControl>, place: Place, field: &dyn Fn() -> String| {
            if let Some(control) = control {
                marks.push(control.mark(place, &field())?);
            }
            Ok::<(), Problem>(())
        };
        for (at, tool) in self.tools.iter().flatten().enumerate() {
            add(&tool.cache_control, Place::Tool(at), &|| format!("tools[{at}]"))?;
        }
        for (at, block) in self.system.iter().flat_map(Content::blocks).enumerate() {
            add(&block.cache_control, Place::System(at), &|| format!("system[{at}]"))?;
        }
        for (at, message) in self.messages.iter().enumerate() {
            for (block_at, block) in message.content.blocks().iter().enumerate() {
                let (place, field) =
                    (Place::Message(at, block_at), || format!("messages[{at}].content[{block_at}]"));
                add(&block.cache_control, place, &field)?;
                // Within a tool's result: it is a block of the message as a whole.
                for inner in block.inner() {
                    add(&inner.cache_control, place, &field)?;
                }
            }
        }
        add(&self.cache_control, Place::End, &|| "the request".to_owned())?;
        if marks.len() > MAX_MARKS {
            let message = format!("{} blocks have a cache_control; at most {MAX_MARKS} may", marks.len());
            return Err(Problem::of("cache_control", message));
        }
        Ok(marks)
    }

    /// As much of it as stands before a mark.
    fn until(&self, place: Place) -> Self {
        let mut asked = self.clone();
        match place {
            Place::Tool(at) => {
                asked.tools.iter_mut().for_each(|tools| tools.truncate(at + 1));
                asked.messages = vec![Message::blank()];
            }
            Place::System(at) => {
                asked.system.iter_mut().for_each(|system| system.truncate(at + 1));
                asked.messages = vec![Message::blank()];
            }
            Place::Message(at, block_at) => {
                asked.messages.truncate(at + 1);
                asked.messages[at].content.truncate(block_at + 1);
            }
            Place::End => {}
        }
        asked
    }
}

/// Has the marked prefixes of a request's prompt held.
///
/// # Errors
/// The model has gone.
pub(super) async fn hold(
    http: &Http,
    caller: &Caller,
    asked: &Asked,
    prompt: Prompt,
    marks: Vec<Mark>,
) -> Result<Marked, Problem> {
    if marks.is_empty() {
        return Ok(Marked::default());
    }
    let prefix = |mark: &Mark| Ok((asked.until(mark.place).prompt()?, mark.ttl));
    let prefixes = marks.iter().map(prefix).collect::<Result<Vec<_>, Problem>>()?;
    let tenant = caller.tenant.as_ref();
    let tokens = http.services.hold_prefixes(asked.model(), tenant, prompt, prefixes).await?;
    let mut marked = Marked::default();
    for (mark, tokens) in marks.iter().zip(tokens) {
        marked.tokens = marked.tokens.max(tokens as u64);
        if mark.ttl == ONE_HOUR {
            marked.hour_tokens = marked.hour_tokens.max(tokens as u64);
        }
    }
    Ok(marked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body;
    use serde_json::{Value, json};

    fn asked(request: Value) -> Asked {
        body::parse(request.to_string().as_bytes()).expect("a request")
    }

    fn text_before(asked: &Asked, place: Place) -> String {
        match asked.until(place).prompt().expect("a prompt") {
            Prompt::Chat { messages_json, tools_json, .. } => messages_json + &tools_json.unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_mark_ends_what_stands_before_it() {
        let mark = json!({"type": "ephemeral"});
        let asked = asked(json!({
            "model": "m",
            "tools": [
                {"name": "tool-0", "input_schema": {}, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                {"name": "tool-1", "input_schema": {}, "cache_control": null},
            ],
            "system": [{"type": "text", "text": "system-0", "cache_control": mark}, {"type": "text", "text": "system-1"}],
            "messages": [
                {"role": "user", "content": "message-0"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "tool-0", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [
                        {"type": "text", "text": "result", "cache_control": {"type": "ephemeral", "ttl": "5m"}},
                    ]},
                    {"type": "text", "text": "message-1"},
                ]},
            ],
            "cache_control": mark,
        }));
        let marks = asked.marks().expect("good marks");
        let wanted = [
            (Place::Tool(0), ONE_HOUR),
            (Place::System(0), FIVE_MINUTES),
            (Place::Message(2, 0), FIVE_MINUTES),
            (Place::End, FIVE_MINUTES),
        ];
        assert_eq!(marks, wanted.map(|(place, ttl)| Mark { place, ttl }));
        let all = ["tool-0", "tool-1", "system-0", "system-1", "message-0", "result", "message-1"];
        for (mark, wanted) in marks.iter().zip([
            &["tool-0", "system-0", "system-1"][..],
            &["tool-0", "tool-1", "system-0"],
            &["tool-0", "tool-1", "system-0", "system-1", "message-0", "result"],
            &all,
        ]) {
            let text = text_before(&asked, mark.place);
            let found: Vec<&str> = all.into_iter().filter(|part| text.contains(*part)).collect();
            assert_eq!(found, wanted, "{mark:?}: {text}");
        }
    }

    #[test]
    fn marks_are_few_and_known() {
        let marked = |controls: &[Value]| {
            let block = |control: &Value| json!({"type": "text", "text": "a", "cache_control": control});
            let blocks: Vec<Value> = controls.iter().map(block).collect();
            asked(json!({"model": "m", "messages": [{"role": "user", "content": blocks}]})).marks()
        };
        let good = json!({"type": "ephemeral", "ttl": "1h"});
        assert_eq!(marked(&vec![good.clone(); 4]).map(|marks| marks.len()), Ok(4));
        for (controls, param, what) in [
            (vec![good.clone(); 5], "cache_control", "5 blocks have a cache_control; at most 4"),
            (vec![json!({"type": "forever"})], "messages[0].content[0].cache_control.type", "\"forever\""),
            (
                vec![good, json!({"type": "ephemeral", "ttl": "2h"})],
                "messages[0].content[1].cache_control.ttl",
                "\"2h\"; \"5m\" and \"1h\" work",
            ),
        ] {
            let problem = marked(&controls).expect_err("bad marks");
            assert_eq!(problem.param.as_deref(), Some(param));
            assert!(problem.message.contains(what), "{problem:?}");
        }
    }
}
