//! A small generator: splitmix64, the same everywhere.

use std::time::Duration;

pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator, whose numbers do not depend on how many this one gives later.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 up to, not including, `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Both ends included.
    pub(super) fn between(&mut self, (least, most): (usize, usize)) -> usize {
        least + self.below(most - least + 1)
    }

    /// True so many times in a thousand.
    pub(super) fn chance(&mut self, in_a_thousand: usize) -> bool {
        self.below(1000) < in_a_thousand
    }

    /// From 0 up to 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Times between things that happen at random, this far apart on average.
    pub(super) fn pause(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }
}

/// Spreads every bit of a number over all others.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
