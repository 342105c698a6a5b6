//! Passes over a row of logits, one value a token of a vocabulary of hundreds of thousands: maxima, likelihoods, weights.
//!
//! The likelihood of a token is `exp((logit - max) / temperature)`, written out in operations that round alike on every
//! machine; its weight is the likelihood as a whole number of units of 2^-40, so that no order of addition changes a sum.
//! Every instruction set gives the same bits.

use super::{
    isa::Isa,
    simd::{self, Kernel, LANES, Simd},
};

/// Tokens of a block.
pub const BLOCK: usize = 64;
/// A likelihood is at least exp(-30), which weighs nothing.
pub const LOWEST_EXPONENT: f32 = -30.0;
/// Likelihood bits below a bucket: 32 buckets an octave.
const BUCKET_SHIFT: u32 = 18;
/// Buckets from a likelihood of 1 down past exp(-30) > 2^-44.
pub const BUCKETS: usize = 44 * 32 + 1;
/// Tokens whose weights and buckets are made at a time.
const PART: usize = 256;
/// Sums of a bucket: neighbours have sums of their own, so that equal ones do not wait for each other. A sum is in the cache
/// again after about eight additions, and eight are a cache line.
pub const BUCKET_LANES: usize = 8;
/// Weight of a likelihood of 1.
const UNIT: f64 = (1u64 << 40) as f64;
/// f64 has whole numbers alone from here to 2^53, so adding it rounds, and the sum's low bits are the integer.
const ROUNDER: f64 = (1u64 << 52) as f64;

/// Sums of weights by likelihood, the greatest first; see [`bucket_of`].
pub type Histogram = [[u64; BUCKET_LANES]; BUCKETS];

/// A likelihood in units of 2^-40, rounded.
#[inline(always)]
pub fn weight(likelihood: f32) -> u64 {
    (f64::from(likelihood) * UNIT + ROUNDER).to_bits() - ROUNDER.to_bits()
}

/// Place of a likelihood (exp(-30) to 1) in a [`Histogram`].
#[inline(always)]
pub fn bucket_of(likelihood: f32) -> usize {
    (1.0f32.to_bits().wrapping_sub(likelihood.to_bits()) >> BUCKET_SHIFT) as usize
}

/// Bounds of a bucket's likelihoods: above the first, up to the second.
fn bucket_bounds(bucket: usize) -> (f32, f32) {
    let below = |buckets: usize| f32::from_bits(1.0f32.to_bits() - ((buckets as u32) << BUCKET_SHIFT));
    (below(bucket + 1), below(bucket))
}

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number.
const NEAREST: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has few bits, so that its product with n is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Of the Taylor polynomial of e^x, the highest power first.
const TAYLOR: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// `exp(exponent)` in [exp(-30), 1]: higher exponents give 1, lower ones and NaN exp(-30). It is 2^n times the Taylor
/// polynomial of the rest.
pub fn likelihood(exponent: f32) -> f32 {
    let exponent = if exponent > LOWEST_EXPONENT { exponent } else { LOWEST_EXPONENT };
    let exponent = if exponent < 0.0 { exponent } else { 0.0 };
    let n = (exponent * std::f32::consts::LOG2_E + NEAREST) - NEAREST;
    let rest = exponent - n * LN_2_HIGH - n * LN_2_LOW;
    let sum = TAYLOR[1..].iter().fold(TAYLOR[0], |sum, coefficient| sum * rest + coefficient);
    // n >= -44, so the exponent field stays positive.
    let power = f32::from_bits(((n as i32 + 127) as u32) << 23);
    let product = sum * power;
    if product < 1.0 { product } else { 1.0 }
}

/// [`likelihood`], of sixteen `(logit - max) * scale`.
#[inline(always)]
fn likelihoods<S: Simd>(s: S, logits: S::F, max: f32, scale: f32) -> S::F {
    let exponent = s.mul(s.sub(logits, s.splat(max)), s.splat(scale));
    // A NaN in the first operand is lost.
    let exponent = s.min(s.max(exponent, s.splat(LOWEST_EXPONENT)), s.splat(0.0));
    let shifted = s.add(s.mul(exponent, s.splat(std::f32::consts::LOG2_E)), s.splat(NEAREST));
    let n = s.sub(shifted, s.splat(NEAREST));
    let rest = s.sub(s.sub(exponent, s.mul(n, s.splat(LN_2_HIGH))), s.mul(n, s.splat(LN_2_LOW)));
    let mut sum = s.splat(TAYLOR[0]);
    for coefficient in &TAYLOR[1..] {
        sum = s.add(s.mul(sum, rest), s.splat(*coefficient));
    }
    // The shift leaves of the shifted number's bits n alone.
    let power = s.float_of_bits(s.add_i(s.shift_left::<23>(s.bits(shifted)), s.splat_i(127 << 23)));
    s.min(s.mul(sum, power), s.splat(1.0))
}

