//! `cargo xtask http-bench`: what HTTP costs. Many connections on `/health` and on a tiny chat, `/health` while the model
//! decodes, many streams that wait, and how long a token is on its way from the sampler to the client.
//!
//! The daemon is a release build. When a token is sampled is in its log (level trace of the device's thread), when its bytes
//! came is what the client saw, by the same clock. Processor time is the kernel's count, of the HTTP server's thread and of all.
//! The stream is timed last but one: by then the weights lie in huge pages, as they do in a daemon that has run for a while.

mod client;
mod figures;

use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use self::client::Connection;
use self::figures::{Figures, Load, Step};
use crate::running_daemon::{Profile, Programs, RunningDaemon};
use crate::{clock, models, options, process, report};

const USAGE: &str = "usage: cargo xtask http-bench [--seconds N] [--no-write]

  --seconds N  how long each load lasts (default 5)
  --no-write   print the table and leave docs/PERFORMANCE.md alone
";
const MODEL: &str = "qwen2.5-coder-0.5b";
const CONNECTIONS: usize = 200;
const READERS: usize = 1000;
/// Streams that decode while `/health` is asked.
const STREAMS: usize = 4;
const CHAT: &str = "/v1/chat/completions";
/// Tokens of the stream whose way is timed.
const TIMED_TOKENS: usize = 256;
/// How often one connection asks for `/health` while the model decodes.
const LEISURE: Duration = Duration::from_millis(500);
/// What the daemon logs when a step is done.
const STEP_DONE: &str = "step done";

