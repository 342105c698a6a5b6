//! Who may ask over HTTP, what is told of them, and what those cost who send or read slowly.

use super::common::http::{HttpAnswer, get, post, read, send};
use super::common::kv::resident_bytes;
use super::common::websocket::WebSocket;
use super::common::{Builder, Client, Daemon, MODEL, now, wait_for};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use zllm_wire::{Answer, Class, KeyName, KeySettings, Op, Tenant};

const MODELS: &str = "/v1/models";
const COMPLETIONS: &str = "/v1/completions";

/// A daemon that serves HTTP on a port of this machine too.
fn on_port(builder: Builder) -> (Daemon, u16) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|tcp| tcp.local_addr()).expect("a free port").port();
    (builder.arg("--http").arg(format!("127.0.0.1:{port}")).start(), port)
}

/// Sends a request with these header lines.
fn begin(port: u16, request: &str, headers: &[String], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(super::common::PATIENCE)).expect("a timeout");
    let host =
        if headers.iter().any(|header| header.starts_with("Host:")) { "" } else { "Host: localhost\r\n" };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it reads");
    stream
}

fn ask(port: u16, request: &str, headers: &[String], body: &str) -> HttpAnswer {
    read(&mut BufReader::new(begin(port, request, headers, body))).expect("an answer")
}

fn get_with(port: u16, path: &str, headers: &[&str]) -> HttpAnswer {
    ask(
        port,
        &format!("GET {path}"),
        &headers.iter().map(|&header| header.to_owned()).collect::<Vec<_>>(),
        "",
    )
}

fn settings(name: &str) -> KeySettings {
    KeySettings {
        name: KeyName::new(name).expect("a name"),
        tenant: Tenant::new(name).expect("a tenant"),
        class: Class::Interactive,
        admin: false,
        max_requests: None,
    }
}

fn add(client: &mut Client, settings: KeySettings) -> String {
    match client.ask(Op::AddKey(settings)) {
        Answer::NewKey { key } => key,
        other => panic!("no key but {other:?}"),
    }
}

fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}")
}

fn completion(prompt: &str, more: Value) -> String {
    let mut body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body.to_string()
}

#[test]
fn keys_are_asked_for_as_soon_as_there_is_one() {
    let (mut daemon, port) = on_port(Builder::new());
    assert_eq!(get_with(port, MODELS, &[]).status, 200, "this machine needs none while there is none");
    assert_eq!(get_with(port, MODELS, &["Host: evil.example"]).status, 403);
    assert_eq!(get_with(port, MODELS, &["Origin: https://evil.example"]).status, 403);

    let mut client = daemon.connect();
    let key = add(&mut client, settings("ada"));
    let admin = add(&mut client, KeySettings { admin: true, ..settings("root") });
    for path in [MODELS, "/", "/metrics", "/openapi.json", "/nothing", "/zllm/v1/queue", "/health/"] {
        let refused = get_with(port, path, &[]);
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"zllm\""));
    }
    assert_eq!(get_with(port, MODELS, &[]).json()["error"]["code"], "invalid_api_key");
    let refused = ask(port, "POST /v1/messages", &[], "{}");
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &"authentication_error".into()));
    assert!(get_with(port, "/api/tags", &[]).json()["error"].is_string());
    for open in ["/health", "/ready"] {
        assert_eq!(get_with(port, open, &[]).status, 200, "{open}");
    }
    for wrong in ["zllm-", &key[..key.len() - 1], "", &"x".repeat(5000)] {
        assert_eq!(get_with(port, MODELS, &[&bearer(wrong)]).status, 401);
    }
    for good in [bearer(&key), format!("x-api-key: {key}")] {
        assert_eq!(get_with(port, MODELS, &[&good, "Origin: https://a.example"]).status, 200, "{good}");
    }
    // However the path is written.
    for path in ["/zllm/v1/queue", "/%7Allm/v1/queue", "/z%6clm/v1/none"] {
        assert_eq!(get_with(port, path, &[&bearer(&key)]).status, 403, "{path}");
        assert_ne!(get_with(port, path, &[&bearer(&admin)]).status, 403, "{path}");
    }
    assert_eq!(
        get(&daemon.http_socket(), MODELS).expect("an answer").status,
        200,
        "the Unix socket needs none"
    );

    drop(client);
    daemon.terminate();
    daemon.start_again();
    assert_eq!(get_with(port, MODELS, &[&bearer(&key)]).status, 200, "keys outlive the daemon");
    let name = KeyName::new("ada").expect("a name");
    assert_eq!(daemon.connect().ask(Op::RevokeKey { name }), Answer::Done);
    assert_eq!(get_with(port, MODELS, &[&bearer(&key)]).status, 401);
}

