//! Mixtures of experts between the products: routing, and the sums of what a row's experts give.
//!
//! A row's route depends on its own logits alone; its arithmetic is f32 with the functions of `math`, the same bits in
//! every instruction set:
//!
//! 1. **Scores.** Softmax: `e^(x - max)` over its sum, which runs in sixteen lanes (lane = expert mod 16), experts
//!    ascending, then the tree of `simd`. Sigmoid: `1 / (1 + e^-x)`. Softmax of the chosen: the logits.
//! 2. **Choice** by score plus bias: `best`. With groups, first the groups by the sum of their two best, then the
//!    experts of those groups. llama.cpp sorts with an unstable sort; here the lower index wins a tie.
//! 3. **Weights**: the scores of the chosen; their softmax, their sum and what else is made of them goes in the order of
//!    choice.
//!
//! A row with a NaN among its scores and biases gets weights that are all NaN; its experts exist.

use super::{
    isa::Isa,
    math::exp,
    ops::{Map, map, padded, sigmoid},
    pool::Pool,
    share::Shared,
    simd::{self, Kernel, LANES, Simd},
};
use crate::backend::{MAX_EXPERTS, Routing, RoutingScores, SMALLEST_WEIGHT_SUM};
use std::ops::Range;

#[cfg(test)]
mod tests;

/// Logits that a thread should at least take when rows are routed.
const GRAIN_LOGITS: usize = 1024;
/// Elements that a thread should at least take when rows are moved.
const GRAIN_ELEMENTS: usize = 16_384;

/// The experts of every row of a step and the pairs that they make, grouped by expert.
#[derive(Debug)]
pub struct Routes {
    rows: usize,
    used: usize,
    /// `[row][choice]`, the best first
    experts: Vec<u32>,
    /// `[row][choice]`
    weights: Vec<f32>,
    /// `[row][choice]`: the pair
    pairs: Vec<u32>,
    /// `[pair]`: the row
    sources: Vec<u32>,
    runs: Vec<Run>,
    /// `[expert]`: the next free pair, while pairs are made
    next: Vec<u32>,
}

/// The pairs of one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The expert.
    pub expert: usize,
    /// Its pairs; never none.
    pub pairs: Range<usize>,
}

impl Routes {
    /// Room for `rows` rows of `used` experts; `None` when there is no memory for it.
    pub fn try_new(rows: usize, used: usize) -> Option<Self> {
        fn room<T: Clone + Default>(len: usize) -> Option<Vec<T>> {
            let mut values = Vec::new();
            values.try_reserve_exact(len).ok()?;
            values.resize(len, T::default());
            Some(values)
        }
        let len = rows.checked_mul(used)?;
        let mut runs = Vec::new();
        runs.try_reserve_exact(len.min(MAX_EXPERTS)).ok()?;
        Some(Self {
            rows: 0,
            used,
            experts: room(len)?,
            weights: room(len)?,
            pairs: room(len)?,
            sources: room(len)?,
            runs,
            next: room(MAX_EXPERTS)?,
        })
    }

    /// Bytes of such routes.
    pub const fn bytes(rows: usize, used: usize) -> usize {
        rows.saturating_mul(used).saturating_mul(4 * size_of::<u32>())
    }

    /// Rows of the last step that was routed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Pairs of the last step that was routed.
    pub fn pairs(&self) -> usize {
        self.rows * self.used
    }

    /// The experts of a row, best first, and their weights.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn of_row(&self, row: usize) -> (&[u32], &[f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let own = row * self.used..(row + 1) * self.used;
        (&self.experts[own.clone()], &self.weights[own])
    }

    /// The row of each pair.
    pub fn sources(&self) -> &[u32] {
        &self.sources[..self.pairs()]
    }

    /// The experts that were chosen, ascending.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Groups pairs by expert: a counting sort, which keeps rows in order.
    fn make_pairs(&mut self, experts: usize) {
        let count = self.pairs();
        let next = &mut self.next[..experts];
        next.fill(0);
        for &expert in &self.experts[..count] {
            next[expert as usize] += 1;
        }
        self.runs.clear();
        let mut first = 0;
        for (expert, next) in next.iter_mut().enumerate() {
            let end = first + *next as usize;
            if end > first {
                self.runs.push(Run { expert, pairs: first..end });
            }
            *next = first as u32;
            first = end;
        }
        for (index, &expert) in self.experts[..count].iter().enumerate() {
            let pair = next[expert as usize];
            next[expert as usize] += 1;
            self.pairs[index] = pair;
            self.sources[pair as usize] = (index / self.used) as u32;
        }
    }
}

