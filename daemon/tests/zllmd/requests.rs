//! Requests that break servers: what they hold at their edges, streams that are cut in bad places, and readers that leave.

use super::common::http::{HttpAnswer, get, post, read, send, send_tcp};
use super::common::{Builder, Daemon, MODEL, now, wait_for};
use serde_json::{Value, json};
use std::io::BufReader;
use std::net::TcpListener;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// How soon 99 of 100 looks at the daemon are answered while it computes.
const LOOKED_WITHIN: Duration = Duration::from_millis(100);

fn ask(daemon: &Daemon, path: &str, mut body: Value, more: &Value) -> HttpAnswer {
    body["model"] = MODEL.into();
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    post(&daemon.http_socket(), path, body.to_string())
}

fn chat(daemon: &Daemon, more: Value) -> HttpAnswer {
    let messages = json!([{"role": "user", "content": "Say hi."}]);
    ask(daemon, CHAT, json!({"messages": messages, "max_tokens": 4, "temperature": 0}), &more)
}

fn go_on(daemon: &Daemon, prompt: Value, more: Value) -> HttpAnswer {
    ask(daemon, COMPLETIONS, json!({"prompt": prompt, "max_tokens": 40, "temperature": 0}), &more)
}

/// All chunks of a stream but `[DONE]`.
fn chunks(answer: &HttpAnswer) -> Vec<Value> {
    let events = answer.events();
    let (last, events) = events.split_last().expect("events");
    assert_eq!(*last, "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

#[test]
fn contents_may_be_what_the_vendor_takes() {
    let daemon = Daemon::start();
    let missing = json!({});
    for role in ["system", "user", "assistant", "tool"] {
        for (content, good) in [
            (json!({"content": "a"}), true),
            (json!({"content": ""}), true),
            (json!({"content": [{"type": "text", "text": "a"}]}), true),
            (json!({"content": []}), false),
            (json!({"content": null}), false),
            (json!({"content": 7}), false),
            (json!({"content": [{"type": "text"}]}), false),
            (json!({"content": ["a"]}), false),
            (missing.clone(), false),
        ] {
            let mut message = content.clone();
            message["role"] = role.into();
            let answer = chat(&daemon, json!({"messages": [message, {"role": "user", "content": "Hi."}]}));
            let wanted = if good { 200 } else { 400 };
            assert_eq!(answer.status, wanted, "{role} {content}: {}", answer.body);
            if !good {
                assert_eq!(answer.json()["error"]["param"], "messages[0].content", "{}", answer.body);
            }
        }
    }
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
    ]});
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "2"});
    let user = json!({"role": "user", "content": "Hi."});
    assert_eq!(chat(&daemon, json!({"messages": [user, calls, result]})).status, 200);
}

#[test]
fn numbers_are_taken_to_their_bounds_and_no_further() {
    let daemon = Daemon::start();
    for (more, status) in [
        (json!({"temperature": 2}), 200),
        (json!({"temperature": 1e9}), 400),
        (json!({"temperature": "NaN"}), 400),
        (json!({"temperature": 1, "top_p": 0}), 200),
        (json!({"temperature": 1, "seed": i64::MAX}), 200),
        (json!({"temperature": 1, "seed": i64::MIN}), 200),
        (json!({"seed": u64::MAX}), 400),
        (json!({"max_tokens": 1}), 200),
        (json!({"max_tokens": i64::MAX}), 400),
        (json!({"n": 3}), 200),
        (json!({"n": 1000}), 400),
        (json!({"logprobs": true}), 200),
        (json!({"logprobs": true, "top_logprobs": 0}), 200),
        (json!({"logprobs": true, "top_logprobs": 20}), 200),
        (json!({"logit_bias": {"49151": 1}}), 200),
        (json!({"logit_bias": {"49152": 1}}), 400),
        (json!({"logit_bias": {"-1": 1}}), 400),
        (json!({"stop": vec!["a"; 17]}), 400),
        (json!({"stop": null}), 200),
    ] {
        let answer = chat(&daemon, more.clone());
        assert_eq!(answer.status, status, "{more}: {}", answer.body);
        if status == 200 {
            let n = more["n"].as_u64().unwrap_or(1);
            assert_eq!(answer.json()["choices"].as_array().expect("choices").len() as u64, n);
        }
    }
}

