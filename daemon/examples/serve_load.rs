//! A client that keeps several decodes running over the daemon's socket and notes when each piece of text comes:
//! `serve_load --socket PATH --model NAME --sessions N --tokens T [--arrive P --after A --seed S]`.
//!
//! All sessions are requests of one connection, read by one thread, so that the client takes next to nothing from the machine
//! that it measures. With `--arrive` a prompt of P random tokens follows once every session has had A pieces of text; at its
//! first token the client leaves, which cancels the rest. Prints one JSON object; times are milliseconds since the start:
//!
//! - `sessions`: of each, `[[when, tokens], ...]`, a pair for each piece of text;
//! - `arrival`: `null`, or `{"sent": when, "first": when}` of the prompt that came later.

use serde_json::{Value, json};
use std::error::Error;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use zllm_wire::{
    Answer, ClientFrame, Event, FrameDecoder, GenerationParams, Op, Prompt, Request, SamplingParams,
    ServerFrame, Submit, TokenIds, VERSION, write_frame,
};

/// How long the daemon may be silent.
const PATIENCE: Duration = Duration::from_secs(120);
/// Each session begins with one of them and goes on for long.
const BEGINNINGS: [&str; 8] = [
    "def fibonacci(n):\n",
    "// A binary search tree in Rust.\n",
    "The history of the steam engine begins",
    "SELECT name, price FROM products\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "Once upon a time there was a lighthouse keeper",
    "class Matrix:\n    def __init__(self, rows):\n",
    "A recipe for bread: take flour, water and",
];

struct Options {
    socket: String,
    model: String,
    sessions: usize,
    tokens: u32,
    arrive: usize,
    after: usize,
    seed: u64,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(measured) => {
            println!("{measured}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("serve_load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let (socket, model) = (String::new(), String::new());
    let mut options = Options { socket, model, sessions: 1, tokens: 128, arrive: 0, after: 64, seed: 1 };
    while let Some(arg) = args.next() {
        let value = args.next().ok_or(format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--socket" => options.socket = value,
            "--model" => options.model = value,
            "--sessions" => options.sessions = value.parse()?,
            "--tokens" => options.tokens = value.parse()?,
            "--arrive" => options.arrive = value.parse()?,
            "--after" => options.after = value.parse()?,
            "--seed" => options.seed = value.parse()?,
            _ => return Err(format!("no option {arg:?}").into()),
        }
    }
    if !(1..=BEGINNINGS.len()).contains(&options.sessions) {
        return Err(format!("--sessions is from 1 to {}", BEGINNINGS.len()).into());
    }
    Ok(options)
}

/// One connection.
struct Client {
    stream: UnixStream,
    frames: FrameDecoder,
    start: Instant,
}

impl Client {
    fn connect(socket: &str) -> Result<Self, Box<dyn Error>> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self { stream, frames: FrameDecoder::new(), start: now() };
        client.write(&ClientFrame::Hello { version: VERSION, client: "serve_load".into() })?;
        match client.read()?.1 {
            ServerFrame::Welcome { .. } => Ok(client),
            other => Err(format!("no welcome but {other:?}").into()),
        }
    }

    fn write(&mut self, frame: &ClientFrame) -> Result<(), Box<dyn Error>> {
        Ok(write_frame(&mut self.stream, frame)?)
    }

    fn submit(&mut self, id: u64, model: &str, prompt: Prompt, tokens: u32) -> Result<(), Box<dyn Error>> {
        let sampling = SamplingParams { temperature: Some(0.0), ..SamplingParams::default() };
        let params = GenerationParams {
            sampling,
            max_tokens: Some(tokens),
            ignore_eos: true,
            ..GenerationParams::default()
        };
        let submit = Submit::new(model, prompt, params);
        self.write(&ClientFrame::Request(Request { id, body: Op::Submit(Box::new(submit)) }))
    }

    /// The next frame and when it was there.
    fn read(&mut self) -> Result<(f64, ServerFrame), Box<dyn Error>> {
        let mut buffer = [0; 64 << 10];
        loop {
            if let Some(frame) = self.frames.pop()? {
                return Ok((1e3 * (now() - self.start).as_secs_f64(), frame));
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err("the daemon has closed the connection".into()),
                count => self.frames.push(&buffer[..count]),
            }
        }
    }
}

fn run(options: &Options) -> Result<Value, Box<dyn Error>> {
    let mut client = Client::connect(&options.socket)?;
    for (id, text) in (0..).zip(&BEGINNINGS[..options.sessions]) {
        let prompt = Prompt::Text { text: (*text).into(), parse_special: false };
        client.submit(id, &options.model, prompt, options.tokens)?;
    }
    let late = options.sessions as u64;
    let mut sessions: Vec<Vec<(f64, u32)>> = vec![Vec::new(); options.sessions];
    let (mut sent, mut going) = (None, options.sessions);
    while going > 0 {
        let (when, ServerFrame::Reply(reply)) = client.read()? else { return Err("no reply".into()) };
        let is_late = reply.id == late;
        match reply.body {
            Answer::Event { event: Event::Text { tokens, .. }, .. } if !is_late => {
                sessions[reply.id as usize].push((when, tokens));
            }
            Answer::Event { event: Event::Text { .. } | Event::Finished { .. }, .. } if is_late => {
                let arrival = json!({ "sent": sent, "first": when });
                return Ok(json!({ "sessions": sessions, "arrival": arrival }));
            }
            Answer::Done => going -= 1,
            Answer::Error(fault) => return Err(fault.into()),
            Answer::Event { event: Event::Failed { message }, .. } => return Err(message.into()),
            _ => {}
        }
        let is_time = || sessions.iter().all(|pieces| pieces.len() >= options.after);
        if options.arrive > 0 && sent.is_none() && is_time() {
            let prompt = Prompt::Tokens(random_tokens(options.arrive, options.seed));
            sent = Some(1e3 * (now() - client.start).as_secs_f64());
            client.submit(late, &options.model, prompt, 1)?;
        }
    }
    if options.arrive > 0 {
        return Err("the sessions ended before the late prompt was answered; give them more --tokens".into());
    }
    Ok(json!({ "sessions": sessions, "arrival": Value::Null }))
}

/// Tokens that stand for text in any vocabulary of some size; other seeds have no beginning in common.
fn random_tokens(count: usize, seed: u64) -> TokenIds {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        1000 + (state >> 32) as u32 % 30_000
    };
    TokenIds((0..count).map(|_| next()).collect())
}

#[expect(clippy::disallowed_methods, reason = "a client that measures a real daemon; nothing is replayed")]
fn now() -> Instant {
    Instant::now()
}
