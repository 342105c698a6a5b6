//! What of a conversation is found again when its client sends it back a little differently: what is truly equal, no more and
//! no less, and why it was no more. Over chat completions and over messages.

use super::common::http::{get, post};
use super::common::{Builder, Daemon, MODEL};
use serde_json::{Value, json};
use std::path::Path;

/// The APIs that conversations come over.
#[derive(Debug, Clone, Copy)]
enum Api {
    Chat,
    Messages,
}

/// A conversation in which the assistant once thought and called a tool; in no API's form.
#[derive(Clone)]
struct Talk {
    /// How it begins: what parts it from the conversations of other tests.
    system: String,
    reasoning: Option<&'static str>,
    /// The call's, as the client writes them.
    arguments: &'static str,
}

/// What its client sends back otherwise.
type Change = fn(&mut Talk);

/// What an answer told of its prompt.
#[derive(Debug)]
struct Found {
    job: String,
    prompt_tokens: u64,
    cached_tokens: u64,
}

const ARGUMENTS: &str = r#"{"city": "Oslo", "days": [1, 2]}"#;
const QUESTION: &str = "What is the weather in Oslo?";
const RESULT: &str = "Rain on both.";
const NEXT: &str = "And what shall I wear there?";

/// A daemon whose model takes tools and thoughts.
fn daemon() -> Daemon {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/template.jinja");
    Builder::new().with(|settings| settings.more = format!("template = {template:?}\n")).start()
}

