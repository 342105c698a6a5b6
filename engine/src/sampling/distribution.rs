//! One draw from a row of logits: temperature, top-k, top-p, min-p and the choice, without sorting the vocabulary.
//!
//! Each token gets a likelihood `exp((logit - max) / temperature)` in [0, 1] (written over its logit) and an integer
//! weight, the likelihood in units of 2^-40. A histogram over the likelihood's leading bits holds counts and weights;
//! a filter finds the bucket where its limit falls and sorts that one bucket alone. Since sums are integers, no order
//! of addition can change them. Tokens less likely than 2^-41 of the most likely one have weight 0 and are never drawn:
//! with 2^18 tokens they add up to less than one draw in eight million.
//!
//! Rank is (likelihood descending, id ascending) throughout. With top-k, blocks of tokens that cannot reach the top k
//! are skipped altogether.

use super::candidates::Candidate;

/// Tokens per block; blocks whose maximum is out of reach are skipped.
const BLOCK: usize = 64;
/// Weight of the most likely token.
const UNIT: f64 = (1u64 << 40) as f64;
/// f64 has whole numbers alone from here to 2^53, so adding it rounds, and the sum's low bits are the integer.
const ROUNDER: f64 = (1u64 << 52) as f64;
/// Below exp(-30) a weight rounds to 0.
pub(super) const LOWEST_EXPONENT: f32 = -30.0;
/// Likelihood bits below a bucket: 32 buckets an octave.
const BUCKET_SHIFT: u32 = 18;
/// Buckets from a likelihood of 1 down past exp(-30) > 2^-44.
const BUCKETS: usize = 44 * 32 + 1;

/// What [`Distribution::draw`] keeps of a row. `temperature` is positive; `top_k` 0 is off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filters {
    pub(super) temperature: f32,
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    count: usize,
    weight: u64,
}

/// A token is kept if it ranks no lower than this.
#[derive(Debug, Clone, Copy)]
struct Cut {
    likelihood: f32,
    id: u32,
}

impl Cut {
    fn keeps(self, likelihood: f32, id: u32) -> bool {
        likelihood > self.likelihood || (likelihood == self.likelihood && id <= self.id)
    }
}

/// Buffers of a draw, kept between draws; their content does not matter to the next. Room for a whole row is reserved at the
/// first, so that no later one allocates; what is not used is not touched.
#[derive(Debug, Clone, Default)]
pub(super) struct Distribution {
    block_maxima: Vec<f32>,
    scratch: Vec<f32>,
    /// Indices of blocks that hold likelihoods; the other blocks' tokens are out.
    live_blocks: Vec<u32>,
    histogram: Vec<Bucket>,
    /// One bucket's tokens, packed to sort by rank.
    members: Vec<u64>,
}

impl Distribution {
    /// Draws a token id with 64 random bits. `logits` must have a value above negative infinity.
    pub(super) fn draw(&mut self, logits: &mut [f32], filters: &Filters, random: u64) -> u32 {
        let cut = self.cut(logits, filters);
        self.choose(logits, cut, random)
    }

    /// Gathers every token that may be drawn, in the order of their ids. `logits` as in [`Distribution::draw`].
    pub(super) fn keep(&mut self, logits: &mut [f32], filters: &Filters, kept: &mut Vec<Candidate>) {
        let cut = self.cut(logits, filters);
        kept.clear();
        kept.reserve(logits.len());
        for &block in &self.live_blocks {
            for (id, &likelihood) in (block * BLOCK as u32..).zip(block_of(logits, block)) {
                if weight(likelihood) > 0 && cut.keeps(likelihood, id) {
                    kept.push(Candidate { id, likelihood });
                }
            }
        }
    }

