//! Files that clients put down, and batches of requests in them: answered as if each was asked alone, once, over crashes too.

use super::common::http::{HttpAnswer, ask, get, post, post_form};
use super::common::{Daemon, MODEL, wait_for};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

pub(crate) fn upload(daemon: &Daemon, text: &[u8]) -> Value {
    let form = [("purpose", None, &b"batch"[..]), ("file", Some("requests.jsonl"), text)];
    let answer = post_form(&daemon.http_socket(), "/v1/files", &form);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

pub(crate) fn read(daemon: &Daemon, path: &str) -> HttpAnswer {
    get(&daemon.http_socket(), path).expect("an answer")
}

pub(crate) fn body(number: usize, tokens: usize) -> Value {
    json!({
        "model": MODEL, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
        "messages": [{"role": "user", "content": format!("Tell me about the number {number}.")}],
    })
}

pub(crate) fn line(number: usize, body: &Value) -> String {
    line_to(CHAT, number, body)
}

fn line_to(url: &str, number: usize, body: &Value) -> String {
    json!({"custom_id": format!("n{number}"), "method": "POST", "url": url, "body": body}).to_string() + "\n"
}

pub(crate) fn begin(daemon: &Daemon, lines: &str) -> String {
    begin_at(CHAT, daemon, lines)
}

pub(crate) fn begin_at(endpoint: &str, daemon: &Daemon, lines: &str) -> String {
    let file = upload(daemon, lines.as_bytes())["id"].clone();
    let request = json!({
        "input_file_id": file, "endpoint": endpoint, "completion_window": "24h", "metadata": {"a": "b"},
    });
    let batch = post(&daemon.http_socket(), "/v1/batches", request.to_string());
    assert_eq!(batch.status, 200, "{}", batch.body);
    let batch = batch.json();
    assert_eq!((&batch["status"], &batch["metadata"]["a"]), (&json!("validating"), &json!("b")));
    batch["id"].as_str().expect("an id").to_owned()
}

pub(crate) fn batch(daemon: &Daemon, id: &str) -> Value {
    read(daemon, &format!("/v1/batches/{id}")).json()
}

pub(crate) fn ended(daemon: &Daemon, id: &str) -> Value {
    wait_for("the batch to end", || {
        let batch = batch(daemon, id);
        let over = ["completed", "failed", "expired", "cancelled"];
        over.contains(&batch["status"].as_str().expect("a status")).then_some(batch)
    })
}

/// What a file says, by the clients' names.
pub(crate) fn results(daemon: &Daemon, file: &Value) -> BTreeMap<String, Value> {
    let text = read(daemon, &format!("/v1/files/{}/content", file.as_str().expect("a file"))).body;
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let id = line["custom_id"].as_str().expect("a name").to_owned();
        assert!(all.insert(id, line["response"].clone()).is_none(), "twice: {line}");
    }
    all
}

fn text_of(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]["content"]
}

#[test]
fn files_come_out_as_they_went_in() {
    let daemon = Daemon::start();
    // More than some pieces, and none of them whole.
    let text = "0123456789abcdef\n".repeat(60_001);
    let file = upload(&daemon, text.as_bytes());
    assert_eq!((&file["bytes"], &file["filename"]), (&json!(text.len()), &json!("requests.jsonl")));
    let path = format!("/v1/files/{}", file["id"].as_str().expect("an id"));
    assert_eq!(read(&daemon, &path).json(), file);
    assert!(read(&daemon, &format!("{path}/content")).body == text, "the content is another");
    let second = upload(&daemon, b"");
    let ids = |query: &str| {
        let list = read(&daemon, &format!("/v1/files{query}")).json();
        let ids = list["data"].as_array().expect("files").iter().map(|file| file["id"].clone());
        (ids.collect::<Vec<_>>(), list["has_more"].as_bool().expect("a flag"))
    };
    let (first_id, second_id) = (file["id"].clone(), second["id"].clone());
    assert_eq!(ids(""), (vec![second_id.clone(), first_id.clone()], false));
    assert_eq!(ids("?limit=1&order=asc"), (vec![first_id.clone()], true));
    assert_eq!(ids(&format!("?after={}", second_id.as_str().expect("an id"))), (vec![first_id], false));
    assert_eq!(ids("?purpose=assistants"), (vec![], false));
    for (query, param) in [("?limit=0", "limit"), ("?order=up", "order"), ("?after=none", "after")] {
        let refused = read(&daemon, &format!("/v1/files{query}"));
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(param)));
    }
    assert_eq!(read(&daemon, "/v1/files?limit=many").status, 400);
    let deleted = ask(&daemon.http_socket(), "DELETE", &path, b"").expect("an answer");
    assert_eq!(deleted.json()["deleted"], true);
    assert_eq!(read(&daemon, &path).status, 404);
    let nameless = post_form(&daemon.http_socket(), "/v1/files", &[("file", Some("a"), b"x")]);
    assert_eq!((nameless.status, nameless.json()["error"]["param"].as_str()), (400, Some("purpose")));
    let empty = post_form(&daemon.http_socket(), "/v1/files", &[("purpose", None, b"batch")]);
    assert_eq!((empty.status, empty.json()["error"]["param"].as_str()), (400, Some("file")));
    assert_eq!(post(&daemon.http_socket(), "/v1/files", "no form").status, 400);
}