fn good(daemon: &Daemon, path: &str, body: Value) -> Value {
    let answer = post(&daemon.http_socket(), path, body.to_string());
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn in_common(one: &[u32], other: &[u32]) -> u64 {
    one.iter().zip(other).take_while(|(one, other)| one == other).count() as u64
}

impl Talk {
    fn new(system: impl Into<String>) -> Self {
        Self { system: system.into(), reasoning: Some("The user asks about Oslo."), arguments: ARGUMENTS }
    }

    /// In OpenAI's form.
    fn messages(&self) -> Value {
        let function = json!({"name": "get_weather", "arguments": self.arguments});
        let mut assistant = json!({"role": "assistant", "content": "Let me look."});
        assistant["tool_calls"] = json!([{"id": "c", "type": "function", "function": function}]);
        if let Some(reasoning) = self.reasoning {
            assistant["reasoning_content"] = reasoning.into();
        }
        json!([
            {"role": "system", "content": self.system}, {"role": "user", "content": QUESTION}, assistant,
            {"role": "tool", "tool_call_id": "c", "content": RESULT}, {"role": "user", "content": NEXT},
        ])
    }

    /// In Anthropic's form, without the system text.
    fn blocks(&self) -> Value {
        let input: Value = serde_json::from_str(self.arguments).expect("JSON");
        let mut said = vec![json!({"type": "text", "text": "Let me look."})];
        said.push(json!({"type": "tool_use", "id": "c", "name": "get_weather", "input": input}));
        if let Some(thinking) = self.reasoning {
            said.insert(0, json!({"type": "thinking", "thinking": thinking, "signature": "unsigned"}));
        }
        let result = json!({"type": "tool_result", "tool_use_id": "c", "content": RESULT});
        json!([
            {"role": "user", "content": QUESTION}, {"role": "assistant", "content": said},
            {"role": "user", "content": [result, {"type": "text", "text": NEXT}]},
        ])
    }

    /// The tokens that the model gets for it.
    fn tokens(&self, daemon: &Daemon) -> Vec<u32> {
        let shown = good(daemon, "/apply-template", json!({"model": MODEL, "messages": self.messages()}));
        let tokenized = good(daemon, "/tokenize", json!({"content": shown["prompt"], "add_special": true}));
        serde_json::from_value(tokenized["tokens"].clone()).expect("ids")
    }

    fn ask(&self, daemon: &Daemon, api: Api) -> Found {
        let body = json!({"model": MODEL, "max_tokens": 1, "temperature": 0});
        match api {
            Api::Chat => {
                let mut body = body;
                body["messages"] = self.messages();
                let answer = good(daemon, "/v1/chat/completions", body);
                let usage = &answer["usage"];
                Found {
                    job: answer["id"].as_str().expect("an id").replace("chatcmpl-", ""),
                    prompt_tokens: number(&usage["prompt_tokens"]),
                    cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
                }
            }
            Api::Messages => {
                let mut body = body;
                body["system"] = self.system.as_str().into();
                body["messages"] = self.blocks();
                let answer = good(daemon, "/v1/messages", body);
                let cached_tokens = number(&answer["usage"]["cache_read_input_tokens"]);
                Found {
                    job: answer["id"].as_str().expect("an id").replace("msg_", "j-"),
                    prompt_tokens: number(&answer["usage"]["input_tokens"]) + cached_tokens,
                    cached_tokens,
                }
            }
        }
    }
}

/// Why a job found no more, as operators are told.
fn why(daemon: &Daemon, found: &Found) -> Value {
    let answer = get(&daemon.http_socket(), &format!("/zllm/v1/jobs/{}/why", found.job)).expect("an answer");
    assert_eq!(answer.status, 200, "{found:?}: {}", answer.body);
    let story = answer.json();
    assert_eq!(story["prompt_tokens"], found.prompt_tokens, "{story}");
    story
}

/// What the job was told to have in common with what is kept, and how both go on from there.
fn parted(story: &Value) -> (u64, [&str; 3]) {
    let parted = &story["outcome"]["diverged"];
    let text = |name: &str| parted[name].as_str().unwrap_or_else(|| panic!("no {name}: {story}"));
    (number(&parted["at"]), ["before", "kept", "asked"].map(text))
}

#[test]
fn calls_and_thoughts_that_come_back_changed_are_found_up_to_the_change() {
    let daemon = daemon();
    let cases: [(&str, bool, Change); 7] = [
        ("as it was", true, |_| {}),
        ("no spaces", true, |talk| talk.arguments = r#"{"city":"Oslo","days":[1,2]}"#),
        ("indented", true, |talk| {
            talk.arguments = "{\n  \"city\": \"Oslo\",\n  \"days\": [\n    1,\n    2\n  ]\n}"
        }),
        ("escaped", true, |talk| talk.arguments = r#"{"city": "\u004fslo", "days": [1, 2]}"#),
        ("other order", false, |talk| talk.arguments = r#"{"days": [1, 2], "city": "Oslo"}"#),
        ("another value", false, |talk| talk.arguments = r#"{"city": "Oslo", "days": [1]}"#),
        ("no thoughts", false, |talk| talk.reasoning = None),
    ];
    for api in [Api::Chat, Api::Messages] {
        for (what, is_equal, change) in cases {
            // Nothing is in common with other cases but the first words.
            let first = Talk::new(format!("{api:?}, {what}. {}", "Help with the weather. ".repeat(15)));
            let mut again = first.clone();
            change(&mut again);
            let (kept, prompt) = (first.tokens(&daemon), again.tokens(&daemon));
            let equal = in_common(&kept, &prompt);
            assert_eq!(kept == prompt, is_equal, "{what}");
            assert!(equal > 64, "{what}: the system text at least is equal, not only {equal} tokens");

            let cold = first.ask(&daemon, api);
            assert!(cold.cached_tokens < 16, "{api:?}, {what}: {cold:?}");
            let found = again.ask(&daemon, api);
            // The last token is computed anyway: the answer begins with what is computed of it.
            let wanted = equal.min(prompt.len() as u64 - 1);
            assert_eq!(
                (found.prompt_tokens, found.cached_tokens),
                (prompt.len() as u64, wanted),
                "{api:?}, {what}"
            );
            println!("{api:?}, {what}: {wanted} of {} tokens were found", prompt.len());
            if !is_equal {
                assert_eq!(parted(&why(&daemon, &found)).0, equal, "{api:?}, {what}");
            }
        }
    }
}

#[test]
fn a_call_that_the_model_made_is_found_when_it_comes_back_written_otherwise() {
    let daemon = daemon();
    let used = |city: &str, result: &str, answer: &str| {
        let arguments = json!({ "city": city }).to_string();
        let function = json!({"name": "get_weather", "arguments": arguments});
        vec![
            json!({"role": "user", "content": format!("What is the weather in {city}?")}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": city, "type": "function", "function": function},
            ]}),
            json!({"role": "tool", "tool_call_id": city, "content": result}),
            json!({"role": "assistant", "content": answer}),
        ]
    };
    // The model imitates the turns before.
    let mut messages = used("Rome", r#"{"celsius": 21}"#, "It is 21 degrees in Rome.");
    messages.extend(used("Oslo", r#"{"celsius": 3}"#, "It is 3 degrees in Oslo."));
    messages.push(json!({"role": "user", "content": "What is the weather in Paris?"}));
    let ask = |messages: &[Value]| {
        let tool = json!({"type": "function", "function": {"name": "get_weather"}});
        let body = json!({"model": MODEL, "temperature": 0, "max_tokens": 48, "messages": messages, "tools": [tool]});
        good(&daemon, "/v1/chat/completions", body)
    };
    let first = ask(&messages);
    let call = first["choices"][0]["message"]["tool_calls"][0].clone();
    let written = call["function"]["arguments"].as_str().unwrap_or_else(|| panic!("no call: {first}"));
    let arguments: Value = serde_json::from_str(written).expect("JSON");
    let rewritten = arguments.to_string();
    assert_ne!(rewritten, written, "another serialiser than the model");

    let mut call = call.clone();
    call["function"]["arguments"] = rewritten.into();
    let mut said = json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]});
    said["tool_calls"] = json!([call]);
    messages.push(said);
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "{\"celsius\": 9}"}));
    let usage = ask(&messages)["usage"].clone();
    let (cached, before) =
        (number(&usage["prompt_tokens_details"]["cached_tokens"]), number(&first["usage"]["prompt_tokens"]));
    let (generated, prompt) = (number(&first["usage"]["completion_tokens"]), number(&usage["prompt_tokens"]));
    println!("{cached} of {prompt} tokens were found; {before} were asked and {generated} said before");
    // All that was asked, and the call up to what ended it.
    assert!(cached + 2 >= before + generated && cached <= before + generated && cached < prompt);
}

