//! Times attention for the shapes of real models: prefill in GMAC/s at several depths, decode in us a layer.
//!
//! `cargo run --release -p zllm-kernels --example attention_bench [-- THREADS [FORMAT [ISA]]]`. A GMAC counts what is useful:
//! each visible key with K and V of each head. The best of a few tries, for about half a second each.

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
    ];
    let pool = Pool::new(threads);
    println!(
        "{threads} threads, chunk {CHUNK}; prefill GMAC/s at depth 0 / 2k / 8k, decode us a layer at 2k / 16k"
    );
    for shape in &shapes {
        for &format in &formats {
            for &isa in &isas {
                let mut bench = Bench::new(&pool, isa, format, shape, 16 * 1024 + CHUNK);
                let prefill = [0, 2048, 8192].map(|depth| {
                    let (seconds, macs) = bench.time(depth, CHUNK);
                    format!("{:6.1}", macs / seconds / 1e9)
                });
                let decode = [2048, 16 * 1024].map(|depth| format!("{:7.1}", bench.time(depth, 1).0 * 1e6));
                println!(
                    "{:26} {format:9} {:7}  {}  {}  append {:.2} us a token",
                    shape.name,
                    isa.name(),
                    prefill.join(" "),
                    decode.join(" "),
                    bench.append_seconds() * 1e6 / CHUNK as f64
                );
            }
        }
    }
}

/// One sequence, filled to the end.
struct Bench<'a> {
    pool: &'a Pool,
    isa: Isa,
    shape: &'a Shape,
    arena: KvArena,
    blocks: Vec<u32>,
    scratch: AttendScratch,
}

impl<'a> Bench<'a> {
    fn new(pool: &'a Pool, isa: Isa, format: KvFormat, shape: &'a Shape, tokens: usize) -> Self {
        let count = tokens.div_ceil(KV_BLOCK_TOKENS);
        let layout = KvLayout::new(format, &[shape.layer]).expect("a shape of a real model");
        let arena = KvArena::new(layout, count).expect("an arena that fits memory");
        // Neighbours in the sequence are not neighbours in memory; 7 and the count have no common divisor.
        assert!(!count.is_multiple_of(7));
        let blocks = (0..count).map(|i| (i * 7 % count) as u32).collect();
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
        append(self.pool, self.isa, &mut self.arena, 0, &spans, &k, &v);
    }

    fn append_seconds(&mut self) -> f64 {
        let KvLayer { kv_heads, k_dim, v_dim } = self.shape.layer;
        let (k, v) = (noise(1, CHUNK * kv_heads * k_dim), noise(2, CHUNK * kv_heads * v_dim));
        let spans = [Span { first_row: 0, rows: CHUNK, position: 0, blocks: &self.blocks }];
        best(|| append(self.pool, self.isa, &mut self.arena, 0, &spans, &k, &v))
    }

    /// Seconds of attending `rows` tokens after `depth` others, and the useful multiplications.
    fn time(&mut self, depth: usize, rows: usize) -> (f64, f64) {
        let Shape { heads, layer, window, .. } = *self.shape;
        let q = noise(3, rows * heads * layer.k_dim);
        let mut out = vec![0.0; rows * heads * layer.v_dim];
        let spans = [Span { first_row: 0, rows, position: depth, blocks: &self.blocks }];
        let seconds = best(|| {
            let args = AttendArgs {
                layer: 0,
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
        let keys: usize = (depth..depth + rows).map(|p| (p + 1).min(window.unwrap_or(usize::MAX))).sum();
        (seconds, (keys * heads * (layer.k_dim + layer.v_dim)) as f64)
    }
}

/// Seconds of the fastest of a few runs; short ones are repeated more often.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn best(mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let start = Instant::now();
    for run in 0.. {
        let before = Instant::now();
        f();
        best = best.min(before.elapsed().as_secs_f64());
        if run >= TRIES && start.elapsed().as_secs_f64() > 0.1 {
            break;
        }
    }
    best
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
