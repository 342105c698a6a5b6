//! Our own API over HTTP: it says what the socket says, and does what the socket does.

use super::common::http::{HttpAnswer, get, post, send};
use super::common::{Builder, Client, Daemon, MODEL, greedy, wait_for};
use serde_json::{Value, json};
use std::io::Read;
use zllm_wire::{Answer, Event, EvictTarget, JobId, Op, SessionId, SessionRef, ShowTarget};

fn asked(daemon: &Daemon, path: &str) -> Value {
    let answer = get(&daemon.http_socket(), &format!("/zllm/v1{path}")).expect("an answer");
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

fn tell(daemon: &Daemon, path: &str, body: Value) -> HttpAnswer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    post(&daemon.http_socket(), &format!("/zllm/v1{path}"), body)
}

fn told(daemon: &Daemon, path: &str, body: Value) -> Value {
    let answer = tell(daemon, path, body);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

/// Without what changes from one moment to the next.
fn still(mut value: Value) -> Value {
    const MOVING: [&str; 9] = [
        "uptime_ms",
        "idle_ms",
        "age_ms",
        "busy",
        "speed",
        "created_ms_ago",
        "took_ms",
        "connections",
        "served_tokens",
    ];
    match &mut value {
        Value::Object(fields) => {
            fields.retain(|name, _| !MOVING.contains(&name.as_str()));
            fields.values_mut().for_each(|field| *field = still(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = still(item.take())),
        _ => {}
    }
    value
}

/// As JSON that was written and read: numbers may lose their last bit on that way.
fn as_sent(value: &impl serde::Serialize) -> Value {
    serde_json::from_str(&serde_json::to_string(value).expect("JSON")).expect("JSON")
}

/// What the socket answers, as JSON, without the answer's name.
fn over_socket(client: &mut Client, op: Op) -> Value {
    let answer = client.ask(op);
    assert!(!matches!(answer, Answer::Error(_)), "{answer:?}");
    let Value::Object(fields) = as_sent(&answer) else { return json!({}) };
    still(fields.into_iter().next().expect("an answer has a name").1)
}

fn session(id: &str) -> SessionRef {
    SessionRef { tenant: None, id: SessionId::new(id).expect("an id") }
}

#[test]
fn both_doors_lead_to_the_same_answers() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let mut one = greedy("Once upon a time there was a fox", 70);
    one.session = Some(SessionId::new("one").expect("an id"));
    let (id, job) = client.submit(one);
    client.finish(id);
    told(&daemon, "/save", Value::Null);

    let show = Op::Show(ShowTarget::Job(job.clone()));
    let show_session = Op::Show(ShowTarget::Session(session("one")));
    for (path, op) in [
        ("/status", Op::Status),
        ("/queue", Op::Queue),
        ("/residency", Op::Residency),
        (&format!("/jobs/{job}"), show),
        (&format!("/jobs/{job}/why"), Op::Why { job }),
        ("/sessions/one", show_session),
    ] {
        assert_eq!(still(asked(&daemon, path)), over_socket(&mut client, op), "{path}");
    }
    let models = json!({"models": over_socket(&mut client, Op::Models)});
    assert_eq!(still(asked(&daemon, "/models")), models);
    let listing = over_socket(&mut client, Op::List);
    assert_eq!(still(asked(&daemon, "/sessions")), json!({"sessions": listing["sessions"]}));
    assert_eq!(still(asked(&daemon, "/jobs")), json!({"jobs": listing["jobs"]}));
    assert_eq!(still(told(&daemon, "/check", Value::Null)), over_socket(&mut client, Op::Check));
    let inspection = asked(&daemon, &format!("/models/{MODEL}/inspection"));
    assert_eq!((&inspection["runs"], &inspection["architecture"]), (&json!(true), &json!("llama")));
}

#[test]
fn sessions_are_kept_and_let_go() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let mut request = greedy("Once upon a time there was a fox", 70);
    request.session = Some(SessionId::new("one").expect("an id"));
    client.run(request);
    let forked = told(&daemon, "/sessions/one/fork", json!({"to": "two", "tokens": 64}));
    assert_eq!((&forked["info"]["id"], &forked["info"]["tokens"]), (&json!("two"), &json!(64)));
    assert_eq!(tell(&daemon, "/sessions/one/fork", json!({"to": "two"})).status, 400, "it exists");
    assert_eq!(told(&daemon, "/sessions/two/pin", Value::Null), json!({}));
    assert_eq!(told(&daemon, "/sessions/two/ttl", json!({"ttl_ms": 60_000})), json!({}));
    let two = over_socket(&mut client, Op::Show(ShowTarget::Session(session("two"))));
    assert_eq!((&two["info"]["pinned"], &two["info"]["ttl_ms"]), (&json!(true), &json!(60_000)));
    told(&daemon, "/sessions/two/unpin", Value::Null);
    assert_eq!(asked(&daemon, "/sessions/two")["info"]["pinned"], false);
    assert_eq!(told(&daemon, "/sessions/one/save", Value::Null)["sessions"], 1);
    assert_eq!(told(&daemon, "/evict", json!({"session": "two"}))["sessions"], 1);
    assert_eq!(get(&daemon.http_socket(), "/zllm/v1/sessions/two").expect("an answer").status, 404);
    assert_eq!(get(&daemon.http_socket(), "/zllm/v1/sessions/one?tenant=b").expect("an answer").status, 404);
    assert!(told(&daemon, "/evict", json!({"all": true}))["blocks"].as_u64() > Some(0));
    assert_eq!(over_socket(&mut client, Op::Evict { target: EvictTarget::All, tier: None })["blocks"], 0);
    for body in [
        json!({}),
        json!({"all": true, "idle_ms": 1}),
        json!({"all": true, "tenant": "x"}),
        json!({"tier": "tape"}),
    ] {
        assert_eq!(tell(&daemon, "/evict", body.clone()).status, 400, "{body}");
    }
}

fn new_job(more: Value) -> Value {
    let mut job = json!({
        "model": MODEL, "prompt": {"text": "Once upon a time"},
        "params": {"max_tokens": 9, "ignore_eos": true, "sampling": {"temperature": 0}},
    });
    job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    job
}

#[test]
fn jobs_are_made_steered_and_read_again() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let first = told(&daemon, "/jobs", new_job(json!({"key": "k", "label": "mine", "batch": "b"})));
    assert_eq!(first["known"], false);
    let again = told(&daemon, "/jobs", new_job(json!({"key": "k"})));
    assert_eq!((&again["job"], &again["known"]), (&first["job"], &json!(true)));
    let job = first["job"].as_str().expect("an id");

    // To the end, then from a place on; the socket has the same events.
    let events = get(&daemon.http_socket(), &format!("/zllm/v1/jobs/{job}/events")).expect("an answer");
    assert_eq!(events.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let read: Vec<Value> =
        events.events().iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    let id = client.send(Op::Attach { job: JobId::new(job).expect("an id"), from: 0 });
    let wanted = client.finish(id);
    let events =
        wanted.events.iter().map(|(offset, event)| json!({ "offset": offset, "event": as_sent(event) }));
    assert_eq!(read, events.collect::<Vec<_>>());
    assert!(matches!(wanted.events.last(), Some((_, Event::Finished { .. }))));
    let rest = get(&daemon.http_socket(), &format!("/zllm/v1/jobs/{job}/events?from={}", read.len() - 1));
    assert_eq!(rest.expect("an answer").events().len(), 1);
    assert_eq!(asked(&daemon, &format!("/jobs/{job}"))["choices"][0]["text"], wanted.text);
    assert_eq!(asked(&daemon, "/batches/b/jobs")["jobs"][0]["label"], "mine");

    // Held, another class, released, cancelled.
    told(&daemon, "/drain", Value::Null);
    let held = told(&daemon, "/jobs", new_job(json!({"prompt": {"tokens": [1, 2, 3]}})))["job"].clone();
    let held = held.as_str().expect("an id");
    told(&daemon, &format!("/jobs/{held}/hold"), Value::Null);
    told(&daemon, &format!("/jobs/{held}/class"), json!({"class": "batch"}));
    told(&daemon, "/resume", Value::Null);
    let info = asked(&daemon, &format!("/jobs/{held}"))["info"].clone();
    assert_eq!(
        (&info["held"], &info["class"], &info["state"]),
        (&json!(true), &json!("batch"), &json!("queued"))
    );
    assert_eq!(asked(&daemon, "/queue")["waiting"][0]["why"], "held");
    told(&daemon, &format!("/jobs/{held}/release"), Value::Null);
    wait_for("its end", || {
        (asked(&daemon, &format!("/jobs/{held}"))["info"]["state"] == "done").then_some(())
    });
    assert_eq!(told(&daemon, &format!("/jobs/{held}/cancel"), Value::Null)["jobs"], 0, "it had ended");

    let long = json!({"prompt": {"chat": {"messages": [{"role": "user", "content": "Tell a story."}]}},
        "params": {"max_tokens": 1500, "ignore_eos": true}, "session": "s"});
    let long = told(&daemon, "/jobs", new_job(long))["job"].as_str().expect("an id").to_owned();
    let events = format!("/zllm/v1/jobs/{long}/events");
    let mut open = send(&daemon.http_socket(), "GET", &events, b"").expect("a connection");
    assert_eq!(told(&daemon, "/sessions/s/cancel", Value::Null)["jobs"], 1);
    let mut told = String::new();
    open.read_to_string(&mut told).expect("the end");
    assert!(told.contains(r#""reason":"cancelled""#), "{told}");
}

#[test]
fn models_come_and_go_and_mistakes_are_named() {
    let daemon = Builder::new().start();
    let loaded = told(&daemon, &format!("/models/{MODEL}/load"), Value::Null);
    assert_eq!((&loaded["state"], &loaded["context_tokens"]), (&json!("loaded"), &json!(8192)));
    told(&daemon, &format!("/models/{MODEL}/unload"), Value::Null);
    let state = || {
        let models = asked(&daemon, "/models")["models"].as_array().expect("models").clone();
        models.into_iter().find(|model| model["name"] == MODEL).expect("the model")["state"].clone()
    };
    assert_eq!(state(), "available");
    assert_eq!(tell(&daemon, "/models/none/load", Value::Null).status, 404);
    for (body, field) in [
        (new_job(json!({"prompt": {"verse": "x"}})), "prompt"),
        (new_job(json!({"params": {"max_tokens": "x"}})), "params.max_tokens"),
        (new_job(json!({"params": {"n": 0}})), "params.n"),
        (new_job(json!({"params": {"sampling": {"top_p": 2}}})), "params.sampling.top_p"),
        (new_job(json!({"class": "urgent"})), "class"),
        (new_job(json!({"session": "j-1"})), "session"),
    ] {
        let answer = tell(&daemon, "/jobs", body);
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].as_str()),
            (400, Some(field)),
            "{}",
            answer.body
        );
    }
    assert_eq!(tell(&daemon, "/jobs/j-nothing/hold", Value::Null).status, 404);
    assert_eq!(tell(&daemon, "/jobs/nothing/hold", Value::Null).status, 400);
    assert_eq!(get(&daemon.http_socket(), "/zllm/v1/jobs/j-1/events?from=x").expect("an answer").status, 400);
}