    /// Turns logits into likelihoods and finds what temperature, top-k, top-p and min-p leave of them.
    fn cut(&mut self, logits: &mut [f32], filters: &Filters) -> Cut {
        self.find_live_blocks(logits, filters);
        let likelihoods = logits;
        self.fill_histogram(likelihoods);
        let mut cut = Cut { likelihood: 0.0, id: u32::MAX };
        if filters.top_k > 0 {
            cut = self.limit(likelihoods, cut, |kept| kept.count >= filters.top_k);
        }
        if filters.top_p < 1.0 {
            let total: u64 = self.histogram.iter().map(|bucket| bucket.weight).sum();
            let target = (f64::from(filters.top_p) * total as f64).ceil() as u64;
            cut = self.limit(likelihoods, cut, |kept| kept.weight >= target);
        }
        if filters.min_p > cut.likelihood {
            cut = Cut { likelihood: filters.min_p, id: u32::MAX };
            self.drop_below(likelihoods, cut);
        }
        cut
    }

    /// Finds the blocks that can hold a kept token, and turns their logits into likelihoods.
    fn find_live_blocks(&mut self, logits: &mut [f32], filters: &Filters) {
        self.block_maxima.clear();
        self.block_maxima.extend(logits.chunks(BLOCK).map(maximum));
        let max = maximum(&self.block_maxima).min(f32::MAX);
        let mut reach = f32::NEG_INFINITY;
        if (1..self.block_maxima.len()).contains(&filters.top_k) {
            // At least k tokens, one a block, are no smaller than the k-th largest block maximum.
            self.scratch.clone_from(&self.block_maxima);
            let by_size = |a: &f32, b: &f32| b.total_cmp(a);
            reach = *self.scratch.select_nth_unstable_by(filters.top_k - 1, by_size).1;
        }
        let scale = 1.0 / filters.temperature;
        self.live_blocks.clear();
        self.live_blocks.reserve(self.block_maxima.len());
        for (index, block) in (0u32..).zip(logits.chunks_mut(BLOCK)) {
            let block_max = self.block_maxima[index as usize];
            if block_max >= reach && (block_max - max) * scale > LOWEST_EXPONENT {
                self.live_blocks.push(index);
                block.iter_mut().for_each(|value| *value = likelihood((*value - max) * scale));
            }
        }
    }

    fn fill_histogram(&mut self, likelihoods: &[f32]) {
        self.histogram.clear();
        self.histogram.resize(BUCKETS, Bucket::default());
        for &block in &self.live_blocks {
            for &value in block_of(likelihoods, block) {
                let bucket = &mut self.histogram[bucket_index(value) as usize];
                bucket.count += 1;
                bucket.weight += weight(value);
            }
        }
    }

    /// Cuts after the first token, in rank order, at which what is kept so far is `enough`. Keeps one token at least.
    fn limit(&mut self, likelihoods: &[f32], cut: Cut, enough: impl Fn(Bucket) -> bool) -> Cut {
        let mut kept = Bucket::default();
        for index in 0..BUCKETS {
            let bucket = self.histogram[index];
            let after = Bucket { count: kept.count + bucket.count, weight: kept.weight + bucket.weight };
            if bucket.count == 0 || !enough(after) {
                kept = after;
                continue;
            }
            self.collect(likelihoods, cut, index);
            self.members.sort_unstable();
            let before = kept;
            for &member in &self.members {
                let (value, id) = unpack(member);
                kept = Bucket { count: kept.count + 1, weight: kept.weight + weight(value) };
                if enough(kept) {
                    self.histogram[index] =
                        Bucket { count: kept.count - before.count, weight: kept.weight - before.weight };
                    self.histogram[index + 1..].fill(Bucket::default());
                    return Cut { likelihood: value, id };
                }
            }
            unreachable!("bucket {index} holds what its histogram entry says");
        }
        cut
    }

    /// Makes the histogram agree with a cut at a likelihood.
    fn drop_below(&mut self, likelihoods: &[f32], cut: Cut) {
        let index = bucket_index(cut.likelihood) as usize;
        if index >= BUCKETS {
            return;
        }
        self.collect(likelihoods, cut, index);
        let values = self.members.iter().map(|&member| unpack(member).0);
        self.histogram[index] = Bucket { count: self.members.len(), weight: values.map(weight).sum() };
        self.histogram[index + 1..].fill(Bucket::default());
    }

