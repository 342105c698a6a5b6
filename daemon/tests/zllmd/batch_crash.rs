//! Batches over crashes, stops, lost files and faults that pass: each ends once, and as it should.

use super::batches::{CHAT, batch, begin, body, ended, line, read, results, upload};
use super::common::http::{self, ask, post, send};
use super::common::{Builder, Daemon, MODEL, wait_for};
use serde_json::{Value, json};
use std::io::BufReader;
use zllm_state::{Object, ObjectName, ObjectRetention, ObjectStore};
use zllm_wire::{Answer, Op};

/// What a killed daemon has left, with no daemon beside.
fn store(daemon: &Daemon) -> ObjectStore {
    let (objects, bytes) = (1 << 20, 1 << 40);
    let retention = ObjectRetention {
        max_age_ms: u64::MAX,
        max_objects: objects,
        max_bytes: bytes,
        tenant_objects: objects,
        tenant_bytes: bytes,
    };
    ObjectStore::open(&daemon.settings.kv_dir.join("objects"), retention, 0).expect("a store")
}

/// Now: what is old would go by itself.
#[expect(clippy::disallowed_methods, reason = "integration tests run beside a real process")]
fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_millis() as u64
}

fn object(name: ObjectName, value: &Value) -> Object {
    let value = value.to_string().into_bytes();
    Object { name, created_ms: unix_ms(), expires_ms: None, value, content: None }
}

fn mark_name(id: &str) -> ObjectName {
    ObjectName::new("running_batch", "*", id)
}

/// The mark of a batch that is not over, or not cleaned up.
fn mark(id: &str, cancelled: bool) -> Object {
    object(mark_name(id), &json!({"tenant": "", "cancelled": cancelled}))
}

/// Some of its results. The first line is of number 0.
fn segment(id: &str, number: usize, lines: &[u64]) -> Object {
    let told = |line: &u64| {
        json!({"custom_id": format!("n{}", line - 1), "response": {"status_code": 200}}).to_string()
    };
    let outcomes = lines.iter().map(|line| json!({"line": line, "good": true, "told": told(line)}));
    object(
        ObjectName::new(&format!("batch_results/{id}"), "", &format!("{number:08}")),
        &json!(outcomes.collect::<Vec<_>>()),
    )
}

fn change(store: &mut ObjectStore, id: &str, change: impl FnOnce(&mut Value)) {
    let object = store.get(&ObjectName::new("batch", "", id)).expect("read").expect("kept");
    let mut record: Value = serde_json::from_slice(&object.value).expect("JSON");
    change(&mut record);
    store.put(&[Object { value: record.to_string().into_bytes(), ..object }], 0).expect("put");
}

/// Waits until nothing is left of a batch but its record and its files.
fn cleaned_up(daemon: &mut Daemon, id: &str) {
    wait_for("the batch's mark to go", || {
        daemon.kill();
        let mut store = store(daemon);
        let is_gone = store.get(&mark_name(id)).expect("read").is_none();
        let left = store
            .list(&format!("batch_results/{id}"), "", None, 9, zllm_state::ObjectOrder::OldestFirst)
            .expect("read");
        drop(store);
        daemon.start_again();
        (is_gone && left.is_some_and(|left| left.is_empty())).then_some(())
    });
}

fn files(daemon: &Daemon) -> usize {
    read(daemon, "/v1/files?purpose=batch_output").json()["data"].as_array().expect("files").len()
}

fn completed(daemon: &Daemon, id: &str) -> u64 {
    batch(daemon, id)["request_counts"]["completed"].as_u64().expect("a number")
}

#[test]
fn a_batch_that_is_over_stays_as_it_ended() {
    let mut daemon = Daemon::start();
    let good: String = (0..3).map(|number| line(number, &body(number, 2))).collect();
    let ids = [begin(&daemon, &good), begin(&daemon, "{\n")];
    let before = ids.each_ref().map(|id| ended(&daemon, id));
    assert_eq!((&before[0]["status"], &before[1]["status"]), (&json!("completed"), &json!("failed")));
    daemon.kill();
    // It died before it had cleaned up, and somebody cancelled at the last moment.
    let mut left = store(&daemon);
    left.put(&[mark(&ids[0], true), segment(&ids[0], 7, &[1, 2, 3]), mark(&ids[1], false)], 0).expect("put");
    drop(left);
    daemon.start_again();
    ids.iter().for_each(|id| cleaned_up(&mut daemon, id));
    assert_eq!(ids.each_ref().map(|id| batch(&daemon, id)), before);
    assert_eq!(files(&daemon), 1);
}

