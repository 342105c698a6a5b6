//! Times attention for the shapes of real models: prefill in GMAC/s at several depths, decode in us a layer.
//!
//! `cargo run --release -p zllm-kernels --example attention_bench [-- THREADS [FORMAT [ISA]]]`. A GMAC counts what is useful:
//! each visible key with K and V of each head. Decode is timed twice: with one layer over and over, whose keys and values
//! stay in the caches, and with as many layers in turn as no cache holds, which come from memory as they do in a step. The
//! best of a few tries, from memory the median.

use std::time::Instant;

use zllm_kernels::backend::{KV_BLOCK_TOKENS, KvFormat, KvLayer, Span};
use zllm_kernels::cpu::{
    attention::{AttendArgs, AttendScratch, append, attend},
    isa::Isa,
    kv::{KvArena, KvLayout},
    pool::Pool,
};

/// Tokens of a prefill chunk.
const CHUNK: usize = 256;
const TRIES: usize = 5;
/// Bytes of keys and values that no cache holds.
const MEMORY_BYTES: usize = 160 << 20;
/// Depths of decode.
const DEPTHS: [usize; 2] = [2048, 16 * 1024];

struct Shape {
    name: &'static str,
    heads: usize,
    layer: KvLayer,
    window: Option<usize>,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(2, |n| n.parse().expect("THREADS is a number"));
    let formats = args
        .next()
        .map_or(vec![KvFormat::I16, KvFormat::F16, KvFormat::Q8G64], |f| vec![f.parse().expect("FORMAT")]);
    let isas = args
        .next()
        .map_or(Isa::available(), |isa| vec![isa.parse().expect("ISA: scalar, avx2, avx512 or avx512bf16")]);
    let layer = |kv_heads, dim| KvLayer { kv_heads, k_dim: dim, v_dim: dim };
    let shapes = [
        Shape { name: "qwen2.5-0.5b 14/2 d64", heads: 14, layer: layer(2, 64), window: None },
        Shape { name: "smollm2-135m 9/3 d64", heads: 9, layer: layer(3, 64), window: None },
        Shape { name: "gemma3-270m 4/1 d256 w512", heads: 4, layer: layer(1, 256), window: Some(512) },
        Shape { name: "8B 32/8 d128", heads: 32, layer: layer(8, 128), window: None },
    ];
    let pool = Pool::new(threads);
    println!(
        "{threads} threads, chunk {CHUNK}; prefill GMAC/s at depth 0 / 2k / 8k; decode at 2k / 16k, us a layer, \
         (from memory)"
    );
    for shape in &shapes {
        for &format in &formats {
            for &isa in &isas {
                let bench = |layers, tokens| Bench::new(&pool, isa, format, shape, layers, tokens + CHUNK);
                let mut cached = bench(1, 16 * 1024);
                let prefill = [0, 2048, 8192].map(|depth| {
                    let (seconds, macs) = cached.time(depth, CHUNK);
                    format!("{:6.1}", macs / seconds / 1e9)
                });
                let decode = DEPTHS.map(|depth| {
                    let mut layers = bench(shape.layers_beyond_caches(format, depth), depth);
                    let [hot, cold] = [&mut cached, &mut layers].map(|bench| bench.time(depth, 1).0 * 1e6);
                    format!("{hot:7.1} ({cold:7.1})")
                });
                println!(
                    "{:26} {format:9} {:7}  {}  {}  append {:.2} us a token",
                    shape.name,
                    isa.name(),
                    prefill.join(" "),
                    decode.join(" "),
                    cached.append_seconds() * 1e6 / CHUNK as f64
                );
            }
        }
    }
}

impl Shape {
    /// Layers that a step at `depth` reads [`MEMORY_BYTES`] of.
    fn layers_beyond_caches(&self, format: KvFormat, depth: usize) -> usize {
        let layout = KvLayout::new(format, &[self.layer]).expect("a shape of a real model");
        let blocks = self.window.unwrap_or(depth).min(depth).div_ceil(KV_BLOCK_TOKENS);
        MEMORY_BYTES.div_ceil(layout.block_bytes() * blocks)
    }
}

