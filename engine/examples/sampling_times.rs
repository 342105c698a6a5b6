//! `sampling_times`: how long the sampler takes for one draw from a vocabulary of 262,144 tokens, by its parameters. In
//! microseconds of CPU time, so that what else the machine does does not count.

use std::{error::Error, fs};

use zllm_engine::sampling::{Sampler, SamplingParams, random_u64};

const VOCABULARY: u64 = 262_144;
const DRAWS: u64 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    // Sums of uniform numbers: about as bell-shaped as the logits of a model.
    let uniform = |part, id| (random_u64(part, id) >> 40) as f32 / (1 << 22) as f32;
    let logits: Vec<f32> = (0..VOCABULARY).map(|id| (0..6).map(|part| uniform(part, id)).sum()).collect();
    let open = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    for (name, params) in [
        ("greedy", SamplingParams::greedy()),
        ("default", SamplingParams::default()),
        ("open", open.clone()),
        ("top-p", SamplingParams { top_p: 0.95, ..open.clone() }),
        ("min-p", SamplingParams { min_p: 0.05, ..open }),
    ] {
        let mut sampler = Sampler::new(params, &[]);
        let mut rows = vec![logits.clone(); DRAWS as usize];
        let start = cpu_seconds()?;
        let sum: u64 = rows.iter_mut().zip(0..).map(|(row, at)| u64::from(sampler.sample(row, at))).sum();
        let microseconds = (cpu_seconds()? - start) * 1e6 / DRAWS as f64;
        println!("{name:8} {microseconds:8.0} us a draw (tokens add up to {sum})");
    }
    Ok(())
}

/// How long this thread has run on a CPU.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = stat.split_whitespace().next().ok_or("an empty schedstat")?.parse()?;
    Ok(nanoseconds / 1e9)
}
