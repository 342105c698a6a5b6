//! Ollama's API: answers whole and in lines, options, what is refused, and what is told of models.

use super::common::http::{HttpAnswer, get, post, send};
use super::common::{Daemon, MODEL, wait_for};
use serde_json::{Value, json};
use zllm_wire::{Answer, Op};

/// Asks for something short and greedy, with more, or other, fields.
fn ask(daemon: &Daemon, path: &str, more: Value) -> HttpAnswer {
    let mut body = json!({"model": MODEL, "options": {"temperature": 0, "num_predict": 12}});
    match path {
        "/api/chat" => body["messages"] = json!([{"role": "user", "content": "Say hi."}]),
        _ => body["prompt"] = json!("Say hi."),
    }
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    post(&daemon.http_socket(), path, body.to_string())
}

fn whole(daemon: &Daemon, path: &str, mut more: Value) -> Value {
    more["stream"] = false.into();
    let answer = ask(daemon, path, more);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn lines(answer: &HttpAnswer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"), "{}", answer.body);
    answer.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn answers_are_the_same_whole_and_in_lines() {
    let daemon = Daemon::start();
    for (path, text) in [("/api/chat", "/message/content"), ("/api/generate", "/response")] {
        let text_of = |answer: &Value| answer.pointer(text).and_then(Value::as_str).expect("text").to_owned();
        let whole = whole(&daemon, path, json!({}));
        assert!(!text_of(&whole).is_empty());
        let lines = lines(&ask(&daemon, path, json!({})));
        assert_eq!(lines.iter().map(text_of).collect::<String>(), text_of(&whole));
        let (last, before) = lines.split_last().expect("lines");
        assert!(before.len() > 1 && before.iter().all(|line| line["done"] == false));
        for answer in [&whole, last] {
            assert_eq!((&answer["done"], &answer["model"]), (&json!(true), &json!(MODEL)));
            assert_eq!(answer["done_reason"], whole["done_reason"]);
            assert_eq!(answer["eval_count"], whole["eval_count"]);
            assert_eq!(answer["prompt_eval_count"], whole["prompt_eval_count"]);
            let ns = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}"));
            assert!(ns("prompt_eval_duration") > 0 && ns("eval_duration") > 0, "{answer}");
            assert!(ns("total_duration") >= ns("load_duration") + ns("eval_duration"), "{answer}");
            assert!(answer["created_at"].as_str().expect("a time").ends_with('Z'));
        }
    }
    // A question alone is a conversation of one message; raw is none.
    let chat = whole(&daemon, "/api/chat", json!({}));
    assert_eq!(whole(&daemon, "/api/generate", json!({}))["response"], chat["message"]["content"]);
    let raw = whole(&daemon, "/api/generate", json!({"raw": true, "prompt": "One, two, three,"}));
    assert!(raw["response"].as_str().expect("text").contains("four"), "{raw}");
    assert!(raw["prompt_eval_count"].as_u64() < chat["prompt_eval_count"].as_u64());
    let system = json!([{"role": "system", "content": "Shout."}, {"role": "user", "content": "Say hi."}]);
    let chat = whole(&daemon, "/api/chat", json!({"messages": system}));
    let generated = whole(&daemon, "/api/generate", json!({"system": "Shout."}));
    assert_eq!(generated["response"], chat["message"]["content"]);
}

#[test]
fn options_arrive() {
    let daemon = Daemon::start();
    let ask = |options: Value| {
        whole(&daemon, "/api/generate", json!({"options": options, "prompt": "Tell a story."}))
    };
    let short = ask(json!({"num_predict": 3, "temperature": 0}));
    assert_eq!((&short["eval_count"], &short["done_reason"]), (&json!(3), &json!("length")));
    let text = |seed: i64| {
        ask(json!({"num_predict": 16, "temperature": 1.5, "top_k": 0, "seed": seed}))["response"].clone()
    };
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(-2));
    let first =
        short["response"].as_str().expect("text").split_whitespace().next().expect("a word").to_owned();
    let stopped = ask(json!({"num_predict": 8, "temperature": 0, "stop": [first]}));
    assert_eq!((&stopped["done_reason"], &stopped["response"]), (&json!("stop"), &json!("")), "{stopped}");
    assert_eq!(
        ask(
            json!({"num_ctx": 8192, "repeat_last_n": -1, "repeat_penalty": 1.1, "num_predict": 1, "num_gpu": 9})
        )["done"],
        true
    );
}

