//! One draw from a row of logits: temperature, top-k, top-p, min-p and the choice, without sorting the vocabulary.
//!
//! Each token gets a likelihood `exp((logit - max) / temperature)` in [0, 1] (written over its logit) and an integer
//! weight, the likelihood in units of 2^-40. A histogram over the likelihood's leading bits holds the weights; a filter
//! finds the bucket where its limit falls and looks at the tokens of that one alone. Since sums are integers, no order of addition
//! can change them. Tokens less likely than 2^-41 of the most likely one have weight 0 and are never drawn: with 2^18
//! tokens they add up to less than one draw in eight million.
//!
//! Rank is (likelihood descending, id ascending) throughout. Blocks of tokens that top-k, or min-p without top-p, leaves out
//! as a whole are skipped. The passes over all of a row are the kernels', in the processor's best instructions.

use std::ops::Range;

use zllm_kernels::cpu::{
    isa::Isa,
    vocabulary::{
        self, BLOCK, BUCKET_LANES, BUCKETS, Histogram, LOWEST_EXPONENT, bucket_of, find_bucket, weight,
    },
};

use super::{candidates::Candidate, math};

/// How far below min-p, in likelihood's logarithm, a block may be skipped: more than a likelihood is off.
const MIN_P_MARGIN: f32 = 0.01;

/// What [`Distribution::draw`] keeps of a row. `temperature` is positive; `top_k` 0 is off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filters {
    pub(super) temperature: f32,
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
}

/// Tokens that are sorted to find the last one that a limit leaves.
const SORTED: usize = 64;

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    Tokens,
    Weight,
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

/// Buffers of a draw, kept between draws; of their content [`Distribution::read`]'s alone matters to the next. Room for a
/// whole row is reserved at the first, so that no later one allocates; what is not used is not touched.
#[derive(Debug, Clone)]
pub(super) struct Distribution {
    isa: Isa,
    block_maxima: Vec<f32>,
    scratch: Vec<f32>,
    /// Indices of blocks that hold likelihoods; the other blocks' tokens are out.
    live_blocks: Vec<u32>,
    sums: Box<Histogram>,
    /// The weight of what is kept of each bucket.
    weights: Vec<u64>,
    /// The tokens of each bucket of the live blocks; for top-k.
    counts: Vec<u64>,
    /// The ids of one bucket's tokens.
    found: Vec<u32>,
    /// Those that are kept, packed to sort by rank.
    members: Vec<u64>,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            isa: Isa::best(),
            block_maxima: Vec::new(),
            scratch: Vec::new(),
            live_blocks: Vec::new(),
            sums: Box::new([[0; BUCKET_LANES]; BUCKETS]),
            weights: Vec::new(),
            counts: Vec::new(),
            found: Vec::new(),
            members: Vec::new(),
        }
    }
}

impl Distribution {
    /// Sets the instructions of the passes over a row.
    pub(super) fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    /// Reads a row: what draws from it need to know, and its largest logit; negative infinity when there is none.
    pub(super) fn read(&mut self, logits: &[f32]) -> f32 {
        vocabulary::block_maxima(self.isa, logits, &mut self.block_maxima);
        maximum(&self.block_maxima)
    }

    /// The lowest id of the row that was read whose logit is `value`, the largest.
    pub(super) fn first_at(&self, logits: &[f32], value: f32) -> u32 {
        let block = self.block_maxima.iter().position(|&most| most == value);
        let block = block.expect("the largest logit is in a block") as u32;
        let within = block_of(logits, block).iter().position(|&logit| logit == value);
        block * BLOCK as u32 + within.expect("the block holds the value") as u32
    }

