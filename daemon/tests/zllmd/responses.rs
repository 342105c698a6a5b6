//! OpenAI's Responses API: made whole, streamed, over WebSocket and in the background; kept, gone on from, ended and deleted.

use super::common::http::{HttpAnswer, ask, post, read, send};
use super::common::websocket::WebSocket;
use super::common::{Builder, Daemon, MODEL, wait_for};
use serde_json::{Value, json};
use std::io::BufReader;
use std::time::Duration;

const RESPONSES: &str = "/v1/responses";

fn request(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "input": "Say hi.", "max_output_tokens": 12, "temperature": 0});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn try_post(daemon: &Daemon, path: &str, body: &Value) -> HttpAnswer {
    post(&daemon.http_socket(), path, body.to_string())
}

fn respond(daemon: &Daemon, more: Value) -> Value {
    let answer = try_post(daemon, RESPONSES, &request(more));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn fetch(daemon: &Daemon, method: &str, path: &str) -> HttpAnswer {
    ask(&daemon.http_socket(), method, path, b"").expect("an answer")
}

fn fetched(daemon: &Daemon, path: &str) -> Value {
    let answer = fetch(daemon, "GET", path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

/// The response of this id.
fn found(daemon: &Daemon, id: &Value) -> Value {
    fetched(daemon, &at(id, ""))
}

fn at(id: &Value, more: &str) -> String {
    format!("{RESPONSES}/{}{more}", id.as_str().expect("an id"))
}

/// The text of a response's messages.
fn text(response: &Value) -> String {
    let items = response["output"].as_array().expect("items").iter();
    let parts = items.filter_map(|item| item["content"].as_array()).flatten();
    parts
        .filter(|part| part["type"] == "output_text")
        .map(|part| part["text"].as_str().expect("text"))
        .collect()
}

/// The events of a stream, which are numbered and named.
fn events(answer: &HttpAnswer) -> Vec<Value> {
    let event = |lines: &str| {
        let (name, data) = lines.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{lines}");
        data
    };
    answer.body.split_terminator("\n\n").map(event).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    kinds.dedup();
    kinds
}

/// The numbers go up one by one from `first`.
fn check_numbers(events: &[Value], first: u64) {
    let numbers: Vec<u64> =
        events.iter().map(|event| event["sequence_number"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (first..first + numbers.len() as u64).collect::<Vec<_>>());
}

/// What is the same in each telling of the same answer.
fn told(response: &Value) -> Value {
    json!([
        response["status"],
        text(response),
        response["incomplete_details"],
        response["usage"]["output_tokens"]
    ])
}

#[test]
fn a_response_is_the_same_whole_streamed_and_asked_for_again() {
    let daemon = Daemon::start();
    let whole = respond(&daemon, json!({"metadata": {"a": "b"}, "max_output_tokens": 200}));
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["store"]),
        (&json!("response"), &json!("completed"), &json!(true))
    );
    let message = &whole["output"][0];
    assert_eq!(
        (&message["type"], &message["role"], &message["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert!(!text(&whole).is_empty());
    let usage = &whole["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap())
    );
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    assert_eq!(found(&daemon, &whole["id"]), whole);

    let streamed = try_post(&daemon, RESPONSES, &request(json!({"stream": true, "max_output_tokens": 200})));
    assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = events(&streamed);
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&events), order);
    check_numbers(&events, 0);
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text(&whole));
    let last = &events.last().expect("an end")["response"];
    assert_eq!(told(last), told(&whole));
    assert_eq!(found(&daemon, &last["id"]), *last);
    let (added, done) = (&events[2]["item"], &events[events.len() - 2]["item"]);
    assert_eq!((&added["status"], &added["content"]), (&json!("in_progress"), &json!([])));
    assert_eq!(*done, last["output"][0]);

    let cut = respond(&daemon, json!({"max_output_tokens": 2, "store": false}));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(cut["output"][0]["status"], "incomplete");
    assert_eq!(fetch(&daemon, "GET", &at(&cut["id"], "")).status, 404, "store: false keeps nothing");
    let cut = try_post(&daemon, RESPONSES, &request(json!({"max_output_tokens": 2, "stream": true})));
    assert_eq!(kinds(&self::events(&cut)).last(), Some(&"response.incomplete"));

    let likely =
        json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4});
    let part = respond(&daemon, likely)["output"][0]["content"][0].clone();
    let tokens = part["logprobs"].as_array().expect("tokens");
    let said: String = tokens.iter().map(|token| token["token"].as_str().expect("text")).collect();
    assert_eq!(
        (said.as_str(), tokens[0]["top_logprobs"].as_array().expect("two").len()),
        (part["text"].as_str().expect("text"), 2)
    );
}