#[test]
fn a_batch_gives_the_answers_of_single_requests() {
    let daemon = Daemon::start();
    let mut lines: String = (0..20).map(|number| line(number, &body(number, 6))).collect();
    lines += "\n";
    lines += &line(20, &json!({"model": "none", "messages": [{"role": "user", "content": "a"}]}));
    lines += &line(21, &json!({"model": MODEL, "messages": [], "max_tokens": 1}));
    let batch = ended(&daemon, &begin(&daemon, &lines));
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 22, "completed": 20, "failed": 2}));
    let good = results(&daemon, &batch["output_file_id"]);
    assert_eq!(good.len(), 20);
    for number in [0, 7, 19] {
        let alone = post(&daemon.http_socket(), CHAT, body(number, 6).to_string()).json();
        let answer = &good[&format!("n{number}")];
        assert_eq!((&answer["status_code"], text_of(&answer["body"])), (&json!(200), text_of(&alone)));
    }
    let bad = results(&daemon, &batch["error_file_id"]);
    assert_eq!((&bad["n20"]["status_code"], &bad["n21"]["status_code"]), (&json!(404), &json!(400)));
    assert_eq!(bad["n20"]["body"]["error"]["code"], "model_not_found");
    let list = read(&daemon, "/v1/batches?limit=1").json();
    assert_eq!((&list["data"][0]["id"], &list["has_more"]), (&batch["id"], &json!(false)));
}

#[test]
fn files_go_when_they_are_to() {
    let daemon = Daemon::start();
    let socket = daemon.http_socket();
    let lines = line(1, &body(1, 1));
    let keep = |seconds: &str, more: &[(&str, Option<&str>, &[u8])]| {
        let form = [
            ("purpose", None, &b"batch"[..]),
            ("file", Some("requests.jsonl"), lines.as_bytes()),
            ("expires_after[seconds]", None, seconds.as_bytes()),
        ];
        post_form(&socket, "/v1/files", &[&form, more].concat())
    };
    let anchor = [("expires_after[anchor]", None, &b"created_at"[..])];
    let kept_for = |file: &Value| {
        let time = |name: &str| file[name].as_u64().expect("a time");
        time("expires_at") - time("created_at")
    };
    let file = keep("3600", &anchor).json();
    assert_eq!(kept_for(&file), 3600);
    for refused in [keep("3599", &anchor), keep("3600", &[]), keep("soon", &anchor)] {
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("expires_after")));
    }
    let ask = |seconds: u64| {
        let expires = json!({"anchor": "created_at", "seconds": seconds});
        let request = json!({
            "input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h",
            "output_expires_after": expires,
        });
        post(&socket, "/v1/batches", request.to_string())
    };
    let refused = ask(1);
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].as_str()),
        (400, Some("output_expires_after"))
    );
    let batch = ended(&daemon, ask(7200).json()["id"].as_str().expect("an id"));
    let output = batch["output_file_id"].as_str().expect("a file");
    assert_eq!(kept_for(&read(&daemon, &format!("/v1/files/{output}")).json()), 7200);
}