    /// Draws a token id with 64 random bits, from the row that was read. `logits` must have a value above negative infinity.
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
        self.weigh_live_blocks(logits, filters);
        let likelihoods = logits;
        let mut cut = Cut { likelihood: 0.0, id: u32::MAX };
        if filters.top_k > 0 {
            self.count(likelihoods);
            cut = self.limit(likelihoods, cut, Measure::Tokens, filters.top_k as u64);
        }
        if filters.top_p < 1.0 {
            let total: u64 = self.weights.iter().sum();
            let target = (f64::from(filters.top_p) * total as f64).ceil() as u64;
            cut = self.limit(likelihoods, cut, Measure::Weight, target);
        }
        if filters.min_p > cut.likelihood {
            cut = Cut { likelihood: filters.min_p, id: u32::MAX };
            self.drop_below(likelihoods, cut);
        }
        cut
    }

    /// Finds the blocks that can hold a kept token, turns their logits into likelihoods and fills the histogram.
    fn weigh_live_blocks(&mut self, logits: &mut [f32], filters: &Filters) {
        let max = maximum(&self.block_maxima).min(f32::MAX);
        let mut reach = f32::NEG_INFINITY;
        if (1..self.block_maxima.len()).contains(&filters.top_k) {
            // At least k tokens, one a block, are no smaller than the k-th largest block maximum.
            self.scratch.clone_from(&self.block_maxima);
            let by_size = |a: &f32, b: &f32| b.total_cmp(a);
            reach = *self.scratch.select_nth_unstable_by(filters.top_k - 1, by_size).1;
        }
        let mut lowest = LOWEST_EXPONENT;
        // Top-p's share is one of all tokens.
        if filters.top_p == 1.0 && filters.min_p.is_normal() {
            lowest = lowest.max(math::ln(f64::from(filters.min_p)) as f32 - MIN_P_MARGIN);
        }
        let scale = 1.0 / filters.temperature;
        let is_live = |block_max: f32| block_max >= reach && (block_max - max) * scale > lowest;
        self.live_blocks.clear();
        self.live_blocks.reserve(self.block_maxima.len());
        self.live_blocks.extend(
            (0u32..).zip(&self.block_maxima).filter(|(_, most)| is_live(**most)).map(|(block, _)| block),
        );
        self.sums.fill([0; BUCKET_LANES]);
        for run in self.live_blocks.chunk_by(|a, b| a + 1 == *b) {
            let run = tokens_of(run, logits.len());
            vocabulary::weigh(self.isa, &mut logits[run], max, scale, &mut self.sums);
        }
        self.weights.clear();
        self.weights.extend(self.sums.iter().map(|lanes| lanes.iter().sum::<u64>()));
    }

    /// Counts the tokens of each bucket.
    fn count(&mut self, likelihoods: &[f32]) {
        self.counts.clear();
        self.counts.resize(BUCKETS, 0);
        for &block in &self.live_blocks {
            for &value in block_of(likelihoods, block) {
                self.counts[bucket_of(value)] += 1;
            }
        }
    }

    /// Cuts after the first token, in rank order, at which what is kept so far reaches `target`. Keeps one token at least.
    fn limit(&mut self, likelihoods: &[f32], cut: Cut, measure: Measure, target: u64) -> Cut {
        let mut kept = 0;
        for index in 0..BUCKETS {
            let amount = match measure {
                Measure::Tokens => self.counts[index],
                Measure::Weight => self.weights[index],
            };
            if kept + amount < target {
                kept += amount;
                continue;
            }
            self.collect(likelihoods, cut, index);
            let (cut, kept_weight) = cut_members(&mut self.members, measure, target.saturating_sub(kept));
            self.weights[index] = kept_weight;
            self.weights[index + 1..].fill(0);
            return cut;
        }
        cut
    }

    /// Makes the histogram agree with a cut at a likelihood.
    fn drop_below(&mut self, likelihoods: &[f32], cut: Cut) {
        let index = bucket_of(cut.likelihood);
        if index >= BUCKETS {
            return;
        }
        self.collect(likelihoods, cut, index);
        self.weights[index] = self.members.iter().map(|&member| weight(unpack(member).0)).sum();
        self.weights[index + 1..].fill(0);
    }

    /// Gathers the kept tokens of one bucket, in the order of their ids.
    fn collect(&mut self, likelihoods: &[f32], cut: Cut, bucket: usize) {
        self.found.clear();
        self.found.reserve(likelihoods.len());
        for run in self.live_blocks.chunk_by(|a, b| a + 1 == *b) {
            let run = tokens_of(run, likelihoods.len());
            find_bucket(self.isa, &likelihoods[run.clone()], run.start as u32, bucket, &mut self.found);
        }
        self.members.clear();
        self.members.reserve(likelihoods.len());
        let tokens = self.found.iter().map(|&id| (likelihoods[id as usize], id));
        self.members
            .extend(tokens.filter(|&(value, id)| cut.keeps(value, id)).map(|(value, id)| pack(value, id)));
    }

    /// The token at a random point of the kept weight, laid out by bucket and then by id.
    fn choose(&mut self, likelihoods: &[f32], cut: Cut, random: u64) -> u32 {
        let total: u64 = self.weights.iter().sum();
        assert!(total > 0, "the most likely token is always kept");
        let mut point = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        for index in 0..BUCKETS {
            if point >= self.weights[index] {
                point -= self.weights[index];
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
    values.iter().fold(f32::NEG_INFINITY, |most, &value| if value > most { value } else { most })
}

/// The cut after the first of one bucket's members, in rank order, at which they reach `target`, and the weight of these.
fn cut_members(members: &mut [u64], measure: Measure, target: u64) -> (Cut, u64) {
    let weights = |members: &[u64]| members.iter().map(|&member| weight(unpack(member).0)).sum::<u64>();
    let amount = |members: &[u64]| match measure {
        Measure::Tokens => members.len() as u64,
        Measure::Weight => weights(members),
    };
    let (mut rest, mut reached, mut kept_weight) = (members, 0, 0);
    // Halves the members that the last one kept can be among.
    while rest.len() > SORTED {
        let half = rest.len() / 2;
        rest.select_nth_unstable(half);
        let (front, back) = rest.split_at_mut(half);
        if reached + amount(front) >= target {
            rest = front;
        } else {
            reached += amount(front);
            kept_weight += weights(front);
            rest = back;
        }
    }
    rest.sort_unstable();
    for member in rest.iter() {
        let (likelihood, id) = unpack(*member);
        kept_weight += weight(likelihood);
        reached += amount(&[*member]);
        if reached >= target {
            return (Cut { likelihood, id }, kept_weight);
        }
    }
    unreachable!("a bucket holds what its sums say");
}

/// The tokens of consecutive blocks of a row of `len`.
fn tokens_of(blocks: &[u32], len: usize) -> Range<usize> {
    let (first, last) = (blocks[0] as usize, blocks[blocks.len() - 1] as usize);
    first * BLOCK..len.min((last + 1) * BLOCK)
}

fn block_of(values: &[f32], block: u32) -> &[f32] {
    &values[tokens_of(&[block], values.len())]
}

/// A token as one number; the lowest ranks first.
fn pack(likelihood: f32, id: u32) -> u64 {
    u64::from(!likelihood.to_bits()) << 32 | u64::from(id)
}

fn unpack(member: u64) -> (f32, u32) {
    (f32::from_bits(!((member >> 32) as u32)), member as u32)
}