#[test]
fn a_chain_goes_on_over_a_restart_and_finds_its_tokens() {
    let mut daemon = Builder::new().with(|settings| settings.save = "all").start();
    let story = "The captain of the ship wrote in the log each evening what the day had brought. ".repeat(12);
    let first = respond(&daemon, json!({"input": story, "instructions": "You are brief."}));
    let next = |more: Value| {
        let mut body = json!({"input": "And then?", "instructions": "You are brief."});
        more.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let second = respond(&daemon, next(json!({"previous_response_id": first["id"]})));
    // The same as when a client keeps it all itself.
    let answered = json!({"role": "assistant", "content": text(&first)});
    let spelled =
        json!([{"role": "user", "content": story}, answered, {"role": "user", "content": "And then?"}]);
    let whole = respond(&daemon, next(json!({"input": spelled})));
    assert_eq!(
        (text(&whole), &whole["usage"]["input_tokens"]),
        (text(&second), &second["usage"]["input_tokens"])
    );

    daemon.terminate();
    daemon.start_again();
    assert_eq!(found(&daemon, &second["id"]), second);
    let counted = try_post(
        &daemon,
        "/v1/responses/input_tokens",
        &request(next(json!({"previous_response_id": second["id"]}))),
    );
    let third = respond(&daemon, next(json!({"previous_response_id": second["id"]})));
    let usage = &third["usage"];
    assert_eq!(counted.json()["input_tokens"], usage["input_tokens"], "{}", counted.body);
    let (input, cached) = (
        usage["input_tokens"].as_u64().expect("tokens"),
        usage["input_tokens_details"]["cached_tokens"].as_u64().expect("tokens"),
    );
    assert!(cached * 10 > input * 5, "{usage}");
    let fourth = respond(&daemon, next(json!({"previous_response_id": third["id"]})));
    let usage = &fourth["usage"];
    let (input, cached) = (
        usage["input_tokens"].as_u64().expect("tokens"),
        usage["input_tokens_details"]["cached_tokens"].as_u64().expect("tokens"),
    );
    assert!(cached * 10 > input * 9, "{usage}");

    // What a response was made from, and an item by its id.
    let listed = fetched(&daemon, &at(&third["id"], "/input_items"));
    assert_eq!(
        (&listed["data"][0]["content"][0]["text"], &listed["has_more"]),
        (&json!("And then?"), &json!(false))
    );
    let reference = json!([{"type": "item_reference", "id": third["output"][0]["id"]}, {"role": "user", "content": "Why?"}]);
    let spelled =
        json!([{"role": "assistant", "content": text(&third)}, {"role": "user", "content": "Why?"}]);
    assert_eq!(
        text(&respond(&daemon, json!({"input": reference}))),
        text(&respond(&daemon, json!({"input": spelled})))
    );

    // A chain ends where somebody deletes it.
    assert_eq!(
        fetch(&daemon, "DELETE", &at(&first["id"], "")).json(),
        json!({"id": first["id"], "object": "response", "deleted": true})
    );
    assert_eq!(fetch(&daemon, "DELETE", &at(&first["id"], "")).status, 404);
    let broken = try_post(&daemon, RESPONSES, &request(json!({"previous_response_id": second["id"]})));
    assert_eq!((broken.status, &broken.json()["error"]["param"]), (400, &json!("previous_response_id")));
    assert!(broken.body.contains(first["id"].as_str().expect("an id")), "{}", broken.body);
}

#[test]
fn a_conversation_has_what_was_said_also_after_a_restart() {
    let mut daemon = Daemon::start();
    let made = try_post(
        &daemon,
        "/v1/conversations",
        &json!({"metadata": {"k": "v"}, "items": [{"role": "developer", "content": "Be brief."}]}),
    );
    let made = made.json();
    let path = format!("/v1/conversations/{}", made["id"].as_str().expect("an id"));
    assert_eq!((&made["object"], &made["metadata"]["k"]), (&json!("conversation"), &json!("v")));
    let first = respond(
        &daemon,
        json!({"conversation": made["id"], "input": [{"role": "user", "id": "mine", "content": "Say hi."}]}),
    );
    assert_eq!(first["conversation"]["id"], made["id"]);
    let second = respond(
        &daemon,
        json!({"conversation": {"id": made["id"]}, "input": [{"role": "user", "id": "mine", "content": "Again."}]}),
    );
    assert!(second["usage"]["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64());
    daemon.kill();
    daemon.start_again();
    let listed = fetched(&daemon, &format!("{path}/items?order=asc"));
    let said: Vec<&Value> =
        listed["data"].as_array().expect("items").iter().map(|item| &item["content"][0]["text"]).collect();
    let (hi, again) = (json!(text(&first)), json!(text(&second)));
    assert_eq!(said, [&json!("Be brief."), &json!("Say hi."), &hi, &json!("Again."), &again]);
    let page = fetched(&daemon, &format!("{path}/items?limit=2"));
    assert_eq!((&page["data"][0]["content"][0]["text"], &page["has_more"]), (&again, &json!(true)));
    let page =
        fetched(&daemon, &format!("{path}/items?limit=5&after={}", page["last_id"].as_str().expect("an id")));
    assert_eq!((page["data"].as_array().expect("items").len(), &page["has_more"]), (3, &json!(false)));

    let refused = try_post(&daemon, RESPONSES, &request(json!({"previous_response_id": second["id"]})));
    assert!(refused.status == 400 && refused.body.contains("belongs to conversation"), "{}", refused.body);
    let added = try_post(
        &daemon,
        &format!("{path}/items"),
        &json!({"items": [{"role": "user", "content": "More."}]}),
    )
    .json();
    let one = format!("{path}/items/{}", added["first_id"].as_str().expect("an id"));
    assert_eq!(fetched(&daemon, &one)["content"][0]["text"], "More.");
    assert_eq!(fetch(&daemon, "DELETE", &one).status, 200);
    assert_eq!(fetch(&daemon, "GET", &one).status, 404);
    assert_eq!(
        try_post(&daemon, &path, &json!({"metadata": {"x": "y"}})).json()["metadata"],
        json!({"x": "y"})
    );
    assert_eq!(fetch(&daemon, "DELETE", &path).json()["object"], "conversation.deleted");
    assert_eq!(fetch(&daemon, "GET", &path).status, 404);
    assert_eq!(try_post(&daemon, RESPONSES, &request(json!({"conversation": made["id"]}))).status, 404);
    let items = json!({"items": [{"role": "user", "content": "More."}]});
    assert_eq!(try_post(&daemon, &format!("{path}/items"), &items).status, 404);
    assert_eq!(try_post(&daemon, &path, &json!({"metadata": {}})).status, 404);
    assert_eq!(fetch(&daemon, "GET", &path).status, 404, "nothing brings it back");
}

/// The room is for eight things; the oldest go first.
#[test]
fn a_conversation_in_use_is_kept_and_says_when_its_beginning_has_expired() {
    let settings = "[objects]\nkeep_objects = 8\ntenant_objects = 8\n";
    let daemon = Builder::new().with(|daemon| daemon.more = settings.into()).start();
    let said = |text: &str| json!({"role": "user", "content": text});
    let made =
        try_post(&daemon, "/v1/conversations", &json!({"items": [said("a"), said("b"), said("c")]})).json();
    let turn = || {
        let body = json!({"conversation": made["id"], "max_output_tokens": 1});
        try_post(&daemon, RESPONSES, &request(body))
    };
    assert_eq!(turn().status, 200);
    for _ in 0..2 {
        respond(&daemon, json!({"max_output_tokens": 1}));
    }
    let path = format!("/v1/conversations/{}", made["id"].as_str().expect("an id"));
    let listed = fetched(&daemon, &format!("{path}/items?order=asc"));
    assert_eq!(
        (listed["data"].as_array().map(Vec::len), &listed["data"][0]["content"][0]["text"]),
        (Some(4), &json!("b"))
    );
    let refused = turn();
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("conversation")));
    assert!(refused.body.contains("1 items") && refused.body.contains("expired"), "{}", refused.body);
    assert_eq!(fetch(&daemon, "GET", &path).status, 200);
}

#[test]
fn what_is_referred_to_is_read_once_and_said_once() {
    let daemon = Daemon::start();
    let first = respond(&daemon, json!({}));
    let reference = |id: &Value| json!({"type": "item_reference", "id": id});
    let asked = |times: usize, more: Value| {
        let mut items = vec![reference(&first["output"][0]["id"]); times];
        items.push(json!({"role": "user", "content": "Why?"}));
        let mut body = more;
        body["input"] = items.into();
        told(&respond(&daemon, body))
    };
    assert_eq!(asked(20_000, json!({})), asked(1, json!({})));
    // What was said before is there already.
    let follows = || json!({"previous_response_id": first["id"]});
    assert_eq!(asked(3, follows()), asked(0, follows()));
    let (good, bad) =
        (reference(&first["output"][0]["id"]), first["output"][0]["id"].as_str().expect("an id"));
    for missing in [format!("{bad}9"), "msg_none_0".to_owned(), "none".to_owned()] {
        let input = json!([good, reference(&missing.into())]);
        let refused = try_post(&daemon, RESPONSES, &request(json!({"input": input})));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("input[1].id")));
    }
}

