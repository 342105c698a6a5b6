//! OpenAI's API over HTTP: answers whole and streamed, what is refused, and who leaves.

use super::common::http::{HttpAnswer, get, post, send};
use super::common::{Daemon, MODEL, wait_for};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn chat(daemon: &Daemon, more: Value) -> HttpAnswer {
    let mut body = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 12, "temperature": 0,
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    post(&daemon.http_socket(), CHAT, body.to_string())
}

fn chunks(answer: &HttpAnswer) -> Vec<Value> {
    let (last, events) =
        answer.events().split_last().map(|(last, events)| (*last, events.to_vec())).expect("events");
    assert_eq!(last, "[DONE]");
    events.into_iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

/// The text of one choice of a stream.
fn text_of(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices"));
    let mine = choices.filter(|choice| choice["index"] == index);
    mine.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

#[test]
fn answers_are_the_same_whole_and_streamed() {
    let daemon = Daemon::start();
    let whole = chat(&daemon, json!({"n": 2, "temperature": 1, "seed": 7}));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"].as_array().expect("choices").len(), 2);

    let streamed = chat(
        &daemon,
        json!({"n": 2, "temperature": 1, "seed": 7, "stream": true, "stream_options": {"include_usage": true}}),
    );
    assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let chunks = chunks(&streamed);
    for index in 0..2 {
        let wanted = &whole["choices"][index as usize];
        assert_eq!(text_of(&chunks, index), wanted["message"]["content"].as_str().expect("text"));
        let ends = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices"));
        let ends = ends.filter(|choice| choice["index"] == index && !choice["finish_reason"].is_null());
        let ends: Vec<&Value> = ends.map(|choice| &choice["finish_reason"]).collect();
        assert_eq!(ends, [&wanted["finish_reason"]]);
    }
    let with_usage: Vec<&Value> = chunks.iter().filter(|chunk| !chunk["usage"].is_null()).collect();
    assert_eq!(with_usage.len(), 1);
    assert_eq!(with_usage[0]["choices"], json!([]));
    let (asked_first, asked_again) = (&whole["usage"], &with_usage[0]["usage"]);
    for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(asked_first[field], asked_again[field]);
    }
    // All of a prompt but its last token at most.
    let cached = asked_again["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached + 64 > asked_again["prompt_tokens"].as_u64().expect("a number"), "{asked_again}");
}

#[test]
fn log_probabilities_are_the_same_whole_and_streamed() {
    let daemon = Daemon::start();
    let more = json!({"logprobs": true, "top_logprobs": 2});
    let whole = chat(&daemon, more.clone()).json();
    let wanted = whole["choices"][0]["logprobs"]["content"].as_array().expect("tokens").clone();
    assert!(!wanted.is_empty());
    let bytes: Vec<u8> = wanted
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert_eq!(
        String::from_utf8_lossy(&bytes),
        whole["choices"][0]["message"]["content"].as_str().expect("text")
    );

    let streamed = chat(&daemon, json!({"logprobs": true, "top_logprobs": 2, "stream": true}));
    let told: Vec<Value> = chunks(&streamed)
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(told, wanted);
}

#[test]
fn text_goes_on_without_a_template() {
    let daemon = Daemon::start();
    let ask = |more: Value| {
        let mut body =
            json!({"model": MODEL, "prompt": "One, two, three,", "max_tokens": 8, "temperature": 0});
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        post(&daemon.http_socket(), "/v1/completions", body.to_string())
    };
    let whole = ask(json!({"logprobs": 1})).json();
    assert_eq!(whole["object"], "text_completion");
    let text = whole["choices"][0]["text"].as_str().expect("text");
    assert!(text.contains("four"), "{text}");
    let logprobs = &whole["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("tokens");
    let mut offset = 0;
    for (place, token) in tokens.iter().enumerate() {
        let token = token.as_str().expect("a text");
        assert_eq!(logprobs["text_offset"][place], offset);
        assert_eq!(logprobs["top_logprobs"][place][token], logprobs["token_logprobs"][place]);
        offset += token.chars().count();
    }
    let parts = chunks(&ask(json!({"logprobs": 1, "stream": true})));
    let told = |name: &str| -> Vec<Value> {
        let lists = parts.iter().filter_map(|part| part["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(json!(told(name)), logprobs[name], "{name}");
    }
    let streamed: String = chunks(&ask(json!({"stream": true})))
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().expect("text"))
        .collect();
    assert_eq!(streamed, text);
    let echoed = format!("One, two, three,{text}");
    assert_eq!(ask(json!({"echo": true})).json()["choices"][0]["text"], echoed);
    let streamed: String = chunks(&ask(json!({"echo": true, "stream": true})))
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().expect("text"))
        .collect();
    assert_eq!(streamed, echoed);
    let nothing = json!({"echo": true, "stream": true, "stop": text.chars().next().map(String::from)});
    let streamed: String = chunks(&ask(nothing))
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().expect("text"))
        .collect();
    assert_eq!(streamed, "One, two, three,");
    let stopped = ask(json!({"stop": "four"})).json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(!stopped["choices"][0]["text"].as_str().expect("text").contains("four"));
    for (more, field) in [
        (json!({"suffix": "x"}), "suffix"),
        (json!({"echo": true, "logprobs": 1}), "echo"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
    ] {
        let refused = ask(more);
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(field)));
    }
}

/// Asks for what must be refused about this field.
fn refused(daemon: &Daemon, more: Value, status: u16, param: &str, wanted: &str) {
    let answer = chat(daemon, more.clone());
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, error["param"].as_str()), (status, Some(param)), "{more}: {error}");
    assert!(error["message"].as_str().expect("a message").contains(wanted), "{more}: {error}");
    assert_eq!(error["type"], "invalid_request_error");
}

