//! Anthropic's API over HTTP: answers whole and streamed, tokens counted and cached, what is refused, and Claude Code's request.

use super::common::http::{HttpAnswer, get_with, post, send};
use super::common::kv::BLOCK_BYTES;
use super::common::{Builder, Daemon, MODEL, wait_for};
use serde_json::{Value, json};
use zllm_wire::{Answer, BlockState, EvictTarget, Op};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn ask(daemon: &Daemon, path: &str, more: &Value) -> HttpAnswer {
    let mut body = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 12, "temperature": 0,
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    post(&daemon.http_socket(), path, body.to_string())
}

fn answer(daemon: &Daemon, more: &Value) -> Value {
    let answer = ask(daemon, MESSAGES, more);
    assert_eq!(answer.status, 200, "{more}: {}", answer.body);
    answer.json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Tokens of the prompt, and those of them that came from the cache.
fn prompt_tokens(usage: &Value) -> (u64, u64) {
    let cached = number(&usage["cache_read_input_tokens"]);
    (number(&usage["input_tokens"]) + number(&usage["cache_creation_input_tokens"]) + cached, cached)
}

/// The events of a stream, each of which has its type as its name.
fn events(answer: &HttpAnswer) -> Vec<Value> {
    let event = |lines: &str| {
        let (name, data) = lines.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{lines}");
        data
    };
    answer.body.split_terminator("\n\n").map(event).collect()
}

fn text_of(message: &Value) -> &str {
    message["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {message}"))
}