/// Who has read from the beginning comes to the end when all is long kept.
#[test]
fn a_late_reader_changes_nothing_of_what_is_kept() {
    let daemon = Daemon::start();
    let likely = json!(["message.output_text.logprobs"]);
    let begun = respond(
        &daemon,
        json!({"background": true, "input": "Count from one to two hundred.", "max_output_tokens": 200,
            "include": likely, "top_logprobs": 20}),
    );
    let late = send(&daemon.http_socket(), "GET", &at(&begun["id"], "?stream=true"), b"").expect("sent");
    let over = |response: &Value| !matches!(response["status"].as_str(), Some("queued" | "in_progress"));
    let kept = wait_for("its end", || Some(found(&daemon, &begun["id"])).filter(over));
    // The time of its end is told in seconds.
    std::thread::sleep(Duration::from_millis(1100));
    let events = events(&read(&mut BufReader::new(late)).expect("an answer"));
    assert_eq!(events.last().expect("an end")["response"], kept);
    assert_eq!(found(&daemon, &begun["id"]), kept);
}

#[test]
fn a_response_in_the_background_outlives_its_client_and_the_daemon() {
    let mut daemon = Daemon::start();
    let long =
        json!({"background": true, "input": "Count from one to two hundred.", "max_output_tokens": 300});
    let begun = respond(&daemon, long.clone());
    assert_eq!((&begun["status"], &begun["output"]), (&json!("queued"), &json!([])));
    let refused = try_post(&daemon, RESPONSES, &request(json!({"previous_response_id": begun["id"]})));
    assert!(refused.status == 400 && refused.body.contains("not over yet"), "{}", refused.body);
    wait_for("its start", || (found(&daemon, &begun["id"])["status"] == "in_progress").then_some(()));
    daemon.kill();
    daemon.start_again();
    let over = wait_for("its end", || {
        Some(found(&daemon, &begun["id"])).filter(|response| !response["usage"].is_null())
    });
    let whole =
        respond(&daemon, json!({"input": "Count from one to two hundred.", "max_output_tokens": 300}));
    assert_eq!(told(&over), told(&whole));

    // Its events, all of them and from a place on.
    let all = events(&fetch(&daemon, "GET", &at(&begun["id"], "?stream=true")));
    assert_eq!(
        kinds(&all)[..4],
        ["response.created", "response.queued", "response.in_progress", "response.output_item.added"]
    );
    check_numbers(&all, 0);
    let rest = events(&fetch(&daemon, "GET", &at(&begun["id"], "?stream=true&starting_after=7")));
    assert_eq!(rest[..], all[8..]);
    assert_eq!(all.last().expect("an end")["response"]["output"], over["output"]);

    // One that is cancelled stays so; the others cannot be.
    let begun = respond(&daemon, long.clone());
    let cancelled = try_post(&daemon, &at(&begun["id"], "/cancel"), &json!({})).json();
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    assert_eq!(try_post(&daemon, &at(&over["id"], "/cancel"), &json!({})).json()["status"], over["status"]);
    assert_eq!(try_post(&daemon, &at(&whole["id"], "/cancel"), &json!({})).status, 400);
    daemon.terminate();
    daemon.start_again();
    assert_eq!(found(&daemon, &begun["id"])["status"], "cancelled");

    // Streamed, and its client leaves: it goes on.
    let mut body = request(long);
    body["stream"] = true.into();
    let stream = send(&daemon.http_socket(), "POST", RESPONSES, body.to_string().as_bytes()).expect("sent");
    wait_for("its start", || (daemon.metric("zllm_jobs{state=\"running\"}") == 1.0).then_some(()));
    drop(stream);
    let done = daemon.metric("zllm_requests_total{outcome=\"done\"}");
    wait_for("its end", || (daemon.metric("zllm_requests_total{outcome=\"done\"}") > done).then_some(()));
    // Deleting one ends it.
    let begun = respond(
        &daemon,
        json!({"background": true, "max_output_tokens": 300, "input": "Count to two hundred."}),
    );
    let gone = daemon.metric("zllm_requests_total{outcome=\"cancelled\"}");
    assert_eq!(fetch(&daemon, "DELETE", &at(&begun["id"], "")).status, 200);
    wait_for("its end", || {
        (daemon.metric("zllm_requests_total{outcome=\"cancelled\"}") > gone).then_some(())
    });
    assert_eq!(fetch(&daemon, "GET", &at(&begun["id"], "")).status, 404);
}