/// Routes the rows of `logits` (`routing.experts` each); `bias` has a value an expert.
///
/// # Panics
/// When the parameters do not fit one another, or `routes` has no room for so many rows.
pub fn route(
    pool: &Pool,
    isa: Isa,
    logits: &[f32],
    routing: &Routing,
    bias: Option<&[f32]>,
    routes: &mut Routes,
) {
    let Routing { experts, used, groups, groups_used, .. } = *routing;
    assert!((1..=MAX_EXPERTS).contains(&experts), "{experts} experts of at most {MAX_EXPERTS}");
    assert!(groups > 0 && experts.is_multiple_of(groups), "{experts} experts in {groups} equal groups");
    assert!((1..=groups).contains(&groups_used), "{groups_used} of {groups} groups are used");
    let most = experts / groups * groups_used;
    assert!(
        (1..=most).contains(&used) && used == routes.used,
        "{used} of {most} experts, {} fit",
        routes.used
    );
    assert!(logits.len().is_multiple_of(experts), "{} logits of {experts} experts", logits.len());
    assert!(bias.is_none_or(|b| b.len() == experts), "a bias for each expert");
    let rows = logits.len() / experts;
    assert!(rows * used <= routes.experts.len(), "{rows} rows of {used} experts do not fit");
    routes.rows = rows;
    let chosen = Shared::new(&mut routes.experts);
    let weights = Shared::new(&mut routes.weights);
    pool.split(rows, GRAIN_LOGITS.div_ceil(experts), &|rows, _| {
        let by_row = |n: usize| rows.start * n..rows.end * n;
        // SAFETY: the pool hands out each row once.
        let (chosen, weights) = unsafe { (chosen.part(by_row(used)), weights.part(by_row(used))) };
        simd::dispatch(isa, RouteRows { logits: &logits[by_row(experts)], routing, bias, chosen, weights });
    });
    routes.make_pairs(experts);
}

/// Some rows, on one thread.
struct RouteRows<'a> {
    logits: &'a [f32],
    routing: &'a Routing,
    bias: Option<&'a [f32]>,
    chosen: &'a mut [u32],
    weights: &'a mut [f32],
}

impl Kernel for RouteRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Routing { experts, used, .. } = *self.routing;
        let rows = self.chosen.chunks_exact_mut(used).zip(self.weights.chunks_exact_mut(used));
        for (logits, (chosen, weights)) in self.logits.chunks_exact(experts).zip(rows) {
            route_row(s, logits, self.routing, self.bias, chosen, weights);
        }
    }
}

