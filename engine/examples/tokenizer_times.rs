//! `tokenizer_times MODEL.gguf [TEXT | PRE]`: how long the model's tokenizer takes. In seconds of CPU time, so that what
//! else the machine does does not count.
//!
//! With a text file, how long it takes to make, and to encode the text again and again up to at least a megabyte. Else
//! the texts that a quadratic way would never end with, of 2.5 and of 10 MB, split as the model or as PRE says: a text of
//! four times the length may take at most [`MOST_TIMES_LONGER`] times as long.

use std::{error::Error, fs, path::Path};

use zllm_engine::{gguf::GgufFile, tokenizer::Tokenizer};

const MIN_BYTES: usize = 1_000_000;
const SHORT_BYTES: usize = 2_500_000;
const LONG_BYTES: usize = 10_000_000;
/// Linear is 4, n log n is 4.4; the caches fit less of the longer one. Quadratic is 16.
const MOST_TIMES_LONGER: f64 = 7.0;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, other) = match arguments.as_slice() {
        [model] => (model, None),
        [model, other] => (model, Some(other.as_str())),
        _ => return Err("usage: tokenizer_times MODEL.gguf [TEXT | PRE]".into()),
    };
    let pre = other.filter(|name| Tokenizer::pre_tokenizers().contains(name));
    let file = GgufFile::open(Path::new(model))?;
    let start = cpu_seconds()?;
    let tokenizer = Tokenizer::with_pre_tokenizer(&file, pre)?;
    println!("made in {:.3} s", cpu_seconds()? - start);
    match other.filter(|_| pre.is_none()) {
        Some(path) => {
            let text = fs::read_to_string(path)?;
            let text = text.repeat(MIN_BYTES.div_ceil(text.len().max(1)));
            let (seconds, tokens) = encode(&tokenizer, &text)?;
            let megabytes = text.len() as f64 / 1e6;
            println!("{megabytes:.1} MB in {seconds:.3} s: {:.1} MB/s, {tokens} tokens", megabytes / seconds);
            Ok(())
        }
        None => hostile(&tokenizer),
    }
}

fn hostile(tokenizer: &Tokenizer) -> Result<(), Box<dyn Error>> {
    let words = noise(1 << 20);
    let texts = ["a", " ", "1", "字", "É\u{301}", "'", " \n", "aB", &words];
    let mut slow = 0;
    for unit in texts {
        let mut seconds = [0.0; 2];
        for (seconds, bytes) in seconds.iter_mut().zip([SHORT_BYTES, LONG_BYTES]) {
            *seconds = encode(tokenizer, &(unit.repeat(bytes.div_ceil(unit.len())) + "x"))?.0;
        }
        let [short, long] = seconds;
        let name: String = unit.chars().take(4).collect();
        println!("{name:>12?}: {short:6.2} s for 2.5 MB, {long:6.2} s for 10 MB: {:4.1} times", long / short);
        slow += usize::from(long > MOST_TIMES_LONGER * short);
    }
    if slow > 0 {
        return Err(format!("{slow} texts took longer than a linear way would").into());
    }
    Ok(())
}

/// Random characters: bytes as a file that is no text would have them, read with U+FFFD for what is no UTF-8.
fn noise(bytes: usize) -> String {
    let mut state = 1u64;
    let mut next = || {
        // Knuth's MMIX generator; its high bits are good enough here.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    let bytes: Vec<u8> = (0..bytes).map(|_| next()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Seconds and tokens.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<(f64, usize), Box<dyn Error>> {
    let mut ids = vec![];
    let start = cpu_seconds()?;
    tokenizer.encode(text, false, &mut ids);
    Ok((cpu_seconds()? - start, ids.len()))
}

/// How long this thread has run on a CPU.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = stat.split_whitespace().next().ok_or("an empty schedstat")?.parse()?;
    Ok(nanoseconds / 1e9)
}