/// Nobody asks for it.
#[test]
fn a_conversation_gets_what_was_answered_in_the_background_also_after_a_crash() {
    let mut daemon = Daemon::start();
    let conversation = try_post(&daemon, "/v1/conversations", &json!({})).json()["id"].clone();
    let asked = json!({"input": "Count from one to two hundred.", "max_output_tokens": 300});
    let mut in_background = asked.clone();
    (in_background["background"], in_background["conversation"]) = (true.into(), conversation.clone());
    respond(&daemon, in_background);
    daemon.kill();
    daemon.start_again();
    let items = format!("/v1/conversations/{}/items", conversation.as_str().expect("an id"));
    let answered = wait_for("its answer", || {
        Some(fetched(&daemon, &items)["data"].clone())
            .filter(|items| items.as_array().map(Vec::len) == Some(2))
    });
    assert_eq!(answered[0]["content"][0]["text"], json!(text(&respond(&daemon, asked))));
}

fn weather(times: usize) -> Value {
    let mut items = Vec::new();
    for number in 0..times {
        let call = json!({"type": "function_call", "call_id": format!("c{number}"), "name": "get_weather",
            "namespace": "sky", "arguments": "{\"city\": \"Paris\"}"});
        let parts = json!([{"type": "input_text", "text": "sunny"}]);
        let output =
            json!({"type": "function_call_output", "call_id": format!("c{number}"), "output": parts});
        items.extend([json!({"role": "user", "content": "Weather in Paris?"}), call, output]);
        items.push(json!({"role": "assistant", "content": "It is sunny."}));
    }
    items.push(json!({"role": "user", "content": "Weather in Paris?"}));
    Value::Array(items)
}