#[test]
fn the_context_bounds_prompts_and_answers() {
    let daemon = Builder::new().with(|settings| settings.more = "context = 96\n".into()).start();
    let prompt = |tokens: usize| json!(vec![28; tokens]);
    let last = go_on(&daemon, prompt(95), json!({"ignore_eos": true}));
    assert_eq!(last.status, 200, "{}", last.body);
    let last = last.json();
    assert_eq!(
        (last["usage"]["completion_tokens"].as_u64(), &last["choices"][0]["finish_reason"]),
        (Some(1), &json!("length"))
    );
    for tokens in [96, 97] {
        let error = go_on(&daemon, prompt(tokens), json!({})).json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(&tokens.to_string()) && message.contains("96"), "{message}");
    }
    // More than the context holds is an upper bound, not a demand.
    let much = go_on(&daemon, prompt(10), json!({"max_tokens": i32::MAX, "ignore_eos": true})).json();
    assert_eq!(much["usage"]["total_tokens"], 96);
}

#[test]
fn stops_are_cut_off_wherever_they_lie_and_streams_say_the_same() {
    let daemon = Daemon::start();
    let prompt = "One, two, three, four,";
    let whole = go_on(&daemon, prompt.into(), json!({})).json()["choices"][0]["text"].clone();
    let whole = whole.as_str().expect("text");
    let places: Vec<usize> = whole.char_indices().map(|(at, _)| at).chain([whole.len()]).collect();
    let mut stops: Vec<Vec<String>> = Vec::new();
    for (number, &at) in places.iter().enumerate().skip(3).step_by(11) {
        for length in [1, 2, 7] {
            let Some(&end) = places.get(number + length) else { continue };
            // It lies where it lies; the second overlaps it, the third is met half at the end.
            stops.push(vec![whole[at..end].into()]);
            stops.push(vec![whole[at..end].into(), whole[places[number - 1]..end].into()]);
        }
    }
    stops.push(vec![format!("{}§", &whole[places[places.len() - 5]..])]);
    for stop in stops {
        // What comes first, and of what ends at the same place the longest.
        let found = stop.iter().filter_map(|stop| whole.find(stop.as_str()).map(|at| (at + stop.len(), at)));
        let wanted = found.min().map_or(whole, |(_, at)| &whole[..at]);
        let more = json!({ "stop": stop });
        let answer = go_on(&daemon, prompt.into(), more).json();
        assert_eq!(answer["choices"][0]["text"], wanted, "{stop:?} in {whole:?}");
        let streamed = chunks(&go_on(&daemon, prompt.into(), json!({"stop": stop, "stream": true})));
        let text: String =
            streamed.iter().map(|chunk| chunk["choices"][0]["text"].as_str().expect("text")).collect();
        assert_eq!(text, wanted, "streamed: {stop:?}");
    }
}

#[test]
fn no_character_is_ever_cut() {
    let daemon = Daemon::start();
    for (prompt, wanted) in [("🙂🚀🙂🚀🙂🚀🙂🚀🙂🚀🙂", "🚀"), ("日本語、日本語、日本語、日本語、", "日本")]
    {
        let streamed = chunks(&go_on(&daemon, prompt.into(), json!({"stream": true, "logprobs": 0})));
        let texts: Vec<&str> =
            streamed.iter().map(|chunk| chunk["choices"][0]["text"].as_str().expect("text")).collect();
        // The limit of tokens may end it within one.
        let text = texts.concat();
        assert!(!text.trim_end_matches('\u{fffd}').contains('\u{fffd}'), "{texts:?}");
        assert!(text.contains(wanted), "{texts:?}");
    }
}

#[test]
fn usage_comes_once_and_only_when_asked_for() {
    let daemon = Daemon::start();
    for (options, wanted) in [
        (None, 0),
        (Some(json!(null)), 0),
        (Some(json!({})), 0),
        (Some(json!({"include_usage": false})), 0),
        (Some(json!({"include_usage": true})), 1),
    ] {
        let mut more = json!({"stream": true});
        if let Some(options) = &options {
            more["stream_options"] = options.clone();
        }
        let chunks = chunks(&chat(&daemon, more));
        let with_usage: Vec<&Value> = chunks.iter().filter(|chunk| chunk["usage"].is_object()).collect();
        assert_eq!(with_usage.len(), wanted, "{options:?}");
        let empty = chunks.iter().filter(|chunk| chunk["choices"].as_array().is_some_and(Vec::is_empty));
        assert_eq!(empty.count(), wanted, "{options:?}");
    }
}

