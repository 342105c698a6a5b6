//! What an operator relies on: answers while the device works, sockets, signals, systemd, metrics.

use crate::common::{Builder, Client, Daemon, MODEL, NotifySocket, get, greedy, now, sample, wait_for};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;
use zllm_wire::{
    Answer, CancelTarget, ClientFrame, Event, FinishReason, Op, Request, ServerFrame, Submit, VERSION,
};

/// A prompt of about this many tokens.
fn long_prompt(words: usize) -> String {
    (0..words).map(|word| format!("{word} ")).collect()
}

#[test]
fn status_and_list_answer_while_a_long_prefill_runs() {
    let daemon = Builder::new().arg("--prefill-chunk-tokens").arg("512").start();
    let mut busy = daemon.connect();
    // As long as the KV arena allows: it must outlast the questions on a fast machine, and is cancelled after them.
    let (id, job) = busy.submit(greedy(&long_prompt(800), 4));
    let mut client = daemon.connect();
    wait_for("the prefill", || (client.status().running_jobs == 1).then_some(()));
    let mut took = Vec::new();
    for _ in 0..10 {
        for op in [Op::Status, Op::List, Op::Models] {
            let start = now();
            client.ask(op);
            took.push(now() - start);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let Answer::Job(detail) = client.ask(Op::Show(zllm_wire::ShowTarget::Job(job.clone()))) else {
        panic!("no job")
    };
    assert_eq!(detail.info.generated_tokens, 0, "the prefill ended before the last question");
    // One answer in ten may be late because this test itself was not run in time on a machine with other work.
    took.sort();
    assert!(took[took.len() * 9 / 10] < Duration::from_millis(100), "{took:?}");
    client.ask(Op::Cancel { target: CancelTarget::Job(job) });
    busy.finish(id);
}

#[test]
fn the_conversation_begins_with_a_hello_of_our_version() {
    let daemon = Daemon::start();
    let refused = |frame: ClientFrame| {
        let mut client = Client::connect_raw(&daemon.socket());
        client.write(&frame);
        match client.read() {
            Some(ServerFrame::Refused { version: VERSION, message }) => {
                assert!(client.read().is_none(), "the daemon closes");
                message
            }
            other => panic!("no refusal but {other:?}"),
        }
    };
    let message = refused(ClientFrame::Hello { version: 99, client: "future".into() });
    assert!(message.contains("99"), "{message}");
    refused(ClientFrame::Request(Request { id: 1, body: Op::Status }));

    let mut client = Client::connect_raw(&daemon.socket());
    use std::io::Write;
    client.stream.write_all(&[0xff; 64]).expect("write");
    assert!(
        matches!(client.read(), Some(ServerFrame::Refused { .. })),
        "garbage is answered in our protocol"
    );
}

#[test]
fn several_requests_on_one_connection_and_an_id_in_flight_once() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let (first, _) = client.submit(greedy("One", 40));
    let (second, _) = client.submit(greedy("Two", 40));
    client.write(&ClientFrame::Request(Request { id: first, body: Op::Status }));
    let status = client.status();
    assert_eq!(status.connections, 1);
    assert_eq!(client.finish(second).usage.expect("finished").generated_tokens, 40);
    let mut faults = 0;
    loop {
        match client.answer(first) {
            Answer::Error(_) => faults += 1,
            Answer::Done => break,
            _ => {}
        }
    }
    assert_eq!(faults, 1, "the id was in flight");
}

#[test]
fn a_stale_socket_is_replaced_and_a_second_daemon_is_not_let_in() {
    let builder = Builder::new();
    let socket = builder.folder().join("s");
    drop(UnixListener::bind(&socket).expect("bind"));
    let mut daemon = builder.start();
    daemon.connect();

    let mut second = Builder::new().arg("--socket").arg(&socket).spawn();
    assert_eq!(second.wait().code(), Some(1));
    assert!(second.log().contains("another daemon"), "{}", second.log());
    assert!(daemon.is_running());
    daemon.connect();
}

#[test]
fn sigterm_lets_jobs_end_and_leaves_no_socket() {
    let mut daemon = Daemon::start();
    let mut client = daemon.connect();
    let (id, _) = client.submit(greedy("Once upon a time", 60));
    client.first_text(id);
    daemon.signal("TERM");
    let answer = client.finish(id);
    assert_eq!(answer.usage.expect("it ended by itself").generated_tokens, 60);
    assert!(matches!(answer.events.last(), Some((_, Event::Finished { reason: FinishReason::Length, .. }))));
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!daemon.socket().exists());
}

