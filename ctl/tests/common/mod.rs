//! A daemon made of one thread that says what a test wants, and the real `zllmctl` against it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};
use tempfile::TempDir;
use zllm_wire::*;

/// Longer than any step here takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// The daemon's end of one connection.
pub(crate) struct Peer {
    stream: UnixStream,
}

impl Peer {
    /// Takes the hello and welcomes.
    pub(crate) fn welcome(&mut self) {
        match self.receive() {
            Some(ClientFrame::Hello { version: VERSION, client }) => {
                assert!(client.starts_with("zllmctl "), "{client}")
            }
            other => panic!("no hello but {other:?}"),
        }
        self.send(&ServerFrame::Welcome { version: VERSION, server: "fake".into(), pid: 1 });
    }

    /// The next frame; `None` when the client has gone.
    pub(crate) fn receive(&mut self) -> Option<ClientFrame> {
        read_frame(&mut self.stream).unwrap()
    }

    /// The next frame; `None` also when the client was killed over it.
    pub(crate) fn receive_or_gone(&mut self) -> Option<ClientFrame> {
        read_frame(&mut self.stream).ok().flatten()
    }

    pub(crate) fn request(&mut self) -> Request {
        match self.receive() {
            Some(ClientFrame::Request(request)) => request,
            other => panic!("no request but {other:?}"),
        }
    }

    /// Takes a request that must be `op`.
    pub(crate) fn expect(&mut self, op: Op) -> u64 {
        let request = self.request();
        assert_eq!(request.body, op);
        request.id
    }

    pub(crate) fn send(&mut self, frame: &ServerFrame) {
        write_frame(&mut self.stream, frame).unwrap();
    }

    /// Sends what is no frame.
    pub(crate) fn garble(&mut self) {
        self.stream.write_all(&[0xff; 64]).unwrap();
    }

    pub(crate) fn reply(&mut self, id: u64, body: Answer) {
        self.send(&ServerFrame::Reply(Reply { id, body }));
    }

    /// As [`Self::reply`]; false when the client has gone.
    pub(crate) fn try_reply(&mut self, id: u64, body: Answer) -> bool {
        write_frame(&mut self.stream, &ServerFrame::Reply(Reply { id, body })).is_ok()
    }

    pub(crate) fn events(&mut self, id: u64, from: u64, events: impl IntoIterator<Item = Event>) {
        for (offset, event) in (from..).zip(events) {
            self.reply(id, Answer::Event { offset, event });
        }
    }

    /// Answers a load, and gives the submission that follows with its id.
    pub(crate) fn load_then_submission(&mut self, has_template: bool) -> (u64, Submit) {
        let id = self.expect(Op::Load { model: "m".into() });
        self.reply(id, Answer::Progress { stage: LoadStage::Weights, done_bytes: 1, total_bytes: 2 });
        self.reply(id, Answer::Model(model("m", has_template)));
        match self.request() {
            Request { id, body: Op::Submit(submit) } => (id, *submit),
            other => panic!("no submission but {other:?}"),
        }
    }

    /// Whether the client closes the connection in time, saying nothing more.
    pub(crate) fn client_leaves(&mut self) -> bool {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(self.stream.read(&mut [0]), Ok(0))
    }
}

/// A socket and a thread behind it.
pub(crate) struct Daemon {
    pub(crate) dir: TempDir,
    pub(crate) socket: PathBuf,
    thread: JoinHandle<()>,
}

