//! A persistent pool of threads for work that takes microseconds: spin, then yield, then park.
//!
//! The caller is thread 0; a hand-off costs a fraction of a microsecond (`examples/pool_bench.rs`). What a thread computes
//! never depends on which thread it is, so pieces are free to be taken by whoever is free.
//!
//! Other processes need the cores too. A worker that is kept off its core is not waited for: when all pieces are done, it
//! finds the door closed. One that is kept off inside a piece is waited for, but soon asleep: the owner's core is idle then,
//! and the system moves the worker there. Without work all workers park within a millisecond.
//!
//! Invariant: no lock and no allocation in a job. One owner at a time is a fact of types: a [`Pool`] can be sent but not
//! shared, and a job, which is shared by the threads, cannot hold it.

use super::affinity::{self, CoreError};
use std::{
    cell::{Cell, UnsafeCell},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{JoinHandle, Thread},
};

/// Iterations of `spin_loop` before a waiting thread yields: about 100 us, longer than the gap between two jobs.
const SPINS: u32 = 20_000;
/// Yields before a waiting thread parks. On an idle core they take half a millisecond, which is longer than the gap between
/// two decode steps; where others wait for the core, each gives it to them.
const YIELDS: u32 = 2_000;

type Job = *const (dyn Fn(usize) + Sync);

#[repr(align(128))]
struct OwnLine<T>(T);

/// The door to a job: its number in the upper half, then whether it is closed, then how many workers went in. A worker
/// that finds it closed has missed the job and waits for the next.
#[derive(Clone, Copy)]
struct Gate(u64);

impl Gate {
    const CLOSED: u64 = 1 << 31;

    fn open(generation: u32) -> Self {
        Self(u64::from(generation) << 32)
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    fn entered(self) -> u32 {
        (self.0 & (Self::CLOSED - 1)) as u32
    }
}

struct Shared {
    gate: OwnLine<AtomicU64>,
    /// How many workers have left the job, and whether the owner sleeps ([`OWNER_SLEEPS`]).
    gone: OwnLine<AtomicU32>,
    parked: OwnLine<AtomicUsize>,
    stop: AtomicBool,
    panicked: AtomicBool,
    job: UnsafeCell<Option<Job>>,
    /// Whom to wake, while the owner sleeps.
    owner: UnsafeCell<Option<Thread>>,
    /// What each thread still has of its range: start in the upper half, end in the lower.
    left: Box<[OwnLine<AtomicU64>]>,
}

/// A bit of [`Shared::gone`].
const OWNER_SLEEPS: u32 = 1 << 31;

// SAFETY: `job` is written by the owner before the gate is opened (released) and read by workers after they went through
// it (acquired); the owner writes it again only when the gate is closed and all who went in are counted in `gone`. `owner` is
// written by the owner before it sets `OWNER_SLEEPS` (released), at most once a job, and read by workers that saw the bit
// (acquired) and are not counted yet: until they are, the owner does not leave the job.
unsafe impl Sync for Shared {}
// SAFETY: the raw job pointer is only dereferenced while `Pool` keeps the closure borrowed.
unsafe impl Send for Shared {}

/// The threads. Whoever has it runs jobs on it, one at a time:
///
/// ```compile_fail
/// fn shared_between_threads<T: Sync>() {}
/// shared_between_threads::<zllm_kernels::cpu::pool::Pool>();
/// ```
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Whether a job is running; this cell is also what keeps a pool from being shared.
    busy: Cell<bool>,
    jobs: Cell<u64>,
}

impl Pool {
    /// A pool of `threads` threads in all, the caller's included. They may run where the caller may run now.
    ///
    /// # Panics
    /// When `threads` is 0 or the system refuses a thread.
    pub fn new(threads: usize) -> Self {
        let Ok(pool) = Self::with(threads, |_| Ok::<_, std::convert::Infallible>(()));
        pool
    }

    /// A pool of `threads` threads, the caller's included, that stay on the processors `cores`: as many threads as processors
    /// have one each, else the others may run on any. The caller stays on the first from here on, whatever their number, so
    /// that it may own several pools.
    ///
    /// # Errors
    /// A processor that does not exist or that this process may not use; the caller may be on any of `cores` then.
    ///
    /// # Panics
    /// When `threads` is 0, `cores` is empty, or the system refuses a thread.
    pub fn on_cores(threads: usize, cores: &[usize]) -> Result<Self, CoreError> {
        assert!(!cores.is_empty(), "threads need a processor");
        let own = |thread: usize| if threads == cores.len() { &cores[thread..=thread] } else { cores };
        // All at once first, so that an error names all: the others are a part of it.
        affinity::keep_to(cores)?;
        // A new thread may run where the one that starts it may run.
        let pool = Self::with(threads, |thread| affinity::keep_to(own(thread)))?;
        affinity::keep_to(&cores[..1])?;
        Ok(pool)
    }