/// One sequence, filled to the end in every layer.
struct Bench<'a> {
    pool: &'a Pool,
    isa: Isa,
    shape: &'a Shape,
    arena: KvArena,
    blocks: Vec<u32>,
    scratch: AttendScratch,
}

impl<'a> Bench<'a> {
    fn new(
        pool: &'a Pool,
        isa: Isa,
        format: KvFormat,
        shape: &'a Shape,
        layers: usize,
        tokens: usize,
    ) -> Self {
        let count = tokens.div_ceil(KV_BLOCK_TOKENS);
        let layout = KvLayout::new(format, &vec![shape.layer; layers]).expect("a shape of a real model");
        let arena = KvArena::new(layout, count).expect("an arena that fits memory");
        // Neighbours in the sequence are not neighbours in memory: the stride and the count have no common divisor.
        let stride = if count.is_multiple_of(7) { 5 } else { 7 };
        assert!(!count.is_multiple_of(stride));
        let blocks = (0..count).map(|i| (i * stride % count) as u32).collect();
        let mut bench = Self { pool, isa, shape, arena, blocks, scratch: AttendScratch::default() };
        for position in (0..tokens).step_by(CHUNK) {
            bench.append(position, CHUNK.min(tokens - position));
        }
        bench
    }

    fn append(&mut self, position: usize, rows: usize) {
        let KvLayer { kv_heads, k_dim, v_dim } = self.shape.layer;
        let (k, v) =
            (noise(1 + position, rows * kv_heads * k_dim), noise(2 + position, rows * kv_heads * v_dim));
        let spans = [Span { first_row: 0, rows, position, blocks: &self.blocks }];
        for layer in 0..self.arena.layout().layers() {
            append(self.pool, self.isa, &mut self.arena, layer, &spans, &k, &v);
        }
    }

    fn append_seconds(&mut self) -> f64 {
        let KvLayer { kv_heads, k_dim, v_dim } = self.shape.layer;
        let (k, v) = (noise(1, CHUNK * kv_heads * k_dim), noise(2, CHUNK * kv_heads * v_dim));
        let spans = [Span { first_row: 0, rows: CHUNK, position: 0, blocks: &self.blocks }];
        times(TRIES, |_| append(self.pool, self.isa, &mut self.arena, 0, &spans, &k, &v))[0]
    }

    /// Seconds of attending `rows` tokens after `depth` others, and the useful multiplications.
    fn time(&mut self, depth: usize, rows: usize) -> (f64, f64) {
        let Shape { heads, layer, window, .. } = *self.shape;
        let q = noise(3, rows * heads * layer.k_dim);
        let mut out = vec![0.0; rows * heads * layer.v_dim];
        let spans = [Span { first_row: 0, rows, position: depth, blocks: &self.blocks }];
        let layers = self.arena.layout().layers();
        let seconds = times(layers * TRIES, |run| {
            let args = AttendArgs {
                layer: run % layers,
                heads,
                spans: &spans,
                q: &q,
                scale: 0.125,
                window,
                softcap: None,
                sinks: None,
                out: &mut out,
            };
            attend(self.pool, self.isa, &self.arena, args, &mut self.scratch);
        });
        // What comes from memory is not luckier once than another time: the median.
        let seconds = if layers == 1 { seconds[0] } else { seconds[seconds.len() / 2] };
        let keys: usize = (depth..depth + rows).map(|p| (p + 1).min(window.unwrap_or(usize::MAX))).sum();
        (seconds, (keys * heads * (layer.k_dim + layer.v_dim)) as f64)
    }
}

/// Seconds of some runs, at least `least`, ascending; short ones are repeated more often. A run is told its number.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn times(least: usize, mut f: impl FnMut(usize)) -> Vec<f64> {
    let mut times = vec![];
    let start = Instant::now();
    while times.len() < least || start.elapsed().as_secs_f64() < 0.1 {
        let before = Instant::now();
        f(times.len());
        times.push(before.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times
}

fn noise(seed: usize, len: usize) -> Vec<f32> {
    let mut state = (seed as u32).wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}