#[test]
fn a_batch_with_all_answers_completes_whenever_that_is() {
    let mut daemon = Daemon::start();
    let lines: String = (0..3).map(|number| line(number, &body(number, 2))).collect();
    let id = begin(&daemon, &lines);
    ended(&daemon, &id);
    daemon.kill();
    // As it was before the files were made, a day ago; results were written by two runs, and a segment had to go.
    let mut left = store(&daemon);
    change(&mut left, &id, |record| {
        record["status"] = json!("finalizing");
        record["expires_at"] = json!(1);
        record["output_file_id"] = Value::Null;
    });
    left.put(&[mark(&id, false), segment(&id, 2, &[3, 1]), segment(&id, 4, &[2])], 0).expect("put");
    drop(left);
    daemon.start_again();
    let batch = ended(&daemon, &id);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 3, "completed": 3, "failed": 0}));
    let answers = results(&daemon, &batch["output_file_id"]);
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["n0", "n1", "n2"]);
}

#[test]
fn lost_results_are_asked_for_again() {
    let mut daemon = Daemon::start();
    let lines: String = (0..3).map(|number| line(number, &body(number, 2))).collect();
    let id = begin(&daemon, &lines);
    let before = results(&daemon, &ended(&daemon, &id)["output_file_id"]);
    daemon.kill();
    let mut left = store(&daemon);
    change(&mut left, &id, |record| record["status"] = json!("finalizing"));
    left.put(&[mark(&id, false), segment(&id, 1, &[2])], 0).expect("put");
    drop(left);
    daemon.start_again();
    let batch = ended(&daemon, &id);
    assert_eq!(batch["request_counts"], json!({"total": 3, "completed": 3, "failed": 0}), "{batch}");
    let after = results(&daemon, &batch["output_file_id"]);
    // The jobs are known by their keys: they are the same answers, of the same jobs.
    assert_eq!(after["n0"]["body"]["id"], before["n0"]["body"]["id"]);
    assert_eq!(after.len(), 3);
}

#[test]
fn what_ends_early_ends_its_jobs_even_after_a_crash() {
    let mut daemon = Daemon::start();
    let lines: String = (0..30).map(|number| line(number, &body(number, 1500))).collect();
    let ids = [begin(&daemon, &lines), begin(&daemon, &lines)];
    wait_for("both to run", || {
        (daemon.metric("zllm_jobs{state=\"running\"}") + daemon.metric("zllm_jobs{state=\"queued\"}") >= 32.0)
            .then_some(())
    });
    daemon.kill();
    let mut left = store(&daemon);
    change(&mut left, &ids[0], |record| record["expires_at"] = json!(1));
    left.put(&[mark(&ids[1], true)], 0).expect("put");
    drop(left);
    daemon.start_again();
    assert_eq!(ended(&daemon, &ids[0])["status"], "expired");
    assert_eq!(ended(&daemon, &ids[1])["status"], "cancelled");
    wait_for("nothing to run", || (daemon.metric("zllm_jobs{state=\"running\"}") == 0.0).then_some(()));
    assert_eq!(daemon.metric("zllm_jobs{state=\"queued\"}"), 0.0);
}

