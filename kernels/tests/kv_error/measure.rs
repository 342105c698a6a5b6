//! What a KV format does to attention: the kernels' outputs on given activations against f64 on the same numbers.
//!
//! Shared by the test beside it and by the engine's example `kv_error`, which takes the activations from real models.

#![allow(dead_code, reason = "each of its users takes its own part")]

use zllm_kernels::{
    backend::{KV_BLOCK_TOKENS, KvFormat, KvLayer, Span},
    cpu::{
        attention::{AttendArgs, AttendScratch, append, attend},
        isa::Isa,
        kv::{KvArena, KvLayout},
        pool::Pool,
    },
};

/// What the attention of one layer works on, for the tokens of one sequence from position 0: after norms and rope.
pub(crate) struct Dump {
    /// Tokens.
    pub(crate) tokens: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// KV heads and their dimensions.
    pub(crate) layer: KvLayer,
    /// Factor on the scores.
    pub(crate) scale: f32,
    /// Keys that a row sees at most.
    pub(crate) window: Option<usize>,
    /// `tokens x heads x k_dim`.
    pub(crate) queries: Vec<f32>,
    /// `tokens x kv_heads x k_dim`.
    pub(crate) keys: Vec<f32>,
    /// `tokens x kv_heads x v_dim`.
    pub(crate) values: Vec<f32>,
}

/// Errors of a format on a dump, relative to the root mean square of the exact outputs of the same head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Errors {
    /// Of the middling head.
    pub(crate) median: f64,
    /// Of the head that is hit most.
    pub(crate) most: f64,
    /// That head.
    pub(crate) worst_head: usize,
}

impl Dump {
    /// The outputs in f64: `tokens x heads x v_dim`.
    pub(crate) fn exact(&self) -> Vec<f64> {
        let KvLayer { kv_heads, k_dim, v_dim } = self.layer;
        let mut out = Vec::with_capacity(self.tokens * self.heads * v_dim);
        for (row, q) in self.queries.chunks_exact(k_dim).enumerate() {
            let (position, head) = (row / self.heads, row % self.heads);
            let kv_head = head / (self.heads / kv_heads);
            let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let cached = |of: &'_ [f32], key: usize, dim: usize| {
                let at = (key * kv_heads + kv_head) * dim;
                of[at..at + dim].iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
            };
            let scores: Vec<f64> = (first..=position)
                .map(|key| {
                    let k = cached(&self.keys, key, k_dim);
                    q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(self.scale)
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut mixed = vec![0.0; v_dim];
            for (key, weight) in (first..).zip(weights) {
                let v = cached(&self.values, key, v_dim);
                mixed.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight / total * v);
            }
            out.extend(mixed);
        }
        out
    }

    /// What the kernels make of it with keys and values kept in `format`.
    pub(crate) fn outputs(&self, format: KvFormat, pool: &Pool) -> Vec<f32> {
        let layout = KvLayout::new(format, &[self.layer]).expect("a head that the kernels serve");
        let blocks: Vec<u32> = (0..self.tokens.div_ceil(KV_BLOCK_TOKENS) as u32).collect();
        let mut arena = KvArena::new(layout, blocks.len()).expect("a small arena");
        let spans = [Span { first_row: 0, rows: self.tokens, position: 0, blocks: &blocks }];
        append(pool, Isa::best(), &mut arena, 0, &spans, &self.keys, &self.values);
        let mut out = vec![0.0; self.tokens * self.heads * self.layer.v_dim];
        let args = AttendArgs {
            layer: 0,
            heads: self.heads,
            spans: &spans,
            q: &self.queries,
            scale: self.scale,
            window: self.window,
            softcap: None,
            sinks: None,
            out: &mut out,
        };
        attend(pool, Isa::best(), &arena, args, &mut AttendScratch::default());
        out
    }

    /// How far `found` is from `exact`.
    pub(crate) fn errors(&self, exact: &[f64], found: &[f32]) -> Errors {
        assert_eq!(exact.len(), found.len());
        let (mut squares, mut wrong) = (vec![0.0; self.heads], vec![0.0; self.heads]);
        for (i, (exact, found)) in exact.iter().zip(found).enumerate() {
            let head = i / self.layer.v_dim % self.heads;
            squares[head] += exact * exact;
            wrong[head] += (exact - f64::from(*found)).powi(2);
        }
        let mut heads: Vec<(f64, usize)> =
            (0..self.heads).map(|head| ((wrong[head] / squares[head]).sqrt(), head)).collect();
        heads.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (most, worst_head) = heads[heads.len() - 1];
        Errors { median: heads[heads.len() / 2].0, most, worst_head }
    }

    /// The channel of the keys that stands out most: its largest magnitude over the root mean square of the middling
    /// channel of its head, with its KV head and dimension.
    pub(crate) fn outlier(&self) -> (f32, usize, usize) {
        let KvLayer { kv_heads, k_dim, .. } = self.layer;
        let mut most = (0.0, 0, 0);
        for head in 0..kv_heads {
            let rows = || self.keys.chunks_exact(k_dim).skip(head).step_by(kv_heads);
            let rms =
                |dim: usize| (rows().map(|row| row[dim] * row[dim]).sum::<f32>() / self.tokens as f32).sqrt();
            let mut channels: Vec<f32> = (0..k_dim).map(rms).collect();
            channels.sort_by(f32::total_cmp);
            for dim in 0..k_dim {
                let largest = rows().fold(0f32, |largest, row| largest.max(row[dim].abs()));
                let ratio = largest / channels[k_dim / 2];
                if ratio > most.0 {
                    most = (ratio, head, dim);
                }
            }
        }
        most
    }

    /// As bytes: seven u32 (tokens, heads, KV heads, key and value dimensions, bits of the scale, window or 0), then
    /// queries, keys and values as f32, all little-endian.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let KvLayer { kv_heads, k_dim, v_dim } = self.layer;
        let sizes = [self.tokens, self.heads, kv_heads, k_dim, v_dim].map(|size| size as u32);
        let header = sizes.into_iter().chain([self.scale.to_bits(), self.window.unwrap_or(0) as u32]);
        let numbers = [&self.queries, &self.keys, &self.values].into_iter().flatten();
        header.chain(numbers.map(|x| x.to_bits())).flat_map(u32::to_le_bytes).collect()
    }

    /// What [`Dump::to_bytes`] wrote.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let [tokens, heads, kv_heads, k_dim, v_dim] = std::array::from_fn(|i| words[i] as usize);
        let mut numbers = words[7..].iter().map(|word| f32::from_bits(*word));
        let mut take = |count: usize| numbers.by_ref().take(count).collect::<Vec<_>>();
        let dump = Self {
            tokens,
            heads,
            layer: KvLayer { kv_heads, k_dim, v_dim },
            scale: f32::from_bits(words[5]),
            window: (words[6] > 0).then_some(words[6] as usize),
            queries: take(tokens * heads * k_dim),
            keys: take(tokens * kv_heads * k_dim),
            values: take(tokens * kv_heads * v_dim),
        };
        assert_eq!(dump.values.len(), tokens * kv_heads * v_dim, "a dump is whole");
        assert_eq!(numbers.next(), None, "and nothing follows it");
        dump
    }
}