/// Ranges are the model's text side to check, which knows nothing of HTTP.
#[test]
fn what_is_out_of_range_is_refused_with_its_name() {
    let daemon = Daemon::start();
    for (more, param, wanted) in [
        (json!({"max_tokens": 0}), "max_tokens", "max_tokens is 0"),
        (json!({"max_tokens": null, "max_completion_tokens": 0}), "max_completion_tokens", "at least 1"),
        (json!({"n": 0}), "n", "n is 0"),
        (json!({"temperature": -1}), "temperature", "from 0 to 100"),
        (json!({"top_p": 2}), "top_p", "from 0 to 1"),
        (json!({"logit_bias": {"9999999": 1}}), "logit_bias", "9999999"),
        (json!({"stop": ["a", ""]}), "stop", "0 bytes"),
        (json!({"min_tokens": 13}), "min_tokens", "at most max_tokens"),
        (json!({"mirostat": 1}), "mirostat", "second version"),
        (json!({"xtc_threshold": 0.2}), "xtc_threshold", "no effect without"),
        (json!({"dry_multiplier": 1, "dry_sequence_breakers": [""]}), "dry_sequence_breakers", "0 bytes"),
        (
            json!({"logprobs": true, "top_logprobs": 20, "n": 8, "max_tokens": 8000}),
            "top_logprobs",
            "are kept for a job",
        ),
    ] {
        refused(&daemon, more, 400, param, wanted);
    }
}

