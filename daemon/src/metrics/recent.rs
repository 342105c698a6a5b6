//! How fast it was lately: percentiles of the last minute, rates of the last ten seconds, for `status` and `top`.
//!
//! Counts lie in a ring of seconds; times in buckets, each a ninth wider than the one before, so that a percentile is right
//! to about a twentieth.

use std::sync::Mutex;
use std::time::Duration;
use zllm_wire::{Percentiles, Speed};

/// Seconds that percentiles look back on.
const WINDOW_SECONDS: usize = 60;
/// Seconds that rates look back on.
const RATE_SECONDS: usize = 10;
/// Upper end of the first bucket.
const FIRST_SECONDS: f64 = 100e-6;
const GROWTH: f64 = 1.0 + 1.0 / 9.0;
/// Up to about an hour.
const BUCKETS: usize = 166;

/// The ring. Steps and tokens are noted by the scheduler, read by whoever asks for the status.
#[derive(Debug)]
pub(super) struct Recent(Mutex<Ring>);

#[derive(Debug)]
struct Ring {
    /// The second that is being counted.
    now: u64,
    seconds: Vec<Second>,
}

#[derive(Debug, Clone, Copy)]
struct Second {
    first_token: [u32; BUCKETS],
    inter_token: [u32; BUCKETS],
    prefilled: u64,
    generated: u64,
    steps: u64,
    rows: u64,
}

/// A time that is noted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Latency {
    FirstToken,
    InterToken,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Ring { now: 0, seconds: vec![Second::EMPTY; WINDOW_SECONDS + 1] }))
    }

    pub(super) fn latency(&self, which: Latency, time: Duration, now: Duration) {
        self.count(now, |second| {
            let buckets = match which {
                Latency::FirstToken => &mut second.first_token,
                Latency::InterToken => &mut second.inter_token,
            };
            buckets[bucket(time.as_secs_f64())] += 1;
        });
    }

    /// A step of so many rows has ended.
    pub(super) fn step(&self, rows: usize, now: Duration) {
        self.count(now, |second| {
            second.steps += 1;
            second.rows += rows as u64;
        });
    }

    pub(super) fn tokens(&self, prefilled: usize, generated: usize, now: Duration) {
        self.count(now, |second| {
            second.prefilled += prefilled as u64;
            second.generated += generated as u64;
        });
    }

    /// The rates and percentiles.
    pub(super) fn speed(&self, now: Duration) -> Speed {
        self.read(now, |ring| {
            let sum = |of: fn(&Second) -> u64| ring.last(RATE_SECONDS).map(of).sum::<u64>() as f32;
            let steps = sum(|second| second.steps);
            Speed {
                prefill_tokens_per_s: sum(|second| second.prefilled) / RATE_SECONDS as f32,
                decode_tokens_per_s: sum(|second| second.generated) / RATE_SECONDS as f32,
                batch_rows: if steps > 0.0 { sum(|second| second.rows) / steps } else { 0.0 },
                first_token: ring.percentiles(|second| &second.first_token),
                inter_token: ring.percentiles(|second| &second.inter_token),
            }
        })
    }

    fn count(&self, now: Duration, change: impl FnOnce(&mut Second)) {
        let mut ring = self.0.lock().expect("nobody panics while holding the ring");
        ring.advance(now.as_secs());
        let at = ring.now as usize % ring.seconds.len();
        change(&mut ring.seconds[at]);
    }

    fn read<T>(&self, now: Duration, look: impl FnOnce(&Ring) -> T) -> T {
        let mut ring = self.0.lock().expect("nobody panics while holding the ring");
        ring.advance(now.as_secs());
        look(&ring)
    }
}

impl Second {
    const EMPTY: Self = Self {
        first_token: [0; BUCKETS],
        inter_token: [0; BUCKETS],
        prefilled: 0,
        generated: 0,
        steps: 0,
        rows: 0,
    };
}

impl Ring {
    /// Forgets what is too old.
    fn advance(&mut self, second: u64) {
        let length = self.seconds.len() as u64;
        let from = (self.now + 1).max(second.saturating_sub(length - 1));
        for passed in from..=second {
            self.seconds[(passed % length) as usize] = Second::EMPTY;
        }
        self.now = self.now.max(second);
    }

    /// The last seconds that are over.
    fn last(&self, count: usize) -> impl Iterator<Item = &Second> {
        let length = self.seconds.len() as u64;
        (1..=count as u64).filter_map(move |back| {
            let second = self.now.checked_sub(back)?;
            Some(&self.seconds[(second % length) as usize])
        })
    }

    fn percentiles(&self, of: impl Fn(&Second) -> &[u32; BUCKETS]) -> Percentiles {
        let mut sums = [0u64; BUCKETS];
        let current = &self.seconds[self.now as usize % self.seconds.len()];
        for second in self.last(WINDOW_SECONDS).chain([current]) {
            for (sum, count) in sums.iter_mut().zip(of(second)) {
                *sum += u64::from(*count);
            }
        }
        let count: u64 = sums.iter().sum();
        let at = |share: f64| {
            let wanted = (count as f64 * share).ceil() as u64;
            let mut seen = 0;
            let found = sums.iter().position(|sum| {
                seen += sum;
                count > 0 && seen >= wanted
            });
            found.map_or(0.0, |bucket| (middle_seconds(bucket) * 1e3) as f32)
        };
        Percentiles { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), count }
    }
}

fn bucket(seconds: f64) -> usize {
    let wider = (seconds / FIRST_SECONDS).max(1.0).ln() / GROWTH.ln();
    (wider.ceil() as usize).min(BUCKETS - 1)
}

/// The geometric middle of a bucket.
fn middle_seconds(bucket: usize) -> f64 {
    FIRST_SECONDS * GROWTH.powf(bucket as f64 - 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn percentiles_are_right_to_a_twentieth_and_forget_after_a_minute() {
        let recent = Recent::new();
        for at in 1..=1000u64 {
            recent.latency(Latency::InterToken, Duration::from_millis(at), s(1000 + at / 100));
        }
        let speed = recent.speed(s(1010));
        for (found, right) in [
            (speed.inter_token.p50_ms, 500.0),
            (speed.inter_token.p90_ms, 900.0),
            (speed.inter_token.p99_ms, 990.0),
        ] {
            assert!((found / right - 1.0f32).abs() < 0.06, "{found} for {right}");
        }
        assert_eq!((speed.inter_token.count, speed.first_token), (1000, Percentiles::default()));
        assert_eq!(recent.speed(s(1075)).inter_token.count, 0);
    }

    #[test]
    fn rates_are_of_ten_seconds() {
        let recent = Recent::new();
        for second in 100..110 {
            recent.step(4, s(second));
            recent.tokens(100, 4, s(second));
        }
        let speed = recent.speed(s(110));
        assert_eq!(
            (speed.prefill_tokens_per_s, speed.decode_tokens_per_s, speed.batch_rows),
            (100.0, 4.0, 4.0)
        );
    }

    #[test]
    fn extreme_times_have_a_bucket() {
        assert_eq!(bucket(0.0), 0);
        assert_eq!(bucket(1e9), BUCKETS - 1);
        assert!(middle_seconds(BUCKETS - 1) > 3000.0);
    }
}