#[test]
fn what_is_kept_for_one_tenant_is_not_there_for_another() {
    let (daemon, port) = on_port(Builder::new());
    let mut client = daemon.connect();
    let [ada, bob] = ["ada", "bob"].map(|name| add(&mut client, settings(name)));
    let post = |key: &str, path: &str, body: Value| {
        ask(port, &format!("POST {path}"), &[bearer(key)], &body.to_string())
    };
    let respond = |key: &str, more: Value| {
        let mut body =
            json!({ "model": MODEL, "input": "Say hi.", "max_output_tokens": 2, "temperature": 0 });
        more.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        post(key, "/v1/responses", body)
    };
    let made = respond(&ada, json!({})).json()["id"].clone();
    let background = respond(&ada, json!({ "background": true })).json()["id"].clone();
    let conversation = post(&ada, "/v1/conversations", json!({})).json()["id"].clone();
    for (path, id) in [("responses", &made), ("responses", &background), ("conversations", &conversation)] {
        let path = format!("/v1/{path}/{}", id.as_str().expect("an id"));
        assert_eq!(get_with(port, &path, &[&bearer(&bob)]).status, 404, "{path}");
        assert_eq!(ask(port, &format!("DELETE {path}"), &[bearer(&bob)], "").status, 404, "{path}");
        assert_eq!(get_with(port, &path, &[&bearer(&ada)]).status, 200, "{path}");
    }
    let id = background.as_str().expect("an id");
    assert_eq!(post(&bob, &format!("/v1/responses/{id}/cancel"), json!({})).status, 404);
    let answer = |key: &str, more: &Value| respond(key, more.clone()).status;
    for (more, refused) in [
        (json!({ "previous_response_id": made }), 400),
        (json!({ "conversation": conversation }), 404),
        (
            json!({ "input": [{ "type": "item_reference", "id": format!("msg_{}_0", &made.as_str().expect("an id")[5..]) }] }),
            400,
        ),
    ] {
        assert_eq!((answer(&bob, &more), answer(&ada, &more)), (refused, 200), "{more}");
    }
}

#[test]
fn a_key_is_a_tenant_and_has_no_more_under_way_than_it_may() {
    let (daemon, port) = on_port(Builder::new());
    let mut client = daemon.connect();
    let [ada, bob] = ["ada", "bob"].map(|name| add(&mut client, settings(name)));
    let prompt: String = (0..200).map(|word| format!("{word} ")).collect();
    let cached = |key: &str| {
        let answer =
            ask(port, "POST /v1/completions", &[bearer(key)], &completion(&prompt, json!({}))).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or_else(|| panic!("{answer}"))
    };
    assert_eq!(cached(&ada), 0);
    assert_eq!(cached(&bob), 0, "another tenant has computed it");
    assert!(cached(&ada) > 300 && cached(&bob) > 300, "each has its own");

    let one = add(&mut client, KeySettings { max_requests: Some(1), ..settings("one") });
    let long = completion("Once", json!({ "stream": true, "max_tokens": 2000, "ignore_eos": true }));
    let mut open = begin(port, "POST /v1/completions", &[bearer(&one)], &long);
    open.read_exact(&mut [0; 200]).expect("it streams");
    let refused = get_with(port, MODELS, &[&bearer(&one)]);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    drop(open);
    wait_for("the place", || (get_with(port, MODELS, &[&bearer(&one)]).status == 200).then_some(()));
}

#[test]
fn what_clients_say_is_not_logged() {
    let (daemon, port) = on_port(Builder::new());
    let key = add(&mut daemon.connect(), settings("ada"));
    const MARK: &str = "quetzalcoatl";
    let headers = [bearer(&key)];
    let body = |prompt: &str| completion(prompt, json!({ "user": MARK, "stop": [MARK] }));
    assert_eq!(ask(port, "POST /v1/completions", &headers, &body(MARK)).status, 200);
    ask(port, "POST /v1/completions", &headers, &format!("{{\"prompt\": \"{MARK}"));
    ask(port, "POST /v1/completions", &headers, &json!({ "model": MARK, "prompt": MARK }).to_string());
    ask(port, "POST /v1/completions", &headers, &completion("x", json!({ "max_tokens": MARK })));
    ask(port, "POST /v1/completions", &[bearer(MARK)], &body(MARK));
    ask(port, &format!("GET /v1/files/{MARK}?{MARK}={MARK}"), &headers, "");
    let part = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; \
         name=\"file\"; filename=\"{MARK}.jsonl\"\r\n\r\n{{\"{MARK}\": 1}}\r\n--b--\r\n"
    );
    let multipart = "Content-Type: multipart/form-data; boundary=b".to_owned();
    ask(port, "POST /v1/files", &[bearer(&key), multipart], &part);
    let chat = json!({ "model": MODEL, "messages": [{ "role": MARK, "content": MARK }] });
    ask(port, "POST /v1/chat/completions", &headers, &chat.to_string());
    let log = daemon.log();
    assert!(log.contains("a key was added"), "this is the log: {log}");
    assert!(!log.contains(MARK) && !log.contains(&key), "{log}");
}

