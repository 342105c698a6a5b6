//! What a model's steps cost, as measured, and how many prompt tokens a step may therefore have beside decodes.
//!
//! A step of `rows` decode rows and `tokens` prompt tokens is taken to last `decode(rows) + tokens * prefill(tokens)`.
//! The first is measured in steps without a prompt, the second is what steps with one took longer, per token, kept apart by
//! the chunk's size (small chunks cost more a token). Costs rise with the depth of the sequences and with what else the
//! machine does, so newer measurements count more; a higher cost is believed sooner than a lower one, because the bound is
//! broken by what was believed to be cheap.

use std::time::Duration;

/// How much a new measurement counts when it is higher, or lower, than what was known.
const RISE: f64 = 0.5;
const FALL: f64 = 0.1;
/// The share of what the bound leaves that is planned with: measurements scatter.
const MARGIN: f64 = 0.75;
/// Prompt tokens that a step may have in any case, so that prompts come to their end.
pub(super) const LEAST_CHUNK: usize = 4;
/// Prompt tokens beside decodes while one of the two costs is not known.
const FIRST_CHUNK: usize = 64;
/// What a prompt token is taken to cost more, per halving of the chunk below the smallest one that was measured.
const SMALLER_CHUNK: f64 = 1.3;

/// Costs of one model's steps, in seconds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// By decode rows; 0 was not measured.
    decode: Vec<f64>,
    /// Per prompt token, by the power of two up to the chunk's size; 0 was not measured.
    prefill: Vec<f64>,
}

impl Pace {
    /// Takes in how long a step took.
    pub(super) fn measured(&mut self, decode_rows: usize, prefill_tokens: usize, took: Duration) {
        let took = took.as_secs_f64();
        let decode = if decode_rows == 0 { None } else { Some(self.decode_seconds(decode_rows)) };
        match decode {
            _ if prefill_tokens == 0 => learn(&mut self.decode, decode_rows, took),
            // Nothing but mixed steps so far: what the prompt does not explain is the decodes'.
            Some(0.0) => {
                let prompt = prefill_tokens as f64 * self.prefill_seconds(prefill_tokens);
                if prompt > 0.0 {
                    learn(&mut self.decode, decode_rows, (took - prompt).max(0.1 * took));
                }
            }
            beside => {
                let beside = beside.unwrap_or(0.0).min(0.9 * took);
                learn(&mut self.prefill, size_class(prefill_tokens), (took - beside) / prefill_tokens as f64);
            }
        }
    }

    /// How long a step without a prompt lasts; that of the nearest number of rows that is known, 0 when none is.
    pub(super) fn decode_seconds(&self, rows: usize) -> f64 {
        let known = self.decode.iter().enumerate().filter(|(_, seconds)| **seconds > 0.0);
        known.min_by_key(|(of, _)| (of.abs_diff(rows), rows < *of)).map_or(0.0, |(_, seconds)| *seconds)
    }

    /// What a prompt token costs in a chunk of that size; 0 when nothing is known.
    pub(super) fn prefill_seconds(&self, chunk: usize) -> f64 {
        let class = size_class(chunk);
        let known = |of: &usize| self.prefill.get(*of).is_some_and(|seconds| *seconds > 0.0);
        if let Some(larger) = (class..self.prefill.len()).find(known) {
            return self.prefill[larger] * SMALLER_CHUNK.powi((larger - class) as i32);
        }
        (0..self.prefill.len().min(class)).rev().find(known).map_or(0.0, |smaller| self.prefill[smaller])
    }