#[test]
fn what_cannot_be_honoured_is_refused_by_its_name() {
    let daemon = Daemon::start();
    let image = json!([{"role": "user", "content": "a", "images": ["aGk="]}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let cases = [
        ("/api/chat", json!({"messages": image}), "messages[0].images"),
        ("/api/chat", json!({"messages": [{"role": "wizard"}]}), "wizard"),
        ("/api/chat", json!({"messages": 7}), "messages"),
        ("/api/chat", json!({"tools": tools}), "takes no tools"),
        ("/api/chat", json!({"think": true}), "think is true"),
        ("/api/chat", json!({"think": "high"}), "think is neither"),
        ("/api/chat", json!({"format": "json"}), "format"),
        ("/api/chat", json!({"format": {"type": "object"}}), "format"),
        ("/api/chat", json!({"logprobs": true}), "logprobs"),
        ("/api/generate", json!({"options": {"num_ctx": 1 << 20}}), "8192"),
        ("/api/generate", json!({"options": {"num_predict": -3}}), "options.num_predict"),
        ("/api/generate", json!({"options": {"num_predict": 0}}), "max_tokens is 0"),
        ("/api/generate", json!({"options": {"temperature": "warm"}}), "options.temperature"),
        ("/api/generate", json!({"options": {"mirostat": 1}}), "mirostat"),
        ("/api/generate", json!({"options": {"tfs_z": 0.5}}), "tfs_z"),
        ("/api/generate", json!({"template": "{{ .Prompt }}"}), "template"),
        ("/api/generate", json!({"suffix": "x"}), "suffix"),
        ("/api/generate", json!({"images": ["aGk="]}), "images"),
        ("/api/generate", json!({"context": [1, 2]}), "context"),
        ("/api/generate", json!({"raw": true, "system": "x"}), "system"),
        ("/api/generate", json!({"prompt": "", "keep_alive": 0}), "zllmctl unload"),
    ];
    for (path, more, wanted) in cases {
        let answer = ask(&daemon, path, more.clone());
        let error = answer.json()["error"].as_str().expect("a message").to_owned();
        assert_eq!(answer.status, 400, "{more}: {error}");
        assert!(error.contains(wanted), "{more}: {error}");
    }
    assert_eq!(ask(&daemon, "/api/chat", json!({"model": "none:latest"})).status, 404);
    let pull = post(&daemon.http_socket(), "/api/pull", r#"{"model": "x"}"#);
    assert_eq!(pull.status, 400);
    assert!(pull.json()["error"].as_str().expect("a message").contains("zllmctl pull"), "{}", pull.body);
    let allowed = json!({"think": false, "format": "", "keep_alive": "5m", "template": "", "context": [], "images": []});
    assert_eq!(whole(&daemon, "/api/generate", allowed)["done"], true);
}

#[test]
fn texts_become_the_vectors_that_openais_api_gives() {
    let daemon = Daemon::start();
    let ask = |path: &str, more: Value| {
        let mut body = json!({ "model": MODEL });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        post(&daemon.http_socket(), path, body.to_string())
    };
    let texts = json!({"input": ["One fox", "Two rather different dogs"]});
    let wanted = ask("/v1/embeddings", texts.clone()).json();
    let told = ask("/api/embed", texts).json();
    for place in 0..2 {
        assert_eq!(told["embeddings"][place], wanted["data"][place]["embedding"]);
    }
    assert_eq!(told["prompt_eval_count"], wanted["usage"]["prompt_tokens"]);
    assert_eq!(ask("/api/embed", json!({"input": "One fox"})).json()["embeddings"][0], told["embeddings"][0]);
    assert_eq!(
        ask("/api/embeddings", json!({"prompt": "One fox"})).json()["embedding"],
        told["embeddings"][0]
    );
    let short = ask("/api/embed", json!({"input": "One fox", "dimensions": 8})).json();
    assert_eq!(short["embeddings"][0].as_array().expect("numbers").len(), 8);
    for nothing in [json!({"input": ""}), json!({"input": []})] {
        assert_eq!(ask("/api/embed", nothing).json()["embeddings"], json!([]));
    }
    assert_eq!(ask("/api/embeddings", json!({"prompt": ""})).json()["embedding"], json!([]));
    let long = json!({"input": "a ".repeat(20_000), "truncate": false});
    assert_eq!(ask("/api/embed", long).status, 400);
    let refused = ask("/api/embed", json!({"input": [7]}));
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().expect("a message").contains("input"), "{}", refused.body);
}

#[test]
fn broken_requests_and_clients_that_leave_harm_nobody() {
    let daemon = Daemon::start();
    let socket = daemon.http_socket();
    let deep = [vec![b'['; 20_000], vec![b']'; 20_000]].concat();
    for body in [&b""[..], b"{:", b"\xff\xfe\xfd", br#"{"model": "\ud800"}"#, b"[]", &deep] {
        let answer = post(&socket, "/api/chat", body);
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"].is_string(), "{}", answer.body);
    }
    assert!(get(&socket, "/api/nothing").expect("an answer").json()["error"].is_string());
    let running = || daemon.metric("zllm_jobs{state=\"running\"}");
    for stream in [false, true] {
        let options = json!({"num_predict": 1800});
        let body =
            json!({"model": MODEL, "prompt": "Once", "raw": true, "stream": stream, "options": options});
        let open = send(&socket, "POST", "/api/generate", body.to_string().as_bytes()).expect("a connection");
        wait_for("the job to run", || (running() == 1.0).then_some(()));
        drop(open);
        wait_for("the job to be cancelled", || (running() == 0.0).then_some(()));
    }
}

#[test]
fn models_are_told_of_and_loaded() {
    let daemon = Daemon::start();
    assert_eq!(daemon.connect().ask(Op::Unload { model: MODEL.into() }), Answer::Done);
    let socket = daemon.http_socket();
    let tagged = format!("{MODEL}:latest");
    let of = |path: &str| get(&socket, path).expect("an answer").json();
    let named = |list: &Value| {
        let models = list["models"].as_array().expect("models").clone();
        models.into_iter().find(|model| model["name"] == tagged)
    };
    assert_eq!(named(&of("/api/tags")).expect("the model")["details"]["format"], "gguf");
    assert!(named(&of("/api/ps")).is_none());
    let show = |body: Value| post(&socket, "/api/show", body.to_string());
    let shown = show(json!({"model": tagged})).json();
    assert_eq!(shown["model_info"]["llama.context_length"], 8192);
    assert_eq!(
        (&shown["details"]["family"], &shown["capabilities"]),
        (&json!("llama"), &json!(["completion"]))
    );
    assert!(shown["details"]["parameter_size"].as_str().expect("a size").starts_with("134."), "{shown}");

    let loaded = whole(&daemon, "/api/generate", json!({"model": tagged, "prompt": ""}));
    assert_eq!(
        (&loaded["done_reason"], &loaded["response"], &loaded["done"]),
        (&json!("load"), &json!(""), &json!(true))
    );
    assert_eq!(lines(&ask(&daemon, "/api/chat", json!({"messages": []})))[0]["done_reason"], "load");
    assert_eq!(named(&of("/api/ps")).expect("the model")["context_length"], 8192);
    let shown = show(json!({"name": MODEL})).json();
    assert!(shown["template"].as_str().expect("a template").contains("im_start"), "{shown}");
    let answer = whole(&daemon, "/api/chat", json!({"model": tagged}));
    assert_eq!(answer["model"], tagged, "the name that the client gave");
    assert_eq!(show(json!({"model": "none"})).status, 404);
    assert_eq!(show(json!({})).status, 400);
    assert!(of("/api/version")["version"].is_string());
    assert_eq!(get(&socket, "/").expect("an answer").status, 200);
}