#[test]
fn a_batch_embeds() {
    let daemon = Daemon::start();
    let request = |number: usize| json!({"model": MODEL, "input": format!("text {number}")});
    let lines: String = (0..5).map(|number| line_to("/v1/embeddings", number, &request(number))).collect();
    let batch = ended(&daemon, &begin_at("/v1/embeddings", &daemon, &lines));
    assert_eq!(batch["request_counts"], json!({"total": 5, "completed": 5, "failed": 0}), "{batch}");
    let alone = post(&daemon.http_socket(), "/v1/embeddings", request(3).to_string()).json();
    assert!(results(&daemon, &batch["output_file_id"])["n3"]["body"] == alone, "another embedding");
}

#[test]
fn a_file_that_cannot_be_asked_fails_with_its_lines() {
    let daemon = Daemon::start();
    let lines =
        line(0, &body(0, 1)) + "{\n" + &line(0, &body(0, 1)) + &line(1, &json!({})).replace("POST", "GET");
    let batch = ended(&daemon, &begin(&daemon, &lines));
    assert_eq!(batch["status"], "failed");
    let errors = batch["errors"]["data"].as_array().expect("errors").iter();
    let errors: Vec<(&str, u64)> = errors
        .map(|error| (error["code"].as_str().expect("a code"), error["line"].as_u64().expect("a line")))
        .collect();
    assert_eq!(errors, [("invalid_json_line", 2), ("duplicate_custom_id", 3), ("invalid_method", 4)]);
    assert_eq!(ended(&daemon, &begin(&daemon, "\n"))["errors"]["data"][0]["code"], "invalid_file");
    for (request, param) in [
        (json!({"input_file_id": "none", "endpoint": CHAT, "completion_window": "24h"}), "input_file_id"),
        (
            json!({"input_file_id": "none", "endpoint": "/v1/moderations", "completion_window": "24h"}),
            "endpoint",
        ),
        (json!({"input_file_id": "none", "endpoint": CHAT, "completion_window": "1h"}), "completion_window"),
    ] {
        let refused = post(&daemon.http_socket(), "/v1/batches", request.to_string());
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(param)));
    }
    assert_eq!(read(&daemon, "/v1/batches/none").status, 404);
}

#[test]
fn a_batch_outlives_the_daemon() {
    let mut daemon = Daemon::start();
    let lines: String = (0..40).map(|number| line(number, &body(number, 24))).collect();
    let id = begin(&daemon, &lines);
    let completed =
        |daemon: &Daemon| batch(daemon, &id)["request_counts"]["completed"].as_u64().expect("a number");
    for part in [8, 24] {
        wait_for("a part of the batch", || (completed(&daemon) >= part).then_some(()));
        daemon.kill();
        daemon.start_again();
    }
    let batch = ended(&daemon, &id);
    assert_eq!(batch["request_counts"], json!({"total": 40, "completed": 40, "failed": 0}), "{batch}");
    let answers = results(&daemon, &batch["output_file_id"]);
    assert_eq!(answers.len(), 40);
    for number in [3, 39] {
        let alone = post(&daemon.http_socket(), CHAT, body(number, 24).to_string()).json();
        assert_eq!(text_of(&answers[&format!("n{number}")]["body"]), text_of(&alone));
    }
}