#[test]
fn a_drain_ends_at_its_deadline_with_terminal_events() {
    let mut daemon = Builder::new().arg("--drain-seconds").arg("1").start();
    let mut client = daemon.connect();
    let (id, _) = client.submit(greedy("Once upon a time", 1000));
    client.first_text(id);
    daemon.signal("TERM");
    let mut late = client.send(Op::Submit(Box::new(greedy("x", 1))));
    assert!(
        matches!(client.answer(late), Answer::Error(fault) if fault.code == zllm_wire::ErrorCode::Draining)
    );
    late = client.send(Op::Status);
    assert!(matches!(client.answer(late), Answer::Status(status) if status.draining));
    let answer = client.finish(id);
    assert!(matches!(
        answer.events.last(),
        Some((_, Event::Finished { reason: FinishReason::Cancelled, .. }))
    ));
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn a_second_signal_and_a_stop_end_at_once() {
    let mut daemon = Daemon::start();
    let mut client = daemon.connect();
    let (id, _) = client.submit(greedy("Once upon a time", 1000));
    client.first_text(id);
    daemon.signal("TERM");
    wait_for("the drain", || client.status().draining.then_some(()));
    daemon.signal("INT");
    assert_eq!(daemon.wait().code(), Some(1));
    assert!(!daemon.socket().exists());

    let mut daemon = Daemon::start();
    let mut client = daemon.connect();
    let (job, _) = client.submit(greedy("Once upon a time", 1000));
    client.first_text(job);
    assert_eq!(client.ask(Op::Stop { drain: false }), Answer::Done);
    let answer = client.finish(job);
    assert!(matches!(
        answer.events.last(),
        Some((_, Event::Finished { reason: FinishReason::Cancelled, .. }))
    ));
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn systemd_hears_ready_when_a_request_can_be_served_and_a_watchdog_while_all_move() {
    let builder = Builder::new();
    let notify = NotifySocket::bind(builder.folder());
    let mut daemon = builder.env("NOTIFY_SOCKET", notify.path()).env("WATCHDOG_USEC", "2000000").spawn();
    notify.expect("READY=1");
    let mut client = daemon.connect();
    assert_eq!(client.run(greedy("x", 2)).usage.expect("served").generated_tokens, 2);
    let fed = notify.count("WATCHDOG=1", Duration::from_secs(4));
    assert!(fed >= 2, "fed {fed} times in 4 s, twice the watchdog's time");
    daemon.signal("TERM");
    notify.expect("STOPPING=1");
    daemon.wait();
}

/// The stall is compiled into debug builds alone, as is this test.
#[cfg(debug_assertions)]
#[test]
fn a_stuck_device_thread_starves_the_watchdog_and_nothing_else() {
    let builder = Builder::new();
    let notify = NotifySocket::bind(builder.folder());
    let mut daemon = builder
        .env("NOTIFY_SOCKET", notify.path())
        .env("WATCHDOG_USEC", "2000000")
        .env("ZLLM_DEBUG_STALL_AFTER_STEPS", "2")
        .env("ZLLM_DRAIN_SECONDS", "0")
        .spawn();
    notify.expect("READY=1");
    notify.expect("WATCHDOG=1");
    let mut client = daemon.connect();
    let (id, _) = client.submit(greedy("x", 10));
    client.first_text(id);
    // What was sent before the stall may still be on its way.
    notify.count("WATCHDOG=1", Duration::from_secs(1));
    assert_eq!(notify.count("WATCHDOG=1", Duration::from_secs(3)), 0);
    assert_eq!(client.status().running_jobs, 1, "the actors still answer");
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(1), "it ends without the device");
}

/// As systemd does it: the socket is descriptor 3, `LISTEN_PID` names the daemon.
#[test]
fn a_socket_handed_over_by_systemd_is_served_and_left_alone() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("activated");
    let listener = UnixListener::bind(&path).expect("bind");
    let mut daemon = Builder::new().activated(listener).start();
    let mut client = Client::connect(&path);
    assert_eq!(client.run(greedy("x", 2)).usage.expect("served").generated_tokens, 2);
    assert!(!daemon.socket().exists(), "it binds no socket of its own");
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(path.exists(), "the file is systemd's");
}

#[test]
fn a_client_that_does_not_read_slows_itself_alone() {
    let daemon = Daemon::start();
    let mut deaf = daemon.connect();
    let (first, job) = deaf.submit(greedy("Once upon a time", 50));
    // Answers far beyond what the kernel keeps for a socket; nobody reads them.
    for _ in 0..4 * zllm_wire::limits::MAX_IN_FLIGHT {
        deaf.send(Op::Attach { job: job.clone(), from: 0 });
    }
    let mut other = daemon.connect();
    let answer = other.run(greedy("The capital of France is", 20));
    assert_eq!(answer.usage.expect("finished").generated_tokens, 20);
    assert_eq!(deaf.finish(first).usage.expect("its events were kept").generated_tokens, 50);
}