    /// Gathers the kept tokens of one bucket, in the order of their ids.
    fn collect(&mut self, likelihoods: &[f32], cut: Cut, bucket: usize) {
        let bucket = bucket as u32;
        self.members.clear();
        self.members.reserve(likelihoods.len());
        for &block in &self.live_blocks {
            let values = block_of(likelihoods, block);
            // Without an exit inside, so that it is a few vector compares.
            if !values.iter().fold(false, |found, &value| found | (bucket_index(value) == bucket)) {
                continue;
            }
            for (id, &value) in (block * BLOCK as u32..).zip(values) {
                if bucket_index(value) == bucket && cut.keeps(value, id) {
                    self.members.push(pack(value, id));
                }
            }
        }
    }

    /// The token at a random point of the kept weight, laid out by bucket and then by id.
    fn choose(&mut self, likelihoods: &[f32], cut: Cut, random: u64) -> u32 {
        let total: u64 = self.histogram.iter().map(|bucket| bucket.weight).sum();
        assert!(total > 0, "the most likely token is always kept");
        let mut point = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        for index in 0..BUCKETS {
            let bucket = self.histogram[index];
            if point >= bucket.weight {
                point -= bucket.weight;
                continue;
            }
            self.collect(likelihoods, cut, index);
            for &member in &self.members {
                let (value, id) = unpack(member);
                if point < weight(value) {
                    return id;
                }
                point -= weight(value);
            }
        }
        unreachable!("the point lies below the sum of the weights");
    }
}

/// The largest value; NaN is ignored, and negative infinity is the answer when there is nothing else.
pub(super) fn maximum(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    // Compares in this form are one vector instruction and let NaN pass by.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (rows, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for row in rows {
        for (lane, &value) in lanes.iter_mut().zip(row) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// The lowest id whose logit is `value`, which must occur.
pub(super) fn first_at(logits: &[f32], value: f32) -> u32 {
    let is_in = |block: &[f32]| block.iter().fold(false, |found, &logit| found | (logit == value));
    let block = logits.chunks(BLOCK).position(is_in).expect("the maximum is one of the logits");
    let within = block_of(logits, block as u32).iter().position(|&logit| logit == value);
    (block * BLOCK + within.expect("the block holds the value")) as u32
}

fn block_of(values: &[f32], block: u32) -> &[f32] {
    let start = block as usize * BLOCK;
    &values[start..values.len().min(start + BLOCK)]
}

/// `exp(exponent)` in [exp(-30), 1]: higher exponents give 1, lower ones and NaN exp(-30), which weighs 0.
///
/// Written out so that every machine gives the same bits: 2^n times the Taylor polynomial of the rest, of degree 7.
pub(super) fn likelihood(exponent: f32) -> f32 {
    /// Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number.
    const NEAREST: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has few bits, so that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let exponent = if exponent > LOWEST_EXPONENT { exponent } else { LOWEST_EXPONENT };
    let exponent = if exponent < 0.0 { exponent } else { 0.0 };
    let n = (exponent * std::f32::consts::LOG2_E + NEAREST) - NEAREST;
    let rest = exponent - n * LN_2_HIGH - n * LN_2_LOW;
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * rest + coefficient;
    }
    // n >= -44, so the exponent field stays positive.
    let power = f32::from_bits(((n as i32 + 127) as u32) << 23);
    let product = sum * power;
    if product < 1.0 { product } else { 1.0 }
}

/// A likelihood in units of 2^-40, rounded.
pub(super) fn weight(likelihood: f32) -> u64 {
    (f64::from(likelihood) * UNIT + ROUNDER).to_bits() - ROUNDER.to_bits()
}

/// Position of a likelihood from 0 to 1 in the histogram, the most likely first; below exp(-30) it may lie past the end.
fn bucket_index(likelihood: f32) -> u32 {
    (1.0f32.to_bits() - likelihood.to_bits()) >> BUCKET_SHIFT
}

/// A token as one number; the lowest ranks first.
fn pack(likelihood: f32, id: u32) -> u64 {
    u64::from(!likelihood.to_bits()) << 32 | u64::from(id)
}

fn unpack(member: u64) -> (f32, u32) {
    (f32::from_bits(!((member >> 32) as u32)), member as u32)
}
