//! The f32 oracle: what a model computes, written for reading. It says what is right; nothing here is fast.
//!
//! It shares the spec with the runtime and nothing else: weights are expanded to f32, keys and values stay f32, sums go
//! up in eight plain lanes. Every kernel is compared with it before it is timed.

use std::collections::HashMap;

use zllm_kernels::{
    backend::{Activation, Rope, RopeStyle},
    blocks::decode_row,
};

use crate::{
    gguf::GgufFile,
    spec::{AttentionSpec, Ffn, LinearSpec, Mixer, ModelSpec, NormSpec, SpecError},
};

/// One row of hidden values.
type Row = Vec<f32>;

/// A model with its weights in f32 and the keys and values of one sequence.
pub struct Oracle {
    spec: ModelSpec,
    tensors: HashMap<String, Vec<f32>>,
    cache: Vec<LayerCache>,
    threads: usize,
}

/// Keys and values of one layer, one row a position.
#[derive(Default)]
struct LayerCache {
    keys: Vec<Row>,
    values: Vec<Row>,
}

impl Oracle {
    /// Expands every tensor of `file` that `spec` names.
    ///
    /// # Errors
    /// A tensor that cannot be decoded.
    pub fn load(file: &GgufFile, spec: ModelSpec, threads: usize) -> Result<Self, SpecError> {
        let mut tensors = HashMap::new();
        for name in spec.tensor_names() {
            let tensor = file.require_tensor(name)?;
            let format = tensor.format()?;
            let cols = tensor.cols();
            let row_bytes = format.row_bytes(cols).expect("the reader checked that rows are whole blocks");
            let mut values = vec![0.0; tensor.rows() * cols];
            for (row, out) in tensor.bytes().chunks_exact(row_bytes).zip(values.chunks_exact_mut(cols)) {
                decode_row(format, row, out);
            }
            tensors.insert(name.to_owned(), values);
        }
        let cache = spec.layers.iter().map(|_| LayerCache::default()).collect();
        Ok(Self { spec, tensors, cache, threads: threads.max(1) })
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.cache.iter_mut().for_each(|layer| *layer = LayerCache::default());
    }

    /// Positions that have been computed.
    pub fn position(&self) -> usize {
        self.cache.first().map_or(0, |layer| layer.keys.len())
    }

