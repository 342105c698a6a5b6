//! Speed of one model through the engine's own step, without sampling: prefills, decodes at a depth, and many sequences at
//! once. What `cargo xtask bench` runs; `xtask/peer/llama_cpp_bench.py` is the same for llama.cpp, with the same output.
//!
//! `bench MODEL.gguf [--prefill 128,512,2048] [--depth 0,2048] [--decode 128] [--sessions 1,2,4,8,16] [--steps 64]
//! [--repeat 1] [--threads N] [--chunk 512] [--isa NAME] [--json]`; an empty list (`--sessions ""`) leaves its tests out.
//!
//! - `prefill N`: N tokens into an empty context; at each depth above 0 also `prefill 512 at D`.
//! - `decode N at D`: N steps of one token each, beginning at depth D.
//! - `S sessions`: steps with a token of each of S sequences, which have a prompt of 8 tokens; tokens of all together.
//!
//! The load ends when a step can be computed. The weights are settled before the tests, as the daemon does when it has nothing
//! to do; the time that takes is shown beside the load's.
//!
//! Rates are tokens per second, the best of the repeats. Memory is the peak after the tests without a depth, before longer
//! contexts and more sequences: of a load, short prefills and a decode.

use std::{path::Path, path::PathBuf, process::ExitCode};

use zllm_engine::{
    KV_BLOCK_TOKENS, LoadOptions, LoadedModel, StepError, StepRow, Want,
    gguf::{GgufError, GgufFile},
};

/// Tokens of the prefill at a depth.
const DEEP_PREFILL_TOKENS: usize = 512;
/// Tokens of each sequence's prompt, and unmeasured steps after it.
const PROMPT_TOKENS: usize = 8;
const WARM_UP_STEPS: usize = 4;

struct Options {
    model: PathBuf,
    prefill: Vec<usize>,
    depth: Vec<usize>,
    decode: usize,
    sessions: Vec<usize>,
    steps: usize,
    repeat: usize,
    json: bool,
    load: LoadOptions,
}

struct Figures {
    load_s: f64,
    settle_s: f64,
    peak_rss_bytes: u64,
    weight_bytes_a_token: u64,
    /// Name and tokens per second.
    tests: Vec<(String, f64)>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(64);
        }
    };
    match run(&options) {
        Ok(figures) => {
            print(&figures, options.json);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        model: PathBuf::new(),
        prefill: vec![128, 512, 2048],
        depth: vec![0, 2048],
        decode: 128,
        sessions: vec![1, 2, 4, 8, 16],
        steps: 64,
        repeat: 1,
        json: false,
        load: LoadOptions::default(),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"));
        let list = |text: String| -> Result<Vec<_>, String> {
            text.split(',').filter(|part| !part.is_empty()).map(|part| number(part.to_owned())).collect()
        };
        match arg.as_str() {
            "--prefill" => options.prefill = list(value()?)?,
            "--depth" => options.depth = list(value()?)?,
            "--decode" => options.decode = number(value()?)?,
            "--sessions" => options.sessions = list(value()?)?,
            "--steps" => options.steps = number(value()?)?,
            "--repeat" => options.repeat = number(value()?)?.max(1),
            "--threads" => options.load.threads = number(value()?)?,
            "--chunk" => options.load.prefill_chunk_tokens = number(value()?)?,
            "--isa" => options.load.isa = Some(value()?.parse()?),
            "--json" => options.json = true,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => options.model = path.into(),
        }
    }
    let most = options.sessions.iter().copied().max().unwrap_or(1);
    options.load.max_batch_rows = options.load.max_batch_rows.max(most);
    if options.model.as_os_str().is_empty() { Err("a model is needed".into()) } else { Ok(options) }
}

