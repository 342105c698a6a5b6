//! What a KV format costs on a real model: `kv_error MODEL.gguf [--tokens 256] [--text FILE] [--threads N]
//! [--dump LAYER FILE]`. Prints Markdown.
//!
//! The f32 oracle reads a text (docs/ARCHITECTURE.md unless another is given) and hands out queries, keys and values of
//! each layer after rope. For every pair of codecs the kernels attend with them; their outputs are compared with f64 on
//! the same numbers, head by head. Then the runtime reads the text with each pair: the mean KL divergence of its
//! next-token distributions from the oracle's, whose keys and values are f32. Most of that is the same for all formats: it
//! comes of the weights' products.
//!
//! `--dump` writes the activations of one layer instead, cut to 64 tokens, in the form that the kernels' test `kv_error`
//! reads.

use std::{path::PathBuf, process::ExitCode};

use zllm_engine::{
    KvFormat, LoadOptions, LoadedModel, Oracle, StepRow, Want, gguf::GgufFile, spec::ModelSpec,
};
use zllm_kernels::{backend::KvLayer, cpu::pool::Pool};

#[path = "../../kernels/tests/kv_error/measure.rs"]
mod measure;
use measure::Dump;

/// Tokens of a dump: all that a committed file needs to show outlier channels.
const DUMP_TOKENS: usize = 64;
/// Rows of one step: each holds a whole row of logits.
const CHUNK: usize = 32;

type Failure = Box<dyn std::error::Error>;

struct Options {
    model: PathBuf,
    tokens: usize,
    text: Option<PathBuf>,
    threads: usize,
    dump: Option<(usize, PathBuf)>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("kv_error: {error}");
            return ExitCode::from(64);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv_error: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let threads = LoadOptions::default().threads;
    let mut options = Options { model: PathBuf::new(), tokens: 256, text: None, threads, dump: None };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"));
        match arg.as_str() {
            "--tokens" => options.tokens = number(value()?)?,
            "--text" => options.text = Some(value()?.into()),
            "--threads" => options.threads = number(value()?)?,
            "--dump" => {
                let layer = number(value()?)?;
                let path = args.next().ok_or("--dump needs a layer and a file")?;
                options.dump = Some((layer, path.into()));
            }
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => options.model = path.into(),
        }
    }
    if options.model.as_os_str().is_empty() || options.tokens == 0 {
        return Err("a model and at least one token are needed".into());
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), Failure> {
    let text = match &options.text {
        Some(path) => std::fs::read_to_string(path)?,
        None => include_str!("../../docs/ARCHITECTURE.md").to_owned(),
    };
    let reader = load(options, KvFormat::I16)?.text();
    let mut tokens = Vec::new();
    reader.tokenizer()?.encode(&text, false, &mut tokens);
    tokens.truncate(options.tokens);
    let (oracle, dumps) = activations(options, &tokens)?;
    if let Some((layer, path)) = &options.dump {
        let dump = dumps.get(*layer).ok_or(format!("there are {} layers, from 0 on", dumps.len()))?;
        return Ok(std::fs::write(path, beginning(dump, DUMP_TOKENS).to_bytes())?);
    }
    let outliers = dumps.iter().enumerate().map(|(layer, dump)| (dump.outlier(), layer));
    let ((ratio, head, dim), layer) =
        outliers.max_by(|a, b| a.0.0.total_cmp(&b.0.0)).ok_or("a model without layers")?;
    println!("{}, {} tokens, {} layers", reader.name(), tokens.len(), dumps.len());
    println!(
        "channel that stands out most: {ratio:.0} times its head's middling one (layer {layer}, KV head {head}, dimension {dim} of the keys)"
    );
    println!();
    println!("| keys/values | median head | worst head | | KL from f32 KV |");
    println!("|---|---:|---:|---|---:|");
    let pool = Pool::new(options.threads);
    let exact: Vec<_> = dumps.iter().map(Dump::exact).collect();
    for format in KvFormat::all() {
        let mut medians = Vec::new();
        let mut worst = (0.0, 0, 0);
        for (layer, (dump, exact)) in dumps.iter().zip(&exact).enumerate() {
            let errors = dump.errors(exact, &dump.outputs(format, &pool));
            medians.push(errors.median);
            if errors.most > worst.0 {
                worst = (errors.most, layer, errors.worst_head);
            }
        }
        medians.sort_by(f64::total_cmp);
        let median = medians[medians.len() / 2];
        let found = logits(&mut load(options, format)?, &tokens)?;
        println!(
            "| {format} | {median:.1e} | {:.1e} | layer {}, head {} | {:.2e} |",
            worst.0,
            worst.1,
            worst.2,
            divergence(&oracle, &found)
        );
    }
    Ok(())
}

