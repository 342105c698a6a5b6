//! A blocking client of the socket protocol, several requests at once.

use super::{MODEL, PATIENCE};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use zllm_wire::{
    Answer, Class, ClientFrame, Event, FrameDecoder, GenerationParams, JobId, Op, Prompt, Reply, Request,
    SamplingParams, ServerFrame, Submit, Usage, VERSION, write_frame,
};

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    frames: FrameDecoder,
    next_id: u64,
    /// Replies to requests other than the one that is waited for.
    put_aside: VecDeque<Reply>,
}

/// What a job gave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answered {
    pub(crate) text: String,
    pub(crate) events: Vec<(u64, Event)>,
    pub(crate) usage: Option<Usage>,
}

/// A request for `tokens` tokens after `prompt`, greedy.
pub(crate) fn greedy(prompt: &str, tokens: u32) -> Submit {
    let sampling = SamplingParams { temperature: Some(0.0), ..SamplingParams::default() };
    Submit {
        model: MODEL.into(),
        prompt: Prompt::Text { text: prompt.into(), parse_special: false },
        params: GenerationParams {
            sampling,
            max_tokens: Some(tokens),
            ignore_eos: true,
            ..GenerationParams::default()
        },
        session: None,
        tenant: None,
        detached: false,
        stream: true,
        label: None,
        class: Class::default(),
        deadline_ms: None,
        max_wait_ms: None,
        key: None,
        batch: None,
    }
}

impl Client {
    /// Connects and says hello.
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).expect("the daemon listens")
    }

    /// Connects and says hello; `None` when the daemon is gone.
    pub(crate) fn try_connect(socket: &Path) -> Option<Self> {
        let mut client = Self::of(UnixStream::connect(socket).ok()?);
        let hello = ClientFrame::Hello { version: VERSION, client: "test".into() };
        write_frame(&mut client.stream, &hello).ok()?;
        match client.read()? {
            ServerFrame::Welcome { version, pid, .. } => {
                assert_eq!(version, VERSION);
                assert!(pid > 0);
            }
            other => panic!("no welcome but {other:?}"),
        }
        Some(client)
    }

    /// Connects and says nothing.
    pub(crate) fn connect_raw(socket: &Path) -> Self {
        Self::of(UnixStream::connect(socket).expect("the daemon listens"))
    }

    fn of(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, frames: FrameDecoder::new(), next_id: 1, put_aside: VecDeque::new() }
    }

    pub(crate) fn write(&mut self, frame: &ClientFrame) {
        write_frame(&mut self.stream, frame).expect("the daemon reads");
    }

    /// The next frame; `None` when the daemon has closed or is gone.
    pub(crate) fn read(&mut self) -> Option<ServerFrame> {
        let mut buffer = [0; 64 << 10];
        loop {
            if let Some(frame) = self.frames.pop().expect("good frames") {
                return Some(frame);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.frames.push(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// Sends a request; its id, or `None` when the daemon is gone.
    pub(crate) fn try_send(&mut self, body: Op) -> Option<u64> {
        let id = self.next_id;
        self.next_id += 1;
        write_frame(&mut self.stream, &ClientFrame::Request(Request { id, body })).ok()?;
        Some(id)
    }

    /// Sends a request; its id.
    pub(crate) fn send(&mut self, body: Op) -> u64 {
        self.try_send(body).expect("the daemon reads")
    }

    /// The next answer to request `id`; `None` when the daemon is gone.
    pub(crate) fn try_answer(&mut self, id: u64) -> Option<Answer> {
        if let Some(at) = self.put_aside.iter().position(|reply| reply.id == id) {
            return Some(self.put_aside.remove(at).expect("found above").body);
        }
        loop {
            match self.read()? {
                ServerFrame::Reply(reply) if reply.id == id => return Some(reply.body),
                ServerFrame::Reply(reply) => self.put_aside.push_back(reply),
                other => panic!("no reply but {other:?}"),
            }
        }
    }

    /// The next answer to request `id`.
    pub(crate) fn answer(&mut self, id: u64) -> Answer {
        self.try_answer(id).expect("the daemon is there")
    }

    /// Sends a request with one answer; `None` when the daemon is gone.
    pub(crate) fn try_ask(&mut self, body: Op) -> Option<Answer> {
        let id = self.try_send(body)?;
        self.try_answer(id)
    }

    /// Sends a request with one answer.
    pub(crate) fn ask(&mut self, body: Op) -> Answer {
        self.try_ask(body).expect("the daemon is there")
    }

    /// Submits and returns the request's and the job's id; `None` when the daemon is gone.
    pub(crate) fn try_submit(&mut self, request: Submit) -> Option<(u64, JobId)> {
        let id = self.try_send(Op::Submit(Box::new(request)))?;
        match self.try_answer(id)? {
            Answer::Accepted { job, .. } => Some((id, job)),
            other => panic!("not accepted but {other:?}"),
        }
    }

    /// Submits and returns the request's and the job's id.
    pub(crate) fn submit(&mut self, request: Submit) -> (u64, JobId) {
        self.try_submit(request).expect("the daemon is there")
    }

    /// Reads the events of request `id` to their end; `None` when the daemon is gone before.
    pub(crate) fn try_finish(&mut self, id: u64) -> Option<Answered> {
        let mut answered = Answered { text: String::new(), events: Vec::new(), usage: None };
        loop {
            match self.try_answer(id)? {
                Answer::Event { offset, event } => {
                    match &event {
                        Event::Text { text, .. } => answered.text.push_str(text),
                        Event::Finished { usage, .. } => answered.usage = Some(*usage),
                        Event::Failed { message } => panic!("the job failed: {message}"),
                        Event::Queued { .. } | Event::Started { .. } => {}
                    }
                    answered.events.push((offset, event));
                }
                Answer::Done => return Some(answered),
                other => panic!("no event but {other:?}"),
            }
        }
    }

    /// Reads the events of request `id` to their end.
    pub(crate) fn finish(&mut self, id: u64) -> Answered {
        self.try_finish(id).expect("the daemon is there")
    }

    /// Reads events of request `id` until the first text.
    pub(crate) fn first_text(&mut self, id: u64) {
        while !matches!(self.answer(id), Answer::Event { event: Event::Text { .. }, .. }) {}
    }

    /// Submits and waits for the end.
    pub(crate) fn run(&mut self, request: Submit) -> Answered {
        let (id, _) = self.submit(request);
        self.finish(id)
    }

    pub(crate) fn status(&mut self) -> zllm_wire::Status {
        match self.ask(Op::Status) {
            Answer::Status(status) => *status,
            other => panic!("no status but {other:?}"),
        }
    }
}