#[test]
fn one_other_token_at_the_beginning_is_a_miss_that_is_explained() {
    let daemon = daemon();
    for api in [Api::Chat, Api::Messages] {
        let on = |day: u32| {
            let rest = "You help people with the weather of their cities. ".repeat(12);
            Talk::new(format!("{api:?}. Today is 2026-11-{day}. {rest}"))
        };
        let (before, today) = (on(28), on(29));
        let (kept, prompt) = (before.tokens(&daemon), today.tokens(&daemon));
        let equal = in_common(&kept, &prompt);
        before.ask(&daemon, api);
        let missed = today.ask(&daemon, api);
        assert_eq!(missed.cached_tokens, equal, "{api:?}");
        assert!(equal < 32 && missed.prompt_tokens > 200, "{missed:?}");

        // Where they part, what stands there in both, and so how much was computed again for it.
        let story = why(&daemon, &missed);
        let (at, [before, kept, asked]) = parted(&story);
        assert_eq!(at, equal, "{story}");
        assert!(before.ends_with("-11-2"), "{story}");
        assert!(kept.starts_with("8. You help") && asked.starts_with("9. You help"), "{story}");
        let found: u64 = ["device", "ram", "ssd"].iter().map(|tier| number(&story["cached"][tier])).sum();
        assert_eq!((found, missed.prompt_tokens - found), (equal, prompt.len() as u64 - equal), "{story}");

        // The same day again is no miss.
        assert_eq!(today.ask(&daemon, api).cached_tokens, prompt.len() as u64 - 1);
    }
}