#[test]
fn functions_are_called_and_their_outputs_come_back() {
    let daemon = Daemon::with_tools();
    let function = json!({"type": "function", "name": "get_weather", "description": "Weather.", "strict": false,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}});
    let tools = json!([
        {"type": "namespace", "name": "sky", "description": "The sky.", "tools": [function]},
        {"type": "web_search"},
    ]);
    let asked = json!({"input": weather(4), "tools": tools, "max_output_tokens": 60});
    let called = respond(&daemon, asked.clone());
    let call = &called["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["namespace"]),
        (&json!("function_call"), &json!("get_weather"), &json!("sky")),
        "{called}"
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
    assert_eq!(arguments, json!({"city": "Paris"}));
    assert_eq!((&called["skipped_tools"], &called["status"]), (&json!(["web_search"]), &json!("completed")));

    let mut streamed = request(asked);
    streamed["stream"] = true.into();
    let events = events(&try_post(&daemon, RESPONSES, &streamed));
    let order = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ];
    assert_eq!(kinds(&events)[2..6], order);
    check_numbers(&events, 0);
    let deltas: String = events
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta")
        .map(|event| event["delta"].as_str().expect("text"))
        .collect();
    assert_eq!(Value::from(deltas), call["arguments"]);
    assert_eq!(events[2]["item"]["arguments"], "");

    let output = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]);
    let after =
        respond(&daemon, json!({"previous_response_id": called["id"], "input": output, "tools": tools}));
    assert!(text(&after).contains("sunny"), "{after}");
    let usage = &after["usage"];
    let (input, cached) = (
        usage["input_tokens"].as_u64().expect("tokens"),
        usage["input_tokens_details"]["cached_tokens"].as_u64().expect("tokens"),
    );
    assert!(cached * 10 > input * 8, "{usage}");
}