#[test]
fn what_is_cached_is_told_and_changes_no_answer() {
    let mut daemon = Daemon::start();
    let system = "You are a careful assistant who answers in one short sentence. ".repeat(12);
    let more = json!({"max_tokens": 12, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": "Where does rain come from?"},
    ]});
    let turn = |daemon: &Daemon| {
        let answer = chat(daemon, more.clone()).json();
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        (answer["choices"][0]["message"]["content"].clone(), usage["prompt_tokens"].as_u64(), cached)
    };
    let (cold, tokens, cached) = turn(&daemon);
    assert_eq!(cached, 0);
    let (warm, _, cached) = turn(&daemon);
    assert_eq!((&warm, Some(cached + 1)), (&cold, tokens));
    daemon.terminate();
    daemon.start_again();
    let (restarted, _, cached) = turn(&daemon);
    assert_eq!(restarted, cold);
    assert!(cached > 0, "the whole prompt was computed again after a restart");
}

#[test]
fn whoever_leaves_frees_a_place_at_once_wherever_the_request_is() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|tcp| tcp.local_addr()).expect("a free port").port();
    let daemon =
        Builder::new().arg("--http").arg(format!("127.0.0.1:{port}")).arg("--running-jobs").arg("1").start();
    let socket = daemon.http_socket();
    let gauge = |state: &str| daemon.metric(&format!("zllm_jobs{{state=\"{state}\"}}"));
    let body = |prompt: String, stream: bool| {
        json!({"model": MODEL, "prompt": prompt, "max_tokens": 1500, "ignore_eos": true, "stream": stream})
            .to_string()
    };
    let decoding = || body("Once".into(), true);
    let nothing_runs = || wait_for("nothing to run", || (gauge("running") == 0.0).then_some(()));
    for stream in [false, true] {
        // In decode, over TCP.
        let open = send_tcp(port, "POST", COMPLETIONS, body("Once".into(), stream).as_bytes())
            .expect("a connection");
        wait_for("it to run", || (gauge("running") == 1.0).then_some(()));
        drop(open);
        nothing_runs();
        // In prefill.
        let long = body("word ".repeat(1500), stream);
        let open = send(&socket, "POST", COMPLETIONS, long.as_bytes()).expect("a connection");
        wait_for("it to run", || (gauge("running") == 1.0).then_some(()));
        drop(open);
        nothing_runs();
        // In the queue: it never runs, and the one that does is not harmed.
        let first = send(&socket, "POST", COMPLETIONS, decoding().as_bytes()).expect("a connection");
        wait_for("the first to run", || (gauge("running") == 1.0).then_some(()));
        let second = send_tcp(port, "POST", COMPLETIONS, body("Twice".into(), stream).as_bytes());
        let second = second.expect("a connection");
        wait_for("the second to wait", || (gauge("queued") == 1.0).then_some(()));
        drop(second);
        wait_for("the second to be gone", || (gauge("queued") == 0.0).then_some(()));
        assert_eq!(gauge("running"), 1.0, "the first runs on");
        drop(first);
        nothing_runs();
    }
    assert_eq!(get(&socket, "/health").expect("an answer").status, 200);
}

#[test]
fn whoever_only_looks_is_answered_while_a_long_prompt_is_computed() {
    let daemon = Builder::new().with(|settings| settings.kv_budget_bytes = 256 << 20).start();
    let socket = daemon.http_socket();
    let mut client = daemon.connect();
    let prompt: Vec<u32> = (0..5000).map(|place| 100 + place * 7 % 4000).collect();
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 1});
    let mut long = send(&socket, "POST", COMPLETIONS, body.to_string().as_bytes()).expect("a connection");
    wait_for("it to run", || (client.status().running_jobs == 1).then_some(()));
    let mut times: Vec<Duration> = Vec::new();
    let mut took = |began: Instant| times.push(now() - began);
    let began = now();
    loop {
        let look = now();
        let is_over = client.status().running_jobs == 0;
        took(look);
        for path in ["/zllm/v1/status", "/zllm/v1/queue", "/health"] {
            let look = now();
            assert_eq!(get(&socket, path).expect("an answer").status, 200, "{path}");
            took(look);
        }
        if is_over {
            break;
        }
        std::thread::sleep(Duration::from_millis(100).saturating_sub(now() - look));
    }
    let computed = now() - began;
    let answer = read(&mut BufReader::new(&mut long)).expect("an answer").json();
    assert_eq!(answer["usage"]["prompt_tokens"], 5000, "{answer}");
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{} looks in {computed:?}: p50 {:?}, p99 {:?}, max {:?}", times.len(), at(50), at(99), at(100));
    assert!(
        computed > Duration::from_secs(2),
        "the prompt was computed in {computed:?}, too soon to look at it"
    );
    assert!(at(99) < LOOKED_WITHIN, "p99 of the looks is {:?}", at(99));
}