#[test]
fn what_cannot_be_served_is_refused_with_its_name() {
    let daemon = Daemon::start();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let cases = [
        (json!({"model": "none"}), 404, "model", "there is no model"),
        (json!({"messages": []}), 400, "messages", "empty"),
        (json!({"messages": [{"role": "wizard", "content": "a"}]}), 400, "messages[0].role", "wizard"),
        (json!({"messages": [{"role": "user"}]}), 400, "messages[0].content", "missing"),
        (user(json!(7)), 400, "messages[0].content", "neither"),
        (
            user(json!([{"type": "image_url", "image_url": {"url": "x"}}])),
            400,
            "messages[0].content",
            "image_url",
        ),
        (json!({"temperature": "warm"}), 400, "temperature", "invalid type"),
        (json!({"max_tokens": -1}), 400, "max_tokens", "-1"),
        (json!({"max_tokens": 1u64 << 63}), 400, "max_tokens", "9223372036854775808"),
        (json!({"logit_bias": {"abc": 1}}), 400, "logit_bias", "abc"),
        (json!({"top_logprobs": 2}), 400, "top_logprobs", "no effect"),
        (json!({"logprobs": true, "top_logprobs": 21}), 400, "top_logprobs", "21"),
        (json!({"response_format": {"type": "json_object"}}), 400, "response_format", "not served"),
        (json!({"grammar": "root ::= [0-9]+"}), 400, "grammar", "not served"),
        (json!({"json_schema": {"type": "object"}}), 400, "json_schema", "not served"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false}),
            400,
            "parallel_tool_calls",
            "not served",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}),
            400,
            "tool_choice",
            "not served",
        ),
    ];
    for (more, status, param, wanted) in cases {
        refused(&daemon, more, status, param, wanted);
    }
    let long = chat(&daemon, user(json!("a ".repeat(20_000))));
    let error = long.json()["error"].clone();
    assert_eq!((long.status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{error}");
    assert_eq!(chat(&daemon, json!({"some_new_field": {"deep": [1]}, "seed": -7})).status, 200);
}

#[test]
fn broken_requests_harm_nobody() {
    let daemon = Daemon::start();
    let socket = daemon.http_socket();
    let deep = [vec![b'['; 20_000], vec![b']'; 20_000]].concat();
    for body in [&b""[..], b"{:", b"\xff\xfe\xfd", br#"{"model": "\ud800"}"#, &deep] {
        let answer = post(&socket, CHAT, body);
        assert_eq!(
            (answer.status, answer.json()["error"]["type"].as_str()),
            (400, Some("invalid_request_error"))
        );
    }
    let answer = post(&socket, CHAT, vec![b' '; 20 << 20]);
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    assert_eq!(get(&socket, "/v1/nothing").expect("an answer").status, 404);
    let wrong_method = get(&socket, CHAT).expect("an answer");
    assert_eq!(wrong_method.status, 405);
    assert!(wrong_method.body.contains("this path takes POST"), "{}", wrong_method.body);
    let id = wrong_method.header("x-request-id").expect("an id").to_owned();
    assert_ne!(get(&socket, CHAT).expect("an answer").header("x-request-id"), Some(id.as_str()));
    let models = get(&socket, "/v1/models").expect("an answer").json();
    assert!(models["data"].as_array().expect("models").iter().any(|model| model["id"] == MODEL), "{models}");
    assert_eq!(get(&socket, &format!("/v1/models/{MODEL}")).expect("an answer").json()["id"], MODEL);
    assert_eq!(
        get(&socket, "/v1/models/none").expect("an answer").json()["error"]["code"],
        "model_not_found"
    );
    assert_eq!(chat(&daemon, json!({})).status, 200);
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let daemon = Daemon::start();
    let socket = daemon.http_socket();
    let running = || daemon.metric("zllm_jobs{state=\"running\"}");
    for stream in [false, true] {
        let body = json!({
            "model": MODEL, "messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 1800,
            "stream": stream, "ignore_eos": true,
        });
        let open = send(&socket, "POST", CHAT, body.to_string().as_bytes()).expect("a connection");
        wait_for("the job to run", || (running() == 1.0).then_some(()));
        drop(open);
        wait_for("the job to be cancelled", || (running() == 0.0).then_some(()));
    }
}

#[test]
fn a_last_message_of_the_assistants_is_gone_on_with() {
    let daemon = Daemon::start();
    let ask = |content: Value| {
        let messages = json!([
            {"role": "user", "content": "Count from one to five in words."},
            {"role": "assistant", "content": content},
        ]);
        chat(&daemon, json!({ "messages": messages })).json()["choices"][0]["message"]["content"].clone()
    };
    let wanted = ask(json!("One, two, three,"));
    assert!(wanted.as_str().expect("text").contains("four"), "{wanted}");
    assert_eq!(ask(json!([{"type": "text", "text": "One, two, three,"}])), wanted);
}

#[test]
fn what_is_served_is_described() {
    let daemon = Daemon::start();
    let document = get(&daemon.http_socket(), "/openapi.json").expect("an answer").json();
    assert_eq!(document["openapi"], "3.1.0");
    let chat = &document["paths"][CHAT]["post"];
    let schemas = chat["requestBody"]["content"]["application/json"]["schema"]["allOf"].clone();
    let names: Vec<&str> =
        schemas.as_array().expect("schemas").iter().filter_map(|schema| schema["$ref"].as_str()).collect();
    assert_eq!(names, ["#/components/schemas/ChatRequest", "#/components/schemas/Params"]);
    for name in ["ChatRequest", "Params"] {
        assert!(document["components"]["schemas"][name]["properties"].is_object(), "{name}");
    }
}
