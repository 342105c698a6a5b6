//! `run`, `submit`: streaming, Ctrl-C, and who has gone.

mod common;

use common::*;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::Write,
    process::{Child, Stdio},
    thread,
    time::Duration,
};
use zllm_wire::*;

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
}

fn answers_hello(mut peer: Peer, has_template: bool, check: impl FnOnce(Submit)) {
    peer.welcome();
    let (id, submit) = peer.load_then_submission(has_template);
    check(submit);
    peer.reply(id, Answer::Accepted { job: job(), known: false });
    let queued = Event::Queued { position: 1 };
    let cached_by_tier = TokenTiers { device: 10, ram: 0, ssd: 6 };
    let started = Event::Started { cached_tokens: 16, cached_by_tier, prompt_tokens: 23 };
    peer.events(id, 0, [queued, started, text("Hello "), text("wörld"), finished()]);
    peer.reply(id, Answer::Done);
}

#[test]
fn run_streams_an_answer() {
    let daemon = Daemon::once(|peer| {
        answers_hello(peer, true, |submit| {
            let messages = r#"[{"role":"system","content":"be \"short\""},{"role":"user","content":"hi"}]"#;
            let prompt = Prompt::Chat {
                messages_json: messages.into(),
                tools_json: None,
                template: None,
                continue_last: false,
            };
            let params = GenerationParams {
                sampling: SamplingParams {
                    temperature: Some(0.5),
                    dynatemp_range: Some(0.25),
                    dynatemp_exponent: Some(2.0),
                    top_k: Some(40),
                    top_p: Some(0.75),
                    min_p: Some(0.25),
                    typical_p: Some(0.75),
                    xtc_probability: Some(0.5),
                    xtc_threshold: Some(0.125),
                    mirostat: Some(2),
                    mirostat_tau: Some(4.0),
                    mirostat_eta: Some(0.25),
                    repeat_penalty: Some(1.25),
                    frequency_penalty: Some(-0.5),
                    presence_penalty: Some(0.5),
                    repeat_last_n: Some(32),
                    dry_multiplier: Some(0.75),
                    dry_base: Some(1.5),
                    dry_allowed_length: Some(3),
                    dry_penalty_last_n: Some(99),
                    dry_sequence_breakers: Some(vec!["x".into(), "-".into()]),
                    logit_bias: vec![LogitBias { token: 5, bias: -1.5 }, LogitBias { token: 6, bias: 2.0 }],
                    seed: Some(7),
                },
                max_tokens: Some(99),
                min_tokens: Some(9),
                stop: vec!["a".into(), "--b".into()],
                stop_tokens: vec![2, 3],
                ignore_eos: true,
                n: Some(2),
                logprobs: None,
            };
            let session = Some(SessionId::new("s").unwrap());
            let wanted = Submit {
                model: "m".into(),
                prompt,
                params,
                session,
                tenant: None,
                detached: false,
                stream: true,
                label: None,
                class: Class::Interactive,
                deadline_ms: None,
                max_wait_ms: None,
                key: None,
                batch: None,
            };
            assert_eq!(submit, wanted);
        })
    });
    let options = "--temperature 0.5 --top-k 40 --top-p 0.75 --min-p 0.25 --seed 7 --max-tokens 99 --stop a --stop --b \
                   --repeat-penalty 1.25 --frequency-penalty -0.5 --presence-penalty 0.5 --repeat-last-n 32 \
                   --logit-bias 5:-1.5 --logit-bias 6:2 --ignore-eos --dynatemp-range 0.25 --dynatemp-exponent 2 \
                   --typical-p 0.75 --xtc-probability 0.5 --xtc-threshold 0.125 --mirostat 2 --mirostat-tau 4 \
                   --mirostat-eta 0.25 --dry-multiplier 0.75 --dry-base 1.5 --dry-allowed-length 3 \
                   --dry-penalty-last-n 99 --dry-sequence-breaker x --dry-sequence-breaker - --min-tokens 9 \
                   --stop-token 2 --stop-token 3 -n 2";
    let mut args = vec!["run", "m", "hi", "--session", "s", "--system", "be \"short\""];
    args.extend(options.split(' '));
    let ran = daemon.run(&args);
    assert_eq!(ran, Ran { code: Some(0), stdout: "Hello wörld\n".into(), stderr: STATS.into() });
}