fn load(options: &Options, kv_format: KvFormat) -> Result<LoadedModel, Failure> {
    let options_of_load = LoadOptions {
        threads: options.threads,
        kv_format,
        prefill_chunk_tokens: CHUNK,
        max_batch_rows: CHUNK,
        ..LoadOptions::default()
    };
    Ok(LoadedModel::load(&options.model, &options_of_load, &mut |_| {})?)
}

/// The oracle's logits after each token, and what the attention of each layer worked on.
fn activations(options: &Options, tokens: &[u32]) -> Result<(Vec<Vec<f32>>, Vec<Dump>), Failure> {
    let file = GgufFile::open(&options.model)?;
    let spec = ModelSpec::read(&file, None)?;
    let mut oracle = Oracle::load(&file, spec, options.threads)?;
    let mut dumps: Vec<Dump> = Vec::new();
    let mut unmeasured = false;
    let logits = oracle.forward_watched(tokens, &mut |seen| {
        let a = seen.attention;
        unmeasured |= a.soft_cap.is_some() || a.sinks.is_some();
        dumps.push(Dump {
            tokens: tokens.len(),
            heads: a.heads,
            layer: KvLayer { kv_heads: a.kv_heads, k_dim: a.key_dim, v_dim: a.value_dim },
            scale: a.scale,
            window: a.window,
            queries: seen.queries.concat(),
            keys: seen.keys.concat(),
            values: seen.values.concat(),
        });
    });
    if unmeasured {
        return Err("attention with capped scores or sinks is not measured here".into());
    }
    Ok((logits, dumps))
}

/// The first `tokens` of a dump.
fn beginning(dump: &Dump, tokens: usize) -> Dump {
    let tokens = tokens.min(dump.tokens);
    let cut = |of: &[f32]| of[..of.len() / dump.tokens * tokens].to_vec();
    let (queries, keys, values) = (cut(&dump.queries), cut(&dump.keys), cut(&dump.values));
    Dump { tokens, queries, keys, values, ..*dump }
}

/// The runtime's logits after each token.
fn logits(model: &mut LoadedModel, tokens: &[u32]) -> Result<Vec<Vec<f32>>, Failure> {
    let blocks: Vec<u32> = (0..model.kv_blocks()).collect();
    let mut all = Vec::with_capacity(tokens.len());
    for (i, part) in tokens.chunks(CHUNK).enumerate() {
        let row = StepRow { tokens: part, position: i * CHUNK, blocks: &blocks, want: Want::All };
        let mut logits = model.step(&[row])?;
        all.extend((0..part.len()).map(|row| logits.row_mut(row).to_vec()));
    }
    Ok(all)
}

/// Mean KL divergence of `found` from `wanted`, in nats a token.
fn divergence(wanted: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let log_total = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(most) + row.iter().map(|x| f64::from(x - most).exp()).sum::<f64>().ln()
    };
    let rows = wanted.iter().zip(found).map(|(wanted, found)| {
        let (p_total, q_total) = (log_total(wanted), log_total(found));
        let terms = wanted.iter().zip(found).map(|(p, q)| {
            let (p, q) = (f64::from(*p) - p_total, f64::from(*q) - q_total);
            p.exp() * (p - q)
        });
        terms.sum::<f64>()
    });
    rows.sum::<f64>() / wanted.len() as f64
}