#[test]
fn answers_are_the_same_whole_and_streamed() {
    let daemon = Daemon::start();
    let first = ask(&daemon, "/v1/messages?beta=true", &json!({"max_tokens": 32000, "top_k": 1}));
    assert!(first.header("request-id").expect("an id").starts_with("req_"));
    let whole = first.json();
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!(MODEL))
    );
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    assert!(whole["id"].as_str().expect("an id").starts_with("msg_"));
    let text = text_of(&whole);

    let streamed = ask(&daemon, MESSAGES, &json!({"max_tokens": 32000, "stream": true}));
    assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = events(&streamed);
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    let (begin, rest) = types.split_at(3);
    let (deltas, end) = rest.split_at(rest.len() - 3);
    assert_eq!(begin, ["message_start", "content_block_start", "ping"]);
    assert!(!deltas.is_empty() && deltas.iter().all(|kind| *kind == "content_block_delta"), "{types:?}");
    assert_eq!(end, ["content_block_stop", "message_delta", "message_stop"]);
    let texts = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(texts.collect::<String>(), text);
    let (begun, ended) = (&events[0]["message"], &events[events.len() - 2]);
    assert_eq!(ended["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    let (prompt, cached) = prompt_tokens(&begun["usage"]);
    assert_eq!((prompt, prompt), (prompt_tokens(&whole["usage"]).0, prompt_tokens(&ended["usage"]).0));
    assert!(cached + 64 > prompt, "{begun}");
    assert_eq!(ended["usage"]["output_tokens"], whole["usage"]["output_tokens"]);

    assert_eq!(answer(&daemon, &json!({"max_tokens": 2}))["stop_reason"], "max_tokens");
    // From the middle of the answer on.
    let stop: String = text.chars().skip(text.chars().count() / 2).take(4).collect();
    let stopped = answer(&daemon, &json!({"stop_sequences": ["never said", stop], "max_tokens": 100}));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(text_of(&stopped), text.split(&stop).next().expect("what stands before"));

    // A last message of the assistant's is gone on with, whatever form it has.
    let counted = |content: Value| {
        let question = json!({"role": "user", "content": "Count from one to five in words."});
        let messages = json!([question, {"role": "assistant", "content": content}]);
        text_of(&answer(&daemon, &json!({ "messages": messages }))).to_owned()
    };
    let gone_on = counted(json!("One, two, three,"));
    assert!(gone_on.contains("four"), "{gone_on}");
    assert_eq!(counted(json!([{"type": "text", "text": "One, two, three,"}])), gone_on);
}

/// Requests whose prompts have a little of everything.
fn conversations() -> Vec<Value> {
    let tool = |name: &str| {
        json!({"name": name, "description": "Gets it.", "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,
            "properties": {"where": {"type": "string"}},
        }})
    };
    let long = json!([
        {"role": "user", "content": [{"type": "text", "text": "What is it like in Oslo 🙂?"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I look.", "signature": "unsigned"},
            {"type": "redacted_thinking", "data": "?"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"where": "Oslo"}},
            {"type": "tool_use", "id": "toolu_2", "name": "time", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no clock", "is_error": true},
            {"type": "text", "text": "Well?"},
        ]},
        {"role": "system", "content": "Be quick."},
    ]);
    let search = json!({"type": "web_search_20250305", "name": "web_search"});
    vec![
        json!({}),
        json!({"system": "You are kind."}),
        json!({"system": [{"type": "text", "text": "You are"}, {"type": "text", "text": "kind."}]}),
        json!({"tools": [tool("weather"), tool("time"), search]}),
        json!({"tools": [tool("weather")], "tool_choice": {"type": "none"}}),
        json!({"tools": [tool("weather"), tool("time")], "system": "Be kind.", "messages": long}),
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ]
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let daemon = Daemon::with_tools();
    let mut counts = Vec::new();
    for more in conversations() {
        let counted = ask(&daemon, COUNT, &more);
        assert_eq!(counted.status, 200, "{more}: {}", counted.body);
        assert_eq!(counted.json().as_object().map(serde_json::Map::len), Some(1));
        let counted = number(&counted.json()["input_tokens"]);
        let mut more = more;
        more["max_tokens"] = 1.into();
        assert_eq!(prompt_tokens(&answer(&daemon, &more)["usage"]).0, counted, "{more}");
        counts.push(counted);
    }
    assert!(counts[1] > counts[0] && counts[5] > counts[3] && counts[3] > counts[0] + 60, "{counts:?}");
    assert_eq!((counts[4], counts[7]), (counts[0], counts[0]));
    // More than the context holds: counted, and not answered.
    let long = json!({"messages": [{"role": "user", "content": "a ".repeat(20_000)}]});
    assert!(number(&ask(&daemon, COUNT, &long).json()["input_tokens"]) > 8192);
    let refused = ask(&daemon, MESSAGES, &long);
    assert_eq!(
        (refused.status, refused.json()["error"]["type"].as_str()),
        (400, Some("invalid_request_error"))
    );
    assert!(refused.body.contains("8192"), "{}", refused.body);
}

/// A user's message of about so many tokens, unlike others' from its beginning on.
fn long_text(of: usize, words: usize) -> String {
    (0..words)
        .map(|word| format!("{} ", ["red", "green", "blue", "grey"][(word * of + word / 7 + of) % 4]))
        .collect()
}

fn pinned_blocks(daemon: &Daemon) -> u64 {
    let Answer::Residency(residency) = daemon.connect().ask(Op::Residency) else { panic!("no residency") };
    let runs = residency.tiers.iter().flat_map(|tier| &tier.runs);
    runs.filter(|run| run.state == BlockState::Pinned).map(|run| u64::from(run.blocks)).sum()
}

#[test]
fn what_is_marked_stays() {
    // Room for six blocks, of which three may be pinned.
    let daemon = Builder::new()
        .with(|settings| {
            settings.kv_budget_bytes = 6 * BLOCK_BYTES;
            settings.ram_budget_bytes = 0;
            settings.ssd_budget_bytes = 0;
        })
        .start();
    let ask_long = |of: usize, words: usize| {
        let messages = json!([{"role": "user", "content": long_text(of, words)}]);
        answer(&daemon, &json!({"messages": messages, "max_tokens": 1}));
    };
    // Twice four blocks.
    let flood = |of: usize| [of, of + 1].map(|of| ask_long(of, 190));
    let usage = |mark: Value, question: &str| {
        let mut block = json!({"type": "text", "text": "Colours. ".repeat(45)});
        block["cache_control"] = mark;
        let system = json!([{"type": "text", "text": "Listen."}, block]);
        let messages = json!([{"role": "user", "content": question}]);
        answer(&daemon, &json!({"system": system, "messages": messages, "max_tokens": 1}))["usage"].clone()
    };
    let mark = || json!({"type": "ephemeral"});

    let first = usage(mark(), "Why?");
    let marked = number(&first["cache_creation_input_tokens"]);
    let kept = marked / 64 * 64;
    assert!(kept >= 128 && marked < prompt_tokens(&first).0, "{first}");
    assert_eq!(prompt_tokens(&first).1, 0);
    let for_a_while = json!({"ephemeral_5m_input_tokens": marked, "ephemeral_1h_input_tokens": 0});
    assert_eq!(first["cache_creation"], for_a_while);
    assert_eq!(pinned_blocks(&daemon), kept / 64);
    flood(1);
    let again = usage(mark(), "How else?");
    assert_eq!(prompt_tokens(&again).1, kept, "{again}");
    assert_eq!(pinned_blocks(&daemon), kept / 64);
    // It gives way to a request that would find no room for it.
    ask_long(5, 330);
    assert_eq!(pinned_blocks(&daemon), 0);

    let hour = usage(json!({"type": "ephemeral", "ttl": "1h"}), "Why?");
    let created = marked - prompt_tokens(&hour).1;
    assert_eq!(
        hour["cache_creation"],
        json!({"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": created})
    );
    assert_eq!(pinned_blocks(&daemon), kept / 64);
    daemon.connect().ask(Op::Evict { target: EvictTarget::All, tier: None });
    assert_eq!(pinned_blocks(&daemon), 0);

    // Without a mark nothing is created, and what is found is read: the cache is automatic, and lasts as long as there is room.
    let cold = usage(Value::Null, "Why?");
    assert_eq!((prompt_tokens(&cold).1, &cold["cache_creation_input_tokens"]), (0, &json!(0)));
    let warm = usage(Value::Null, "Why?");
    let (prompt, cached) = prompt_tokens(&warm);
    assert!(cached + 64 > prompt && warm["cache_creation_input_tokens"] == 0, "{warm}");
    flood(8);
    let lost = usage(Value::Null, "Why?");
    assert!(prompt_tokens(&lost).1 < kept, "the flood left too much of it: {lost}");
    let all = answer(&daemon, &json!({"cache_control": mark(), "max_tokens": 1}));
    assert_eq!(all["usage"]["input_tokens"], 0, "all of it is marked");
}

#[test]
fn what_cannot_be_served_is_refused_with_its_name() {
    let daemon = Daemon::start();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let marked = |control: Value| user(json!([{"type": "text", "text": "a", "cache_control": control}]));
    let result =
        json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}]);
    let tool = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    for (more, wanted) in [
        (json!({"messages": []}), "messages is empty"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens is 0"),
        (json!({"max_tokens": 1u64 << 63}), "max_tokens"),
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"stop_sequences": vec!["a"; 99]}), "stop_sequences"),
        (
            user(json!([{"type": "image", "source": {}}])),
            "messages[0].content[0].type is \"image\"; the model takes text",
        ),
        (user(result), "messages[0].content[0].content[0].type is \"image\"; the model takes text"),
        (marked(json!({"type": "ephemeral", "ttl": "2h"})), "messages[0].content[0].cache_control.ttl"),
        (json!({"tools": tool, "tool_choice": {"type": "any"}}), "tool_choice.type"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format"),
        (json!({ "tools": tool }), "takes no tools"),
    ] {
        let answer = ask(&daemon, MESSAGES, &more);
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (400, &json!("error")), "{more}: {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().expect("a message").contains(wanted), "{more}: {error}");
        assert_eq!(error["request_id"].as_str(), answer.header("request-id"));
    }
    for path in [MESSAGES, COUNT] {
        let unknown = ask(&daemon, path, &json!({"model": "none"}));
        assert_eq!(
            (unknown.status, unknown.json()["error"]["type"].as_str()),
            (404, Some("not_found_error"))
        );
        let broken = post(&daemon.http_socket(), path, "{:");
        assert_eq!(
            (broken.status, broken.json()["error"]["type"].as_str()),
            (400, Some("invalid_request_error"))
        );
    }
    assert!(daemon.connect().ask(Op::Drain) == Answer::Done);
    let drained = ask(&daemon, MESSAGES, &json!({}));
    assert_eq!((drained.status, drained.json()["error"]["type"].as_str()), (503, Some("overloaded_error")));
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let limits = "[limits]\nrunning_jobs = 1\nqueued_jobs = 1\n";
    let daemon = Builder::new().with(|settings| settings.more = limits.into()).start();
    let long = json!({"model": MODEL, "prompt": "Once", "max_tokens": 1800, "ignore_eos": true}).to_string();
    let begin =
        || send(&daemon.http_socket(), "POST", "/v1/completions", long.as_bytes()).expect("a connection");
    let jobs = |state: &str| daemon.metric(&format!("zllm_jobs{{state={state:?}}}"));
    let _running = begin();
    wait_for("a job that runs", || (jobs("running") == 1.0).then_some(()));
    let _queued = begin();
    wait_for("a job that waits", || (jobs("queued") == 1.0).then_some(()));
    let refused = ask(&daemon, MESSAGES, &json!({}));
    let kind = refused.json()["error"]["type"].clone();
    assert_eq!((refused.status, kind), (429, json!("rate_limit_error")), "{}", refused.body);
    assert!(refused.header("retry-after").is_some_and(|s| s.parse::<u64>().is_ok_and(|s| s > 0)));
}

