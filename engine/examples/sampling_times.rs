//! `sampling_times`: how long the sampler takes for one draw from a vocabulary of 262,144 tokens, by its parameters and by
//! how the logits lie. In microseconds of this thread's CPU time, so that what else the machine does counts little; the best
//! of a few rounds. A row is written anew before each draw, which is measured by itself and taken off.

use std::{error::Error, fs};

use zllm_engine::sampling::{Sampler, SamplingParams, log_probabilities, random_u64};

const VOCABULARY: u64 = 262_144;
/// The system counts a thread's time in ticks of some milliseconds.
const DRAWS: u64 = 300;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let open =
        SamplingParams { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    let mut cases = vec![("greedy".to_owned(), SamplingParams::greedy())];
    for (top_k, top_p, min_p) in
        (0..8).map(|set| (set & 1 != 0, set & 2 != 0, set & 4 != 0)).collect::<Vec<_>>()
    {
        let mut params = open.clone();
        let mut name = vec![];
        if top_k {
            params.top_k = 40;
            name.push("top-k");
        }
        if top_p {
            params.top_p = 0.95;
            name.push("top-p");
        }
        if min_p {
            params.min_p = 0.05;
            name.push("min-p");
        }
        cases.push((if name.is_empty() { "no filter".to_owned() } else { name.join(" ") }, params));
    }
    let penalties = SamplingParams { repeat_penalty: 1.1, presence_penalty: 0.5, top_k: 40, ..open };
    cases.push(("top-k, penalties".to_owned(), penalties));

    let flat = bell().into_iter().map(|logit| logit / 8.0).collect();
    let rows: [(&str, Vec<f32>); 3] = [("peaked", peaked()), ("bell", bell()), ("flat", flat)];
    print!("{:20}", "us a draw");
    rows.iter().for_each(|(name, _)| print!("{name:>10}"));
    println!("  (tokens add up to)");
    for (name, params) in &cases {
        let mut sampler = Sampler::new(params.clone(), &(0..2000).collect::<Vec<_>>());
        let mut sums = vec![];
        print!("{name:20}");
        for (_, row) in &rows {
            let mut sum = 0;
            let took = microseconds(row, |row, at| sum += u64::from(sampler.sample(row, at)))?;
            print!("{took:10.0}");
            sums.push(sum);
        }
        println!("  {sums:?}");
    }
    print!("{:20}", "20 log probabilities");
    for (_, row) in &rows {
        let took = microseconds(row, |row, _| assert_eq!(log_probabilities(row, 20).len(), 20))?;
        print!("{took:10.0}");
    }
    println!();
    Ok(())
}

/// Sums of uniform numbers.
fn bell() -> Vec<f32> {
    let uniform = |part, id| (random_u64(part, id) >> 40) as f32 / (1 << 22) as f32;
    (0..VOCABULARY).map(|id| (0..6).map(|part| uniform(part, id)).sum()).collect()
}

/// The same, and a few hundred tokens far above it: about what a model gives that knows what comes next.
fn peaked() -> Vec<f32> {
    let mut row = bell();
    for rank in 0..300u64 {
        row[(random_u64(9, rank) % VOCABULARY) as usize] = 36.0 - 2.0 * (rank as f32).ln_1p();
    }
    row
}

/// Microseconds of `draw(row, number)`, without the row's copy.
fn microseconds(row: &[f32], mut draw: impl FnMut(&mut [f32], u64)) -> Result<f64, Box<dyn Error>> {
    let mut copy = row.to_vec();
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (is_drawn, best) in best.iter_mut().enumerate() {
            let start = cpu_seconds()?;
            for at in 0..DRAWS {
                std::hint::black_box(&mut copy).copy_from_slice(row);
                if is_drawn == 1 {
                    draw(&mut copy, at);
                }
            }
            *best = best.min((cpu_seconds()? - start) * 1e6 / DRAWS as f64);
        }
    }
    Ok(best[1] - best[0])
}

/// How long this thread has run on a CPU.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = stat.split_whitespace().next().ok_or("an empty schedstat")?.parse()?;
    Ok(nanoseconds / 1e9)
}
