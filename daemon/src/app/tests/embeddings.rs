//! Embeddings over HTTP beside answers, on simulated devices whose vectors show every lost or doubled row.

use super::*;
use crate::device::fake::{FAKE_CONTEXT, expected_embedding};
use serde_json::{Value, json};

/// A daemon with HTTP on a Unix socket, which the test gets beside the other one.
fn with_http<F: Future<Output = ()>>(
    change: impl FnOnce(&mut Config) -> Vec<FakeDevice>,
    test: impl FnOnce(std::path::PathBuf, std::path::PathBuf) -> F,
) {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut config = config(folder.path(), "5");
    let http = folder.path().join("h");
    config.http.socket = Some(http.clone());
    let devices = change(&mut config);
    let ended = run_on(config, devices, |socket| test(socket, http));
    assert_eq!(ended.expect("a good end"), Ended::Orderly);
}

/// Status and body.
async fn post(socket: &Path, body: Value) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).await.expect("it listens");
    stream.write_all(&request(body)).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), serde_json::from_str(body).expect("JSON"))
}

fn request(body: Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn vectors(answer: &(u16, Value)) -> Vec<Vec<f32>> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    let vector = |entry: &Value| serde_json::from_value(entry["embedding"].clone()).expect("numbers");
    answer.1["data"].as_array().expect("a list").iter().map(vector).collect()
}

#[test]
fn lists_beside_answers_on_a_model_in_stages() {
    let three = |config: &mut Config| on_devices(config, &["a", "b", "c"], &["b", "c", "a"], &["c"]);
    with_http(three, |socket, http| async move {
        let mut tasks = tokio::task::JoinSet::new();
        for job in 0..6usize {
            let (socket, http) = (socket.clone(), http.clone());
            tasks.spawn_local(async move {
                // The same beginnings, which answers keep in the cache and embeddings do not use.
                let texts: Vec<String> =
                    (0..20).map(|i| format!("{}{job}", "ab".repeat(3 + 10 * (i % 4)))).collect();
                let expected: Vec<_> = texts.iter().map(|text| expected_embedding(text)).collect();
                if job % 2 == 0 {
                    let mut client = Client::connect(&socket).await;
                    let answers = client.ask(submit("m", &texts[3], 20)).await;
                    assert_eq!(text_of(&answers), expected_text(&texts[3], 20), "job {job}");
                }
                let model = ["m", "n"][job % 2];
                let answer = post(&http, json!({"model": model, "input": texts})).await;
                assert_eq!(vectors(&answer), expected, "job {job}");
                let tokens: usize = texts.iter().map(String::len).sum();
                assert_eq!(answer.1["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("each vector is right");
        }
    });
}

#[test]
fn a_text_may_fill_the_context_and_not_more() {
    with_http(
        |_| vec![FakeDevice::default()],
        |_, http| async move {
            let ask = |length: usize| post(&http, json!({"model": "m", "input": "x".repeat(length)}));
            let full = "x".repeat(FAKE_CONTEXT);
            assert_eq!(vectors(&ask(FAKE_CONTEXT).await), [expected_embedding(&full)]);
            let (status, body) = ask(FAKE_CONTEXT + 1).await;
            assert_eq!((status, &body["error"]["code"]), (400, &json!("context_length_exceeded")), "{body}");
            assert_eq!(body["error"]["param"], "input");
        },
    );
}

#[test]
fn who_leaves_takes_a_list_along() {
    let slow = |_: &mut Config| vec![FakeDevice::slow(std::time::Duration::from_millis(3))];
    with_http(slow, |socket, http| async move {
        let texts: Vec<String> = (0..400).map(|i| format!("{} {i}", "x".repeat(300))).collect();
        let mut stream = UnixStream::connect(&http).await.expect("it listens");
        stream.write_all(&request(json!({"model": "m", "input": texts}))).await.expect("it reads");
        let mut client = Client::connect(&socket).await;
        let mut jobs = async |wanted: fn(u32, u64) -> bool| {
            for _ in 0..2000 {
                let answers = client.ask(Op::Status).await;
                let [Answer::Status(status)] = answers.as_slice() else { panic!("{answers:?}") };
                if wanted(status.running_jobs + status.queued_jobs, status.jobs_cancelled) {
                    return (status.jobs_done, status.jobs_cancelled);
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            panic!("it did not happen")
        };
        jobs(|there, _| there > 0).await;
        drop(stream);
        let (done, cancelled) = jobs(|there, cancelled| there == 0 && cancelled > 0).await;
        assert!(done + cancelled < 400, "the rest never became jobs: {done} done, {cancelled} cancelled");
    });
}