#[test]
fn responses_of_a_batch_are_made_and_kept_once_over_restarts() {
    let mut daemon = Daemon::start();
    let conversation = post(&daemon.http_socket(), "/v1/conversations", "{}").json()["id"].clone();
    let request = |number: usize, more: Value| {
        let input = format!("Tell me about the number {number}.");
        let mut body = json!({"model": MODEL, "input": input, "max_output_tokens": 24, "temperature": 0});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let mut lines = vec![
        request(0, json!({ "conversation": conversation })),
        request(1, json!({"model": "none"})),
        request(2, json!({"stream": true})),
        request(3, json!({"background": true})),
        request(4, json!({"top_p": 2})),
    ];
    lines.extend((5..36).map(|number| request(number, json!({"store": number % 2 == 0}))));
    let numbered = lines.iter().enumerate();
    let text: String = numbered.map(|(number, body)| line_to(RESPONSES, number, body)).collect();
    let id = begin_at(RESPONSES, &daemon, &text);
    let completed =
        |daemon: &Daemon| batch(daemon, &id)["request_counts"]["completed"].as_u64().expect("a number");
    wait_for("a part of the batch", || (completed(&daemon) >= 8).then_some(()));
    daemon.kill();
    daemon.start_again();
    wait_for("more of the batch", || (completed(&daemon) >= 18).then_some(()));
    daemon.terminate();
    daemon.start_again();
    let ended = ended(&daemon, &id);
    assert_eq!(ended["request_counts"], json!({"total": 36, "completed": 32, "failed": 4}), "{ended}");

    let bad = results(&daemon, &ended["error_file_id"]);
    for (name, status, param) in
        [("n1", 404, "model"), ("n2", 400, "stream"), ("n3", 400, "background"), ("n4", 400, "top_p")]
    {
        let found = (&bad[name]["status_code"], &bad[name]["body"]["error"]["param"]);
        assert_eq!(found, (&json!(status), &json!(param)), "{name}");
    }
    let good = results(&daemon, &ended["output_file_id"]);
    assert_eq!(good.len(), 32);
    let mut names = BTreeSet::new();
    for (number, body) in lines.iter().enumerate().filter(|(number, _)| !(1..5).contains(number)) {
        let response = &good[&format!("n{number}")]["body"];
        assert_eq!((&response["object"], &response["background"]), (&json!("response"), &json!(false)));
        let name = response["id"].as_str().expect("an id");
        // The line's own, so that one that is asked again is no other response.
        assert_eq!(name, format!("resp_{}b{}", id.trim_start_matches("batch_"), number + 1));
        assert!(names.insert(name), "{name} twice");
        let kept = read(&daemon, &format!("{RESPONSES}/{name}"));
        if body["store"] == false {
            assert_eq!(kept.status, 404, "{}", kept.body);
        } else {
            assert_eq!(kept.json(), *response);
        }
    }
    let alone = post(&daemon.http_socket(), RESPONSES, lines[7].to_string()).json();
    let text = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    assert_eq!((text(&good["n7"]["body"]), &good["n7"]["body"]["status"]), (text(&alone), &alone["status"]));
    let goes_on = json!({"model": MODEL, "input": "More.", "previous_response_id": good["n6"]["body"]["id"]});
    assert_eq!(post(&daemon.http_socket(), RESPONSES, goes_on.to_string()).status, 200);
    let items = format!("/v1/conversations/{}/items", conversation.as_str().expect("an id"));
    assert_eq!(read(&daemon, &items).json()["data"].as_array().map(Vec::len), Some(2));
    // One job a line, whatever ended in between.
    let jobs = read(&daemon, &format!("/zllm/v1/batches/{id}/jobs")).json()["jobs"].clone();
    let jobs = jobs.as_array().expect("jobs");
    assert!(jobs.len() == 32 && jobs.iter().all(|job| job["state"] == "done"), "{jobs:?}");
}

#[test]
fn a_batch_that_is_cancelled_keeps_what_it_has() {
    let daemon = Daemon::start();
    let short = (0..4).map(|number| line(number, &body(number, 2)));
    let long = (4..40).map(|number| line(number, &body(number, 1500)));
    let id = begin(&daemon, &short.chain(long).collect::<String>());
    wait_for("the short ones", || (batch(&daemon, &id)["request_counts"]["completed"] == 4).then_some(()));
    let path = format!("/v1/batches/{id}/cancel");
    assert_eq!(post(&daemon.http_socket(), &path, "").json()["status"], "cancelling");
    let batch = ended(&daemon, &id);
    assert_eq!(batch["status"], "cancelled");
    assert_eq!(results(&daemon, &batch["output_file_id"]).len(), 4);
    wait_for("nothing to run", || (daemon.metric("zllm_jobs{state=\"running\"}") == 0.0).then_some(()));
    assert_eq!(daemon.metric("zllm_jobs{state=\"queued\"}"), 0.0);
    assert_eq!(post(&daemon.http_socket(), &path, "").status, 409);
}