    /// Appends `tokens` to the sequence and gives the logits after each of them.
    ///
    /// # Panics
    /// When a token is outside the vocabulary.
    pub fn forward(&mut self, tokens: &[u32]) -> Vec<Row> {
        let spec = self.spec.clone();
        let start = self.position();
        let embedding = &self.tensors[&spec.embedding];
        let mut hidden: Vec<Row> = tokens
            .iter()
            .map(|token| {
                let at = *token as usize * spec.width;
                embedding[at..at + spec.width].iter().map(|x| x * spec.embedding_scale).collect()
            })
            .collect();
        for (index, layer) in spec.layers.iter().enumerate() {
            let normed = self.norm_all(&layer.mixer_norm, &hidden);
            let Mixer::Attention(attention) = &layer.mixer;
            let mixed = self.attention(attention, index, start, &normed);
            self.add(&mut hidden, mixed, layer.mixer_post_norm.as_ref());

            let normed = self.norm_all(&layer.ffn_norm, &hidden);
            let out = self.ffn(&layer.ffn, &normed);
            self.add(&mut hidden, out, layer.ffn_post_norm.as_ref());
        }
        let normed = self.norm_all(&spec.output_norm, &hidden);
        let mut logits = self.linear(&spec.head, &normed);
        if let Some(cap) = spec.logit_soft_cap {
            logits.iter_mut().flatten().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        logits
    }

    fn attention(&mut self, a: &AttentionSpec, layer: usize, start: usize, rows: &[Row]) -> Vec<Row> {
        let mut queries = self.linear(&a.query, rows);
        let mut keys = self.linear(&a.key, rows);
        let values = self.linear(&a.value, rows);
        for (heads, norm) in [(&mut queries, &a.query_norm), (&mut keys, &a.key_norm)] {
            for (i, row) in heads.iter_mut().enumerate() {
                for head in row.chunks_exact_mut(a.key_dim) {
                    if let Some(norm) = norm {
                        head.copy_from_slice(&self.norm(norm, head));
                    }
                    turn(head, start + i, &a.rope);
                }
            }
        }
        self.cache[layer].keys.extend(keys);
        self.cache[layer].values.extend(values);

        let cache = &self.cache[layer];
        let mixed: Vec<Row> =
            queries.iter().enumerate().map(|(i, q)| attend(a, q, start + i, cache)).collect();
        self.linear(&a.output, &mixed)
    }

    fn ffn(&self, ffn: &Ffn, rows: &[Row]) -> Vec<Row> {
        let Ffn::Gated { activation, gate, up, down } = ffn;
        let mut gated = self.linear(gate, rows);
        for (gate, up) in gated.iter_mut().zip(self.linear(up, rows)) {
            for (g, u) in gate.iter_mut().zip(up) {
                *g = activate(*activation, *g, u);
            }
        }
        self.linear(down, &gated)
    }

    fn add(&self, hidden: &mut [Row], out: Vec<Row>, post_norm: Option<&NormSpec>) {
        for (row, out) in hidden.iter_mut().zip(out) {
            let out = post_norm.map_or_else(|| out.clone(), |norm| self.norm(norm, &out));
            row.iter_mut().zip(out).for_each(|(x, y)| *x += y);
        }
    }

    fn norm_all(&self, norm: &NormSpec, rows: &[Row]) -> Vec<Row> {
        rows.iter().map(|row| self.norm(norm, row)).collect()
    }

    fn norm(&self, norm: &NormSpec, row: &[f32]) -> Row {
        let mean_square = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / row.len() as f64;
        let scale = (1.0 / (mean_square + f64::from(norm.epsilon)).sqrt()) as f32;
        row.iter().zip(&self.tensors[&norm.weight]).map(|(x, w)| x * scale * w).collect()
    }

    /// `weight * row + bias` for every row; the outputs are shared out over threads.
    fn linear(&self, linear: &LinearSpec, rows: &[Row]) -> Vec<Row> {
        let weight = &self.tensors[&linear.weight];
        let bias = linear.bias.as_ref().map(|name| &self.tensors[name]);
        let share = linear.outputs.div_ceil(self.threads);
        let mut outputs = vec![vec![0.0; linear.outputs]; rows.len()];
        std::thread::scope(|scope| {
            let parts: Vec<_> = weight
                .chunks(share * linear.inputs)
                .map(|part| {
                    scope.spawn(move || {
                        let columns = part.chunks_exact(linear.inputs);
                        columns.map(|w| rows.iter().map(|x| dot(w, x)).collect::<Row>()).collect::<Vec<_>>()
                    })
                })
                .collect();
            let columns = parts.into_iter().flat_map(|part| part.join().expect("no panic in a dot product"));
            for (n, column) in columns.enumerate() {
                for (row, x) in outputs.iter_mut().zip(column) {
                    row[n] = x + bias.map_or(0.0, |b| b[n]);
                }
            }
        });
        outputs
    }
}

/// Softmax attention of one row over the cached positions that it sees.
fn attend(a: &AttentionSpec, query: &[f32], position: usize, cache: &LayerCache) -> Row {
    let first = a.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let group = a.heads / a.kv_heads;
    let mut out = vec![0.0; a.heads * a.value_dim];
    for (head, out) in out.chunks_exact_mut(a.value_dim).enumerate() {
        let q = &query[head * a.key_dim..][..a.key_dim];
        let kv_head = head / group;
        let mut scores: Row = cache.keys[first..=position]
            .iter()
            .map(|key| {
                let score = dot(q, &key[kv_head * a.key_dim..][..a.key_dim]) * a.scale;
                a.soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
            })
            .collect();
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|s| *s = (*s - most).exp());
        let sum: f32 = scores.iter().sum();
        for (weight, value) in scores.iter().zip(&cache.values[first..=position]) {
            let value = &value[kv_head * a.value_dim..][..a.value_dim];
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight / sum * v);
        }
    }
    out
}

/// Rotary embedding of one head.
fn turn(head: &mut [f32], position: usize, rope: &Rope) {
    let pairs = rope.rotary_dim / 2;
    for i in 0..pairs {
        let frequency = f64::from(rope.base).powf(-2.0 * i as f64 / rope.rotary_dim as f64)
            / rope.factors.get(i).map_or(1.0, |f| f64::from(*f));
        let (sin, cos) = (position as f64 * f64::from(rope.scale) * frequency).sin_cos();
        let (sin, cos) = (sin as f32 * rope.magnitude, cos as f32 * rope.magnitude);
        let (first, second) = match rope.style {
            RopeStyle::Neox => (i, i + pairs),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (x, y) = (head[first], head[second]);
        head[first] = x * cos - y * sin;
        head[second] = x * sin + y * cos;
    }
}

fn activate(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::Silu => gate / (1.0 + (-gate).exp()) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044_715 * gate * gate * gate);
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (gate, up) = (if gate > limit { limit } else { gate }, up.clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
    }
}

/// A dot product in eight lanes, so that the compiler may vectorise it without changing the order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a8.zip(b8) {
        for i in 0..8 {
            lanes[i] += a[i] * b[i];
        }
    }
    lanes.iter().sum::<f32>() + tail
}