#[test]
fn what_clients_invent_makes_no_metrics() {
    let (daemon, port) = on_port(Builder::new());
    let key = add(&mut daemon.connect(), settings("ada"));
    let series = || {
        let page = get(&daemon.http_socket(), "/metrics").expect("a scrape").body;
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    let before = series();
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
    stream.get_ref().set_read_timeout(Some(super::common::PATIENCE)).expect("a timeout");
    for number in 0_u64..10_000 {
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (path, key) = match number % 3 {
            0 => (format!("/{random:x}"), key.clone()),
            1 => (format!("/v1/models/{random:x}"), key.clone()),
            _ => (MODELS.to_owned(), format!("zllm-{random:x}")),
        };
        let request = format!("HEAD {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).expect("it reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        let wanted: &[u8] = if number % 3 == 2 { b"HTTP/1.1 401" } else { b"HTTP/1.1 404" };
        assert!(head.starts_with(wanted), "{}", String::from_utf8_lossy(&head));
    }
    assert_eq!(series(), before);
}

#[test]
fn a_head_that_comes_byte_by_byte_is_not_waited_for() {
    let (_daemon, port) = on_port(Builder::new());
    let began = now();
    let mut slow = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    slow.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut answer = Vec::new();
    // It is told that it was too slow, and closed.
    for byte in b"GET /health HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
        let _ = slow.write_all(&[*byte]);
        let mut some = [0; 512];
        match slow.read(&mut some) {
            Ok(0) => break,
            Ok(bytes) => answer.extend_from_slice(&some[..bytes]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        assert!(now() - began < Duration::from_secs(30), "it is still open");
    }
    assert!(now() - began > Duration::from_secs(5), "a slow network is no attack");
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

/// How long readers stop: longer than anything of ours waits for a client. That is 60 s for a body and for a WebSocket's silence, and
/// 75 s, with 5 s until it is seen, for a connection's; pings come every 15 s.
const STOPPED: Duration = Duration::from_secs(85);
/// What they may cost meanwhile: what their jobs have said, which is about a megabyte each, and what any allocator keeps.
const STOPPED_BYTES: u64 = 24 << 20;

#[test]
fn readers_that_stop_wait_alone_and_lose_nothing() {
    let daemon = Daemon::start();
    let socket = daemon.http_socket();
    // Always the same, so that it takes no more of the KV's memory each time.
    let neighbour = |_| {
        let began = now();
        let answer = post(
            &socket,
            COMPLETIONS,
            completion("Little birds", json!({ "max_tokens": 8, "ignore_eos": true })),
        );
        assert_eq!(answer.json()["usage"]["completion_tokens"], 8);
        now() - began
    };
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let alone = median((0..15).map(neighbour).collect());

    // Some kilobytes for each token: far more than the sockets hold.
    let more = json!({ "stream": true, "max_tokens": 300, "logprobs": 20, "ignore_eos": true });
    let body = completion("Once upon a time", more);
    let stream = send(&socket, "POST", COMPLETIONS, body.as_bytes()).expect("it listens");
    let mut turns = WebSocket::open(&socket, "/v1/responses");
    let turn = json!({
        "type": "response.create", "model": MODEL, "input": "Tell me a long story about a fox and a hen.", "temperature": 0,
        "max_output_tokens": 300, "top_logprobs": 20, "include": ["message.output_text.logprobs"], "store": false,
    });
    turns.send(&turn.to_string());
    // Their jobs end without them, and give their places to others.
    wait_for("the end of their jobs", || (daemon.connect().status().jobs_done == 17).then_some(()));

    let (before, until) = (resident_bytes(daemon.pid()), now() + STOPPED);
    let (mut beside, mut most) = (Vec::new(), before);
    while now() < until {
        beside.push(neighbour(0));
        most = most.max(resident_bytes(daemon.pid()));
        std::thread::sleep(Duration::from_millis(500));
    }
    let (others, beside) = (beside.len() as u64, median(beside));
    println!("{alone:?} alone, {beside:?} beside; {} KiB more", (most - before) >> 10);
    assert!(most - before < STOPPED_BYTES, "{before} bytes, then {most}");
    assert!(beside < 4 * alone + Duration::from_millis(100), "{alone:?} alone, {beside:?} beside");

    let late = read(&mut BufReader::new(stream)).expect("all of it");
    let events = late.events();
    assert_eq!((events.last(), events.len() > 250), (Some(&"[DONE]"), true), "{} events", events.len());
    let (mut bytes, mut numbers) = (0, 0);
    let completed = loop {
        let text = turns.receive().expect("it is still open");
        let event: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(event["sequence_number"], numbers, "{}", event["type"]);
        (bytes, numbers) = (bytes + text.len(), numbers + 1);
        if event["type"] == "response.completed" || event["type"] == "response.incomplete" {
            break event;
        }
    };
    assert!(completed["response"]["usage"]["output_tokens"].as_u64() > Some(100), "{completed}");
    assert!(bytes > 400 << 10, "{bytes} bytes may have been in the socket");
    turns.close();
    let status = daemon.connect().status();
    assert_eq!((status.jobs_done, status.jobs_cancelled, status.jobs_failed), (17 + others, 0, 0));
}

#[test]
fn a_thousand_readers_may_wait() {
    const READERS: usize = 1000;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to the hard limit");
    let more = "[limits]\nqueued_jobs = 2000\n";
    let daemon =
        Builder::new().with(|settings| settings.more = more.into()).arg("--running-jobs").arg("1").start();
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    };
    let mut client = daemon.connect();
    client.ask(Op::Drain);
    client.ask(Op::Resume);
    let busy = completion("Once", json!({ "stream": true, "max_tokens": 7000, "ignore_eos": true }));
    let _busy = send(&daemon.http_socket(), "POST", COMPLETIONS, busy.as_bytes()).expect("it listens");
    wait_for("the start", || (client.status().running_jobs == 1).then_some(()));
    let before = resident();
    let body = completion("Twice", json!({ "stream": true }));
    let mut readers = Vec::new();
    while readers.len() < READERS {
        for _ in 0..40 {
            readers
                .push(send(&daemon.http_socket(), "POST", COMPLETIONS, body.as_bytes()).expect("it listens"));
        }
        wait_for("their places", || (client.status().queued_jobs as usize == readers.len()).then_some(()));
    }
    let each = resident().saturating_sub(before) / readers.len();
    assert!(each < 64 << 10, "{each} bytes for each");
    let began = now();
    assert_eq!(get(&daemon.http_socket(), "/health").expect("an answer").status, 200);
    assert!(now() - began < Duration::from_secs(1));
    drop(readers);
    wait_for("their leaving", || (client.status().queued_jobs == 0).then_some(()));
}

#[test]
fn pages_of_other_sites_may_ask_when_they_are_named() {
    let named = "http.allow_origins = [\"https://app.example\"]\n";
    let (daemon, port) = on_port(Builder::new().with(|settings| settings.http = named.into()));
    add(&mut daemon.connect(), settings("ada"));
    let app = "Origin: https://app.example";
    let preflight = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"];
    let of = |origin: &str| {
        let headers: Vec<String> =
            [origin].iter().chain(&preflight).map(|&header| header.to_owned()).collect();
        ask(port, "OPTIONS /v1/chat/completions", &headers, "")
    };
    let allowed = of(app);
    assert_eq!(allowed.status, 200, "without a key: {}", allowed.body);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(allowed.header("access-control-allow-headers").is_some_and(|all| all.contains("authorization")));
    assert_eq!(of("Origin: https://evil.example").header("access-control-allow-origin"), None);
    // So that it can read why.
    let refused = get_with(port, MODELS, &[app]);
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (401, Some("https://app.example"))
    );
}

#[test]
fn tls_is_spoken_where_there_is_a_certificate() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("scratch file");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("scratch file");
    let lines = format!("http.tls.cert = {cert:?}\nhttp.tls.key = {key:?}\n");
    let builder = Builder::new().with(|settings| settings.http = lines);
    let (daemon, port) = on_port(builder);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = "localhost".try_into().expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let tcp = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let mut stream = rustls::StreamOwned::new(client, tcp);
    let request = format!("GET {MODELS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer to its end");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(MODEL), "{answer}");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]), "HTTP/2 is off");

    let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    plain.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "nothing is said in the clear");
    assert_eq!(
        get(&daemon.http_socket(), MODELS).expect("an answer").status,
        200,
        "the Unix socket is as it was"
    );
}
