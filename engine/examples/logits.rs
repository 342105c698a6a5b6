//! Logits of a model as JSON lines, in the shape of the reference files:
//! `logits MODEL.gguf --ids 1,2,3 [--greedy N] [--top N] [--oracle] [--threads N] [--isa scalar|avx2|avx512|avx512bf16]`.
//!
//! One line a position: `{"pos":0,"token":1,"logits":[...]}`, or with `--top` the likeliest next tokens and their
//! natural-log probabilities. `--greedy N` feeds the N likeliest tokens after the given ones.

use std::{io::Write, path::PathBuf, process::ExitCode};

use zllm_engine::{
    LoadOptions, LoadedModel, Oracle, StepRow, Want, gguf::GgufFile, sampling::log_probabilities,
    spec::ModelSpec,
};

/// Rows of one step: each holds a whole row of logits.
const CHUNK: usize = 32;

const USAGE: &str =
    "usage: logits MODEL.gguf --ids 1,2,3 [--greedy N] [--top N] [--oracle] [--threads N] [--isa NAME]";

struct Options {
    model: PathBuf,
    ids: Vec<u32>,
    greedy: usize,
    top: Option<usize>,
    oracle: bool,
    load: LoadOptions,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("logits: {error}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("logits: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        model: PathBuf::new(),
        ids: Vec::new(),
        greedy: 0,
        top: None,
        oracle: false,
        load: LoadOptions { max_batch_rows: CHUNK, prefill_chunk_tokens: CHUNK, ..LoadOptions::default() },
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"));
        match arg.as_str() {
            "--ids" => {
                let text = value()?;
                let id = |s: &str| s.trim().parse().map_err(|_| format!("{s:?} is not a token id"));
                options.ids = text.split(',').map(id).collect::<Result<_, _>>()?;
            }
            "--greedy" => options.greedy = number(value()?)?,
            "--top" => options.top = Some(number(value()?)?),
            "--threads" => options.load.threads = number(value()?)?,
            "--isa" => options.load.isa = Some(value()?.parse()?),
            "--oracle" => options.oracle = true,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            path => options.model = path.into(),
        }
    }
    if options.model.as_os_str().is_empty() || options.ids.is_empty() {
        return Err("a model and --ids are needed".into());
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let mut source = Source::open(options)?;
    let mut out = std::io::stdout().lock();
    let (mut tokens, mut position) = (options.ids.clone(), 0);
    while position < tokens.len() {
        let chunk = tokens[position..].chunks(CHUNK).next().expect("tokens are left").to_vec();
        let rows = source.feed(&chunk, position)?;
        for (row, token) in rows.iter().zip(&chunk) {
            print_row(&mut out, position, *token, row, options.top)?;
            position += 1;
        }
        if position == tokens.len() && position < options.ids.len() + options.greedy {
            let last = rows.last().expect("a chunk has rows");
            tokens.push(log_probabilities(last, 1)[0].0);
        }
    }
    Ok(())
}

fn print_row(
    out: &mut impl Write,
    pos: usize,
    token: u32,
    row: &[f32],
    top: Option<usize>,
) -> std::io::Result<()> {
    let (name, shown): (_, Vec<String>) = match top {
        Some(n) => {
            let likeliest = log_probabilities(row, n);
            ("top", likeliest.iter().map(|(id, lp)| format!("[{id},{lp:.6}]")).collect())
        }
        None => ("logits", row.iter().map(|x| format!("{x:.6}")).collect()),
    };
    writeln!(out, "{{\"pos\":{pos},\"token\":{token},\"{name}\":[{}]}}", shown.join(","))
}

/// Where logits come from.
enum Source {
    Oracle(Box<Oracle>),
    Cpu { model: Box<LoadedModel>, blocks: Vec<u32> },
}

impl Source {
    fn open(options: &Options) -> Result<Self, Box<dyn std::error::Error>> {
        if options.oracle {
            let file = GgufFile::open(&options.model)?;
            let spec = ModelSpec::read(&file, None)?;
            if let Some(id) = options.ids.iter().find(|id| **id as usize >= spec.vocab_size) {
                return Err(format!("token {id} is outside the vocabulary of {}", spec.vocab_size).into());
            }
            return Ok(Self::Oracle(Box::new(Oracle::load(&file, spec, options.load.threads)?)));
        }
        let model = LoadedModel::load(&options.model, &options.load, &mut |_| {})?;
        let blocks = (0..model.kv_blocks()).collect();
        Ok(Self::Cpu { model: Box::new(model), blocks })
    }

    /// The logits after each of `tokens`.
    fn feed(&mut self, tokens: &[u32], position: usize) -> Result<Vec<Vec<f32>>, Box<dyn std::error::Error>> {
        match self {
            Self::Oracle(oracle) => Ok(oracle.forward(tokens)),
            Self::Cpu { model, blocks } => {
                let mut logits = model.step(&[StepRow { tokens, position, blocks, want: Want::All }])?;
                Ok((0..logits.rows()).map(|i| logits.row_mut(i).to_vec()).collect())
            }
        }
    }
}