    /// A pool of `threads` threads; `before_thread` is called before each of them is started.
    fn with<E>(threads: usize, mut before_thread: impl FnMut(usize) -> Result<(), E>) -> Result<Self, E> {
        assert!(threads > 0, "a pool needs at least one thread");
        let shared = Arc::new(Shared {
            gate: OwnLine(AtomicU64::new(Gate::CLOSED)),
            gone: OwnLine(AtomicU32::new(0)),
            parked: OwnLine(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            owner: UnsafeCell::new(None),
            left: (0..threads).map(|_| OwnLine(AtomicU64::new(0))).collect(),
        });
        // From here on whoever leaves early drops the pool, which ends the workers that there are.
        let workers = Vec::with_capacity(threads - 1);
        let mut pool = Self { shared, workers, busy: Cell::new(false), jobs: Cell::new(0) };
        for index in 1..threads {
            before_thread(index)?;
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name(format!("kernel-{index}"))
                .spawn(move || work(&shared, index))
                .expect("the system refused a kernel thread");
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads in all, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// How many jobs were handed to the workers so far. What one thread does alone is none.
    pub fn jobs(&self) -> u64 {
        self.jobs.get()
    }

    /// Runs `job(thread)` once on every thread and returns when all are done. For measuring: it waits for each worker to
    /// come, however long others keep it off its core.
    ///
    /// # Panics
    /// When the job panicked on any thread.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _claim = self.claim();
        self.run_claimed(job, self.workers.len() as u32);
    }

    /// Runs `part(range, thread)` over `0..total` in pieces of `grain`, each taken by whichever thread is free.
    ///
    /// # Panics
    /// When the part panicked on any thread.
    pub fn split(&self, total: usize, grain: usize, part: &(dyn Fn(Range<usize>, usize) + Sync)) {
        assert!(grain > 0, "a piece holds at least one item");
        if total == 0 {
            return;
        }
        if self.workers.is_empty() || total <= grain {
            return part(0..total, 0);
        }
        let _claim = self.claim();
        let next = AtomicUsize::new(0);
        let job = |thread| {
            loop {
                let start = next.fetch_add(grain, Ordering::Relaxed);
                if start >= total {
                    break;
                }
                part(start..(start + grain).min(total), thread);
            }
        };
        self.run_claimed(&job, 0);
    }

    /// Runs `part(range, thread)` over `0..total` so that each thread walks one contiguous range in pieces of `grain`; who
    /// is done takes pieces from the far end of the others' ranges. For streams from memory, which are fastest in order.
    ///
    /// # Panics
    /// When `total` does not fit 32 bits, or the part panicked on any thread.
    pub fn split_in_order(&self, total: usize, grain: usize, part: &(dyn Fn(Range<usize>, usize) + Sync)) {
        assert!(grain > 0, "a piece holds at least one item");
        let end = u32::try_from(total).expect("more items than 32 bits can count");
        let grain = u32::try_from(grain).unwrap_or(u32::MAX);
        if total == 0 {
            return;
        }
        if self.workers.is_empty() || end <= grain {
            return part(0..total, 0);
        }
        let _claim = self.claim();
        let left = &self.shared.left;
        for (thread, left) in left.iter().enumerate() {
            let bound = |t: usize| u64::from(end) * t as u64 / self.threads() as u64;
            left.0.store(bound(thread) << 32 | bound(thread + 1), Ordering::Relaxed);
        }
        let job = |thread: usize| {
            while let Some(piece) = take(&left[thread].0, grain, End::Near) {
                part(piece, thread);
            }
            for other in (1..left.len()).map(|i| &left[(thread + i) % left.len()].0) {
                while let Some(piece) = take(other, grain, End::Far) {
                    part(piece, thread);
                }
            }
        };
        self.run_claimed(&job, 0);
    }

    /// Takes the pool for one job. Types see to it that nobody else has it, but for a job that finds its own pool in a
    /// thread-local variable.
    fn claim(&self) -> Claim<'_> {
        assert!(!self.busy.replace(true), "a job starts no job on its own pool");
        Claim(&self.busy)
    }

    /// Runs `job` on this thread, the owner, and on the workers that come; waits for at least `needed` of them to come, and
    /// for all that came to finish. The caller has a claim.
    fn run_claimed(&self, job: &(dyn Fn(usize) + Sync), needed: u32) {
        debug_assert!(self.busy.get());
        self.jobs.set(self.jobs.get() + 1);
        let shared = &*self.shared;
        // SAFETY: this thread owns the pool and the gate is closed with nobody inside, so nobody reads the cell. The
        // lifetime is erased, but this function returns (or unwinds) only after the gate is closed again and every worker
        // that went in is done with the closure.
        unsafe { *shared.job.get() = Some(std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job)) };
        shared.gone.0.store(0, Ordering::Relaxed);
        let previous = Gate(shared.gate.0.load(Ordering::Relaxed));
        shared.gate.0.store(Gate::open(previous.generation().wrapping_add(1)).0, Ordering::SeqCst);
        if shared.parked.0.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|worker| worker.thread().unpark());
        }
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut patience = Patience::default();
        while Gate(shared.gate.0.load(Ordering::Acquire)).entered() < needed {
            patience.wait();
        }
        let entered = Gate(shared.gate.0.fetch_or(Gate::CLOSED, Ordering::AcqRel)).entered();
        wait_for_last(shared, entered);
        // Taken back, so that the next job answers for itself: the pool is as sound as before.
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(cause) = mine {
            resume_unwind(cause);
        }
        assert!(!panicked, "a kernel thread panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let previous = Gate(self.shared.gate.0.load(Ordering::SeqCst));
        let next = Gate::open(previous.generation().wrapping_add(1)).0 | Gate::CLOSED;
        self.shared.gate.0.store(next, Ordering::SeqCst);
        self.workers.iter().for_each(|worker| worker.thread().unpark());
        for worker in self.workers.drain(..) {
            // A worker never unwinds: its job is caught.
            let _ = worker.join();
        }
    }
}

