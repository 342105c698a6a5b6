//! What HTTP's clients are told while the daemon loads, is full, is drained and is about to stop, each in its API's words.

use super::http::{HttpAnswer, ask, with_http};
use super::*;
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;

/// A request for two tokens, or for a vector, over each API.
fn requests() -> [(&'static str, Value); 8] {
    let messages = || json!([{"role": "user", "content": "Say hi."}]);
    let few = || json!({"num_predict": 2});
    [
        ("/v1/completions", json!({"model": "m", "prompt": "Say hi.", "max_tokens": 2})),
        ("/v1/chat/completions", json!({"model": "m", "messages": messages(), "max_tokens": 2})),
        ("/v1/responses", json!({"model": "m", "input": "Say hi.", "max_output_tokens": 16, "store": false})),
        ("/v1/embeddings", json!({"model": "m", "input": "Say hi."})),
        ("/v1/messages", json!({"model": "m", "messages": messages(), "max_tokens": 2})),
        ("/api/chat", json!({"model": "m", "messages": messages(), "stream": false, "options": few()})),
        ("/api/generate", json!({"model": "m", "prompt": "Say hi.", "stream": false, "options": few()})),
        ("/api/embed", json!({"model": "m", "input": "Say hi."})),
    ]
}

async fn get(http: &Path, path: &str) -> HttpAnswer {
    ask(http, "GET", path, Value::Null).await
}

/// Each API says this status, in its own error object: OpenAI's type and code, Anthropic's type.
async fn all_say(http: &Path, status: u16, openai: [&str; 2], anthropic: &str) {
    for (path, body) in requests() {
        let answer = ask(http, "POST", path, body).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        let object = answer.json();
        let error = &object["error"];
        let message = match path.split('/').nth(1) {
            Some("api") => error,
            _ if path == "/v1/messages" => {
                assert_eq!((&object["type"], &error["type"]), (&json!("error"), &json!(anthropic)), "{path}");
                &error["message"]
            }
            _ => {
                assert_eq!(
                    (&error["type"], &error["code"]),
                    (&json!(openai[0]), &json!(openai[1])),
                    "{path}"
                );
                &error["message"]
            }
        };
        assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{path}: {object}");
        // When there will be room is known; when a daemon comes back is not.
        let seconds = answer.header("retry-after").map(|seconds| seconds.parse::<u64>().expect("seconds"));
        assert_eq!(seconds.is_some_and(|seconds| seconds > 0), status == 429, "{path}: {seconds:?}");
    }
}

async fn all_are_answered(http: &Path) {
    for (path, body) in requests() {
        let answer = ask(http, "POST", path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}

/// What `/ready` says.
async fn ready(http: &Path) -> u16 {
    let (health, ready) = (get(http, "/health").await, get(http, "/ready").await);
    assert_eq!(health.status, 200, "the process answers, whatever it can serve");
    if ready.status != 200 {
        assert_eq!((ready.status, &ready.json()["error"]["code"]), (503, &json!("unavailable")));
    }
    ready.status
}

fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "m", "prompt": prompt, "max_tokens": max_tokens})
}

/// Waits until so many jobs run and wait.
async fn until_jobs(http: &Path, running: u32, queued: u32) {
    for _ in 0..2000 {
        let status = get(http, "/zllm/v1/status").await.json();
        if status["running_jobs"] == running && status["queued_jobs"] == queued {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never came to {running} that run and {queued} that wait");
}

#[test]
fn what_comes_while_a_model_loads_waits_and_is_answered() {
    let loading = |config: &mut Config| {
        config.models.get_mut("m").expect("configured").load = LoadWhen::Start;
        vec![FakeDevice::loading_for(Duration::from_millis(1500))]
    };
    with_http(loading, |_, http| async move {
        let mut early = tokio::task::JoinSet::new();
        for (path, body) in requests() {
            let http = http.clone();
            early.spawn_local(async move { (path, ask(&http, "POST", path, body).await) });
        }
        assert_eq!(ready(&http).await, 503);
        let model = get(&http, "/zllm/v1/status").await.json()["models"].clone();
        let model = model.as_array().and_then(|models| models.iter().find(|model| model["name"] == "m"));
        assert_eq!(model.expect("configured")["state"], "loading");
        assert_eq!(ready(&http).await, 503, "it still loads");
        while let Some(answered) = early.join_next().await {
            let (path, answer) = answered.expect("an answer");
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
        assert_eq!(ready(&http).await, 200);
        all_are_answered(&http).await;
    });
}

#[test]
fn a_full_queue_is_no_outage_and_a_drained_daemon_is_no_crowd() {
    let small = |config: &mut Config| {
        config.core.running_jobs = 1;
        config.core.queue.jobs = 1;
        vec![FakeDevice::slow(Duration::from_millis(5))]
    };
    with_http(small, |socket, http| async move {
        all_are_answered(&http).await;
        let mut long = tokio::task::JoinSet::new();
        for (prompt, running, queued) in [("first", 1, 0), ("second", 1, 1)] {
            let at = http.clone();
            let body = completion(prompt, 900);
            long.spawn_local(async move { ask(&at, "POST", "/v1/completions", body).await });
            until_jobs(&http, running, queued).await;
        }
        all_say(&http, 429, ["rate_limit_error", "rate_limit_exceeded"], "rate_limit_error").await;
        assert_eq!(ready(&http).await, 200, "a full queue is no reason to be taken out of service");
        // Those who leave make room.
        long.shutdown().await;
        until_jobs(&http, 0, 0).await;
        all_are_answered(&http).await;

        let mut client = Client::connect(&socket).await;
        assert_eq!(client.ask(Op::Drain).await, [Answer::Done]);
        all_say(&http, 503, ["server_error", "unavailable"], "overloaded_error").await;
        assert_eq!(ready(&http).await, 503);
        assert_eq!(client.ask(Op::Resume).await, [Answer::Done]);
        assert_eq!(ready(&http).await, 200);
        all_are_answered(&http).await;
    });
}

#[test]
fn a_daemon_that_is_about_to_stop_refuses_and_ends_what_it_has() {
    let seen = Rc::new(Cell::new(false));
    let all_seen = seen.clone();
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut config = config(folder.path(), "64");
    let http = folder.path().join("h");
    config.http.socket = Some(http.clone());
    let slow = FakeDevice::slow(Duration::from_millis(10));
    let ended = run_beside(config, slow, |socket| async move {
        let at = http.clone();
        let running = completion("first", 150);
        let running = actix::spawn(async move { ask(&at, "POST", "/v1/completions", running).await });
        until_jobs(&http, 1, 0).await;
        let mut client = Client::connect(&socket).await;
        assert_eq!(client.ask(Op::Stop { drain: true }).await, [Answer::Done]);
        while ready(&http).await == 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        all_say(&http, 503, ["server_error", "unavailable"], "overloaded_error").await;
        let running = running.await.expect("an answer");
        assert_eq!(running.json()["choices"][0]["text"], expected_text("first", 150), "{}", running.body);
        seen.set(true);
        // The daemon's end ends this.
        std::future::pending().await
    });
    assert_eq!(ended.expect("a good end"), Ended::Orderly);
    assert!(all_seen.get(), "the daemon ended before its job did");
}
