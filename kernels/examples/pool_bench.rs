//! What a hand-off to the pool's threads costs, in ns a job, by threads: with nothing to do, with 20 us of work for each
//! thread (what is over the work itself), and to workers that sleep.
//!
//! `cargo run --release -p zllm-kernels --example pool_bench [-- THREADS]`; `-- rate SECONDS [THREADS]` prints how many jobs a
//! second get done that are like those of a decode step, to compare it alone and beside other processes.

#![allow(clippy::disallowed_methods, reason = "a benchmark is what the clock is for")]

use std::{
    hint::black_box,
    ops::Range,
    time::{Duration, Instant},
};
use zllm_kernels::cpu::pool::Pool;

const JOBS: u32 = 20_000;
const REPEATS: usize = 5;
/// Work of a thread in a job that has some.
const BODY: Duration = Duration::from_micros(20);
/// Pieces of a thread in such a job.
const PIECES: usize = 4;
/// Long enough for every worker to sleep.
const SLEEP: Duration = Duration::from_millis(5);

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let number = |text: String| text.parse::<f64>().expect("a number");
    if args.next_if(|arg| arg == "rate").is_some() {
        let seconds = Duration::from_secs_f64(args.next().map_or(2.0, number));
        let pool = Pool::new(args.next().map_or(2.0, number) as usize);
        return println!("{:.0} jobs/s", rate(&pool, seconds));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = args.next().map_or(cores, |arg| number(arg) as usize);
    println!("{:>7} {:>12} {:>16} {:>14}", "threads", "empty, ns", "20 us each, ns", "asleep, ns");
    for threads in 1..=most {
        let pool = Pool::new(threads);
        let [empty, over, asleep] = [empty(&pool), over_work(&pool), asleep(&pool)];
        println!("{threads:>7} {empty:>12.0} {over:>16.0} {asleep:>14.0}");
    }
}

/// A job that every thread takes part in and that has nothing to do.
fn empty(pool: &Pool) -> f64 {
    best(|| {
        let start = Instant::now();
        (0..JOBS).for_each(|_| pool.run(&|_| {}));
        start.elapsed() / JOBS
    })
}

/// What a job of [`BODY`] for each thread takes more than the work.
fn over_work(pool: &Pool) -> f64 {
    let steps = calibrate();
    let jobs = JOBS / 20;
    let alone = best(|| timed(jobs, || (0..PIECES).for_each(|_| work(steps))));
    best(|| timed(jobs, || in_pieces(pool, steps))) - alone
}

/// A job after a pause: its workers have to be woken. The pause itself is not counted.
fn asleep(pool: &Pool) -> f64 {
    let times = (0..20).map(|_| {
        std::thread::sleep(SLEEP);
        timed(1, || pool.run(&|_| {})).as_nanos() as f64
    });
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn rate(pool: &Pool, seconds: Duration) -> f64 {
    let steps = calibrate();
    let (start, mut jobs) = (Instant::now(), 0);
    while start.elapsed() < seconds {
        (0..100).for_each(|_| in_pieces(pool, steps));
        jobs += 100;
    }
    f64::from(jobs) / start.elapsed().as_secs_f64()
}

fn in_pieces(pool: &Pool, steps: u32) {
    pool.split_in_order(pool.threads() * PIECES, 1, &|pieces: Range<usize>, _| {
        pieces.for_each(|_| work(steps))
    });
}

/// The steps of [`work`] that a piece of a [`BODY`] takes.
fn calibrate() -> u32 {
    const STEPS: u32 = 100_000;
    let ns = best(|| timed(10, || work(STEPS)));
    (f64::from(STEPS) * BODY.as_nanos() as f64 / PIECES as f64 / ns) as u32
}

/// A chain of multiplications, which nothing but time makes shorter.
fn work(steps: u32) {
    black_box((0..steps).fold(1u64, |x, i| (x ^ u64::from(i)).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
}

fn timed(times: u32, mut body: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..times).for_each(|_| body());
    start.elapsed() / times
}

/// The shortest of some repeats, in ns.
fn best(mut repeat: impl FnMut() -> Duration) -> f64 {
    let times = (0..REPEATS).map(|_| repeat().as_nanos());
    times.min().expect("some repeats") as f64
}
