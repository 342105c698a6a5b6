//! The whole daemon in one process, on the simulated device: what a real device cannot be made to do at will.

mod embeddings;
mod http;
mod states;

use super::*;
use crate::config::{Cli, LoadWhen, ModelSettings};
use crate::device::fake::{BROKEN_MODEL, FakeDevice, expected_choice, expected_text};
use clap::Parser;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use zllm_wire::{
    Answer, Class, ClientFrame, ErrorCode, Event, FrameDecoder, GenerationParams, Op, Prompt, Reply, Request,
    ServerFrame, Submit, VERSION,
};

fn config(folder: &Path, chunk: &str) -> Config {
    let socket = folder.join("s");
    let flags = ["zllmd", "--http", "off", "--prefill-chunk-tokens", chunk, "--drain-seconds", "5"];
    let paths = ["--socket".into(), socket.into_os_string(), "--kv-dir".into(), folder.join("kv").into()];
    let cli = Cli::parse_from(flags.iter().map(Into::into).chain(paths));
    let mut config = Config::read(&Cli { config: Some("/dev/null".into()), ..cli }).expect("valid");
    for name in ["m", BROKEN_MODEL] {
        let path = folder.join(name);
        let defaults = config.model_defaults.clone();
        config
            .models
            .insert(name.into(), ModelSettings { path, load: LoadWhen::Demand, template: None, defaults });
    }
    config
}

/// Runs a daemon and a test beside it; the daemon is drained when the test has ended.
fn with_daemon<F: Future<Output = ()>>(
    chunk: &str,
    device: FakeDevice,
    test: impl FnOnce(std::path::PathBuf) -> F,
) -> anyhow::Result<Ended> {
    let folder = tempfile::tempdir().expect("scratch folder");
    run_beside(config(folder.path(), chunk), device, test)
}

fn run_beside<F: Future<Output = ()>>(
    config: Config,
    device: FakeDevice,
    test: impl FnOnce(std::path::PathBuf) -> F,
) -> anyhow::Result<Ended> {
    run_on(config, vec![device], test)
}

/// The same with several devices.
fn run_on<F: Future<Output = ()>>(
    config: Config,
    devices: Vec<FakeDevice>,
    test: impl FnOnce(std::path::PathBuf) -> F,
) -> anyhow::Result<Ended> {
    let socket = config.socket.clone();
    let bound = Bound::bind(&config).expect("free");
    actix::System::new().block_on(async {
        let devices = devices.into_iter().map(|device| Box::new(device) as _).collect();
        let daemon = run(config, bound, devices, Clock::start());
        let mut daemon = std::pin::pin!(daemon);
        // The daemon goes on until it has heard that it is to stop: it may still be starting when a short test is over.
        let test = async {
            test(socket.clone()).await;
            let mut client = Client::connect(&socket).await;
            assert_eq!(client.ask(Op::Stop { drain: true }).await, [Answer::Done]);
        };
        tokio::select! {
            ended = &mut daemon => return ended,
            () = test => {}
        }
        daemon.await
    })
}

struct Client {
    stream: UnixStream,
    frames: FrameDecoder,
}

impl Client {
    async fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).await.expect("it listens");
        let mut client = Self { stream, frames: FrameDecoder::new() };
        client.write(&ClientFrame::Hello { version: VERSION, client: "test".into() }).await;
        assert!(matches!(client.read().await, Some(ServerFrame::Welcome { .. })));
        client
    }

    async fn write(&mut self, frame: &ClientFrame) {
        self.stream.write_all(&zllm_wire::encode(frame).expect("small")).await.expect("it reads");
    }

    async fn read(&mut self) -> Option<ServerFrame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.frames.pop().expect("good frames") {
                return Some(frame);
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.frames.push(&buffer[..count]),
            }
        }
    }

    /// All answers to one request; fewer when the daemon has died.
    async fn ask(&mut self, body: Op) -> Vec<Answer> {
        self.write(&ClientFrame::Request(Request { id: 1, body })).await;
        let mut answers = Vec::new();
        while let Some(ServerFrame::Reply(Reply { id: 1, body })) = self.read().await {
            let last = body.is_final();
            answers.push(body);
            if last {
                break;
            }
        }
        answers
    }
}

