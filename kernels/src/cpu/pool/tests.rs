//! Every item once, every job its own closure, no wake-up lost.

use super::*;

#[test]
fn every_item_is_done_once_for_any_thread_count_and_grain() {
    for threads in 1..=4 {
        let pool = Pool::new(threads);
        for grain in [1, 3, 64] {
            for total in [0usize, 1, 7, 200] {
                let counts: Vec<_> = (0..total).map(|_| AtomicUsize::new(0)).collect();
                let part = |range: Range<usize>, _| {
                    range.for_each(|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                };
                pool.split(total, grain, &part);
                pool.split_in_order(total, grain, &part);
                let done: Vec<_> = counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
                assert!(done.iter().all(|&c| c == 2), "{threads} threads, grain {grain}: {done:?}");
            }
        }
    }
}

#[test]
fn a_closed_gate_turns_late_workers_away() {
    let pool = Pool::new(1);
    assert!(!enter(&pool.shared, Gate(Gate::open(7).0 | Gate::CLOSED)), "closed");
    assert!(!enter(&pool.shared, Gate::open(7)), "the gate has moved on");
    pool.shared.gate.0.store(Gate::open(8).0, Ordering::SeqCst);
    assert!(enter(&pool.shared, Gate::open(8)));
    assert_eq!(Gate(pool.shared.gate.0.load(Ordering::SeqCst)).entered(), 1);
}

#[test]
fn many_short_jobs_each_see_their_own_closure() {
    let pool = Pool::new(3);
    for round in 0..20_000usize {
        let sum = AtomicUsize::new(0);
        pool.split_in_order(6, 1, &|range, _| {
            sum.fetch_add(range.start + round, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 15 + 6 * round);
    }
}

#[test]
fn parked_workers_wake_and_a_panic_reaches_the_caller() {
    let pool = Pool::new(2);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let ran = AtomicUsize::new(0);
    pool.run(&|_| {
        ran.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.run(&|t| assert_ne!(t, 1))));
    assert!(caught.is_err());
    // The next job is another one.
    pool.run(&|_| {
        ran.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(ran.load(Ordering::Relaxed), 4);
}

#[test]
fn a_job_starts_no_job_on_its_own_pool() {
    thread_local!(static POOL: Pool = Pool::new(2));
    // On thread 0 the inner one is the same pool, on thread 1 one of that thread's own.
    let nested = || POOL.with(|pool| pool.run(&|_| POOL.with(|own| own.run(&|_| {}))));
    assert!(catch_unwind(AssertUnwindSafe(nested)).is_err());
    // The next job is another one.
    POOL.with(|pool| pool.run(&|_| {}));
}

/// Jobs are shaped by a seed: pieces that take nothing or long, pauses between jobs, in which workers fall asleep or are about
/// to, and panics. No wake-up may be lost, and no job may end before its last piece.
#[test]
fn jobs_end_after_their_last_piece_whatever_the_delays() {
    let mut seed = 7u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let pause = |us| std::thread::sleep(std::time::Duration::from_micros(us));
    let (pool, rounds) = (Pool::new(3), if cfg!(miri) { 30 } else { 1500 });
    for round in 0..rounds {
        let (total, grain) = (2 + random(12) as usize, 1 + random(2) as usize);
        let delays: Vec<u64> = (0..total).map(|_| random(20).saturating_sub(15) * random(60)).collect();
        let (panics, in_order) = (random(10) == 0, random(2) == 0);
        let counts: Vec<_> = (0..total).map(|_| AtomicUsize::new(0)).collect();
        let part = |range: Range<usize>, _| {
            for i in range {
                if delays[i] > 0 {
                    pause(delays[i]);
                }
                counts[i].fetch_add(1, Ordering::Relaxed);
                assert!(!panics || i > 0, "as wanted");
            }
        };
        let job = || {
            if in_order { pool.split_in_order(total, grain, &part) } else { pool.split(total, grain, &part) }
        };
        let ended = catch_unwind(AssertUnwindSafe(job));
        let done: Vec<_> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert!(ended.is_ok() || panics, "round {round}");
        // What a thread would have taken after its panic may stay undone.
        assert!(
            done.iter().all(|&count| count == 1 || ended.is_err() && count == 0),
            "round {round}: {done:?}"
        );
        if random(4) == 0 {
            pause(random(700));
        }
    }
}

#[test]
fn an_owner_that_waits_long_sleeps_and_is_woken() {
    let pool = Pool::new(2);
    let shared = &*pool.shared;
    for _ in 0..3 {
        pool.run(&|thread| {
            while thread == 1 && shared.gone.0.load(Ordering::SeqCst) & OWNER_SLEEPS == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn idle_workers_sleep() {
    let pool = Pool::new(3);
    pool.run(&|_| {});
    while pool.shared.parked.0.load(Ordering::SeqCst) < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn threads_stay_on_their_processors() {
    use nix::{
        sched::{CpuSet, sched_getaffinity},
        unistd::Pid,
    };
    let processors = || {
        let set = sched_getaffinity(Pid::from_raw(0)).expect("the system tells");
        (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect::<Vec<_>>()
    };
    let all = processors();
    let check = |threads: usize, cores: &[usize], expected: Vec<Vec<usize>>| {
        // On a thread that ends: the caller is kept to the processors too.
        let on = || {
            let pool = Pool::on_cores(threads, cores).expect("processors of ours");
            let found: Vec<_> = (0..threads).map(|_| std::sync::Mutex::new(Vec::new())).collect();
            pool.run(&|thread| *found[thread].lock().expect("nobody panicked") = processors());
            found.into_iter().map(|found| found.into_inner().expect("nobody panicked")).collect::<Vec<_>>()
        };
        let found = std::thread::scope(|scope| scope.spawn(on).join().expect("a pool"));
        assert_eq!(found, expected, "{threads} threads on {cores:?}");
    };
    check(all.len(), &all, all.iter().map(|&core| vec![core]).collect());
    let mut shared = vec![all.clone(); all.len() + 1];
    shared[0].truncate(1);
    check(all.len() + 1, &all, shared);
    check(2, &all[..1], vec![vec![all[0]]; 2]);
    let beyond = CpuSet::count() - 1;
    let error = std::thread::scope(|scope| {
        scope.spawn(|| Pool::on_cores(1, &[beyond]).err()).join().expect("no panic")
    });
    assert_eq!(error.expect("no such processor").cores, [beyond]);
}
