//! Speed of one model through the engine's own step: `bench MODEL.gguf [--prefill 512] [--decode 128] [--depth 0]
//! [--chunk 512] [--threads N] [--isa NAME] [--repeat 3] [--json]`. Prints the best of the repeats: tokens per second of
//! a prefill and of single-token decode, both from `depth`, load seconds and peak memory.

use std::{path::PathBuf, process::ExitCode};

use zllm_engine::{LoadOptions, LoadedModel, StepError, StepRow, Want};

struct Options {
    model: PathBuf,
    prefill: usize,
    decode: usize,
    depth: usize,
    repeat: usize,
    json: bool,
    load: LoadOptions,
}

#[derive(Default)]
struct Figures {
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
    load_s: f64,
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
            print(&options, &figures);
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
        prefill: 512,
        decode: 128,
        depth: 0,
        repeat: 3,
        json: false,
        load: LoadOptions::default(),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"));
        match arg.as_str() {
            "--prefill" => options.prefill = number(value()?)?,
            "--decode" => options.decode = number(value()?)?,
            "--depth" => options.depth = number(value()?)?,
            "--repeat" => options.repeat = number(value()?)?.max(1),
            "--threads" => options.load.threads = number(value()?)?,
            "--chunk" => options.load.prefill_chunk_tokens = number(value()?)?,
            "--isa" => options.load.isa = Some(value()?.parse()?),
            "--json" => options.json = true,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => options.model = path.into(),
        }
    }
    if options.model.as_os_str().is_empty() { Err("a model is needed".into()) } else { Ok(options) }
}

fn run(options: &Options) -> Result<Figures, Box<dyn std::error::Error>> {
    let start = now();
    let mut model = LoadedModel::load(&options.model, &options.load, &mut |_| {})?;
    let mut best = Figures { load_s: (now() - start).as_secs_f64(), ..Figures::default() };
    let blocks: Vec<u32> = (0..model.kv_blocks()).collect();
    let vocab = model.text().vocab_size() as u32;
    let (depth, end) = (options.depth, options.depth + options.prefill);
    // Any tokens do: no step's cost depends on which they are. A fixed sequence keeps runs comparable.
    let tokens: Vec<u32> = (0..(end + options.decode) as u32).map(|i| i * 7919 % vocab).collect();
    let chunk = options.load.prefill_chunk_tokens;
    for _ in 0..options.repeat {
        prefill(&mut model, &blocks, &tokens[..depth], 0, chunk)?;
        let start = now();
        prefill(&mut model, &blocks, &tokens[depth..end], depth, chunk)?;
        let rate = options.prefill as f64 / (now() - start).as_secs_f64();
        best.prefill_tokens_per_s = best.prefill_tokens_per_s.max(rate);

        let start = now();
        for position in depth..depth + options.decode {
            let tokens = &tokens[position..=position];
            model.step(&[StepRow { tokens, position, blocks: &blocks, want: Want::Last }])?;
        }
        let rate = options.decode as f64 / (now() - start).as_secs_f64();
        best.decode_tokens_per_s = best.decode_tokens_per_s.max(rate);
    }
    Ok(best)
}

fn prefill(
    model: &mut LoadedModel,
    blocks: &[u32],
    tokens: &[u32],
    position: usize,
    chunk: usize,
) -> Result<(), StepError> {
    let chunks = tokens.chunks(chunk).count();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let want = if i + 1 == chunks { Want::Last } else { Want::Nothing };
        model.step(&[StepRow { tokens: part, position: position + i * chunk, blocks, want }])?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark is what reads a clock")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn print(options: &Options, figures: &Figures) {
    let Figures { prefill_tokens_per_s, decode_tokens_per_s, load_s } = figures;
    let rss = peak_rss_bytes();
    if options.json {
        println!(
            "{{\"prefill_tokens_per_s\":{prefill_tokens_per_s:.2},\"decode_tokens_per_s\":{decode_tokens_per_s:.2},\
             \"load_s\":{load_s:.3},\"peak_rss_bytes\":{rss}}}"
        );
    } else {
        println!("prefill {} tokens   {prefill_tokens_per_s:9.1} tokens/s", options.prefill);
        println!("decode  {} tokens   {decode_tokens_per_s:9.1} tokens/s", options.decode);
        println!("load {load_s:.3} s, peak memory {} MiB", rss >> 20);
    }
}

/// `VmHWM` of this process; 0 where there is no /proc.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