#[inline(always)]
fn route_row<S: Simd>(
    s: S,
    logits: &[f32],
    routing: &Routing,
    bias: Option<&[f32]>,
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    let (mut scores, mut ranks) = ([0.0; MAX_EXPERTS], [0.0; MAX_EXPERTS]);
    let (scores, ranks) = (&mut scores[..logits.len()], &mut ranks[..logits.len()]);
    scores.copy_from_slice(logits);
    match routing.scores {
        RoutingScores::Softmax => softmax(s, scores),
        RoutingScores::Sigmoid => {
            for x in scores.chunks_mut(LANES) {
                store(s, sigmoid(s, s.load(&padded(x))), x);
            }
        }
        RoutingScores::SoftmaxOfChosen => {}
    }
    ranks.copy_from_slice(scores);
    if let Some(bias) = bias {
        ranks.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
    }
    choose(ranks, routing, chosen);
    if ranks.iter().any(|rank| rank.is_nan()) {
        weights.fill(f32::NAN);
        return;
    }
    for (weight, &expert) in weights.iter_mut().zip(chosen.iter()) {
        *weight = scores[expert as usize];
    }
    if routing.scores == RoutingScores::SoftmaxOfChosen {
        softmax(s, weights);
    }
    if routing.normalise {
        let sum = weights.iter().fold(0.0, |sum, weight| sum + weight).max(SMALLEST_WEIGHT_SUM);
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    weights.iter_mut().for_each(|weight| *weight *= routing.scale);
}

/// In place. A NaN or an infinity makes at least one NaN.
#[inline(always)]
fn softmax<S: Simd>(s: S, x: &mut [f32]) {
    let most = x.iter().fold(f32::NEG_INFINITY, |most, &x| if x > most { x } else { most });
    let mut sum = s.splat(0.0);
    for x in x.chunks_mut(LANES) {
        let power = exp(s, s.sub(s.load(&padded(x)), s.splat(most)));
        let real = u16::MAX >> (LANES - x.len());
        sum = s.add(sum, s.select_bits(real, power, s.splat(0.0)));
        store(s, power, x);
    }
    let sum = s.splat(s.reduce_add(sum));
    for x in x.chunks_mut(LANES) {
        store(s, s.div(s.load(&padded(x)), sum), x);
    }
}

/// The first lanes, as many as `to` has.
#[inline(always)]
fn store<S: Simd>(s: S, x: S::F, to: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    s.store(x, &mut lanes);
    to.copy_from_slice(&lanes[..to.len()]);
}

/// The experts of a row, best first, out of its best groups.
fn choose(ranks: &[f32], routing: &Routing, chosen: &mut [u32]) {
    if routing.groups == 1 {
        return best(ranks, 0..ranks.len(), chosen);
    }
    let group_size = ranks.len() / routing.groups;
    let (mut worth, mut in_use) = ([0.0; MAX_EXPERTS], [0u32; MAX_EXPERTS]);
    for (worth, group) in worth.iter_mut().zip(ranks.chunks_exact(group_size)) {
        let mut top = [0u32; 2];
        let top = &mut top[..group_size.min(2)];
        best(group, 0..group_size, top);
        *worth = top.iter().fold(0.0, |sum, &expert| sum + group[expert as usize]);
    }
    let in_use = &mut in_use[..routing.groups_used];
    best(&worth, 0..routing.groups, in_use);
    // Ascending, so that the lower expert wins a tie.
    in_use.sort_unstable();
    let members =
        in_use.iter().flat_map(|&group| (0..group_size).map(move |i| group as usize * group_size + i));
    best(ranks, members, chosen);
}

/// The indices of the best of `ranks` among `candidates`, which ascend and are not fewer: best first, of equal ones the
/// lower index. A NaN is better than nothing.
fn best(ranks: &[f32], candidates: impl Iterator<Item = usize>, chosen: &mut [u32]) {
    let rank = |index: u32| ranks[index as usize];
    let mut found = 0;
    for index in candidates {
        let better_than = |other: u32| ranks[index] > rank(other);
        if found == chosen.len() {
            if !better_than(chosen[found - 1]) {
                continue;
            }
            found -= 1;
        }
        let mut at = found;
        while at > 0 && better_than(chosen[at - 1]) {
            chosen[at] = chosen[at - 1];
            at -= 1;
        }
        chosen[at] = index as u32;
        found += 1;
    }
}

/// `output[row] = w0 * pair0`, then `fma` of the row's other pairs in the order of choice.
///
/// # Panics
/// When the sizes do not fit.
pub fn combine(pool: &Pool, isa: Isa, routes: &Routes, cols: usize, input: &[f32], output: &mut [f32]) {
    assert_eq!(input.len(), routes.pairs() * cols, "{} pairs of {cols}", routes.pairs());
    let used = routes.used;
    by_row(pool, cols, &mut output[..routes.rows * cols], |row, out| {
        let (pairs, weights) = (&routes.pairs[row * used..][..used], routes.of_row(row).1);
        simd::dispatch(isa, CombineRow { pairs, weights, input, out });
    });
}

/// Runs `op(row, values)` over rows of `cols`, in parallel.
fn by_row(pool: &Pool, cols: usize, x: &mut [f32], op: impl Fn(usize, &mut [f32]) + Sync) {
    if x.is_empty() {
        return;
    }
    let rows = x.len() / cols;
    let x = Shared::new(x);
    pool.split(rows, (GRAIN_ELEMENTS / cols).max(1), &|rows, _| {
        for row in rows {
            // SAFETY: the pool hands out each row once.
            op(row, unsafe { x.part(row * cols..(row + 1) * cols) });
        }
    });
}

struct CombineRow<'a> {
    pairs: &'a [u32],
    weights: &'a [f32],
    input: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for CombineRow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.out.len();
        for (choice, (&pair, &weight)) in self.pairs.iter().zip(self.weights).enumerate() {
            let input = &self.input[pair as usize * cols..][..cols];
            if choice == 0 {
                map(s, &Weighted(weight), self.out, input);
            } else {
                map(s, &PlusWeighted(weight), self.out, input);
            }
        }
    }
}

struct Weighted(f32);

impl Map for Weighted {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: S::F, input: S::F) -> S::F {
        s.mul(s.splat(self.0), input)
    }
}

struct PlusWeighted(f32);

impl Map for PlusWeighted {
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, out: S::F, input: S::F) -> S::F {
        s.fma(s.splat(self.0), input, out)
    }
}