fn submit(model: &str, prompt: &str, max_tokens: u32) -> Op {
    submit_several(model, prompt, max_tokens, 1)
}

fn submit_several(model: &str, prompt: &str, max_tokens: u32, n: u32) -> Op {
    Op::Submit(Box::new(Submit {
        model: model.into(),
        prompt: Prompt::Text { text: prompt.into(), parse_special: false },
        params: GenerationParams { max_tokens: Some(max_tokens), n: Some(n), ..GenerationParams::default() },
        tenant: None,
        session: None,
        detached: false,
        stream: true,
        label: None,
        class: Class::default(),
        deadline_ms: None,
        max_wait_ms: None,
        key: None,
        batch: None,
    }))
}

fn text_of(answers: &[Answer]) -> String {
    text_of_choice(answers, 0)
}

fn text_of_choice(answers: &[Answer], of: u32) -> String {
    let text = |answer: &Answer| match answer {
        Answer::Event { event: Event::Text { choice, text, .. }, .. } if *choice == of => text.clone(),
        _ => String::new(),
    };
    answers.iter().map(text).collect()
}

#[test]
fn rows_blocks_and_samplers_are_never_mixed_up() {
    for chunk in ["1", "5", "64", "1000"] {
        let ended = with_daemon(chunk, FakeDevice::default(), |socket| async move {
            let mut tasks = tokio::task::JoinSet::new();
            for job in 0..24usize {
                let socket = socket.clone();
                // Three beginnings of several blocks, so that prefixes are shared while they are computed.
                let prompt = format!(
                    "{}{job}",
                    "abc".chars().nth(job % 3).expect("of three").to_string().repeat(70 * (job % 3))
                );
                tasks.spawn_local(async move {
                    let mut client = Client::connect(&socket).await;
                    let tokens = 10 + job as u32 * 3;
                    let n = 1 + job as u32 % 3;
                    let answers = client.ask(submit_several("m", &prompt, tokens, n)).await;
                    for choice in 0..n {
                        let expected = expected_choice(&prompt, tokens as usize, choice);
                        assert_eq!(text_of_choice(&answers, choice), expected, "job {job}, answer {choice}");
                    }
                    let Some(Answer::Event { event: Event::Finished { choices, usage, .. }, .. }) =
                        answers.iter().rev().nth(1)
                    else {
                        panic!("job {job} does not end: {answers:?}")
                    };
                    assert_eq!((choices.len() as u32, usage.generated_tokens), (n, u64::from(n * tokens)));
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.expect("each job's text is right");
            }
        });
        assert_eq!(ended.expect("a good end"), Ended::Orderly);
    }
}

/// Devices by these names, with models "m" and "n" on some of them.
fn on_devices(config: &mut Config, names: &[&str], m: &[&str], n: &[&str]) -> Vec<FakeDevice> {
    let model = config.models["m"].clone();
    for (name, on) in [("m", m), ("n", n)] {
        let mut settings = model.clone();
        settings.defaults.place.devices = on.iter().map(|name| (*name).into()).collect();
        config.models.insert(name.into(), settings);
    }
    names.iter().map(|name| FakeDevice::default().named(name)).collect()
}

#[test]
fn a_model_in_stages_and_one_beside_it_mix_nothing_up() {
    for chunk in ["5", "64"] {
        let folder = tempfile::tempdir().expect("scratch folder");
        let mut config = config(folder.path(), chunk);
        let devices = on_devices(&mut config, &["a", "b", "c"], &["b", "c", "a"], &["c"]);
        let ended = run_on(config, devices, |socket| async move {
            let mut tasks = tokio::task::JoinSet::new();
            for job in 0..16usize {
                let socket = socket.clone();
                tasks.spawn_local(async move {
                    let mut client = Client::connect(&socket).await;
                    let (model, tokens) = (["m", "m", "n"][job % 3], 10 + job as u32 * 3);
                    let prompt = format!("{}{job}", "xy".repeat(60 * (job % 2)));
                    let answers = client.ask(submit_several(model, &prompt, tokens, 2)).await;
                    for choice in 0..2 {
                        let expected = expected_choice(&prompt, tokens as usize, choice);
                        assert_eq!(text_of_choice(&answers, choice), expected, "job {job} on {model}");
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.expect("each job's text is right");
            }
            let mut client = Client::connect(&socket).await;
            let answers = client.ask(Op::Status).await;
            let [Answer::Status(status)] = answers.as_slice() else { panic!("{answers:?}") };
            let on = |name: &str| {
                let model = status.models.iter().find(|model| model.name == name);
                model.expect("configured").device.clone()
            };
            assert_eq!((on("m"), on("n")), (Some("b+c+a".into()), Some("c".into())));
            let devices: Vec<_> = status.devices.iter().map(|device| device.name.as_str()).collect();
            assert_eq!(devices, ["a", "b", "c"]);
            let used = |at: usize| status.devices[at].used_bytes;
            assert_eq!((used(0), used(2)), (used(1), 2 * used(1)), "both models are on the last one");
        });
        assert_eq!(ended.expect("a good end"), Ended::Orderly);
    }
}

#[test]
fn a_fault_or_a_panic_of_any_device_ends_the_daemon() {
    crate::panics::install_hook();
    let broken = [FakeDevice::poisoned_by(b'!'), FakeDevice::panicking_at(b'!')];
    for (broken, reason) in broken.into_iter().zip(["device b: token 33 is poison", "a panic on purpose"]) {
        let folder = tempfile::tempdir().expect("scratch folder");
        let mut config = config(folder.path(), "64");
        let mut devices = on_devices(&mut config, &["a", "b"], &["a", "b"], &["a"]);
        devices[1] = broken.named("b");
        let ended = run_on(config, devices, |socket| async move {
            let mut client = Client::connect(&socket).await;
            client.ask(submit("n", "fine!", 3)).await;
            client.ask(submit("m", "fine", 3)).await;
            client.ask(submit("m", "not fine!", 3)).await;
            std::future::pending().await
        });
        let error = ended.expect_err("crash-only").to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_fault_of_the_device_ends_the_daemon_with_its_reason() {
    crate::panics::install_hook();
    let device = FakeDevice::poisoned_by(b'!');
    let ended = with_daemon("64", device, |socket| async move {
        let mut client = Client::connect(&socket).await;
        client.ask(submit("m", "fine", 3)).await;
        client.ask(submit("m", "poison!", 3)).await;
        std::future::pending().await
    });
    let error = ended.expect_err("crash-only").to_string();
    assert!(error.contains("scheduler actor has died") && error.contains("is poison"), "{error}");
}

#[test]
fn a_panic_of_the_devices_thread_ends_the_daemon_too() {
    crate::panics::install_hook();
    let device = FakeDevice::panicking_at(b'!');
    let ended = with_daemon("64", device, |socket| async move {
        let mut client = Client::connect(&socket).await;
        client.ask(submit("m", "panic!", 3)).await;
        std::future::pending().await
    });
    let error = ended.expect_err("crash-only").to_string();
    assert!(error.contains("a panic on purpose"), "{error}");
}

/// Reads until the job is known to run or to wait.
async fn until(client: &mut Client, wanted: impl Fn(&Event) -> bool) {
    loop {
        match client.read().await {
            Some(ServerFrame::Reply(Reply { body: Answer::Event { event, .. }, .. })) if wanted(&event) => {
                return;
            }
            Some(_) => {}
            None => panic!("the daemon closed"),
        }
    }
}

#[test]
fn a_full_queue_refuses_at_once_and_a_vanished_client_makes_room() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut config = config(folder.path(), "64");
    config.core.running_jobs = 1;
    config.core.queue.jobs = 1;
    let ended = run_beside(config, FakeDevice::slow(Duration::from_millis(20)), |socket| async move {
        let mut running = Client::connect(&socket).await;
        running.write(&ClientFrame::Request(Request { id: 1, body: submit("m", "first", 900) })).await;
        until(&mut running, |event| matches!(event, Event::Started { .. })).await;
        let mut waiting = Client::connect(&socket).await;
        waiting.write(&ClientFrame::Request(Request { id: 1, body: submit("m", "second", 2) })).await;
        until(&mut waiting, |event| matches!(event, Event::Queued { .. })).await;

        let mut third = Client::connect(&socket).await;
        let answers = third.ask(submit("m", "third", 2)).await;
        let [Answer::Error(fault)] = answers.as_slice() else { panic!("{answers:?}") };
        assert!(
            matches!(fault.code, ErrorCode::Refused { retry_after_ms } if retry_after_ms > 0),
            "{fault:?}"
        );
        assert!(fault.message.contains("queue is full"), "{}", fault.message);

        drop(running);
        until(&mut waiting, |event| matches!(event, Event::Finished { .. })).await;
        assert_eq!(text_of(&third.ask(submit("m", "third", 2)).await), expected_text("third", 2));
    });
    assert_eq!(ended.expect("a good end"), Ended::Orderly);
}

/// What a new connection gets as its first frame.
async fn greeted(stream: std::os::unix::net::UnixStream) -> (Client, ServerFrame) {
    stream.set_nonblocking(true).expect("a socket");
    let stream = UnixStream::from_std(stream).expect("a socket");
    let mut client = Client { stream, frames: FrameDecoder::new() };
    let hello = zllm_wire::encode(&ClientFrame::Hello { version: VERSION, client: "test".into() });
    // A refused connection may be closed already; what it was told can still be read.
    let _ = client.stream.write_all(&hello.expect("small")).await;
    let frame = client.read().await.expect("each is told");
    (client, frame)
}

#[test]
fn a_burst_of_connections_gets_no_more_than_the_limit() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let mut config = config(folder.path(), "64");
    config.connections = 3;
    let ended = run_beside(config, FakeDevice::default(), |socket| async move {
        let connect = || std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
        // All are there before the daemon, on this same thread, accepts the first.
        let burst: Vec<_> = (0..10).map(|_| connect()).collect();
        let mut welcome = Vec::new();
        for stream in burst {
            match greeted(stream).await {
                (client, ServerFrame::Welcome { .. }) => welcome.push(client),
                (_, ServerFrame::Refused { message, .. }) => {
                    assert!(message.contains("3 connections are open"), "{message}");
                }
                (_, other) => panic!("{other:?}"),
            }
        }
        assert_eq!(welcome.len(), 3);
        drop(welcome);
        let room = async {
            loop {
                let (mut client, frame) = greeted(connect()).await;
                if matches!(frame, ServerFrame::Welcome { .. })
                    && matches!(&client.ask(Op::Status).await[..], [Answer::Status(status)] if status.connections == 1)
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), room).await.expect("those that went made room");
    });
    assert_eq!(ended.expect("a good end"), Ended::Orderly);
}

#[test]
fn a_model_that_does_not_load_is_told_to_each_who_asks() {
    let ended = with_daemon("64", FakeDevice::default(), |socket| async move {
        let mut client = Client::connect(&socket).await;
        for _ in 0..2 {
            let answers = client.ask(submit(BROKEN_MODEL, "x", 1)).await;
            let [Answer::Error(fault)] = answers.as_slice() else { panic!("{answers:?}") };
            assert_eq!(fault.code, ErrorCode::Failed);
            assert!(fault.message.contains("broken on purpose"), "{}", fault.message);
        }
        let answers = client.ask(Op::Models).await;
        let [Answer::Models(models)] = answers.as_slice() else { panic!("{answers:?}") };
        let broken = models.iter().find(|model| model.name == BROKEN_MODEL).expect("configured");
        assert!(
            matches!(&broken.state, zllm_wire::ModelState::Failed { message } if message.contains("on purpose"))
        );
    });
    ended.expect("a good end");
}