/// The largest of each [`BLOCK`] values, into `maxima`. NaN is ignored, and negative infinity is the answer when there is
/// nothing else.
pub fn block_maxima(isa: Isa, values: &[f32], maxima: &mut Vec<f32>) {
    maxima.clear();
    maxima.resize(values.len().div_ceil(BLOCK), 0.0);
    simd::dispatch(isa, BlockMaxima { values, maxima });
}

struct BlockMaxima<'a> {
    values: &'a [f32],
    maxima: &'a mut [f32],
}

impl Kernel for BlockMaxima<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (most, block) in self.maxima.iter_mut().zip(self.values.chunks(BLOCK)) {
            let (vectors, rest) = block.as_chunks::<LANES>();
            let mut lanes = s.splat(f32::NEG_INFINITY);
            for vector in vectors {
                // A NaN in the first operand is lost.
                lanes = s.max(s.load(vector), lanes);
            }
            *most = s.reduce_max(lanes);
            for &value in rest {
                *most = if value > *most { value } else { *most };
            }
        }
    }
}

/// The sum of the weights of logits, with `max` the largest of them that counts and `scale` 1 / temperature.
pub fn total_weight(isa: Isa, logits: &[f32], max: f32, scale: f32) -> u64 {
    simd::dispatch(isa, TotalWeight { logits, max, scale })
}

struct TotalWeight<'a> {
    logits: &'a [f32],
    max: f32,
    scale: f32,
}

impl Kernel for TotalWeight<'_> {
    type Output = u64;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        let Self { logits, max, scale } = self;
        let mut sums = [0u64; LANES];
        let mut add = |values: &[f32; LANES]| {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += weight(value);
            }
        };
        let mut values = [0.0; LANES];
        let (vectors, rest) = logits.as_chunks::<LANES>();
        for logits in vectors {
            s.store(likelihoods(s, s.load(logits), max, scale), &mut values);
            add(&values);
        }
        if !rest.is_empty() {
            let mut last = [f32::NEG_INFINITY; LANES];
            last[..rest.len()].copy_from_slice(rest);
            s.store(likelihoods(s, s.load(&last), max, scale), &mut values);
            add(&values);
        }
        sums.iter().sum()
    }
}

/// Turns logits into likelihoods, in place, and adds their weights to `histogram`. `max` and `scale` as in
/// [`total_weight`].
pub fn weigh(isa: Isa, logits: &mut [f32], max: f32, scale: f32, histogram: &mut Histogram) {
    simd::dispatch(isa, Weigh { logits, max, scale, histogram });
}

struct Weigh<'a> {
    logits: &'a mut [f32],
    max: f32,
    scale: f32,
    histogram: &'a mut Histogram,
}

impl Kernel for Weigh<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { logits, max, scale, histogram } = self;
        let (parts, rest) = logits.as_chunks_mut::<PART>();
        for values in parts {
            weigh_part(s, values, max, scale, histogram);
        }
        if !rest.is_empty() {
            // What is not there weighs nothing.
            let mut last = [f32::NEG_INFINITY; PART];
            last[..rest.len()].copy_from_slice(rest);
            weigh_part(s, &mut last, max, scale, histogram);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

#[inline(always)]
fn weigh_part<S: Simd>(s: S, values: &mut [f32; PART], max: f32, scale: f32, histogram: &mut Histogram) {
    for values in values.as_chunks_mut::<LANES>().0 {
        s.store(likelihoods(s, s.load(values), max, scale), values);
    }
    // A loop for each array, which becomes vector instructions; only the sums are one by one.
    let (mut weights, mut buckets) = ([0u64; PART], [0u32; PART]);
    for (to, &value) in weights.iter_mut().zip(values.iter()) {
        *to = weight(value);
    }
    for (to, &value) in buckets.iter_mut().zip(values.iter()) {
        *to = (bucket_of(value) as u32).min(BUCKETS as u32 - 1);
    }
    for (weights, buckets) in
        weights.as_chunks::<BUCKET_LANES>().0.iter().zip(buckets.as_chunks::<BUCKET_LANES>().0)
    {
        for (lane, (weight, bucket)) in weights.iter().zip(buckets).enumerate() {
            histogram[*bucket as usize][lane] += weight;
        }
    }
}

/// Appends the index of each likelihood of `bucket` to `found`, ascending, the first likelihood being number `first`.
///
/// # Panics
/// When `bucket` is not one of [`BUCKETS`].
pub fn find_bucket(isa: Isa, likelihoods: &[f32], first: u32, bucket: usize, found: &mut Vec<u32>) {
    assert!(bucket < BUCKETS, "bucket {bucket} of {BUCKETS}");
    simd::dispatch(isa, FindBucket { likelihoods, first, bounds: bucket_bounds(bucket), found });
}

struct FindBucket<'a> {
    likelihoods: &'a [f32],
    first: u32,
    bounds: (f32, f32),
    found: &'a mut Vec<u32>,
}