fn run(options: &Options) -> Result<Figures, Box<dyn std::error::Error>> {
    let start = now();
    let mut model = LoadedModel::load(&options.model, &options.load, &mut |_| {})?;
    let load_s = (now() - start).as_secs_f64();
    let start = now();
    model.settle();
    let settle_s = (now() - start).as_secs_f64();
    let mut bench = Bench::new(model, options);
    bench.check()?;
    bench.prefill(0..PROMPT_TOKENS)?;

    let (deep, flat): (Vec<_>, Vec<_>) = options.depth.iter().partition(|depth| **depth > 0);
    // The longest goes last, so that the peak before it is that of short ones.
    let mut short = options.prefill.clone();
    let long: Vec<_> = short.extract_if(.., |tokens| *tokens > DEEP_PREFILL_TOKENS).collect();
    short.iter().try_for_each(|tokens| bench.measure_prefill(0, *tokens))?;
    flat.iter().try_for_each(|depth| bench.measure_decode(*depth))?;
    let peak_rss_bytes = peak_rss_bytes();
    long.iter().try_for_each(|tokens| bench.measure_prefill(0, *tokens))?;
    for depth in deep {
        bench.measure_prefill(depth, DEEP_PREFILL_TOKENS)?;
        bench.measure_decode(depth)?;
    }
    options.sessions.iter().try_for_each(|sessions| bench.measure_sessions(*sessions))?;
    let weight_bytes_a_token = weight_bytes_a_token(&options.model)?;
    Ok(Figures { load_s, settle_s, peak_rss_bytes, weight_bytes_a_token, tests: bench.tests })
}

struct Bench<'a> {
    options: &'a Options,
    model: LoadedModel,
    /// The arena in order, and a text for it. Any tokens do: no step's cost depends on which they are, and a fixed text
    /// has the same keys and values whenever a part of it is computed again.
    blocks: Vec<u32>,
    tokens: Vec<u32>,
    /// Tokens from the first on whose keys and values are there.
    filled: usize,
    tests: Vec<(String, f64)>,
}

impl<'a> Bench<'a> {
    fn new(model: LoadedModel, options: &'a Options) -> Self {
        let blocks: Vec<u32> = (0..model.kv_blocks()).collect();
        let vocab = model.text().vocab_size() as u32;
        let tokens =
            (0..blocks.len() * KV_BLOCK_TOKENS).map(|i| (i as u32).wrapping_mul(7919) % vocab).collect();
        Self { options, model, blocks, tokens, filled: 0, tests: Vec::new() }
    }

    /// Refuses what the arena does not hold.
    fn check(&self) -> Result<(), String> {
        let options = self.options;
        let longest = options.prefill.iter().copied().max().unwrap_or(PROMPT_TOKENS);
        let deepest =
            options.depth.iter().max().map_or(0, |depth| depth + options.decode.max(DEEP_PREFILL_TOKENS));
        let sessions = options.sessions.iter().copied().max().unwrap_or(0);
        let (needed, has) = (longest.max(deepest).max(sessions * self.session_tokens()), self.tokens.len());
        if needed > has {
            Err(format!("{needed} tokens are asked for, the KV arena holds {has}"))
        } else {
            Ok(())
        }
    }

    /// Whole blocks of tokens that each of several sequences takes.
    fn session_tokens(&self) -> usize {
        (PROMPT_TOKENS + WARM_UP_STEPS + self.options.steps).next_multiple_of(KV_BLOCK_TOKENS)
    }

    /// Computes some of the text, the logits of its last token alone; returns the seconds that it took.
    fn prefill(&mut self, range: std::ops::Range<usize>) -> Result<f64, StepError> {
        let start = now();
        let chunk = self.options.load.prefill_chunk_tokens;
        for position in range.clone().step_by(chunk) {
            let end = (position + chunk).min(range.end);
            let want = if end == range.end { Want::Last } else { Want::Nothing };
            let tokens = &self.tokens[position..end];
            self.model.step(&[StepRow { tokens, position, blocks: &self.blocks, want }])?;
        }
        self.filled = self.filled.max(range.end);
        Ok((now() - start).as_secs_f64())
    }

    fn fill(&mut self, depth: usize) -> Result<(), StepError> {
        if self.filled < depth {
            self.prefill(self.filled..depth)?;
        }
        Ok(())
    }

    fn measure_prefill(&mut self, depth: usize, tokens: usize) -> Result<(), StepError> {
        self.fill(depth)?;
        let mut best = f64::INFINITY;
        for _ in 0..self.options.repeat {
            best = best.min(self.prefill(depth..depth + tokens)?);
        }
        self.tests.push((at(format!("prefill {tokens}"), depth), tokens as f64 / best));
        Ok(())
    }

