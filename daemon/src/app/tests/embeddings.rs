//! Embeddings over HTTP beside answers, on simulated devices whose vectors show every lost or doubled row.

use super::http::with_http;
use super::*;
use crate::device::fake::{FAKE_CONTEXT, expected_embedding};
use serde_json::{Value, json};

async fn post(socket: &Path, body: Value) -> (u16, Value) {
    let answer = http::ask(socket, "POST", "/v1/embeddings", body).await;
    (answer.status, answer.json())
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
fn a_list_goes_through_a_queue_that_is_shorter() {
    let short = |config: &mut Config| {
        config.core.running_jobs = 1;
        config.core.queue.jobs = 1;
        vec![FakeDevice::default()]
    };
    with_http(short, |_, http| async move {
        let texts: Vec<String> = (0..30).map(|i| format!("{} {i}", "x".repeat(i * 3))).collect();
        let expected: Vec<_> = texts.iter().map(|text| expected_embedding(text)).collect();
        let answer = post(&http, json!({"model": "m", "input": texts}));
        let answer = tokio::time::timeout(Duration::from_secs(30), answer).await.expect("an answer");
        assert_eq!(vectors(&answer), expected);
    });
}

#[test]
fn a_list_that_has_begun_waits_for_room() {
    let crowded = |config: &mut Config| {
        config.core.running_jobs = 1;
        config.core.queue.jobs = 1;
        vec![FakeDevice::slow(Duration::from_millis(1))]
    };
    with_http(crowded, |socket, http| async move {
        // Whatever place there is, one of the crowd has it.
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let mut client = Client::connect(&socket).await;
            crowd.spawn_local(async move {
                let mut done = 0;
                for _ in 0..400 {
                    let answers = client.ask(submit("m", "me too", 5)).await;
                    done += u32::from(answers.len() > 1);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                done
            });
        }
        let texts: Vec<String> = (0..12).map(|i| format!("{} {i}", "x".repeat(20 + i))).collect();
        let expected: Vec<_> = texts.iter().map(|text| expected_embedding(text)).collect();
        // It has to find room for its first text by itself.
        let answer = loop {
            let answer = post(&http, json!({"model": "m", "input": texts})).await;
            if answer.0 != 429 {
                break answer;
            }
        };
        assert_eq!(vectors(&answer), expected);
        assert!(crowd.join_all().await.iter().sum::<u32>() > 0);
    });
}

#[test]
fn who_leaves_takes_a_list_along() {
    let slow = |_: &mut Config| vec![FakeDevice::slow(std::time::Duration::from_millis(3))];
    with_http(slow, |socket, http| async move {
        let texts: Vec<String> = (0..400).map(|i| format!("{} {i}", "x".repeat(300))).collect();
        let mut stream = UnixStream::connect(&http).await.expect("it listens");
        let request = http::request("POST", "/v1/embeddings", json!({"model": "m", "input": texts}));
        stream.write_all(&request).await.expect("it reads");
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