impl Kernel for FindBucket<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { likelihoods, first, bounds: (above, most), found } = self;
        let (vectors, rest) = likelihoods.as_chunks::<LANES>();
        for (index, vector) in (first..).step_by(LANES).zip(vectors) {
            let values = s.load(vector);
            let mut inside = s.less_bits(s.splat(above), values) & !s.less_bits(s.splat(most), values);
            while inside != 0 {
                found.push(index + inside.trailing_zeros());
                inside &= inside - 1;
            }
        }
        let start = first + (vectors.len() * LANES) as u32;
        found.extend(
            (start..).zip(rest).filter(|(_, value)| **value > above && **value <= most).map(|(i, _)| i),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of a bell shape with NaN, infinities and ties among them.
    fn row(len: usize) -> Vec<f32> {
        let mut state = len as u32 | 1;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let mut row: Vec<f32> = (0..len).map(|_| (0..4).map(|_| 6.0 * uniform()).sum()).collect();
        for (i, value) in row.iter_mut().enumerate() {
            match i % 97 {
                5 => *value = f32::NAN,
                17 => *value = f32::NEG_INFINITY,
                30 => *value = value.round(),
                _ => {}
            }
        }
        row
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_one_value_alone() {
        for len in [0, 1, 15, 16, 63, 64, 65, 1000, 20_011] {
            let row = row(len);
            let larger = |a: f32, b: f32| if b > a { b } else { a };
            let max = row.iter().copied().fold(f32::NEG_INFINITY, larger);
            let maxima: Vec<f32> =
                row.chunks(BLOCK).map(|b| b.iter().copied().fold(f32::NEG_INFINITY, larger)).collect();
            for scale in [0.01, 1.25, 50.0] {
                let want: Vec<f32> = row.iter().map(|&logit| likelihood((logit - max) * scale)).collect();
                let mut sums = vec![0; BUCKETS];
                want.iter().for_each(|&value| sums[bucket_of(value)] += weight(value));
                for isa in Isa::available() {
                    let mut found = vec![1.0; 3];
                    block_maxima(isa, &row, &mut found);
                    assert_eq!(found, maxima, "{} {len}", isa.name());
                    let total = total_weight(isa, &row, max, scale);
                    assert_eq!(total, sums.iter().sum::<u64>(), "{} {len}", isa.name());
                    let (mut got, mut histogram) = (row.clone(), [[0; BUCKET_LANES]; BUCKETS]);
                    weigh(isa, &mut got, max, scale, &mut histogram);
                    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&got), bits(&want), "{} {len}", isa.name());
                    let got: Vec<u64> = histogram.iter().map(|lanes| lanes.iter().sum()).collect();
                    assert_eq!(got, sums, "{} {len}", isa.name());
                    for bucket in [0, 1, 40, 300, BUCKETS - 1] {
                        let is_in = |(index, &value): (usize, &f32)| {
                            (bucket_of(value) == bucket).then_some(index as u32 + 7)
                        };
                        let members: Vec<u32> = want.iter().enumerate().filter_map(is_in).collect();
                        let mut found = vec![];
                        find_bucket(isa, &want, 7, bucket, &mut found);
                        assert_eq!(found, members, "{} {len} bucket {bucket}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn likelihoods_are_powers_of_e() {
        let mut exponent = 0.0f32;
        while exponent > LOWEST_EXPONENT {
            let exact = f64::from(exponent).exp();
            assert!((f64::from(likelihood(exponent)) / exact - 1.0).abs() < 3e-7, "e^{exponent}");
            exponent -= 0.003;
        }
        assert_eq!((likelihood(0.0), likelihood(7.0), weight(1.0)), (1.0, 1.0, 1 << 40));
        for low in [LOWEST_EXPONENT, -31.0, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(likelihood(low), likelihood(LOWEST_EXPONENT));
            assert_eq!(weight(likelihood(low)), 0);
            assert!(bucket_of(likelihood(low)) < BUCKETS);
        }
    }
}
