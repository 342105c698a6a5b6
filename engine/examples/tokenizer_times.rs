//! `tokenizer_times MODEL.gguf TEXT`: how long the model's tokenizer takes to make, and to encode the text file again and
//! again up to at least a megabyte. In seconds of CPU time, so that what else the machine does does not count.

use std::{error::Error, fs, path::Path};

use zllm_engine::{gguf::GgufFile, tokenizer::Tokenizer};

const MIN_BYTES: usize = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text] = arguments.as_slice() else {
        return Err("usage: tokenizer_times MODEL.gguf TEXT".into());
    };
    let file = GgufFile::open(Path::new(model))?;
    let start = cpu_seconds()?;
    let tokenizer = Tokenizer::from_gguf(&file)?;
    println!("made in {:.3} s", cpu_seconds()? - start);

    let text = fs::read_to_string(text)?;
    let text = text.repeat(MIN_BYTES.div_ceil(text.len().max(1)));
    let mut ids = vec![];
    let start = cpu_seconds()?;
    tokenizer.encode(&text, false, &mut ids);
    let (seconds, megabytes) = (cpu_seconds()? - start, text.len() as f64 / 1e6);
    println!("{megabytes:.1} MB in {seconds:.3} s: {:.1} MB/s, {} tokens", megabytes / seconds, ids.len());
    Ok(())
}

/// How long this thread has run on a CPU.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = stat.split_whitespace().next().ok_or("an empty schedstat")?.parse()?;
    Ok(nanoseconds / 1e9)
}
