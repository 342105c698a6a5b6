//! The f32 oracle: what a model computes, written for reading. It says what is right; nothing here is fast.
//!
//! It shares the spec with the runtime and nothing else: weights are expanded to f32, keys and values stay f32, sums go
//! up in eight plain lanes. Every kernel is compared with it before it is timed.

mod routing;

use std::collections::HashMap;

use zllm_kernels::backend::{Activation, Rope, RopeStyle};

use crate::{
    gguf::GgufFile,
    spec::{
        AttentionSpec, ExpertLinearSpec, ExpertsFfn, Ffn, GatedFfn, LinearSpec, Mixer, ModelSpec, NormSpec,
        SpecError, values,
    },
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

/// What the attention of one layer works on: after norms and rope, one row a position.
pub struct Watched<'a> {
    /// Its shape.
    pub attention: &'a AttentionSpec,
    /// Queries of the tokens that are appended: heads side by side.
    pub queries: &'a [Vec<f32>],
    /// Keys of the whole sequence, likewise.
    pub keys: &'a [Vec<f32>],
    /// Values of the whole sequence, likewise.
    pub values: &'a [Vec<f32>],
}

impl Oracle {
    /// Expands every tensor of `file` that `spec` names.
    ///
    /// # Errors
    /// A tensor that cannot be decoded.
    pub fn load(file: &GgufFile, spec: ModelSpec, threads: usize) -> Result<Self, SpecError> {
        let mut tensors = HashMap::new();
        for used in spec.tensors() {
            if !tensors.contains_key(used.name) {
                tensors.insert(used.name.to_owned(), values(file, used.name, &used.dims)?);
            }
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
        self.forward_watched(tokens, &mut |_| {})
    }

    /// As [`Oracle::forward`]; shows `watch` what the attention of each layer works on, layer after layer.
    ///
    /// # Panics
    /// When a token is outside the vocabulary.
    pub fn forward_watched(&mut self, tokens: &[u32], watch: &mut dyn FnMut(Watched<'_>)) -> Vec<Row> {
        let normed = self.forward_hidden(tokens, watch);
        let spec = &self.spec;
        let mut logits = self.linear(&spec.head, &normed);
        for x in logits.iter_mut().flatten() {
            *x *= spec.logit_scale;
            if let Some(cap) = spec.logit_soft_cap {
                *x = cap * (*x / cap).tanh();
            }
        }
        logits
    }

    /// As [`Oracle::forward_watched`], but gives the rows that go into the head: after the last norm.
    ///
    /// # Panics
    /// When a token is outside the vocabulary.
    pub fn forward_hidden(&mut self, tokens: &[u32], watch: &mut dyn FnMut(Watched<'_>)) -> Vec<Vec<f32>> {
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
            let normed = self.norm_all(layer.mixer_norm.as_ref(), &hidden);
            let Mixer::Attention(attention) = &layer.mixer;
            let mixed = self.attention(attention, index, start, &normed, watch);
            self.add(&mut hidden, mixed, layer.mixer_post_norm.as_ref(), layer.residual_scale);

            let normed = self.norm_all(layer.ffn_norm.as_ref(), &hidden);
            let out = self.ffn(&layer.ffn, &normed);
            self.add(&mut hidden, out, layer.ffn_post_norm.as_ref(), layer.residual_scale);
        }
        self.norm_all(Some(&spec.output_norm), &hidden)
    }

    fn attention(
        &mut self,
        a: &AttentionSpec,
        layer: usize,
        start: usize,
        rows: &[Row],
        watch: &mut dyn FnMut(Watched<'_>),
    ) -> Vec<Row> {
        let mut queries = self.linear(&a.query, rows);
        let mut keys = self.linear(&a.key, rows);
        let values = self.linear(&a.value, rows);
        for (heads, norm) in [(&mut queries, &a.query_norm), (&mut keys, &a.key_norm)] {
            for (i, row) in heads.iter_mut().enumerate() {
                if let Some(norm) = norm {
                    for part in row.chunks_exact_mut(norm.len) {
                        part.copy_from_slice(&self.norm(norm, part));
                    }
                }
                if let Some(rope) = &a.rope {
                    row.chunks_exact_mut(a.key_dim).for_each(|head| turn(head, start + i, rope));
                }
            }
        }
        if let Some(growth) = a.query_growth {
            for (i, row) in queries.iter_mut().enumerate() {
                row.iter_mut().for_each(|x| *x *= growth.factor(start + i));
            }
        }
        self.cache[layer].keys.extend(keys);
        self.cache[layer].values.extend(values);

        let cache = &self.cache[layer];
        watch(Watched { attention: a, queries: &queries, keys: &cache.keys, values: &cache.values });
        let sinks = a.sinks.as_ref().map(|name| self.tensors[name].as_slice());
        let mixed: Vec<Row> =
            queries.iter().enumerate().map(|(i, q)| attend(a, sinks, q, start + i, cache)).collect();
        self.linear(&a.output, &mixed)
    }

    fn ffn(&self, ffn: &Ffn, rows: &[Row]) -> Vec<Row> {
        match ffn {
            Ffn::Gated(ffn) => self.gated(ffn, rows),
            Ffn::Experts(ffn) => self.experts(ffn, rows),
        }
    }

    fn gated(&self, ffn: &GatedFfn, rows: &[Row]) -> Vec<Row> {
        let gate = self.linear(&ffn.gate, rows);
        let up = self.linear(&ffn.up, rows);
        self.linear(&ffn.down, &activate_all(ffn.activation, gate, up))
    }

    fn experts(&self, ffn: &ExpertsFfn, rows: &[Row]) -> Vec<Row> {
        let bias = ffn.choice_bias.as_ref().map(|name| self.tensors[name].as_slice());
        let scores = self.linear(&ffn.router, rows);
        let mut outputs = match &ffn.shared {
            None => vec![vec![0.0; ffn.down.each.outputs]; rows.len()],
            Some(shared) => {
                let mut outputs = self.gated(&shared.ffn, rows);
                if let Some(gate) = &shared.gate {
                    for (row, gate) in outputs.iter_mut().zip(self.linear(gate, rows)) {
                        row.iter_mut().for_each(|x| *x *= sigmoid(gate[0]));
                    }
                }
                outputs
            }
        };
        for ((row, scores), output) in rows.iter().zip(&scores).zip(&mut outputs) {
            let row = std::slice::from_ref(row);
            for (expert, weight) in routing::choose(&ffn.routing, scores, bias) {
                let [gate, up] =
                    [&ffn.gate, &ffn.up].map(|linear| self.multiply(&self.expert(linear, expert), row));
                let gated = activate_all(ffn.activation, gate, up);
                let out = self.multiply(&self.expert(&ffn.down, expert), &gated);
                output.iter_mut().zip(&out[0]).for_each(|(x, y)| *x += weight * y);
            }
        }
        outputs
    }

    fn add(&self, hidden: &mut [Row], out: Vec<Row>, post_norm: Option<&NormSpec>, scale: f32) {
        for (row, out) in hidden.iter_mut().zip(out) {
            let out = post_norm.map_or_else(|| out.clone(), |norm| self.norm(norm, &out));
            row.iter_mut().zip(out).for_each(|(x, y)| *x += scale * y);
        }
    }

    fn norm_all(&self, norm: Option<&NormSpec>, rows: &[Row]) -> Vec<Row> {
        norm.map_or_else(|| rows.to_vec(), |norm| rows.iter().map(|row| self.norm(norm, row)).collect())
    }

    fn norm(&self, norm: &NormSpec, row: &[f32]) -> Row {
        let mean_square = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / row.len() as f64;
        let scale = (1.0 / (mean_square + f64::from(norm.epsilon)).sqrt()) as f32;
        row.iter().zip(&self.tensors[&norm.weight]).map(|(x, w)| x * scale * w).collect()
    }

    fn linear(&self, linear: &LinearSpec, rows: &[Row]) -> Vec<Row> {
        self.multiply(&self.matrix(linear, 0), rows)
    }

    fn expert(&self, linear: &ExpertLinearSpec, expert: usize) -> Matrix<'_> {
        self.matrix(&linear.each, expert)
    }

    /// The weights of `linear`, of the matrix `index` where its tensors have several.
    fn matrix(&self, linear: &LinearSpec, index: usize) -> Matrix<'_> {
        let first = index * linear.tensor_rows + linear.first_row;
        let rows = |name: &String, cols: usize| &self.tensors[name][first * cols..][..linear.outputs * cols];
        Matrix {
            weight: rows(&linear.weight, linear.inputs),
            scale: linear.scale.as_ref().map_or(1.0, |name| self.tensors[name][index]),
            bias: linear.bias.as_ref().map(|name| rows(name, 1)),
            inputs: linear.inputs,
            outputs: linear.outputs,
        }
    }

    /// `scale * weight * row + bias` for every row; the outputs are shared out over threads.
    fn multiply(&self, matrix: &Matrix<'_>, rows: &[Row]) -> Vec<Row> {
        let share = matrix.outputs.div_ceil(self.threads);
        let mut outputs = vec![vec![0.0; matrix.outputs]; rows.len()];
        std::thread::scope(|scope| {
            let parts: Vec<_> = matrix
                .weight
                .chunks(share * matrix.inputs)
                .map(|part| {
                    scope.spawn(move || {
                        let columns = part.chunks_exact(matrix.inputs);
                        columns.map(|w| rows.iter().map(|x| dot(w, x)).collect::<Row>()).collect::<Vec<_>>()
                    })
                })
                .collect();
            let columns = parts.into_iter().flat_map(|part| part.join().expect("no panic in a dot product"));
            for (n, column) in columns.enumerate() {
                for (row, x) in outputs.iter_mut().zip(column) {
                    row[n] = x * matrix.scale + matrix.bias.map_or(0.0, |b| b[n]);
                }
            }
        });
        outputs
    }
}

/// The weights of one product.
struct Matrix<'a> {
    /// `outputs` rows of `inputs`
    weight: &'a [f32],
    scale: f32,
    bias: Option<&'a [f32]>,
    inputs: usize,
    outputs: usize,
}

/// Softmax attention of one row over the cached positions that it sees.
fn attend(
    a: &AttentionSpec,
    sinks: Option<&[f32]>,
    query: &[f32],
    position: usize,
    cache: &LayerCache,
) -> Row {
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
        let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        let most = scores.iter().copied().fold(sink, f32::max);
        scores.iter_mut().for_each(|s| *s = (*s - most).exp());
        let sum: f32 = scores.iter().sum::<f32>() + (sink - most).exp();
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

/// What a gated network multiplies with its last weight.
fn activate_all(activation: Activation, mut gates: Vec<Row>, ups: Vec<Row>) -> Vec<Row> {
    for (gate, up) in gates.iter_mut().flatten().zip(ups.iter().flatten()) {
        *gate = activate(activation, *gate, *up);
    }
    gates
}

fn activate(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::Silu => gate * sigmoid(gate) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044_715 * gate * gate * gate);
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * sigmoid(alpha * gate) * (up + 1.0)
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
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