    fn measure_decode(&mut self, depth: usize) -> Result<(), StepError> {
        self.fill(depth)?;
        let (steps, mut best) = (self.options.decode, f64::INFINITY);
        for _ in 0..self.options.repeat {
            let start = now();
            for position in depth..depth + steps {
                self.prefill(position..position + 1)?;
            }
            best = best.min((now() - start).as_secs_f64());
        }
        self.tests.push((at(format!("decode {steps}"), depth), steps as f64 / best));
        Ok(())
    }

    fn measure_sessions(&mut self, sessions: usize) -> Result<(), StepError> {
        let (steps, stride) = (self.options.steps, self.session_tokens());
        let Self { model, blocks, tokens, .. } = self;
        // These overwrite the one text's beginning.
        self.filled = 0;
        let tables: Vec<_> = blocks.chunks_exact(stride / KV_BLOCK_TOKENS).take(sessions).collect();
        // Each sequence has the text of its own blocks: experts are not chosen by all alike.
        let mut step = |range: std::ops::Range<usize>, sequences: std::ops::Range<usize>| {
            let row = |sequence| StepRow {
                tokens: &tokens[sequence * stride..][range.clone()],
                position: range.start,
                blocks: tables[sequence],
                want: Want::Last,
            };
            let rows: Vec<_> = sequences.map(row).collect();
            model.step(&rows).map(|_| ())
        };
        let mut best = f64::INFINITY;
        for _ in 0..self.options.repeat {
            (0..sessions).try_for_each(|one| step(0..PROMPT_TOKENS, one..one + 1))?;
            let mut decode =
                |from: usize, count| (from..from + count).try_for_each(|at| step(at..at + 1, 0..sessions));
            decode(PROMPT_TOKENS, WARM_UP_STEPS)?;
            let start = now();
            decode(PROMPT_TOKENS + WARM_UP_STEPS, steps)?;
            best = best.min((now() - start).as_secs_f64());
        }
        self.tests.push((format!("{sessions} sessions"), (sessions * steps) as f64 / best));
        Ok(())
    }
}

fn at(test: String, depth: usize) -> String {
    if depth == 0 { test } else { format!("{test} at {depth}") }
}

/// What one decoded token reads of the weights: all but an embedding that is not the head too, and of experts the share that
/// a token uses.
fn weight_bytes_a_token(model: &Path) -> Result<u64, GgufError> {
    let file = GgufFile::open(model)?;
    let count = |key: &str| file.metadata().opt_u64(&format!("{}.{key}", file.architecture()));
    let (used, experts) =
        (count("expert_used_count")?.unwrap_or(1), count("expert_count")?.unwrap_or(1).max(1));
    let has_own_head = file.tensor("output.weight").is_some();
    let read = file.tensors().map(|tensor| {
        let bytes = tensor.range().len() as u64;
        match tensor.name() {
            "token_embd.weight" if has_own_head => 0,
            name if name.contains("_exps") => bytes * used / experts,
            _ => bytes,
        }
    });
    Ok(read.sum())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark is what reads a clock")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn print(figures: &Figures, json: bool) {
    let Figures { load_s, settle_s, peak_rss_bytes, weight_bytes_a_token, tests } = figures;
    if json {
        let tests: Vec<_> = tests.iter().map(|(name, rate)| format!("\"{name}\":{rate:.2}")).collect();
        println!(
            "{{\"load_s\":{load_s:.4},\"settle_s\":{settle_s:.4},\"peak_rss_bytes\":{peak_rss_bytes},\
             \"weight_bytes_a_token\":{weight_bytes_a_token},\"tests\":{{{}}}}}",
            tests.join(",")
        );
        return;
    }
    for (name, rate) in tests {
        println!("{name:<24} {rate:9.1} tokens/s");
    }
    println!(
        "load {load_s:.3} s, then {settle_s:.3} s to settle, peak memory {} MiB, {weight_bytes_a_token} bytes a token",
        peak_rss_bytes >> 20
    );
}

/// `VmHWM` of this process; 0 where there is no /proc.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