#[test]
fn run_prints_events_as_json() {
    let ran = Daemon::once(|peer| answers_hello(peer, true, |_| {})).run(&["run", "m", "hi", "--json"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(ran.code, Some(0));
    assert_eq!(lines[0], r#"{"offset":0,"event":"queued","position":1}"#);
    let started = concat!(
        r#"{"offset":1,"event":"started","cached_tokens":16,"#,
        r#""cached_by_tier":{"device":10,"ram":0,"ssd":6},"prompt_tokens":23}"#
    );
    assert_eq!(lines[1], started);
    assert_eq!(lines[3], r#"{"offset":3,"event":"text","choice":0,"text":"wörld","tokens":1}"#);
    let last: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!((&last["event"], &last["reason"]), (&"finished".into(), &"stop".into()));
    assert_eq!(last["usage"]["generated_tokens"], 46);
    assert_eq!(lines.len(), 5);
}

#[test]
fn other_answers_follow_the_first() {
    let daemon = Daemon::once(|mut peer| {
        peer.welcome();
        let (id, submit) = peer.load_then_submission(true);
        assert_eq!(submit.params.n, Some(3));
        peer.reply(id, Answer::Accepted { job: job(), known: false });
        let part =
            |choice, text: &str| Event::Text { choice, text: text.into(), tokens: 1, logprobs: vec![] };
        peer.events(id, 0, [part(0, "a"), part(2, "x"), part(0, "b"), part(2, "y\n"), finished()]);
        peer.reply(id, Answer::Done);
    });
    let ran = daemon.run(&["run", "m", "hi", "--n", "3"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ab\n--- answer 1\n--- answer 2\nxy\n"));
}

#[test]
fn log_probabilities_need_json() {
    let home = tempfile::tempdir().unwrap();
    let output = zllmctl(home.path(), &["run", "m", "hi", "--logprobs", "2"]).output().unwrap();
    let ran = Ran::new(output);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(64), ""));
    assert!(ran.stderr.contains("--logprobs is shown with --json"), "{}", ran.stderr);

    let daemon = Daemon::once(|peer| {
        answers_hello(peer, true, |submit| assert_eq!(submit.params.logprobs, Some(2)));
    });
    assert_eq!(daemon.run(&["run", "m", "hi", "--logprobs", "2", "--json"]).code, Some(0));
}

#[test]
fn prompts_from_everywhere() {
    let raw = |wanted: &'static str| {
        move |submit: Submit| {
            assert_eq!(submit.prompt, Prompt::Text { text: wanted.into(), parse_special: true });
        }
    };
    let daemon = Daemon::once(move |peer| answers_hello(peer, false, raw("from a file")));
    let file = daemon.dir.path().join("prompt");
    std::fs::write(&file, "from a file").unwrap();
    let ran = daemon.run(&["run", "m", "--raw", "--prompt-file", file.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), STATS));

    for args in [
        &["run", "m", "-", "--raw"][..],
        &["run", "m", "--raw"],
        &["run", "m", "--raw", "--prompt-file", "-"],
    ] {
        let daemon = Daemon::once(move |peer| answers_hello(peer, true, raw("from stdin\n")));
        let mut child = daemon
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"from stdin\n").unwrap();
        let ran = Ran::new(child.wait_with_output().unwrap());
        daemon.end();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), STATS));
    }
}

#[test]
fn going_on_from_a_session() {
    let id = |id| SessionId::new(id).unwrap();
    let goes_on = |kept_under: &'static str, tenant: Option<&'static str>| {
        Daemon::once(move |peer| {
            // No conversation, so a model without a template will do.
            answers_hello(peer, false, |submit| {
                let prompt =
                    Prompt::Continue { session: id("s"), text: "and then".into(), parse_special: true };
                assert_eq!((submit.prompt, submit.session), (prompt, Some(id(kept_under))));
                assert_eq!(submit.tenant, tenant.map(|name| Tenant::new(name).unwrap()));
            });
        })
    };
    assert_eq!(goes_on("s", None).run(&["run", "m", "and then", "--continue", "s"]).code, Some(0));
    let args = ["run", "m", "and then", "--continue", "s", "--session", "other", "--tenant", "acme"];
    assert_eq!(goes_on("other", Some("acme")).run(&args).code, Some(0));
}