#[test]
fn a_batch_whose_file_goes_ends_with_what_it_has() {
    let mut daemon = Daemon::start();
    let lines: String = (0..40).map(|number| line(number, &body(number, 24))).collect();
    let id = begin(&daemon, &lines);
    wait_for("a part of the batch", || (completed(&daemon, &id) >= 4).then_some(()));
    let input = batch(&daemon, &id)["input_file_id"].as_str().expect("an id").to_owned();
    let deleted =
        ask(&daemon.http_socket(), "DELETE", &format!("/v1/files/{input}"), b"").expect("an answer");
    assert_eq!(deleted.status, 200);
    daemon.kill();
    daemon.start_again();
    let batch = ended(&daemon, &id);
    assert_eq!(batch["status"], "failed", "{batch}");
    let error = &batch["errors"]["data"][0];
    assert_eq!((&error["code"], &error["line"]), (&json!("invalid_file"), &Value::Null));
    assert!(error["message"].as_str().is_some_and(|message| message.contains(&input)), "{error}");
    let (answers, counts) = (results(&daemon, &batch["output_file_id"]), &batch["request_counts"]);
    assert!((4..40).contains(&answers.len()), "{counts}");
    assert_eq!(counts["completed"], answers.len());
}

#[test]
fn embeddings_go_on_after_a_stop_at_once() {
    let mut daemon = Daemon::start();
    let text = |words: usize| format!("{words} words are here. {}", "one two three ".repeat(words / 3));
    let under_way = |least: f64| {
        wait_for("enough to be under way", || {
            let jobs = |state: &str| daemon.metric(&format!("zllm_jobs{{state=\"{state}\"}}"));
            (jobs("running") + jobs("queued") >= least).then_some(())
        });
    };
    // Somebody waits at the same time, for longer: told to come back, as a line of the batch is, and not that it was cancelled.
    let texts: Vec<String> = (0..8).map(|number| text(1500 + number)).collect();
    let list = json!({"model": MODEL, "input": texts}).to_string();
    let waiting =
        send(&daemon.http_socket(), "POST", "/v1/embeddings", list.as_bytes()).expect("a connection");
    under_way(8.0);
    let request = |number: usize| json!({"model": MODEL, "input": text(300 + number)});
    let lines: String =
        (0..24).map(|number| line(number, &request(number)).replace(CHAT, "/v1/embeddings")).collect();
    let file = upload(&daemon, lines.as_bytes())["id"].clone();
    let asked = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let begun = post(&daemon.http_socket(), "/v1/batches", asked.to_string()).json();
    let id = begun["id"].as_str().expect("an id").to_owned();
    under_way(9.0);
    assert_eq!(daemon.connect().ask(Op::Stop { drain: false }), Answer::Done);
    let told = http::read(&mut BufReader::new(waiting)).expect("an answer");
    assert_eq!(told.status, 503, "{}", told.body);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    daemon.start_again();
    let batch = ended(&daemon, &id);
    assert_eq!(batch["request_counts"], json!({"total": 24, "completed": 24, "failed": 0}), "{batch}");
}

#[test]
fn a_model_that_does_not_load_now_is_waited_for() {
    let builder = Builder::new();
    let late = builder.folder().join("late.gguf");
    let model = format!("[models.late]\npath = {late:?}\nkv_budget = 33554432\n");
    let daemon = builder.with(|settings| settings.more = model).start();
    let late_line = |number: usize| {
        let mut body = body(number, 1);
        body["model"] = json!("late");
        line(number, &body)
    };
    // As many as a tenant may have under way.
    let ids: Vec<String> = (0..16).map(|number| begin(&daemon, &late_line(number))).collect();
    let file = upload(&daemon, b"{}")["id"].clone();
    let one_more = json!({"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}).to_string();
    let refused = post(&daemon.http_socket(), "/v1/batches", &one_more);
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (429, true), "{}", refused.body);
    // They wait, and keep nobody out.
    let alone = post(&daemon.http_socket(), CHAT, body(1, 1).to_string());
    assert_eq!(alone.status, 200, "{}", alone.body);
    for id in &ids[1..] {
        assert_eq!(post(&daemon.http_socket(), &format!("/v1/batches/{id}/cancel"), "").status, 200);
        assert_eq!(ended(&daemon, id)["status"], "cancelled");
    }
    assert_eq!(batch(&daemon, &ids[0])["status"], "in_progress");
    std::os::unix::fs::symlink(&daemon.settings.model, &late).expect("a link");
    let batch = ended(&daemon, &ids[0]);
    assert_eq!(batch["request_counts"], json!({"total": 1, "completed": 1, "failed": 0}), "{batch}");
    assert_eq!(post(&daemon.http_socket(), "/v1/batches", &one_more).status, 200);
}
