//! What llama-server's clients know: tokens there and back, the prompt of a conversation, settings, who is answered.

use super::common::http::{HttpAnswer, get, post, send};
use super::common::{Daemon, MODEL, greedy, wait_for};
use serde_json::{Value, json};
use zllm_wire::{Answer, Op};

fn ask(daemon: &Daemon, path: &str, body: Value) -> HttpAnswer {
    post(&daemon.http_socket(), path, body.to_string())
}

fn good(daemon: &Daemon, path: &str, body: Value) -> Value {
    let answer = ask(daemon, path, body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// Asks for what must be refused about this field; the message.
fn refused(daemon: &Daemon, path: &str, body: Value, param: &str) -> String {
    let answer = ask(daemon, path, body);
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{error}");
    error["message"].as_str().expect("a message").to_owned()
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let daemon = Daemon::start();
    let text = "Hello, wörld! 🙂 <|im_start|>x";
    let tokens = good(&daemon, "/tokenize", json!({"model": MODEL, "content": text}))["tokens"].clone();
    let back = good(&daemon, "/detokenize", json!({"model": MODEL, "tokens": tokens}));
    assert_eq!(back, json!({ "content": text }));

    // With one model loaded it need not be named. Written out, the special token is several.
    let plain =
        good(&daemon, "/tokenize", json!({"content": text, "parse_special": false}))["tokens"].clone();
    assert!(plain.as_array().expect("ids").len() > tokens.as_array().expect("ids").len());
    assert_eq!(good(&daemon, "/detokenize", json!({ "tokens": plain })), back);

    let pieces = good(&daemon, "/tokenize", json!({"content": text, "with_pieces": true}))["tokens"].clone();
    let mut bytes = Vec::new();
    for (piece, id) in pieces.as_array().expect("pieces").iter().zip(tokens.as_array().expect("ids")) {
        assert_eq!(&piece["id"], id);
        match &piece["piece"] {
            Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
            raw => bytes.extend(serde_json::from_value::<Vec<u8>>(raw.clone()).expect("bytes")),
        }
    }
    assert_eq!(String::from_utf8(bytes).expect("UTF-8"), text);

    assert!(refused(&daemon, "/detokenize", json!({"tokens": [7, 9_999_999]}), "tokens").contains("9999999"));
    assert!(refused(&daemon, "/tokenize", json!({"content": 7}), "content").contains("invalid type"));
    assert_eq!(ask(&daemon, "/tokenize", json!({"model": "none", "content": "x"})).status, 404);
}

#[test]
fn a_model_must_be_named_where_several_could_be_meant() {
    let daemon = Daemon::start();
    assert_eq!(daemon.connect().ask(Op::Unload { model: MODEL.into() }), Answer::Done);
    let message = refused(&daemon, "/tokenize", json!({"content": "x"}), "model");
    assert!(message.contains(MODEL) && message.contains("several"), "{message}");
    let answer = get(&daemon.http_socket(), "/props").expect("an answer");
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("model")));
}

#[test]
fn the_prompt_that_is_shown_is_the_one_that_is_answered() {
    let daemon = Daemon::start();
    for messages in [
        json!([{"role": "user", "content": "Say hi."}]),
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi."},
            {"role": "assistant", "content": "Well,"}]),
    ] {
        let shown = good(&daemon, "/apply-template", json!({"model": MODEL, "messages": messages}));
        let prompt = shown["prompt"].as_str().expect("a prompt");
        let tokens = good(&daemon, "/tokenize", json!({"content": prompt, "add_special": true}));
        let body = json!({"model": MODEL, "messages": messages, "max_tokens": 1});
        let usage = good(&daemon, "/v1/chat/completions", body)["usage"].clone();
        assert_eq!(usage["prompt_tokens"], tokens["tokens"].as_array().expect("ids").len(), "{prompt}");
    }
    let ask_for = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Say hi."}]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let whole = good(&daemon, "/apply-template", ask_for(json!({})));
    let without = good(&daemon, "/apply-template", ask_for(json!({"add_generation_prompt": false})));
    let (whole, without) =
        (whole["prompt"].as_str().expect("text"), without["prompt"].as_str().expect("text"));
    let asked = whole.strip_prefix(without).expect("the same conversation");
    assert!(asked.contains("assistant"), "{asked}");
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}]});
    let answer = ask(&daemon, "/apply-template", ask_for(tools));
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains("takes no tools"), "{}", answer.body);
}

