//! `/v1/embeddings` over HTTP, of a real model.

use super::common::http::{HttpAnswer, post, send};
use super::common::{Daemon, MODEL};
use serde_json::{Value, json};

const TEXTS: [&str; 4] = [
    "The cat sat on the mat.",
    "A kitten was sitting on a rug.",
    "Interest rates rose by half a percent.",
    "fn main() { println!(\"hello\"); }",
];

fn ask(daemon: &Daemon, more: Value) -> HttpAnswer {
    let mut body = json!({"model": MODEL});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    post(&daemon.http_socket(), "/v1/embeddings", body.to_string())
}

fn vectors(daemon: &Daemon, more: Value) -> Vec<Vec<f32>> {
    let answer = ask(daemon, more);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!(MODEL)));
    let data = body["data"].as_array().expect("a list");
    data.iter()
        .enumerate()
        .map(|(index, entry)| {
            assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
            serde_json::from_value(entry["embedding"].clone()).expect("numbers")
        })
        .collect()
}

fn vector(daemon: &Daemon, more: Value) -> Vec<f32> {
    let mut all = vectors(daemon, more);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn length_is_one(vector: &[f32]) {
    let length = dot(vector, vector).sqrt();
    assert!((length - 1.0).abs() < 1e-5, "length {length}");
}

#[test]
fn a_list_gives_the_vectors_of_its_texts_alone_or_beside_an_answer() {
    let daemon = Daemon::start();
    let alone: Vec<_> = TEXTS.iter().map(|text| vector(&daemon, json!({"input": text}))).collect();
    alone.iter().for_each(|vector| length_is_one(vector));
    assert_eq!(alone[0].len(), 576, "the model's width");
    // Twelve: more than are in the queue at one time.
    let repeated = TEXTS.repeat(3);
    let chat = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "Count to a hundred."}], "max_tokens": 60,
        "temperature": 0, "ignore_eos": true,
    });
    let beside = send(&daemon.http_socket(), "POST", "/v1/chat/completions", chat.to_string().as_bytes());
    assert_eq!(vectors(&daemon, json!({"input": repeated})), vec![alone.clone(); 3].concat(), "bit for bit");
    drop(beside);

    for one in 0..TEXTS.len() {
        for other in 0..one {
            assert!(dot(&alone[one], &alone[other]) < 0.9999, "{one} and {other} are not the same");
        }
    }
    let near = dot(&alone[0], &alone[1]);
    assert!(near > dot(&alone[0], &alone[2]) && near > dot(&alone[0], &alone[3]), "cats are near cats");
}

#[test]
fn tokens_base64_and_fewer_dimensions() {
    let daemon = Daemon::start();
    let whole =
        ask(&daemon, json!({"input": "one two three", "user": "somebody", "encoding_format": "float"}));
    let usage = &whole.json()["usage"];
    assert_eq!(usage["prompt_tokens"], usage["total_tokens"]);
    assert!(usage["total_tokens"].as_u64().expect("a number") >= 3);
    let whole = vector(&daemon, json!({"input": ["one two three"]}));

    let answer = ask(&daemon, json!({"input": "one two three", "encoding_format": "base64"})).json();
    let bytes = from_base64(answer["data"][0]["embedding"].as_str().expect("a text"));
    let decoded: Vec<f32> =
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect();
    assert_eq!(decoded, whole);

    let fewer = vector(&daemon, json!({"input": "one two three", "dimensions": 64}));
    assert_eq!(fewer.len(), 64);
    length_is_one(&fewer);
    let share = dot(&whole[..64], &whole[..64]).sqrt();
    assert!(fewer.iter().zip(&whole).all(|(a, b)| (f64::from(*a) * share - f64::from(*b)).abs() < 1e-6));
    assert_eq!(vector(&daemon, json!({"input": "one two three", "dimensions": whole.len()})), whole);

    let lists = vectors(&daemon, json!({"input": [[3, 4, 5], [6]]}));
    assert_eq!(lists[0], vector(&daemon, json!({"input": [3, 4, 5]})));
    assert_eq!(lists[1], vector(&daemon, json!({"input": [[6]]})));
}

#[test]
fn what_cannot_be_embedded_is_refused_by_name() {
    let daemon = Daemon::start();
    let refused = |more: Value, param: &str, words: &str| {
        let answer = ask(&daemon, more);
        let error = &answer.json()["error"];
        let message = error["message"].as_str().expect("a message");
        assert_eq!(answer.status, 400, "{message}");
        assert_eq!(error["param"], param, "{message}");
        assert!(message.contains(words), "{message}");
    };
    refused(json!({"input": ""}), "input", "empty");
    refused(json!({"input": []}), "input", "from 1 to 2048");
    refused(json!({"input": vec!["x"; 2049]}), "input", "2049 texts");
    refused(json!({"input": ["x", ""]}), "input", "input[1]: the prompt is empty");
    refused(json!({"input": [[1], []]}), "input", "input[1]: ");
    refused(json!({"input": [[1, 4_000_000]]}), "input", "token 4000000 at place 1");
    refused(json!({"input": 7}), "input", "a list of texts");
    refused(json!({"input": "x", "dimensions": 0}), "dimensions", "dimensions is 0");
    refused(json!({"input": "x", "dimensions": 577}), "dimensions", "have 576");
    refused(json!({"input": "x", "encoding_format": "hex"}), "encoding_format", "hex");
    let long = ask(&daemon, json!({"input": ["x", "word ".repeat(9000)]})).json();
    assert_eq!(long["error"]["code"], "context_length_exceeded", "{long}");
    assert_eq!(long["error"]["param"], "input");
    assert!(long["error"]["message"].as_str().expect("a message").starts_with("input[1]: "), "{long}");
    let answer = post(&daemon.http_socket(), "/v1/embeddings", r#"{"model": "none", "input": "x"}"#);
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (404, &json!("model")));
}

/// Plain base64 with padding.
fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte).expect("a digit") as u32;
        let digits: Vec<u32> = four.iter().take_while(|byte| **byte != b'=').map(digit).collect();
        let bits = digits.iter().enumerate().fold(0, |bits, (at, digit)| bits | digit << (18 - 6 * at));
        bytes.extend(bits.to_be_bytes()[1..].iter().take(digits.len() - 1));
    }
    bytes
}