    /// How many prompt tokens a step with so many decode rows may have, `most` at most, for it to take at most `bound`
    /// times one without.
    pub(super) fn chunk(&self, decode_rows: usize, bound: Option<f64>, most: usize) -> usize {
        let Some(bound) = bound.filter(|_| decode_rows > 0) else { return most };
        let decode = self.decode_seconds(decode_rows);
        if decode == 0.0 || self.prefill_seconds(most) == 0.0 {
            return most.min(FIRST_CHUNK);
        }
        let room = (bound - 1.0).max(0.0) * decode * MARGIN;
        let fits = |chunk: &usize| *chunk as f64 * self.prefill_seconds(*chunk) <= room;
        // From the largest on: a chunk that fills its class best, then the smaller classes.
        let mut upper = most;
        while upper > LEAST_CHUNK {
            if fits(&upper) {
                return upper;
            }
            let class = 1 << size_class(upper);
            let cost = self.prefill_seconds(upper);
            let filling = (room / cost) as usize;
            if filling >= class && filling >= LEAST_CHUNK {
                return filling.min(upper);
            }
            upper = class - 1;
        }
        most.min(LEAST_CHUNK)
    }
}

fn size_class(chunk: usize) -> usize {
    chunk.max(1).ilog2() as usize
}

fn learn(costs: &mut Vec<f64>, at: usize, seconds: f64) {
    if costs.len() <= at {
        costs.resize(at + 1, 0.0);
    }
    let cost = &mut costs[at];
    let share = if seconds > *cost { RISE } else { FALL };
    *cost = if *cost == 0.0 { seconds } else { *cost + share * (seconds - *cost) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn without_decodes_or_without_a_bound_a_chunk_is_as_large_as_it_may_be() {
        let mut pace = Pace::default();
        pace.measured(4, 0, ms(20));
        pace.measured(0, 256, ms(256));
        assert_eq!(pace.chunk(0, Some(2.0), 256), 256);
        assert_eq!(pace.chunk(4, None, 256), 256);
    }

    #[test]
    fn a_chunk_fits_into_what_the_bound_leaves() {
        let mut pace = Pace::default();
        pace.measured(4, 0, ms(40));
        pace.measured(0, 32, ms(32));
        let chunk = pace.chunk(4, Some(2.0), 256);
        assert!((16..=30).contains(&chunk), "{chunk}: 30 ms at a millisecond a token or a little more");
        assert_eq!(pace.chunk(4, Some(1.0), 256), LEAST_CHUNK, "there is always some progress");
        assert_eq!(pace.chunk(4, Some(1.0), 3), 3);
    }

    #[test]
    fn the_chunk_follows_a_cost_that_rises_and_comes_back_slowly() {
        let mut pace = Pace::default();
        pace.measured(4, 0, ms(40));
        pace.measured(0, 16, ms(16));
        let before = pace.chunk(4, Some(2.0), 256);
        for _ in 0..8 {
            pace.measured(4, 16, ms(40 + 32));
        }
        let during = pace.chunk(4, Some(2.0), 256);
        assert!(during < before, "{during} after {before}");
        for _ in 0..100 {
            pace.measured(4, 16, ms(40 + 16));
        }
        let after = pace.chunk(4, Some(2.0), 256);
        assert!(after.abs_diff(before) <= 1, "{after}, and {before} before");
    }

    #[test]
    fn nothing_is_known_at_first_and_the_nearest_counts_then() {
        let mut pace = Pace::default();
        assert_eq!(pace.decode_seconds(3), 0.0);
        assert_eq!(pace.chunk(3, Some(2.0), 256), FIRST_CHUNK);
        pace.measured(2, 0, ms(10));
        pace.measured(8, 0, ms(30));
        assert_eq!((pace.decode_seconds(1), pace.decode_seconds(7)), (0.010, 0.030));
        assert_eq!(pace.chunk(3, Some(2.0), 256), FIRST_CHUNK, "what a prompt costs is not known yet");
    }

    #[test]
    fn decodes_are_known_from_mixed_steps_when_there_are_no_others() {
        let mut pace = Pace::default();
        pace.measured(0, 64, ms(64));
        pace.measured(2, 64, ms(64 + 20));
        assert!((0.019..0.021).contains(&pace.decode_seconds(2)), "{}", pace.decode_seconds(2));
    }
}