#[test]
fn settings_and_places_are_told() {
    let daemon = Daemon::start();
    let socket = daemon.http_socket();
    let props = get(&socket, &format!("/props?model={MODEL}")).expect("an answer").json();
    let slots = || get(&socket, "/slots").expect("an answer").json().as_array().expect("slots").clone();
    assert_eq!(props["total_slots"], slots().len());
    assert_eq!(props["default_generation_settings"]["n_ctx"], 8192);
    let params = &props["default_generation_settings"]["params"];
    assert_eq!((&params["top_k"], &params["n_predict"]), (&json!(40), &json!(1024)));
    assert!(props["chat_template"].as_str().expect("a template").contains("im_start"), "{props}");
    assert_eq!(props["model_alias"], MODEL);

    let body =
        json!({"model": MODEL, "prompt": "Once", "max_tokens": 1500, "ignore_eos": true, "stream": true});
    let open = send(&socket, "POST", "/v1/completions", body.to_string().as_bytes()).expect("a connection");
    let slot = wait_for("a job in a slot", || {
        slots().into_iter().find(|slot| slot["next_token"]["n_decoded"].as_u64().is_some_and(|n| n > 0))
    });
    assert_eq!((&slot["is_processing"], &slot["model"]), (&json!(true), &json!(MODEL)));
    assert!(slot["id_task"].as_str().expect("a job").starts_with("j-"));
    drop(open);
    wait_for("free slots", || slots().iter().all(|slot| slot["is_processing"] == false).then_some(()));
}

/// Whether a value is what a schema of this document says, with no field more.
fn fits(document: &Value, schema: &Value, value: &Value) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.trim_start_matches('#')).expect("a schema of that name");
        return fits(document, target, value);
    }
    let kind = match value {
        Value::Object(_) => "object",
        Value::String(_) => "string",
        Value::Null => "null",
        other => panic!("no {other} is expected"),
    };
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    let Value::Object(fields) = value else { return kinds.contains(&json!(kind)) };
    let required = schema["required"].as_array().into_iter().flatten();
    let mut required = required.map(|name| name.as_str().expect("a name"));
    kinds.contains(&json!(kind))
        && required.all(|name| fields.contains_key(name))
        && fields.iter().all(|(name, value)| {
            schema["properties"].get(name).is_some_and(|schema| fits(document, schema, value))
        })
}

#[test]
fn health_and_readiness_are_told_as_they_are_described() {
    let mut daemon = Daemon::start();
    let ask = |path: &str| get(&daemon.http_socket(), path).expect("an answer");
    let document = ask("/openapi.json").json();
    let described = |path: &str, answer: &HttpAnswer| {
        let answers = &document["paths"][path]["get"]["responses"];
        let told = answers.get(answer.status.to_string()).unwrap_or(&answers["default"]);
        let media = answer.header("content-type").expect("a media type");
        let schema = &told["content"][media]["schema"];
        assert!(fits(&document, schema, &answer.json()), "{path}: {} is not {schema}", answer.body);
        assert!(!fits(&document, schema, &json!({"status": "ok", "more": null})), "{schema} takes anything");
    };
    for path in ["/health", "/ready"] {
        let answer = ask(path);
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})), "{path}");
        described(path, &answer);
    }
    let mut client = daemon.connect();
    let (endless, _) = client.submit(greedy("Once", 1500));
    client.first_text(endless);
    daemon.signal("TERM");
    let refused = wait_for("the drain", || Some(ask("/ready")).filter(|answer| answer.status != 200));
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.status, &error["code"], &error["type"]),
        (503, &json!("unavailable"), &json!("server_error"))
    );
    described("/ready", &refused);
    let alive = ask("/health");
    assert_eq!(alive.status, 200);
    described("/health", &alive);
    daemon.kill();
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let daemon = Daemon::start();
    let document = get(&daemon.http_socket(), "/openapi.json").expect("an answer").json();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.values().flat_map(|methods| methods.as_object().expect("methods").values());
    let names: Vec<&str> =
        operations.map(|operation| operation["operationId"].as_str().expect("a name")).collect();
    let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert!(names.len() > 60 && distinct.len() == names.len(), "{names:?}");
    assert_eq!(document["paths"]["/zllm/v1/jobs/{job}"]["get"]["operationId"], "get_zllm_v1_jobs_job");
    assert_eq!(document["paths"]["/api/chat"]["post"]["tags"], json!(["ollama"]));
}