#[test]
fn claude_code_is_answered() {
    let daemon = Daemon::with_tools();
    let mark = json!({"type": "ephemeral"});
    let tool = |number: usize| {
        json!({"name": format!("Tool{number}"), "description": "Does something.", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": false,
        }})
    };
    let request = |turn: u32, mut messages: Vec<Value>| {
        messages.insert(1, json!({"role": "system", "content": "Today is a day."}));
        json!({
            "model": MODEL, "max_tokens": 32000, "stream": true, "temperature": 1,
            "system": [
                {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1.9; cch=0000{turn};")},
                {"type": "text", "text": "You are an agent.", "cache_control": mark},
                {"type": "text", "text": "Use the tools. ".repeat(20), "cache_control": mark},
            ],
            "messages": messages,
            "tools": (0..24).map(tool).collect::<Vec<_>>(),
            "thinking": {"type": "adaptive"}, "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
            "output_config": {"effort": "medium"}, "metadata": {"user_id": "{\"device_id\":\"d\"}"},
        })
    };
    let said = |text: &str| json!([{"type": "text", "text": text, "cache_control": mark}]);
    let ask =
        |request: Value| events(&post(&daemon.http_socket(), "/v1/messages?beta=true", request.to_string()));
    let first = ask(request(1, vec![json!({"role": "user", "content": said("Say hi.")})]));
    assert_eq!(
        (&first[0]["type"], &first[first.len() - 1]["type"]),
        (&json!("message_start"), &json!("message_stop"))
    );
    let usage = &first[0]["message"]["usage"];
    assert!(number(&usage["cache_creation_input_tokens"]) > 1000, "{usage}");
    let texts: String = first.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    let second = ask(request(
        2,
        vec![
            json!({"role": "user", "content": "Say hi."}),
            json!({"role": "assistant", "content": [{"type": "text", "text": texts}]}),
            json!({"role": "user", "content": said("Again.")}),
        ],
    ));
    let (prompt, cached) = prompt_tokens(&second[0]["message"]["usage"]);
    assert!(cached * 10 > prompt * 9, "{cached} of {prompt} tokens were found");
}

#[test]
fn models_are_listed_as_its_clients_expect_them() {
    let daemon = Daemon::start();
    let get = |path: &str| get_with(&daemon.http_socket(), path, "anthropic-version: 2023-06-01\r\n").json();
    let page = get("/v1/models");
    let models = page["data"].as_array().expect("models");
    assert_eq!((&page["has_more"], &page["first_id"]), (&json!(false), &models[0]["id"]));
    assert_eq!(page["last_id"], models[models.len() - 1]["id"]);
    let model = models.iter().find(|model| model["id"] == MODEL).expect("the model of the tests");
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!(MODEL)));
    let missing = get("/v1/models/none");
    assert_eq!((&missing["type"], &missing["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    assert_eq!(get(&format!("/v1/models/{MODEL}")), *model);
}
