//! Perplexity of a text: `perplexity MODEL.gguf TEXT [--tokens 20000] [--window 512] [--ids FILE] [--threads N]
//! [--kv-format NAME] [--isa NAME]`. Prints one JSON object with the tokens, those that were scored, and the perplexity.
//!
//! The first `--tokens` ids of the text are cut into windows that know nothing of each other. In each the second half is
//! scored, every token by the logits after the one before it, so that each has at least half a window of context. `--ids`
//! writes the ids, for another program to score the same ones.

use std::{path::PathBuf, process::ExitCode};

use zllm_engine::{LoadOptions, LoadedModel, StepRow, UnknownKvFormat, Want};

/// Rows whose logits are in memory at once.
const ROWS: usize = 64;

struct Options {
    model: PathBuf,
    text: PathBuf,
    ids: Option<PathBuf>,
    tokens: usize,
    window: usize,
    load: LoadOptions,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("perplexity: {error}");
            return ExitCode::from(64);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perplexity: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let load = LoadOptions { prefill_chunk_tokens: ROWS, max_batch_rows: ROWS, ..LoadOptions::default() };
    let mut paths = Vec::new();
    let mut options =
        Options { model: PathBuf::new(), text: PathBuf::new(), ids: None, tokens: 20_000, window: 512, load };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"));
        match arg.as_str() {
            "--tokens" => options.tokens = number(value()?)?,
            "--window" => options.window = number(value()?)?,
            "--ids" => options.ids = Some(value()?.into()),
            "--threads" => options.load.threads = number(value()?)?,
            "--kv-format" => {
                options.load.kv_format = value()?.parse().map_err(|e: UnknownKvFormat| e.to_string())?
            }
            "--isa" => options.load.isa = Some(value()?.parse()?),
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => paths.push(PathBuf::from(path)),
        }
    }
    [options.model, options.text] = paths.try_into().map_err(|_| "a model and a text are needed")?;
    if options.window < 2 || options.tokens < options.window {
        return Err("--window must be at least 2 and --tokens at least one window".into());
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(&options.text)?;
    let mut model = LoadedModel::load(&options.model, &options.load, &mut |_| {})?;
    let mut ids = Vec::new();
    model.text().tokenizer()?.encode(&text, false, &mut ids);
    let Some(ids) = ids.get(..options.tokens) else {
        return Err(format!("the text has {} tokens of {} that are wanted", ids.len(), options.tokens).into());
    };
    if let Some(path) = &options.ids {
        let lines: Vec<_> = ids.iter().map(ToString::to_string).collect();
        std::fs::write(path, lines.join("\n"))?;
    }
    let (mut sum, mut scored) = (0.0, 0);
    for window in ids.chunks_exact(options.window) {
        let (nats, count) = score(&mut model, window)?;
        sum += nats;
        scored += count;
    }
    let perplexity = (sum / scored as f64).exp();
    println!("{{\"tokens\":{},\"scored\":{scored},\"perplexity\":{perplexity:.5}}}", ids.len());
    Ok(())
}

/// The summed surprise of the window's second half, in nats, and how many tokens that is.
fn score(model: &mut LoadedModel, window: &[u32]) -> Result<(f64, usize), Box<dyn std::error::Error>> {
    let blocks: Vec<u32> = (0..model.kv_blocks()).collect();
    let first_scored = window.len() / 2;
    let (mut sum, mut count) = (0.0, 0);
    for (chunk, tokens) in window.chunks(ROWS).enumerate() {
        let position = chunk * ROWS;
        let mut logits = model.step(&[StepRow { tokens, position, blocks: &blocks, want: Want::All }])?;
        for row in 0..tokens.len() {
            let next = position + row + 1;
            if (first_scored..window.len()).contains(&next) {
                sum += surprise(logits.row_mut(row), window[next]);
                count += 1;
            }
        }
    }
    Ok((sum, count))
}

/// `-ln p(token)`
fn surprise(logits: &[f32], token: u32) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - most).exp()).sum();
    most + sum.ln() - f64::from(logits[token as usize])
}