#[test]
fn reasoning_comes_as_an_item_and_goes_back_with_or_without_a_store() {
    let daemon = Daemon::with_tools();
    let mut items = Vec::new();
    for _ in 0..4 {
        items.push(json!({"role": "user", "content": "Two and two?"}));
        items.push(json!({"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "That is four."}]}));
        items.push(json!({"role": "assistant", "content": "Four."}));
    }
    items.push(json!({"role": "user", "content": "Two and two?"}));
    let asked = json!({"input": items, "include": ["reasoning.encrypted_content"], "store": false, "max_output_tokens": 40});
    let answered = respond(&daemon, asked.clone());
    let [reasoning, message] = &answered["output"].as_array().expect("items")[..] else {
        panic!("{answered}")
    };
    assert_eq!(
        (&reasoning["type"], &reasoning["content"][0]["text"]),
        (&json!("reasoning"), &json!("That is four."))
    );
    assert_eq!((&message["type"], text(&answered).as_str()), (&json!("message"), "Four."));
    assert!(answered["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0), "{answered}");

    let mut streamed = request(asked);
    streamed["stream"] = true.into();
    let events = events(&try_post(&daemon, RESPONSES, &streamed));
    let order = [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ];
    assert_eq!(kinds(&events)[2..11], order);
    assert_eq!(events.last().expect("an end")["response"]["output"][0]["content"], reasoning["content"]);

    // Sent back in either form, it is the same prompt.
    let back = |reasoning: Value| {
        let mut items = items.clone();
        items.extend([reasoning, message.clone(), json!({"role": "user", "content": "And three?"})]);
        respond(&daemon, json!({"input": items}))["usage"]["input_tokens"].clone()
    };
    let carried = json!({"type": "reasoning", "id": "x", "summary": [], "encrypted_content": reasoning["encrypted_content"]});
    let plain = back(reasoning.clone());
    assert_eq!(back(carried), plain);
    assert!(back(json!({"type": "reasoning", "summary": []})).as_u64() < plain.as_u64());
}

/// Asks for a response over a WebSocket.
fn ask_over(socket: &mut WebSocket, more: Value) {
    let mut body = request(more);
    body["type"] = "response.create".into();
    socket.send(&body.to_string());
}

/// The events up to the end of a response or an error.
fn hear(socket: &mut WebSocket) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    loop {
        let event: Value = serde_json::from_str(&socket.receive().expect("an event")).expect("JSON");
        let is_last =
            matches!(event["type"].as_str(), Some("response.completed" | "response.incomplete" | "error"));
        events.push(event);
        if is_last {
            return events;
        }
    }
}

#[test]
fn a_websocket_has_many_turns() {
    let daemon = Daemon::start();
    let mut socket = WebSocket::open(&daemon.http_socket(), RESPONSES);
    let whole = respond(&daemon, json!({}));
    ask_over(&mut socket, json!({"store": false}));
    let first = hear(&mut socket);
    check_numbers(&first, 0);
    let response = &first.last().expect("an end")["response"];
    assert_eq!(text(response), text(&whole));
    // It is not stored, and the connection knows it all the same.
    ask_over(&mut socket, json!({"store": false, "input": "Again.", "previous_response_id": response["id"]}));
    let second = &hear(&mut socket).pop().expect("an end")["response"];
    let chained = respond(&daemon, json!({"input": "Again.", "previous_response_id": whole["id"]}));
    assert_eq!(text(second), text(&chained));
    // What is wrong is told, and the connection goes on.
    for (message, words) in [
        ("{", "body"),
        (r#"{"type": "response.cancel"}"#, "response.cancel"),
        (r#"{"type": "response.create"}"#, "model"),
    ] {
        socket.send(message);
        let error = hear(&mut socket).pop().expect("an event");
        assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(400)));
        assert!(error["error"]["message"].as_str().expect("text").contains(words), "{error}");
    }
    // Several wait for their turns.
    for _ in 0..3 {
        ask_over(&mut socket, json!({"max_output_tokens": 3}));
    }
    for _ in 0..3 {
        let events = hear(&mut socket);
        assert_eq!(events[0]["type"], "response.created");
        assert_eq!(events.last().expect("an end")["type"], "response.incomplete");
    }
    socket.close();
}

#[test]
fn a_response_without_an_answer_is_checked_and_gone_on_from() {
    let daemon = Daemon::start();
    let mut socket = WebSocket::open(&daemon.http_socket(), RESPONSES);
    ask_over(&mut socket, json!({"generate": false, "input": "Say hi.", "store": false}));
    let silent = hear(&mut socket);
    assert_eq!(kinds(&silent), ["response.created", "response.in_progress", "response.completed"]);
    let silent = &silent.last().expect("an end")["response"];
    ask_over(&mut socket, json!({"input": "Again.", "previous_response_id": silent["id"]}));
    let after = &hear(&mut socket).pop().expect("an end")["response"];
    let spelled = json!([{"role": "user", "content": "Say hi."}, {"role": "user", "content": "Again."}]);
    assert_eq!(text(after), text(&respond(&daemon, json!({"input": spelled}))));
    for (more, code, param) in [
        (json!({"model": "none"}), json!("model_not_found"), json!("model")),
        (json!({"input": "and so on ".repeat(20_000)}), json!("context_length_exceeded"), json!(null)),
        (json!({"background": true}), json!(null), json!("generate")),
    ] {
        let mut more = more;
        more["generate"] = false.into();
        ask_over(&mut socket, more);
        let error = hear(&mut socket).pop().expect("an event")["error"].take();
        assert_eq!((&error["code"], &error["param"]), (&code, &param), "{error}");
    }
    socket.close();
}

#[test]
fn a_websocket_that_is_left_cancels() {
    let daemon = Daemon::start();
    let mut socket = WebSocket::open(&daemon.http_socket(), RESPONSES);
    let cancelled = daemon.metric("zllm_requests_total{outcome=\"cancelled\"}");
    let mut body = request(json!({"max_output_tokens": 2000, "input": "Count from one to a thousand."}));
    body["type"] = "response.create".into();
    socket.send(&body.to_string());
    assert!(socket.receive().is_some());
    drop(socket);
    wait_for("its end", || {
        (daemon.metric("zllm_requests_total{outcome=\"cancelled\"}") > cancelled).then_some(())
    });
    let plain = fetch(&daemon, "GET", RESPONSES);
    assert!(plain.status == 400 && plain.body.contains("WebSocket"), "{}", plain.body);
}

#[test]
fn what_is_not_served_is_refused_by_its_name() {
    let daemon = Daemon::start();
    for (more, param) in [
        (json!({"input": [{"type": "computer_call_output", "output": {}}]}), "input[0].type"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input[0].content[0].type",
        ),
        (
            json!({"input": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}),
            "input[1].role",
        ),
        (json!({"input": [{"role": "user"}]}), "input[0]"),
        (
            json!({"input": [{"type": "function_call", "call_id": "c", "name": 5, "arguments": ""}]}),
            "input[0].name",
        ),
        (json!({"input": [{"type": "item_reference", "id": "msg_1_2"}]}), "input[0].id"),
        (json!({"input": []}), "input"),
        (json!({"input": null}), "input"),
        (json!({"tools": [{"type": "function", "name": "f", "strict": true}]}), "tools[0].strict"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tools": vec![json!({"type": "x"}); 1025]}), "tools"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"text": {"format": {"type": "json_object"}}}), "text.format"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"truncation": "some"}), "truncation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"background": true, "store": false}), "background"),
        (json!({"previous_response_id": "resp_x"}), "previous_response_id"),
        (json!({"previous_response_id": "resp_x", "conversation": "conv_x"}), "previous_response_id"),
        (json!({"generate": false}), "generate"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"background": true, "top_p": 2}), "top_p"),
    ] {
        let answer = try_post(&daemon, RESPONSES, &request(more.clone()));
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{more}: {}",
            answer.body
        );
    }
    let unknown = try_post(&daemon, RESPONSES, &request(json!({"model": "none"})));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(fetch(&daemon, "GET", "/v1/responses/resp_none").status, 404);
    for query in ["limit=0", "limit=101", "limit=x", "order=up"] {
        let id = respond(&daemon, json!({"max_output_tokens": 1}))["id"].clone();
        assert_eq!(fetch(&daemon, "GET", &at(&id, &format!("/input_items?{query}"))).status, 400, "{query}");
    }
    // What others may say is passed over.
    let fine = json!({"prompt_cache_key": "k", "client_metadata": {"a": 1}, "reasoning": {"effort": "low", "summary": "auto"},
        "parallel_tool_calls": false, "truncation": "auto", "service_tier": "auto", "some_new_field": [1], "stream_options": {}});
    assert_eq!(respond(&daemon, fine)["reasoning"]["effort"], "low");
}

