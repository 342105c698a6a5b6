//! `zllmctl bench` against a daemon that says what a test wants. Against the real one it runs in `cargo xtask ci`.

mod common;

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Stdio;
use zllm_wire::*;

fn queue(running_limit: u32) -> QueueReport {
    let (waiting, running, classes, tenants) = (vec![], vec![], vec![], vec![]);
    QueueReport { draining: false, waiting, running, classes, tenants, running_limit }
}

fn quiet() -> Status {
    Status { draining: false, ..status() }
}

/// What is asked before the first test, on connections of their own; then the connection of the tests.
fn opening(running_limit: u32, tests: impl FnOnce(Peer) + Send + 'static) -> Daemon {
    let once = |op: Op, answer: Answer| -> Box<dyn FnOnce(Peer) + Send> {
        Box::new(move |mut peer| {
            peer.welcome();
            let id = peer.expect(op);
            peer.reply(id, answer);
            assert!(peer.client_leaves());
        })
    };
    Daemon::start([
        once(Op::Queue, Answer::Queue(Box::new(queue(running_limit)))),
        once(Op::Status, Answer::Status(Box::new(quiet()))),
        once(Op::Load { model: "m".into() }, Answer::Model(model("m", true))),
        Box::new(move |mut peer| {
            peer.welcome();
            let id = peer.expect(Op::Inspect(InspectTarget::Model("m".into())));
            peer.reply(id, Answer::Inspection { json: r#"{"tokenizer": {"tokens": 500}}"#.into() });
            tests(peer);
        }),
    ])
}

fn tell_status(peer: &mut Peer) {
    let id = peer.expect(Op::Status);
    peer.reply(id, Answer::Status(Box::new(quiet())));
}

/// Takes a job of the bench and says that it runs; its request's id, its session.
fn take_job(peer: &mut Peer, prompt_tokens: usize, answer_tokens: u32) -> (u64, SessionRef) {
    let Request { id, body: Op::Submit(submit) } = peer.request() else { panic!("no submission") };
    let Prompt::Tokens(TokenIds(tokens)) = &submit.prompt else { panic!("{:?}", submit.prompt) };
    assert_eq!(tokens.len(), prompt_tokens);
    assert!(tokens.iter().all(|token| *token < 500), "{tokens:?}");
    assert_eq!((submit.params.max_tokens, submit.params.ignore_eos), (Some(answer_tokens), true));
    assert!(!submit.detached && submit.stream, "the job ends with its client");
    peer.reply(id, Answer::Accepted { job: job(), known: false });
    let (tenant, session) = (submit.tenant, submit.session);
    assert!(
        tenant.as_ref().is_some_and(|tenant| tenant.as_str().starts_with("zllmctl-bench-")),
        "{tenant:?}"
    );
    (id, SessionRef { tenant, id: session.expect("a session, to evict by") })
}

fn end_job(peer: &mut Peer, id: u64, prompt_tokens: u64, generated_tokens: u64) {
    let usage = Usage {
        prompt_tokens,
        generated_tokens,
        prefill_ms: 10.0,
        first_token_ms: 12.5,
        decode_ms: 30.0,
        ..Usage::default()
    };
    let event = Event::Finished { reason: FinishReason::Length, choices: vec![], usage };
    peer.events(id, 9, [event]);
    peer.reply(id, Answer::Done);
}

/// Takes the orders that leave nothing of a session: what waits for its write to the SSD would not be evicted.
fn drop_session(peer: &mut Peer, session: SessionRef) {
    let id = peer.expect(Op::Save { session: Some(session.clone()) });
    peer.reply(id, Answer::Saved { sessions: 1, blocks: 1, bytes: 1 });
    let id = peer.expect(Op::Evict { target: EvictTarget::Session(session), tier: None });
    peer.reply(id, Answer::Evicted { sessions: 1, blocks: 1, bytes: 1 });
}

const SMALL: [&str; 8] =
    ["bench", "m", "--prefill=16", "--depth=100", "--decode=4", "--sessions=2,3", "--repeat=1", "--json"];

#[test]
fn tests_run_one_after_the_other_and_leave_no_session() {
    let daemon = opening(2, |mut peer| {
        for (prompt, answer) in [(16, 1), (100, 4)] {
            tell_status(&mut peer);
            let (id, session) = take_job(&mut peer, prompt, answer);
            end_job(&mut peer, id, prompt as u64, answer.into());
            drop_session(&mut peer, session);
        }
        tell_status(&mut peer);
        let jobs = [take_job(&mut peer, 8, 4), take_job(&mut peer, 8, 4)];
        for piece in 0..4 {
            for (id, _) in &jobs {
                peer.events(*id, piece, [text("x")]);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for (id, _) in &jobs {
            end_job(&mut peer, *id, 8, 4);
        }
        jobs.into_iter().for_each(|(_, session)| drop_session(&mut peer, session));
        // Three sessions are left out; then what the report says of memory.
        tell_status(&mut peer);
        tell_status(&mut peer);
        assert!(peer.client_leaves());
    });
    let ran = daemon.run(&SMALL);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let tests = report["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["prefill 16", "decode 4 at 100", "2 sessions"]);
    assert_eq!((&tests[0]["tokens_per_s"], &tests[0]["first_token_ms"]), (&1600.0.into(), &12.5.into()));
    assert_eq!(tests[1]["tokens_per_s"], 100.0);
    // Three tokens of both in 15 ms and what the machine took more.
    let together = tests[2]["tokens_per_s"].as_f64().unwrap();
    assert!(together > 0.0 && together < 450.0, "{together}");
    assert_eq!(report["load_s"], serde_json::Value::Null, "it was loaded");
    assert_eq!(report["device_used_bytes"], 300 << 20);
    let left_out =
        serde_json::json!([{"test": "3 sessions", "reason": "the daemon runs at most 2 jobs at once"}]);
    assert_eq!(report["left_out"], left_out);
}

#[test]
fn what_does_not_fit_is_left_out_with_the_reason() {
    let daemon = opening(32, |mut peer| {
        // The model's context has 8192 tokens; of 100 blocks 70 are free.
        (0..4).for_each(|_| tell_status(&mut peer));
        assert!(peer.client_leaves());
    });
    let args = ["bench", "--prefill=9000", "--depth=8000", "--decode=200", "--sessions=20", "--repeat=1"];
    let ran = daemon.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let end = "
prefill 9000 left out: it takes 9001 tokens, the model's context has 8192
decode 200 at 8000 left out: it takes 8200 tokens, the model's context has 8192
20 sessions left out: it takes 80 of the 100 blocks for KV and 70 are free; `zllmctl evict` makes room
";
    assert!(ran.stdout.ends_with(end), "{}", ran.stdout);
    assert!(
        ran.stdout.starts_with("model    m, llama\nweights  93.8 MiB\nloaded   before\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn ctrl_c_ends_the_jobs_and_drops_their_sessions_first() {
    let (running, runs) = std::sync::mpsc::sync_channel(1);
    let daemon = opening(2, move |mut peer| {
        tell_status(&mut peer);
        let (id, session) = take_job(&mut peer, 16, 1);
        running.send(()).unwrap();
        let cancel = peer.expect(Op::Cancel { target: CancelTarget::Session(session.clone()) });
        end_job(&mut peer, id, 16, 0);
        peer.reply(cancel, Answer::Cancelled { jobs: 1 });
        drop_session(&mut peer, session);
        assert!(peer.client_leaves());
    });
    let mut command = daemon.command(&SMALL);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    runs.recv().unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let ran = Ran::new(child.wait_with_output().unwrap());
    daemon.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(130), ""), "{}", ran.stderr);
}

#[test]
fn a_refused_job_leaves_its_test_out_and_a_drain_ends_the_command() {
    let fault = |code, message: &str| Answer::Error(Fault { code, message: message.into() });
    let (full, drained) = (
        fault(ErrorCode::Refused { retry_after_ms: 1000 }, "no room"),
        fault(ErrorCode::Draining, "draining"),
    );
    let daemon = opening(2, move |mut peer| {
        for answer in [full, drained] {
            tell_status(&mut peer);
            let Request { id, body: Op::Submit(submit) } = peer.request() else { panic!("no submission") };
            peer.reply(id, answer);
            let session = SessionRef { tenant: submit.tenant, id: submit.session.unwrap() };
            let id = peer.expect(Op::Save { session: Some(session.clone()) });
            peer.reply(id, fault(ErrorCode::Failed, "no SSD"));
            let id = peer.expect(Op::Evict { target: EvictTarget::Session(session), tier: None });
            peer.reply(id, Answer::Error(Fault { code: ErrorCode::NotFound, message: "no session".into() }));
        }
        assert!(peer.client_leaves());
    });
    let ran = daemon.run(&SMALL);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert_eq!(ran.stderr, "prefill 16: left out: no room\nzllmctl: draining\n");
}

#[test]
fn a_daemon_that_drains_and_a_model_that_is_not_there_are_refused() {
    let start = |status: Status, draining| {
        let report = QueueReport { draining, ..queue(2) };
        let parts =
            [(Op::Queue, Answer::Queue(Box::new(report))), (Op::Status, Answer::Status(Box::new(status)))];
        Daemon::start(parts.map(|(op, answer)| -> Box<dyn FnOnce(Peer) + Send> {
            Box::new(move |mut peer| {
                peer.welcome();
                let id = peer.expect(op);
                peer.reply(id, answer);
            })
        }))
    };
    let ran = start(quiet(), true).run(&["bench"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("drains") && ran.stderr.contains("zllmctl resume"), "{}", ran.stderr);
    let ran = start(quiet(), false).run(&["bench", "n"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "zllmctl: no model \"n\"; there are m\n"));
    let available = |name| ModelInfo { state: ModelState::Available, ..model(name, true) };
    let two = Status { models: vec![available("a"), available("b")], ..quiet() };
    let ran = start(two, false).run(&["bench"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(64), "zllmctl: which model? There are a, b\n"));
}