/// Measures, prints the table, writes it into the document, and fails when a limit is passed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut seconds, mut write) = (5, true);
    let go_on = options::read(args, USAGE, |option, values| {
        match option {
            "--seconds" => seconds = values.count()?,
            "--no-write" => write = false,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !go_on {
        return Ok(());
    }
    process::catch_signals()?;
    models::run(&[MODEL.to_owned()])?;
    let programs = Programs::build(Profile::Release)?;
    let figures = measure(&programs, Duration::from_secs(seconds as u64))?;
    let command = format!("cargo xtask http-bench --seconds {seconds}");
    let text = format!("{}; {MODEL}; `{command}`.\n\n{}", report::machine(None)?, figures.table());
    println!("{text}");
    if write {
        report::write("docs/PERFORMANCE.md", "http-bench", &text)?;
    }
    figures.check()
}

fn measure(programs: &Programs, lasts: Duration) -> Result<Figures> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let model = models::path_of(models::find(MODEL)?, &models::cache_dir()?);
    let http = format!("127.0.0.1:{port}");
    let flags = ["--http", &http, "--log", "info,zllmd::device::thread=trace", "--ssd-budget", "off"];
    let queue = format!("[limits]\nqueued_jobs = {}\n", READERS + CONNECTIONS);
    let daemon = RunningDaemon::start_configured(programs, MODEL, &model, &flags, &queue)?;
    let measured = Bench { port, lasts, pid: daemon.pid() }.run(&daemon);
    let measured = measured.with_context(|| daemon.log_tail())?;
    daemon.stop()?;
    Ok(measured)
}

struct Bench {
    port: u16,
    lasts: Duration,
    pid: u32,
}

impl Bench {
    fn run(&self, daemon: &RunningDaemon) -> Result<Figures> {
        eprintln!("{CONNECTIONS} connections");
        let health = self.load("GET", "/health", "", Duration::ZERO)?;
        let chats = self.load("POST", CHAT, &chat(1, false), Duration::ZERO)?;
        eprintln!("{STREAMS} streams, and /health beside them");
        let health_while_decoding = self.health_while_decoding()?;
        eprintln!("one stream");
        let (tokens_ms, step) = self.one_stream(daemon)?;
        eprintln!("{READERS} streams that wait");
        let bytes_per_reader = self.readers()?;
        Ok(Figures {
            connections: CONNECTIONS,
            health,
            chats,
            health_while_decoding,
            streams: STREAMS,
            readers: READERS,
            bytes_per_reader,
            tokens_ms,
            step,
        })
    }

    /// All connections at once, each with a pause behind an answer.
    fn load(&self, method: &str, path: &str, body: &str, pause: Duration) -> Result<Load> {
        let one = || -> Result<(Vec<f64>, usize)> {
            let mut connection = Connection::open(self.port)?;
            let (mut took_ms, mut refused) = (Vec::new(), 0);
            let ends = clock::now() + self.lasts;
            while clock::now() < ends {
                let began = clock::now();
                match connection.ask(method, path, body)? {
                    200 => {}
                    429 => refused += 1,
                    status => bail!("{path} answered {status}"),
                }
                took_ms.push((clock::now() - began).as_secs_f64() * 1e3);
                std::thread::sleep(pause);
            }
            Ok((took_ms, refused))
        };
        let mut load = Load::default();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(one)).collect();
            for one in all {
                let (took_ms, refused) = one.join().expect("a client does not panic")?;
                load.took_ms.extend(took_ms);
                load.refused += refused;
            }
            anyhow::Ok(())
        })?;
        load.per_s = load.took_ms.len() as f64 / self.lasts.as_secs_f64();
        process::check_interrupted()?;
        Ok(load)
    }

    /// How long each token of a stream was on its way, in milliseconds, and what a step takes.
    fn one_stream(&self, daemon: &RunningDaemon) -> Result<(Vec<f64>, Step)> {
        let before = daemon.log()?.len();
        let mut connection = Connection::open(self.port)?;
        let (before_it, began) = (self.processor_time()?, clock::now());
        connection.stream(CHAT, &chat(TIMED_TOKENS, true))?;
        let mut came = Vec::new();
        while let Some((at, text)) = connection.chunk()? {
            if text.contains("\"content\":\"") && !text.contains("\"role\"") {
                came.push(since_midnight(at));
            }
        }
        let (took, times) = (clock::now() - began, self.processor_time()?);
        let (http, all) = (times.0 - before_it.0, times.1 - before_it.1);
        let log = daemon.log()?;
        let sampled: Vec<f64> =
            log[before..].lines().filter(|line| line.contains(STEP_DONE)).filter_map(logged_at).collect();
        if came.len() < TIMED_TOKENS / 2 || sampled.len() < came.len() {
            bail!("{} parts of a stream came, and {} steps are in the log", came.len(), sampled.len());
        }
        // A part comes after the step that made it and before the next: the latest step before it is its own.
        let on_its_way = |came: &f64| {
            let last = sampled.iter().rev().find(|sampled| *sampled <= came);
            last.map(|sampled| (came - sampled) * 1e3)
        };
        let tokens_ms = came.iter().filter_map(on_its_way).collect();
        let ms_per_step = |time: Duration| time.as_secs_f64() * 1e3 / sampled.len() as f64;
        Ok((tokens_ms, Step { ms: ms_per_step(took), all_ms: ms_per_step(all), http_ms: ms_per_step(http) }))
    }

    fn health_while_decoding(&self) -> Result<Load> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let decode = || -> Result<()> {
                let mut connection = Connection::open(self.port)?;
                connection.stream(CHAT, &chat(8000, true))?;
                while connection.chunk()?.is_some() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                Ok(())
            };
            let streams: Vec<_> = (0..STREAMS).map(|_| scope.spawn(decode)).collect();
            std::thread::sleep(LEISURE);
            let load = self.load("GET", "/health", "", LEISURE);
            let decoded = !streams.iter().any(std::thread::ScopedJoinHandle::is_finished);
            over.store(true, Ordering::Relaxed);
            for stream in streams {
                stream.join().expect("a client does not panic")?;
            }
            if !decoded {
                bail!("the streams ended before the measurement");
            }
            load
        })
    }

    /// What a stream takes that waits for its turn, in bytes.
    fn readers(&self) -> Result<f64> {
        let before = self.resident_bytes()?;
        let mut open = Vec::with_capacity(READERS);
        for _ in 0..READERS {
            let mut connection = Connection::open(self.port)?;
            // The answers are long, so that the first keep all others waiting.
            connection.stream(CHAT, &chat(8000, true))?;
            open.push(connection);
        }
        let after = self.resident_bytes()?;
        let health = Connection::open(self.port)?.ask("GET", "/health", "")?;
        if health != 200 {
            bail!("/health answered {health} beside {READERS} streams");
        }
        Ok((after - before) / READERS as f64)
    }

    fn resident_bytes(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024.0)
    }

    /// Processor time of the HTTP server's thread so far, and of all threads.
    fn processor_time(&self) -> Result<(Duration, Duration)> {
        let (mut http, mut all) = (None, Duration::ZERO);
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let task = task?.path();
            let nanos = fs::read_to_string(task.join("schedstat"))?;
            let nanos = nanos.split(' ').next().and_then(|nanos| nanos.parse().ok());
            let time = Duration::from_nanos(nanos.context("schedstat")?);
            all += time;
            if fs::read_to_string(task.join("comm"))?.trim_end() == HTTP_THREAD {
                http = Some(http.unwrap_or_default() + time);
            }
        }
        Ok((http.with_context(|| format!("no thread is called {HTTP_THREAD:?}"))?, all))
    }
}

/// As the kernel has the name: 15 bytes of it.
const HTTP_THREAD: &str = "actix-rt|system";

fn chat(max_tokens: usize, stream: bool) -> String {
    let prompt = "Tell a long story about a lighthouse.";
    format!(
        r#"{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{prompt}"}}], "max_tokens": {max_tokens}, "ignore_eos": true, "temperature": 0, "stream": {stream}}}"#
    )
}

/// Seconds.
fn since_midnight(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() % 86_400.0
}

/// When a line was logged, in seconds since midnight: it begins with `2026-11-30T15:30:07.123456Z`.
fn logged_at(line: &str) -> Option<f64> {
    let time = line.split_whitespace().next()?.split_once('T')?.1.strip_suffix('Z')?;
    let mut parts = time.splitn(3, ':').map(str::parse::<f64>);
    let [hours, minutes, seconds] = [(); 3].map(|()| parts.next()?.ok());
    Some((hours? * 60.0 + minutes?) * 60.0 + seconds?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_have_a_time() {
        let line = "2026-11-30T01:02:03.250000Z TRACE zllmd::device::thread: step done";
        assert_eq!(logged_at(line), Some(3723.25));
        assert_eq!(logged_at("no time"), None);
        assert_eq!(since_midnight(UNIX_EPOCH + Duration::from_secs(86_400 + 5)), 5.0);
    }
}
