//! How much of the last seconds a device's thread has worked.

use crate::limits::BUSY_WINDOW;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time that a thread has worked since it began, in nanoseconds; written by the thread, read by anybody.
#[derive(Debug, Clone, Default)]
pub(super) struct Worked(Arc<AtomicU64>);

impl Worked {
    pub(super) fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// What [`Worked`] said at times within [`BUSY_WINDOW`], and once before.
#[derive(Debug)]
pub(super) struct Busy {
    worked: Worked,
    marks: VecDeque<(Duration, u64)>,
}

impl Busy {
    pub(super) fn new(worked: Worked, now: Duration) -> Self {
        Self { worked, marks: VecDeque::from([(now, 0)]) }
    }

    /// To be called at every tick: that bounds how many marks there are.
    pub(super) fn mark(&mut self, now: Duration) {
        self.marks.push_back((now, self.worked.0.load(Ordering::Relaxed)));
        while self.marks.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= BUSY_WINDOW) {
            self.marks.pop_front();
        }
    }

    /// The share of the last [`BUSY_WINDOW`] that the thread has worked, from 0 to 1. What it is at counts once it is done.
    pub(super) fn share(&self, now: Duration) -> f32 {
        let (since, before) = *self.marks.front().expect("the oldest mark stays");
        let worked = self.worked.0.load(Ordering::Relaxed) - before;
        let passed = now.saturating_sub(since).max(Duration::from_millis(1));
        (worked as f64 / passed.as_nanos() as f64).min(1.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_last_ten_seconds() {
        let at = Duration::from_millis;
        let worked = Worked::default();
        let mut busy = Busy::new(worked.clone(), at(0));
        assert_eq!(busy.share(at(0)), 0.0);
        worked.add(at(500));
        assert_eq!(busy.share(at(1000)), 0.5);
        for tick in 1..=100 {
            busy.mark(at(200 * tick));
        }
        assert_eq!(busy.share(at(20_000)), 0.0, "what was long ago does not count");
        assert!(busy.marks.len() <= 52, "{} marks", busy.marks.len());
        worked.add(at(2500));
        assert!((busy.share(at(20_000)) - 0.25).abs() < 0.01, "{}", busy.share(at(20_000)));
        worked.add(at(90_000));
        assert_eq!(busy.share(at(20_000)), 1.0, "a long load that has just ended");
    }
}