/// Nothing can be kept: what needs that is refused with the reason, the rest is served and says so.
#[test]
fn a_damaged_store_refuses_what_needs_it_and_nothing_else() {
    let builder = Builder::new();
    let objects = builder.folder().join("kv/objects");
    std::fs::create_dir_all(&objects).expect("a folder");
    std::fs::write(objects.join("objects.redb"), b"no database").expect("a file");
    let daemon = builder.start();
    assert_eq!(respond(&daemon, json!({}))["store"], false);
    for more in [json!({"store": true}), json!({"background": true}), json!({"conversation": "conv_x"})] {
        let refused = try_post(&daemon, RESPONSES, &request(more));
        assert!(refused.status == 500 && refused.body.contains("left as it is"), "{}", refused.body);
    }
    assert!(daemon.log().contains("what clients put down cannot be kept"));
}

#[test]
fn a_client_that_leaves_cancels_its_response() {
    let daemon = Daemon::start();
    for stream in [false, true] {
        let cancelled = daemon.metric("zllm_requests_total{outcome=\"cancelled\"}");
        let body = request(
            json!({"stream": stream, "max_output_tokens": 2000, "input": "Count from one to a thousand."}),
        );
        let left = send(&daemon.http_socket(), "POST", RESPONSES, body.to_string().as_bytes()).expect("sent");
        wait_for("its start", || (daemon.metric("zllm_jobs{state=\"running\"}") == 1.0).then_some(()));
        drop(left);
        wait_for("its end", || {
            (daemon.metric("zllm_requests_total{outcome=\"cancelled\"}") > cancelled).then_some(())
        });
    }
}
