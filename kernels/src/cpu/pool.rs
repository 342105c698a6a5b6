//! A persistent pool of threads for work that takes microseconds: spin, then yield, then park.
//!
//! Measured on two cores: a hand-off costs 0.07-0.3 us here, 3 us with a work-stealing runtime and 20 us with a barrier;
//! a decode step makes about 200 hand-offs. The caller is thread 0. What a thread computes never depends on which thread
//! it is, so ranges are free to be taken by whoever is free.

use std::{
    cell::UnsafeCell,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{JoinHandle, Thread},
};

/// Iterations of `spin_loop` before a waiting thread yields: about 100 us, longer than the gap between two jobs.
const SPIN_ITERATIONS: u32 = 20_000;
/// Yields before a waiting worker parks: the gap between two decode steps stays below it, an idle daemon goes over it.
const YIELDS_BEFORE_PARK: u32 = 2_000;

type Job = *const (dyn Fn(usize) + Sync);

#[repr(align(128))]
struct OwnLine<T>(T);

struct Shared {
    generation: OwnLine<AtomicUsize>,
    finished: OwnLine<AtomicUsize>,
    parked: OwnLine<AtomicUsize>,
    stop: AtomicBool,
    panicked: AtomicBool,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is written by the owner before `generation` is released and read by workers after they acquired it; the
// owner writes it again only when all workers reported `finished`.
unsafe impl Sync for Shared {}
// SAFETY: the raw job pointer is only dereferenced while `Pool::run` keeps the closure borrowed.
unsafe impl Send for Shared {}

/// The threads. One owner at a time runs jobs on it.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    owner: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads in all, the caller's included.
    ///
    /// # Panics
    /// When `threads` is 0 or the system refuses a thread.
    pub fn new(threads: usize) -> Self {
        assert!(threads > 0, "a pool needs at least one thread");
        let shared = Arc::new(Shared {
            generation: OwnLine(AtomicUsize::new(0)),
            finished: OwnLine(AtomicUsize::new(0)),
            parked: OwnLine(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let workers: Vec<_> = (1..threads)
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("kernel-{index}"))
                    .spawn(move || work(&shared, index))
                    .expect("the system refused a kernel thread")
            })
            .collect();
        let handles = workers.iter().map(|w| w.thread().clone()).collect();
        Self { shared, workers, handles, owner: Mutex::new(()) }
    }

    /// Threads in all, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(thread)` once on every thread and returns when all are done.
    ///
    /// # Panics
    /// When the job panicked on any thread.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _owner = self.owner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: this thread owns the pool and no worker is inside a job, so nobody reads the cell. The lifetime is
        // erased, but this function returns (or unwinds) only after every worker is done with the closure.
        unsafe { *shared.job.get() = Some(std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job)) };
        shared.finished.0.store(0, Ordering::Relaxed);
        shared.generation.0.fetch_add(1, Ordering::SeqCst);
        if shared.parked.0.load(Ordering::SeqCst) > 0 {
            self.handles.iter().for_each(Thread::unpark);
        }
        let mine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(0)));
        let mut spins = 0u32;
        while shared.finished.0.load(Ordering::Acquire) != self.workers.len() {
            pause(&mut spins);
        }
        if let Err(cause) = mine {
            std::panic::resume_unwind(cause);
        }
        assert!(!shared.panicked.load(Ordering::Relaxed), "a kernel thread panicked");
    }

    /// Runs `part(range, thread)` over `0..total` in pieces of `grain`, each taken by whichever thread is free.
    pub fn split(&self, total: usize, grain: usize, part: &(dyn Fn(Range<usize>, usize) + Sync)) {
        assert!(grain > 0, "a piece holds at least one item");
        if total == 0 {
            return;
        }
        if self.workers.is_empty() || total <= grain {
            return part(0..total, 0);
        }
        let next = AtomicUsize::new(0);
        self.run(&|thread| {
            loop {
                let start = next.fetch_add(grain, Ordering::Relaxed);
                if start >= total {
                    break;
                }
                part(start..(start + grain).min(total), thread);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.0.fetch_add(1, Ordering::SeqCst);
        self.handles.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            // A worker never unwinds: its job is caught.
            let _ = worker.join();
        }
    }
}

fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    if *spins < SPIN_ITERATIONS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0u32;
        while shared.generation.0.load(Ordering::Acquire) == seen {
            pause(&mut spins);
            if spins > SPIN_ITERATIONS + YIELDS_BEFORE_PARK {
                // Announce first, look again, then sleep: the owner bumps the generation before it looks at `parked`.
                shared.parked.0.fetch_add(1, Ordering::SeqCst);
                if shared.generation.0.load(Ordering::SeqCst) == seen {
                    std::thread::park();
                }
                shared.parked.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        seen += 1;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the owner wrote the job before it released this generation and keeps the closure alive until all
        // workers have reported.
        let job = unsafe { &*(*shared.job.get()).expect("a generation without a job") };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(index))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.finished.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once_for_any_thread_count_and_grain() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            for grain in [1, 3, 64] {
                for total in [0usize, 1, 7, 200] {
                    let counts: Vec<_> = (0..total).map(|_| AtomicUsize::new(0)).collect();
                    pool.split(total, grain, &|range, _| {
                        range.for_each(|i| {
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                    });
                    assert!(
                        counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                        "{threads} {grain} {total}"
                    );
                }
            }
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
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.run(&|t| assert_ne!(t, 1))));
        assert!(caught.is_err());
    }
}