#[test]
fn metrics_count_what_was_run() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let prompt = long_prompt(60);
    let first = client.run(greedy(&prompt, 10)).usage.expect("finished");
    let second = client.run(greedy(&prompt, 10)).usage.expect("finished");
    let (id, job) = client.submit(greedy("endless", 1000));
    client.first_text(id);
    client.ask(Op::Cancel { target: CancelTarget::Job(job) });
    let third = client.finish(id).usage.expect("finished");

    let page = get(&daemon.http_socket(), "/metrics").expect("a scrape").body;
    let value = |name: &str| sample(&page, name).unwrap_or_else(|| panic!("no {name} in\n{page}"));
    assert_eq!(value("zllm_requests_total{outcome=\"done\"}"), 2.0);
    assert_eq!(value("zllm_requests_total{outcome=\"cancelled\"}"), 1.0);
    assert_eq!(value("zllm_requests_total{outcome=\"failed\"}"), 0.0);
    let all = [first, second, third];
    let cached: u64 = all.iter().map(|usage| usage.cached_tokens).sum();
    let prompts: u64 = all.iter().map(|usage| usage.prompt_tokens).sum();
    let generated: u64 = all.iter().map(|usage| usage.generated_tokens).sum();
    assert!(cached > 0);
    assert_eq!(value("zllm_tokens_total{source=\"cached\"}"), cached as f64);
    assert_eq!(value("zllm_tokens_total{source=\"computed\"}"), (prompts - cached) as f64);
    assert_eq!(value("zllm_tokens_total{source=\"generated\"}"), generated as f64);
    assert_eq!(value("zllm_first_token_seconds_count"), 3.0);
    assert_eq!(value("zllm_inter_token_seconds_count"), (generated - 3) as f64);
    assert_eq!(value("zllm_queue_wait_seconds_count"), 3.0);
    assert_eq!(value("zllm_jobs{state=\"running\"}"), 0.0);
    assert_eq!(value("zllm_models_loaded"), 1.0);
    assert_eq!(value("zllm_connections"), 1.0);
    assert!(value("zllm_kv_blocks{state=\"cached\",tier=\"device\"}") > 0.0);
    assert!(value("zllm_device_memory_bytes{device=\"cpu\",use=\"weights\"}") > 0.0);
    let status = client.status();
    assert_eq!((status.jobs_done, status.jobs_cancelled), (2, 1));
    assert_eq!(get(&daemon.http_socket(), "/health").expect("an answer").status, 200);
    assert_eq!(get(&daemon.http_socket(), "/nothing").expect("an answer").status, 404);
}

/// Prometheus' own judge, where it is installed; `cargo xtask ci` runs it too.
#[test]
fn the_page_is_what_prometheus_reads() {
    let daemon = Daemon::start();
    daemon.connect().run(greedy("x", 3));
    let page = get(&daemon.http_socket(), "/metrics").expect("a scrape").body;
    for line in page.lines().filter(|line| line.starts_with("zllm_")) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let family = name.split('{').next().expect("a name");
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|s| family.strip_suffix(s)).unwrap_or(family);
        assert!(page.contains(&format!("# HELP {family} ")), "{family} has no help");
        assert!(page.contains(&format!("# TYPE {family} ")), "{family} has no type");
    }
}

#[test]
fn a_wrong_configuration_is_told_with_file_line_and_key() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let config = folder.path().join("c.toml");
    std::fs::write(&config, "threads = 2\nsokcet = \"x\"\n").expect("scratch file");
    let check = |args: &[&str]| {
        let mut zllmd = Command::new(env!("CARGO_BIN_EXE_zllmd"));
        zllmd.arg("--config").arg(&config).args(args).output().expect("zllmd runs")
    };
    let output = check(&["--check-config"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("c.toml") && stderr.contains("line 2") && stderr.contains("sokcet"), "{stderr}");
    std::fs::write(&config, format!("[models.{MODEL}]\npath = \"x.gguf\"\n")).expect("scratch file");
    let output = check(&["--check-config"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("x.gguf"));
    assert_eq!(check(&["--no-such-flag"]).status.code(), Some(64));
}

#[test]
fn a_start_up_model_that_does_not_load_ends_the_daemon_with_the_reason() {
    let builder = Builder::new();
    let model = builder.folder().join("bad.gguf");
    std::fs::write(&model, "this is no model").expect("scratch file");
    let config = builder.folder().join("bad.toml");
    let text = format!("http.listen = \"off\"\n[models.bad]\npath = {model:?}\nload = \"start\"\n");
    std::fs::write(&config, text).expect("scratch file");
    let socket = builder.folder().join("s2");
    let output = Command::new(env!("CARGO_BIN_EXE_zllmd"))
        .arg("--config")
        .arg(&config)
        .arg("--socket")
        .arg(&socket)
        .arg("--kv-dir")
        .arg(builder.folder().join("kv2"))
        .output()
        .expect("zllmd runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"bad\""), "{output:?}");
    assert!(!socket.exists());
}

#[test]
fn more_than_a_client_may_have_in_flight_is_refused() {
    let daemon = Builder::new().arg("--running-jobs").arg("1").start();
    let mut client = daemon.connect();
    let jobs: Vec<u64> = (0..zllm_wire::limits::MAX_IN_FLIGHT)
        .map(|_| client.send(Op::Submit(Box::new(Submit { stream: true, ..greedy("x", 1000) }))))
        .collect();
    assert!(matches!(client.answer(jobs[0]), Answer::Accepted { .. }));
    let over = client.send(Op::Status);
    let Answer::Error(fault) = client.answer(over) else { panic!("one too many is let in") };
    assert!(matches!(fault.code, zllm_wire::ErrorCode::Refused { .. }));
}