impl Daemon {
    /// Accepts as many connections as there are parts to play, one after another.
    pub(crate) fn start<const N: usize>(parts: [Box<dyn FnOnce(Peer) + Send>; N]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("zllmd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = thread::spawn(move || {
            for part in parts {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                part(Peer { stream });
            }
        });
        Self { dir, socket, thread }
    }

    /// Plays one part.
    pub(crate) fn once(part: impl FnOnce(Peer) + Send + 'static) -> Self {
        Self::start([Box::new(part)])
    }

    /// Takes one request that must be `op` and answers it.
    pub(crate) fn answering(op: Op, answer: Answer) -> Self {
        Self::once(move |mut peer| {
            peer.welcome();
            let id = peer.expect(op);
            peer.reply(id, answer);
            assert!(peer.client_leaves());
        })
    }

    /// A `zllmctl` that speaks to this daemon.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = zllmctl(self.dir.path(), args);
        command.arg("--socket").arg(&self.socket);
        command
    }

    /// Runs `zllmctl` to its end, and the daemon's parts to theirs.
    pub(crate) fn run(self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        self.end();
        Ran::new(output)
    }

    /// Waits for the parts to end; a panic in one is a panic here.
    pub(crate) fn end(self) {
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The real binary, away from the user's own files.
pub(crate) fn zllmctl(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zllmctl"));
    command.args(args).stdin(Stdio::null()).env("HOME", home);
    for name in ["ZLLM_SOCKET", "ZLLM_MODELS_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command
}

/// What came of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Reads from a child's output until it has said `wanted`.
pub(crate) fn read_until(output: &mut impl Read, wanted: &str) {
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(wanted.as_bytes()) {
        let read = output.read(&mut byte).unwrap();
        assert_eq!(read, 1, "it ended after {:?}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
}

pub(crate) fn job() -> JobId {
    JobId::new("j-01").unwrap()
}

pub(crate) fn text(text: &str) -> Event {
    Event::Text { choice: 0, text: text.into(), tokens: 1, logprobs: vec![] }
}

pub(crate) fn finished() -> Event {
    let usage = Usage {
        prompt_tokens: 23,
        cached_tokens: 16,
        cached_by_tier: TokenTiers { device: 16, ram: 0, ssd: 0 },
        generated_tokens: 46,
        queue_ms: 1.0,
        prefill_ms: 100.0,
        first_token_ms: 120.0,
        decode_ms: 500.0,
    };
    Event::Finished {
        reason: FinishReason::Stop,
        choices: vec![ChoiceEnd { reason: FinishReason::Stop, stop: None }],
        usage,
    }
}

pub(crate) const STATS: &str =
    "prompt 23 tokens (16 cached on device), generated 46 tokens, first token after 0.12 s, 90.0 tokens/s\n";

pub(crate) fn model(name: &str, has_template: bool) -> ModelInfo {
    ModelInfo {
        name: name.into(),
        state: ModelState::Loaded,
        architecture: "llama".into(),
        path: "/m.gguf".into(),
        device: Some("cpu".into()),
        weight_bytes: 98_362_432,
        context_tokens: Some(8192),
        has_template: Some(has_template),
    }
}

pub(crate) fn status() -> Status {
    Status {
        version: "0.1.0".into(),
        pid: 4711,
        uptime_ms: 3_700_000,
        draining: true,
        models: vec![model("m", true)],
        devices: vec![DeviceInfo {
            name: "cpu".into(),
            description: "AVX2".into(),
            total_bytes: 8 << 30,
            used_bytes: 300 << 20,
            busy: 0.5,
        }],
        blocks: vec![BlockUsage {
            model: "m".into(),
            tier: Tier::Device,
            block_bytes: 1 << 20,
            total: 100,
            used: 10,
            cached: 20,
        }],
        kv: KvStatus {
            ssd: SsdState::Ready,
            path: Some("/kv".into()),
            file_bytes: 1200 << 20,
            budget_bytes: 16 << 30,
            stored_blocks: 300,
            unsaved_bytes: 1 << 20,
            ram_budget_bytes: 2 << 30,
            ram_used_bytes: 512 << 20,
            read_bytes_per_s: Some(1e9),
            compute_tokens_per_s: Some(1024.4),
            evicted_blocks: TierBlocks { device: 1, ram: 0, ssd: 3 },
            lost_unsaved_blocks: 1,
        },
        queued_jobs: 1,
        queue_capacity: 64,
        held_jobs: 0,
        parked_jobs: 0,
        running_jobs: 2,
        jobs_durable: true,
        jobs_fault: None,
        sessions: 1,
        connections: 4,
        jobs_done: 5,
        jobs_failed: 6,
        jobs_cancelled: 7,
        jobs_refused: 8,
        prompt_tokens: 9,
        cached_tokens: 10,
        generated_tokens: 11,
        speed: Speed::default(),
    }
}
