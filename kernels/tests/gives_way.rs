//! The pool gives way: jobs go on at a fair share of the rate when others need the cores, be it another pool of the same size
//! or a thread that never sleeps. Where each job waits for threads that are off their cores, hundreds of times less is left.
//!
//! On a machine with other work the measure is what one thread alone gets done, without any pool's waiting. `ZLLM_SOAK=1`
//! measures longer and holds a quiet machine to shares of the pool's own rate.

#![allow(clippy::disallowed_methods, reason = "rates need a clock")]

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use zllm_kernels::cpu::pool::Pool;

/// Pieces of each thread in a job, some microseconds each: as in a decode step.
const PIECES: usize = 4;

/// What must be left of one thread's rate, whatever else the machine does.
const OF_ONE_THREAD: f64 = 0.1;
/// What must be left of the pool's own rate on a quiet machine: beside another pool, and beside a thread.
const OF_ALONE: [f64; 2] = [0.40, 0.45];

#[test]
fn jobs_go_on_beside_another_pool_and_beside_a_thread_that_never_sleeps() {
    let soak = std::env::var_os("ZLLM_SOAK").is_some();
    let time = Duration::from_millis(if soak { 1500 } else { 150 });
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let mut left = [Vec::new(), Vec::new()];
    // In turns, and the middle one counts: what else the machine does comes and goes.
    for _ in 0..5 {
        let (one_thread, alone) = (rate(1, threads, time), rate(threads, threads, time));
        let pools = std::thread::scope(|scope| {
            [(); 2]
                .map(|()| scope.spawn(|| rate(threads, threads, time)))
                .map(|pool| pool.join().expect("a rate"))
        });
        let beside = beside_a_thread(|| rate(threads, threads, time));
        println!(
            "jobs/s of one thread {one_thread:.0}, a pool {alone:.0}, two {pools:.0?}, beside a thread {beside:.0}"
        );
        let whole = if soak { alone } else { one_thread };
        left[0].push(pools[0].min(pools[1]) / whole);
        left[1].push(beside / whole);
    }
    let left = left.map(|mut shares| {
        shares.sort_by(f64::total_cmp);
        shares[shares.len() / 2]
    });
    let bounds = if soak { OF_ALONE } else { [OF_ONE_THREAD; 2] };
    assert!(left[0] >= bounds[0] && left[1] >= bounds[1], "{left:.3?} are left, {bounds:?} must be");
}

/// Jobs a second of a pool of `threads` threads; a job is work for `shares` threads.
fn rate(threads: usize, shares: usize, time: Duration) -> f64 {
    let pool = Pool::new(threads);
    let (start, mut jobs) = (Instant::now(), 0);
    while start.elapsed() < time {
        pool.split_in_order(shares * PIECES, 1, &|pieces, _| pieces.for_each(|_| work()));
        jobs += 1;
    }
    f64::from(jobs) / start.elapsed().as_secs_f64()
}

fn beside_a_thread<T>(body: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work();
            }
        });
        let result = body();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// A chain of multiplications, which nothing but time makes shorter.
fn work() {
    black_box((0..4000u64).fold(1u64, |x, i| (x ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
}