#[test]
fn a_model_without_a_template_is_not_given_another_way_in_silence() {
    let says = "zllmctl: model m has no chat template; give one with --template NAME or FILE, or set `template` in \
                zllmd's configuration, or send the prompt as it is with --raw; built in are: chatml, command-r, ";
    let run = Daemon::once(|mut peer| {
        peer.welcome();
        let id = peer.expect(Op::Load { model: "m".into() });
        peer.reply(id, Answer::Model(model("m", false)));
        assert!(peer.client_leaves());
    })
    .run(&["run", "m", "hi", "--system", "be short"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.starts_with(says), "{}", run.stderr);
    let submit = Daemon::answering(Op::Models, Answer::Models(vec![model("m", false)]));
    let submit = submit.run(&["submit", "m", "hi"]);
    assert_eq!((submit.code, &submit.stderr), (Some(1), &run.stderr));
}

#[test]
fn a_template_goes_by_name_or_as_the_text_of_a_file() {
    let has = |wanted: Template| {
        move |submit: Submit| {
            let Prompt::Chat { template, .. } = submit.prompt else { panic!("no conversation: {submit:?}") };
            assert_eq!(template, Some(wanted));
        }
    };
    let named = has(Template::Named("chatml".into()));
    let daemon = Daemon::once(move |peer| answers_hello(peer, false, named));
    assert_eq!(daemon.run(&["run", "m", "hi", "--template", "chatml"]).code, Some(0));

    let source = has(Template::Source("{{ messages }}".into()));
    let daemon = Daemon::once(move |peer| answers_hello(peer, false, source));
    let file = daemon.dir.path().join("own.jinja");
    let path = file.to_str().unwrap().to_owned();
    std::fs::write(&file, "{{ messages }}").unwrap();
    assert_eq!(daemon.run(&["run", "m", "hi", "--template", &path]).code, Some(0));

    let home = tempfile::tempdir().unwrap();
    let large = home.path().join("large");
    std::fs::write(&large, vec![b'x'; limits::MAX_TEMPLATE_BYTES + 1]).unwrap();
    for (template, message) in [
        ("no.jinja", "cannot read the chat template from no.jinja: "),
        (large.to_str().unwrap(), "is no chat template: longer than 131072 bytes"),
    ] {
        let output = zllmctl(home.path(), &["run", "m", "hi", "--template", template]).output().unwrap();
        let ran = Ran::new(output);
        assert_eq!(ran.code, Some(64));
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn a_reader_that_has_gone_ends_it_quietly() {
    let daemon = Daemon::once(|mut peer| {
        peer.welcome();
        let (id, _) = peer.load_then_submission(true);
        peer.reply(id, Answer::Accepted { job: job(), known: false });
        let mut offset = 0;
        while peer.try_reply(id, Answer::Event { offset, event: text("more\n") }) {
            offset += 1;
            thread::sleep(Duration::from_millis(1));
        }
    });
    let mut child =
        daemon.command(&["run", "m", "hi"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran::new(child.wait_with_output().unwrap());
    daemon.end();
    assert_eq!(ran, Ran { code: Some(0), stdout: String::new(), stderr: String::new() });
}

#[test]
fn ctrl_c_frees_the_slot() {
    let daemon = Daemon::once(|mut peer| {
        peer.welcome();
        let (id, _) = peer.load_then_submission(true);
        peer.reply(id, Answer::Accepted { job: job(), known: false });
        peer.events(id, 0, [text("begun")]);
        assert!(peer.client_leaves());
    });
    let mut child =
        daemon.command(&["run", "m", "hi"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "begun");
    interrupt(&child);
    daemon.end();
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert_eq!(ran, Ran { code: Some(130), stdout: "\n".into(), stderr: String::new() });
}

#[test]
fn a_second_ctrl_c_quits_at_once() {
    let daemon = Daemon::once(|mut peer| {
        peer.welcome();
        let (id, _) = peer.load_then_submission(true);
        peer.reply(id, Answer::Accepted { job: job(), known: false });
        // More than a pipe holds, so that the client is stuck writing it when the signals come.
        peer.events(id, 0, [text("begun"), text(&"x".repeat(1 << 20))]);
        assert!(peer.client_leaves());
    });
    let mut child =
        daemon.command(&["run", "m", "hi"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "begunx");
    interrupt(&child);
    daemon.end();
    assert!(child.try_wait().unwrap().is_none(), "it is stuck in its write");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn submit_prints_the_job() {
    let submits = |stream| {
        move |mut peer: Peer| {
            peer.welcome();
            let id = peer.expect(Op::Models);
            peer.reply(id, Answer::Models(vec![model("other", false), model("m", true)]));
            let Request { id, body: Op::Submit(submit) } = peer.request() else { panic!("no submission") };
            assert!(submit.detached && submit.stream == stream, "{submit:?}");
            assert_eq!(submit.label.as_deref(), Some("mine"));
            peer.reply(id, Answer::Accepted { job: job(), known: false });
            if stream {
                peer.events(id, 0, [text("answer\n"), finished()]);
            }
            // Who does not wait has what it wants and may have gone.
            assert!(peer.try_reply(id, Answer::Done) || !stream);
        }
    };
    let ran = Daemon::once(submits(false)).run(&["submit", "m", "hi", "--label", "mine"]);
    assert_eq!(ran, Ran { code: Some(0), stdout: "j-01\n".into(), stderr: String::new() });
    let ran = Daemon::once(submits(false)).run(&["submit", "m", "hi", "--label", "mine", "--json"]);
    assert_eq!(ran.stdout, "{\"job\":\"j-01\",\"known\":false}\n");
    let ran = Daemon::once(submits(true)).run(&["submit", "m", "hi", "--label", "mine", "--wait"]);
    let stderr = format!("job j-01\n{STATS}");
    assert_eq!(ran, Ran { code: Some(0), stdout: "answer\n".into(), stderr });
}

#[test]
fn a_job_that_went_on_is_told_of() {
    let daemon = Daemon::once(|mut peer| {
        peer.welcome();
        let id = peer.expect(Op::Attach { job: job(), from: 0 });
        peer.events(id, 0, [text("begun")]);
        assert!(peer.client_leaves());
    });
    let mut child =
        daemon.command(&["attach", "j-01"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "begun");
    interrupt(&child);
    daemon.end();
    let ran = Ran::new(child.wait_with_output().unwrap());
    let stderr = "job j-01 goes on; `zllmctl attach j-01 --from 1` reads on here\n";
    assert_eq!(ran, Ran { code: Some(130), stdout: "\n".into(), stderr: stderr.into() });
}