/// The right to run a job; comes back when it ends, be it by a panic.
struct Claim<'a>(&'a Cell<bool>);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The end of a range from which a piece is taken.
#[derive(Clone, Copy)]
enum End {
    Near,
    Far,
}

/// Takes a piece of at most `grain` off a range; `None` when it is used up.
fn take(left: &AtomicU64, grain: u32, side: End) -> Option<Range<usize>> {
    let mut seen = left.load(Ordering::Relaxed);
    loop {
        let (start, end) = ((seen >> 32) as u32, seen as u32);
        if start >= end {
            return None;
        }
        let size = grain.min(end - start);
        let (piece, rest) = match side {
            End::Near => (start..start + size, (start + size, end)),
            End::Far => (end - size..end, (start, end - size)),
        };
        let rest = u64::from(rest.0) << 32 | u64::from(rest.1);
        match left.compare_exchange_weak(seen, rest, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(piece.start as usize..piece.end as usize),
            Err(now) => seen = now,
        }
    }
}

/// How long a waiting thread has been awake.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    /// Waits a little; true when that was long enough for the thread to sleep.
    fn wait(&mut self) -> bool {
        if self.0 < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        self.0 = self.0.saturating_add(1);
        self.0 >= SPINS + YIELDS
    }
}

/// The owner waits until all `entered` workers have left the job.
fn wait_for_last(shared: &Shared, entered: u32) {
    let gone = &shared.gone.0;
    let mut patience = Patience::default();
    while gone.load(Ordering::Acquire) != entered {
        if !patience.wait() {
            continue;
        }
        // SAFETY: nobody reads the cell before the bit is set, which happens once in a job.
        unsafe { *shared.owner.get() = Some(std::thread::current()) };
        // Who leaves from here on sees the bit; who left before is counted in what this gives.
        let mut seen = gone.fetch_or(OWNER_SLEEPS, Ordering::AcqRel);
        while seen & !OWNER_SLEEPS != entered {
            std::thread::park();
            seen = gone.load(Ordering::Acquire);
        }
        return;
    }
}

/// A worker counts itself out of the job, and wakes the owner if that sleeps.
fn leave(shared: &Shared) {
    let gone = &shared.gone.0;
    let mut seen = gone.load(Ordering::Acquire);
    loop {
        // SAFETY: the bit was seen, and this worker is not counted yet. It is once the exchange succeeds, and the cell may
        // change: hence the copy.
        let owner = if seen & OWNER_SLEEPS == 0 { None } else { unsafe { (*shared.owner.get()).clone() } };
        match gone.compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return owner.iter().for_each(Thread::unpark),
            Err(now) => seen = now,
        }
    }
}

/// Waits until the gate shows another job than `seen`.
fn wait_for_job(shared: &Shared, seen: u32) -> Gate {
    let mut patience = Patience::default();
    loop {
        let gate = Gate(shared.gate.0.load(Ordering::Acquire));
        if gate.generation() != seen {
            return gate;
        }
        if patience.wait() {
            // Announce first, look again, then sleep: the owner opens the gate before it looks at `parked`.
            shared.parked.0.fetch_add(1, Ordering::SeqCst);
            if Gate(shared.gate.0.load(Ordering::SeqCst)).generation() == seen {
                std::thread::park();
            }
            shared.parked.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Goes through the gate to the job of this generation; false when it is closed.
fn enter(shared: &Shared, mut gate: Gate) -> bool {
    let generation = gate.generation();
    while gate.generation() == generation && !gate.is_closed() {
        match shared.gate.0.compare_exchange_weak(gate.0, gate.0 + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => gate = Gate(now),
        }
    }
    false
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let gate = wait_for_job(shared, seen);
        seen = gate.generation();
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !enter(shared, gate) {
            continue;
        }
        // SAFETY: the owner wrote the job before it opened this gate and keeps the closure alive until all who went in
        // have reported.
        let job = unsafe { &*(*shared.job.get()).expect("a gate without a job") };
        if catch_unwind(AssertUnwindSafe(|| job(index))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        leave(shared);
    }
}

#[cfg(test)]
mod tests;
