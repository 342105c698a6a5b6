//! Where the time of a step goes: `profile MODEL.gguf [--threads N] [--prefill 512] [--depth 2048] [--steps 32] [--isa NAME]`.
//!
//! A prefill into an empty context, decodes behind nothing and decodes at a depth run on a backend that notes how long each of
//! its operations takes, on the clock of the thread that calls it. An operation's time includes waiting for the other
//! threads at its end. What is between operations is the runtime's own. Hand-off is estimated: the jobs of the thread pool
//! times what an empty one takes. What the threads wait inside of operations is seen by `perf record` alone, in the
//! symbols of `cpu/pool.rs`.

mod timed;

use std::{ops::Range, path::PathBuf, process::ExitCode, time::Duration};

use timed::{Sum, Timed, now};
use zllm_engine::{
    Isa, KV_BLOCK_TOKENS, KvFormat, Runtime, RuntimeLimits, StepError, StepRow, Want, gguf::GgufFile,
    spec::ModelSpec,
};
use zllm_kernels::cpu::{CpuBackend, pool::Pool};

/// Rows of one step.
const CHUNK: usize = 512;
/// Empty jobs that are timed.
const EMPTY_JOBS: u32 = 20_000;

struct Options {
    model: PathBuf,
    threads: usize,
    prefill: usize,
    depth: usize,
    steps: usize,
    isa: Isa,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|options| run(&options).map_err(|error| error.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("profile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, isa) = (PathBuf::new(), Isa::best());
    let mut options = Options { model, threads, prefill: CHUNK, depth: 2048, steps: 32, isa };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text:?} is no number"));
        match arg.as_str() {
            "--threads" => options.threads = number(value()?)?,
            "--prefill" => options.prefill = number(value()?)?,
            "--depth" => options.depth = number(value()?)?,
            "--steps" => options.steps = number(value()?)?,
            "--isa" => options.isa = value()?.parse()?,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => options.model = path.into(),
        }
    }
    let (tokens, steps) = (options.prefill.max(1), options.steps.max(1));
    Ok(Options { prefill: tokens, steps, ..options })
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let file = GgufFile::open(&options.model)?;
    let spec = ModelSpec::read(&file, None)?;
    let mut backend = Timed::new(CpuBackend::new(Pool::new(options.threads), options.isa));
    let (layers, vocab) = (spec.layers.len(), spec.vocab_size as u32);
    let tokens = options.prefill.max(options.depth) + options.steps;
    let kv_blocks = tokens.div_ceil(KV_BLOCK_TOKENS);
    let limits = RuntimeLimits {
        step_rows: CHUNK,
        logit_rows: 1,
        kv_blocks,
        kv_format: KvFormat::default(),
        kv_locked: false,
    };
    let runtime = Runtime::load(&mut backend, &file, spec, 0..layers, limits, &mut |_| {})?;
    backend.settle();
    let mut profile = Profile {
        empty_job: empty_job(backend.pool()),
        backend,
        runtime,
        blocks: (0..kv_blocks as u32).collect(),
        tokens: (0..tokens as u32).map(|i| i.wrapping_mul(7919) % vocab).collect(),
    };
    let (prefill, depth, steps) = (options.prefill, options.depth, options.steps);
    // Once, so that scratch memory and caches are there.
    profile.feed(0..prefill, CHUNK)?;
    profile.feed(0..steps, 1)?;
    println!("Threads: {}, {}.\n", options.threads, options.isa.name());
    profile.tell(&format!("A prefill of {prefill}"), 0..prefill, CHUNK)?;
    profile.tell("A decode step at depth 0", 0..steps, 1)?;
    if depth > 0 {
        profile.tell(&format!("A prefill of {depth}"), 0..depth, CHUNK)?;
        profile.tell(&format!("A decode step at depth {depth}"), depth..depth + steps, 1)?;
    }
    Ok(())
}

struct Profile {
    backend: Timed,
    runtime: Runtime<Timed>,
    /// Any text, and the arena in order.
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    empty_job: Duration,
}

impl Profile {
    /// Computes a part of the text in steps of at most `chunk` rows; the time that all of them took.
    fn feed(&mut self, part: Range<usize>, chunk: usize) -> Result<Duration, StepError> {
        let start = now();
        for position in part.clone().step_by(chunk) {
            let end = (position + chunk).min(part.end);
            let want = if end == part.end || chunk == 1 { Want::Last } else { Want::Nothing };
            let tokens = &self.tokens[position..end];
            let row = StepRow { tokens, position, blocks: &self.blocks, want };
            self.runtime.step(&mut self.backend, &[row])?;
        }
        Ok(now() - start)
    }

    /// The same, told: steps of one row as the mean of them, others as a whole.
    fn tell(&mut self, what: &str, part: Range<usize>, chunk: usize) -> Result<(), StepError> {
        self.backend.take();
        let jobs = self.backend.pool().jobs();
        let took = self.feed(part.clone(), chunk)?;
        let count = if chunk == 1 { part.len() } else { 1 };
        let jobs = self.backend.pool().jobs() - jobs;
        println!("{what}:\n");
        print(&self.backend.take(), took, count as u32, (jobs, self.empty_job));
        Ok(())
    }
}

/// What starting and ending a job costs that does nothing.
fn empty_job(pool: &Pool) -> Duration {
    let start = now();
    for _ in 0..EMPTY_JOBS {
        pool.run(&|_| {});
    }
    (now() - start) / EMPTY_JOBS
}

/// A Markdown table of what `count` steps took, a step each, and a line that sums it up.
fn print(sums: &[(&str, Sum)], took: Duration, count: u32, (jobs, empty_job): (u64, Duration)) {
    let us = |time: Duration| 1e6 * time.as_secs_f64() / f64::from(count);
    let share = |time: Duration| 100.0 * time.as_secs_f64() / took.as_secs_f64();
    println!("| operation | calls | us | share | GB/s of weights | GMAC/s |\n|---|---:|---:|---:|---:|---:|");
    let (mut inside, mut calls) = (Duration::ZERO, 0);
    let (mut products, mut attention) = (Duration::ZERO, Duration::ZERO);
    for (kind, sum) in sums {
        let rate = |amount: u64| match amount {
            0 => "–".to_owned(),
            amount => format!("{:.1}", amount as f64 / 1e9 / sum.time.as_secs_f64()),
        };
        let (bytes, macs) = (rate(sum.weight_bytes), rate(sum.macs));
        let (each, us, share) = (sum.calls / count, us(sum.time), share(sum.time));
        println!("| {kind} | {each} | {us:.1} | {share:.1} % | {bytes} | {macs} |");
        inside += sum.time;
        calls += sum.calls;
        match *kind {
            "attention" | "KV append" => attention += sum.time,
            kind if kind.starts_with("product") => products += sum.time,
            _ => {}
        }
    }
    let between = took.saturating_sub(inside);
    println!("| between operations | | {:.1} | {:.1} % | – | – |", us(between), share(between));
    println!("| all | {} | {:.1} | 100 % | – | – |\n", calls / count, us(took));
    let (rest, hand_off) = (inside - products - attention, empty_job * jobs as u32);
    println!(
        "Products {:.1} %, attention {:.1} %, other operations {:.1} %, between operations {:.1} %. Hand-off, estimated: {} empty jobs of {:.2} us are {:.1} us, {:.1} %.\n",
        share(products),
        share(attention),
        share(rest),
        share(between),
        jobs / u64::from(count),
        1e6 * empty_job.as_secs_f64(),
        us(hand_off),
        share(hand_off)
    );
}
