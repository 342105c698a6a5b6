//! Attention against a naive f64 twin, and against itself: any batch, chunking, placement, thread count, instruction set.

use super::*;
use crate::{
    backend::{KvCodec, KvFormat, KvLayer},
    cpu::kv::KvLayout,
};

/// Rms of the errors over the rms of the outputs, against f64 on the unrounded inputs (for Q8G64: on what its codes
/// stand for): rather sharp attention.
const I16_TOLERANCE: f64 = 5e-4;
/// Likewise.
const F16_TOLERANCE: f64 = 1e-3;
/// The largest error may be this many times the bound of the rms.
const WORST: f64 = 12.0;
/// Marks outputs that nobody may write.
const SENTINEL: f32 = 1234.5;
const FORMATS: [KvFormat; 3] = [KvFormat::I16, KvFormat::F16, KvFormat::Q8G64];

#[derive(Clone, Copy, Debug)]
struct Case {
    format: KvFormat,
    heads: usize,
    layer: KvLayer,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
}

impl Case {
    fn new(format: KvFormat, heads: usize, kv_heads: usize, k_dim: usize, v_dim: usize) -> Self {
        let layer = KvLayer { kv_heads, k_dim, v_dim };
        Self { format, heads, layer, window: None, softcap: None, sinks: false }
    }

    fn scale(&self) -> f32 {
        (self.layer.k_dim as f32).sqrt().recip()
    }

    fn sinks(&self) -> Option<Vec<f32>> {
        self.sinks.then(|| (0..self.heads).map(|h| h as f32 * 0.75 - 1.0).collect())
    }

    /// Two layers, so that offsets count: the case's is the second.
    fn layout(&self) -> KvLayout {
        KvLayout::new(self.format, &[KvLayer { kv_heads: 1, k_dim: 16, v_dim: 32 }, self.layer])
            .expect("supported heads")
    }
}

/// Uniform in (-1, 1), with a few larger channels as real keys have.
fn noise(seed: u64, len: usize, dim: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|i| next() * if i % dim % 11 == 3 { 4.0 } else { 1.0 }).collect()
}

/// The tokens of one sequence.
#[derive(Clone)]
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    tokens: usize,
}

impl Sequence {
    fn new(case: &Case, seed: u64, tokens: usize) -> Self {
        let Case { heads, layer, .. } = *case;
        Self {
            q: noise(seed + 1, tokens * heads * layer.k_dim, layer.k_dim),
            k: noise(seed + 2, tokens * layer.kv_heads * layer.k_dim, layer.k_dim),
            v: noise(seed + 3, tokens * layer.kv_heads * layer.v_dim, layer.v_dim),
            tokens,
        }
    }
}

/// An arena full of NaN and a random order of its blocks.
struct Bench {
    case: Case,
    arena: KvArena,
    free: Vec<u32>,
    pool: Pool,
    isa: Isa,
    scratch: AttendScratch,
}

impl Bench {
    fn new(case: Case, isa: Isa, threads: usize, blocks: usize, seed: u64) -> Self {
        let mut arena = KvArena::new(case.layout(), blocks).expect("a small arena");
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        free.iter().for_each(|&id| arena.block_mut(id).fill(0xff));
        let order = noise(seed, blocks, 1);
        free.sort_by(|&a, &b| order[a as usize].total_cmp(&order[b as usize]));
        Self { case, arena, free, pool: Pool::new(threads), isa, scratch: AttendScratch::default() }
    }

    fn table(&mut self, tokens: usize) -> Vec<u32> {
        self.free.split_off(self.free.len() - tokens.div_ceil(KV_BLOCK_TOKENS))
    }

    /// One batch: tokens `range` of each sequence, in order, with a row of nobody before each and one after all.
    fn step(&mut self, parts: &[(&Sequence, &[u32], std::ops::Range<usize>)]) -> Vec<Vec<f32>> {
        let Case { heads, layer, .. } = self.case;
        let widths = [heads * layer.k_dim, layer.kv_heads * layer.k_dim, layer.kv_heads * layer.v_dim];
        let mut inputs = [vec![], vec![], vec![]];
        let mut spans = vec![];
        let mut rows = 0;
        for (sequence, blocks, range) in parts {
            for ((input, width), from) in
                inputs.iter_mut().zip(widths).zip([&sequence.q, &sequence.k, &sequence.v])
            {
                input.resize(input.len() + width, f32::NAN);
                input.extend_from_slice(&from[range.start * width..range.end * width]);
            }
            spans.push(Span { first_row: rows + 1, rows: range.len(), position: range.start, blocks });
            rows += 1 + range.len();
        }
        for (input, width) in inputs.iter_mut().zip(widths) {
            input.resize(input.len() + width, f32::NAN);
        }
        let [q, k, v] = &inputs;
        append(&self.pool, self.isa, &mut self.arena, 1, &spans, k, v);
        let width = heads * layer.v_dim;
        let mut out = vec![SENTINEL; (rows + 1) * width];
        let sinks = self.case.sinks();
        let args = AttendArgs {
            layer: 1,
            heads,
            spans: &spans,
            q,
            scale: self.case.scale(),
            window: self.case.window,
            softcap: self.case.softcap,
            sinks: sinks.as_deref(),
            out: &mut out,
        };
        attend(&self.pool, self.isa, &self.arena, args, &mut self.scratch);
        let outs =
            spans.iter().map(|s| out[s.first_row * width..(s.first_row + s.rows) * width].to_vec()).collect();
        for row in spans.iter().map(|s| s.first_row - 1).chain([rows]) {
            assert!(
                out[row * width..(row + 1) * width].iter().all(|&x| x == SENTINEL),
                "row {row} of nobody"
            );
        }
        outs
    }

    /// The sequence in chunks of `chunk` tokens.
    fn chunks(&mut self, sequence: &Sequence, chunk: usize) -> Vec<f32> {
        let table = self.table(sequence.tokens);
        let starts = (0..sequence.tokens).step_by(chunk);
        let outs = starts.flat_map(|start| {
            let range = start..(start + chunk).min(sequence.tokens);
            self.step(&[(sequence, &table, range)]).remove(0)
        });
        outs.collect()
    }
}

fn run(case: Case, isa: Isa, threads: usize, sequence: &Sequence, chunk: usize) -> Vec<f32> {
    Bench::new(case, isa, threads, sequence.tokens / KV_BLOCK_TOKENS + 3, 7).chunks(sequence, chunk)
}

/// Equal bits, or both NaN (whose payload is free).
fn assert_same(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{what}: {a} and {b} at {i}");
    }
}

/// What a codec keeps of vectors of `dim` values, up to the tolerances: I16 and F16 count as exact.
fn kept(codec: KvCodec, dim: usize, values: &[f32]) -> Vec<f32> {
    if codec != KvCodec::Q8G64 {
        return values.to_vec();
    }
    let halves: Vec<u16> = (0..0x7c00).collect();
    let group = |group: &[f32]| {
        let exact = group.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        // Positive halves ascend with their bits: the first that is not below.
        let up = halves.partition_point(|&bits| half::f16::from_bits(bits).to_f32() < exact);
        let scale = half::f16::from_bits(up as u16).to_f32();
        if scale == 0.0 {
            return vec![0.0; group.len()];
        }
        group.iter().map(|x| (x * (1.0 / scale)).round_ties_even() * scale).collect::<Vec<_>>()
    };
    values.chunks(dim).flat_map(|head| head.chunks(64)).flat_map(group).collect()
}

/// Softmax attention as a textbook has it, of all rows.
fn naive(case: &Case, sequence: &Sequence) -> Vec<f64> {
    naive_at(case, sequence, 0..sequence.tokens)
}

/// The same of the rows at `positions`.
fn naive_at(case: &Case, sequence: &Sequence, positions: std::ops::Range<usize>) -> Vec<f64> {
    let Case { heads, layer, .. } = *case;
    let keys_kept = kept(case.format.keys, layer.k_dim, &sequence.k);
    let values_kept = kept(case.format.values, layer.v_dim, &sequence.v);
    let sinks = case.sinks();
    let mut out = vec![];
    for position in positions {
        for head in 0..heads {
            let kv_head = head / (heads / layer.kv_heads);
            let q = &sequence.q[(position * heads + head) * layer.k_dim..][..layer.k_dim];
            let keys = first_visible(position, case.window)..position + 1;
            let score = |key: usize| {
                let k = &keys_kept[(key * layer.kv_heads + kv_head) * layer.k_dim..][..layer.k_dim];
                let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                let score = dot * f64::from(case.scale());
                case.softcap.map_or(score, |cap| (score / f64::from(cap)).tanh() * f64::from(cap))
            };
            let weights: Vec<f64> = keys.clone().map(|key| score(key).exp()).collect();
            let sink = sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let total: f64 = weights.iter().sum::<f64>() + sink;
            for dim in 0..layer.v_dim {
                let value =
                    |key: usize| f64::from(values_kept[(key * layer.kv_heads + kv_head) * layer.v_dim + dim]);
                out.push(keys.clone().zip(&weights).map(|(key, w)| w * value(key)).sum::<f64>() / total);
            }
        }
    }
    out
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for format in FORMATS {
        cases.push(Case::new(format, 7, 1, 64, 64));
        cases.push(Case { window: Some(300), ..Case::new(format, 4, 1, 256, 256) });
        cases.push(Case { softcap: Some(3.0), ..Case::new(format, 6, 2, 16, 48) });
        cases.push(Case { sinks: true, window: Some(40), ..Case::new(format, 3, 3, 32, 16) });
        cases.push(Case { softcap: Some(20.0), sinks: true, ..Case::new(format, 10, 2, 80, 112) });
        cases.push(Case::new(format, 13, 1, 96, 32));
    }
    // Keys and values apart: the products do not know of each other, so one shape each is enough.
    for (i, format) in KvFormat::all().filter(|format| format.keys != format.values).enumerate() {
        cases.push(match i % 2 {
            0 => Case { softcap: Some(20.0), sinks: true, ..Case::new(format, 5, 1, 80, 112) },
            _ => Case { window: Some(100), ..Case::new(format, 2, 2, 64, 144) },
        });
    }
    cases
}

#[test]
fn close_to_f64() {
    for case in cases() {
        let sequence = Sequence::new(&case, 11, 290);
        let got = run(case, Isa::Scalar, 1, &sequence, 290);
        let want = naive(&case, &sequence);
        let rms =
            |x: &mut dyn Iterator<Item = f64>| (x.map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
        let errors: Vec<f64> = got.iter().zip(&want).map(|(&a, b)| f64::from(a) - b).collect();
        let unit = rms(&mut want.iter().copied());
        let (typical, worst) = (
            rms(&mut errors.iter().copied()) / unit,
            errors.iter().fold(0.0, |m: f64, e| m.max(e.abs())) / unit,
        );
        let halves = [case.format.keys, case.format.values].contains(&KvCodec::F16);
        let tolerance = if halves { F16_TOLERANCE } else { I16_TOLERANCE };
        assert!(
            typical < tolerance && worst < WORST * tolerance,
            "{case:?}: {typical:.1e}, at most {worst:.1e}"
        );
    }
}

#[test]
fn rows_far_out_are_as_exact_as_near_ones() {
    const TOKENS: usize = 1 << 15;
    for format in FORMATS {
        for window in [None, Some(1000)] {
            let case = Case { window, ..Case::new(format, 1, 1, 64, 64) };
            let sequence = Sequence::new(&case, 8, TOKENS);
            let want = naive_at(&case, &sequence, TOKENS - 1..TOKENS);
            let mut first: Option<Vec<f32>> = None;
            for (isa, threads) in [(Isa::Scalar, 1), (Isa::best(), 3)] {
                let mut bench = Bench::new(case, isa, threads, TOKENS / KV_BLOCK_TOKENS, 5);
                let table = bench.table(TOKENS);
                let (rows, position) = (TOKENS - 1, 0);
                let spans = [Span { first_row: 0, rows, position, blocks: &table }];
                let [k, v] = [&sequence.k, &sequence.v].map(|x| &x[..rows * 64]);
                append(&bench.pool, isa, &mut bench.arena, 1, &spans, k, v);
                let got = bench.step(&[(&sequence, &table, TOKENS - 1..TOKENS)]).remove(0);
                let off = |(got, want): (&f32, &f64)| (f64::from(*got) - want).powi(2);
                let error = got.iter().zip(&want).map(off).sum::<f64>();
                let error = (error / want.iter().map(|x| x * x).sum::<f64>()).sqrt();
                assert!(error < F16_TOLERANCE, "{case:?} {}: {error:.1e}", isa.name());
                assert_same(
                    &got,
                    first.get_or_insert_with(|| got.clone()),
                    &format!("{case:?} {}", isa.name()),
                );
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_scalar_bits() {
    for case in cases() {
        let sequence = Sequence::new(&case, 5, 330);
        let want = run(case, Isa::Scalar, 1, &sequence, 330);
        for isa in Isa::available() {
            for chunk in [330, 50] {
                let got = run(case, isa, 2, &sequence, chunk);
                assert_same(&got, &want, &format!("{case:?} {} chunk {chunk}", isa.name()));
            }
        }
    }
}

#[test]
fn any_chunking_and_thread_count_gives_the_same_bits() {
    for case in cases() {
        let sequence = Sequence::new(&case, 21, 700);
        let want = run(case, Isa::best(), 1, &sequence, 700);
        for (threads, chunk) in [(1, 1), (1, 300), (2, 37), (2, 256), (3, 300)] {
            let got = run(case, Isa::best(), threads, &sequence, chunk);
            assert_same(&got, &want, &format!("{case:?} {threads} threads, chunk {chunk}"));
        }
    }
}

#[test]
fn neighbours_in_the_batch_change_nothing() {
    for case in cases() {
        let sequence = Sequence::new(&case, 21, 530);
        let want = run(case, Isa::best(), 1, &sequence, 530);
        let width = case.heads * case.layer.v_dim;
        for slot in 0..4 {
            let mut bench = Bench::new(case, Isa::best(), 2, 60, slot as u64 + 3);
            let others: Vec<_> =
                [600, 259, 5].map(|tokens| Sequence::new(&case, tokens as u64, tokens)).into();
            let mut sequences: Vec<&Sequence> = others.iter().collect();
            sequences.insert(slot, &sequence);
            let tables: Vec<_> = sequences.iter().map(|s| bench.table(s.tokens)).collect();
            // Prompts all but the last tokens in one batch, then token by token, the shorter ones dropping out.
            let start: Vec<_> = sequences.iter().map(|s| s.tokens * 9 / 10).collect();
            let batch: Vec<_> = (0..4).map(|i| (sequences[i], &tables[i][..], 0..start[i])).collect();
            let mut got = bench.step(&batch).remove(slot);
            for step in 0..sequence.tokens - start[slot] {
                let running: Vec<_> = (0..4).filter(|&i| start[i] + step < sequences[i].tokens).collect();
                let batch: Vec<_> = running
                    .iter()
                    .map(|&i| (sequences[i], &tables[i][..], start[i] + step..start[i] + step + 1))
                    .collect();
                let at = running.iter().position(|&i| i == slot).expect("still running");
                got.extend(bench.step(&batch).remove(at));
            }
            assert_eq!(got.len(), sequence.tokens * width);
            assert_same(&got, &want, &format!("{case:?} slot {slot}"));
        }
    }
}

#[test]
fn blocks_below_the_window_may_be_gone() {
    for format in KvFormat::all() {
        let case = Case { window: Some(300), ..Case::new(format, 4, 1, 64, 64) };
        let sequence = Sequence::new(&case, 2, 800);
        let want = run(case, Isa::best(), 1, &sequence, 800);
        for chunk in [1, 70] {
            let mut bench = Bench::new(case, Isa::best(), 2, 16, 9);
            let mut table = bench.table(sequence.tokens);
            let mut got = vec![];
            for start in (0..sequence.tokens).step_by(chunk) {
                for id in &mut table[..first_visible(start, case.window) / KV_BLOCK_TOKENS] {
                    if *id != u32::MAX {
                        bench.arena.block_mut(*id).fill(0xff);
                        *id = u32::MAX;
                    }
                }
                let range = start..(start + chunk).min(sequence.tokens);
                got.extend(bench.step(&[(&sequence, &table, range)]).remove(0));
            }
            assert_same(&got, &want, &format!("{format} chunk {chunk}"));
        }
    }
}

#[test]
fn positions_can_be_written_again_after_a_truncation() {
    for format in FORMATS {
        let case = Case::new(format, 2, 2, 32, 32);
        let sequence = Sequence::new(&case, 1, 150);
        let mut abandoned = Sequence::new(&case, 99, 150);
        let width = case.layer.kv_heads * case.layer.k_dim;
        abandoned.k[..70 * width].copy_from_slice(&sequence.k[..70 * width]);
        abandoned.v[..70 * width].copy_from_slice(&sequence.v[..70 * width]);
        let want = run(case, Isa::best(), 1, &sequence, 150);
        let mut bench = Bench::new(case, Isa::best(), 1, 4, 1);
        let table = bench.table(150);
        bench.step(&[(&abandoned, &table, 0..150)]);
        let again = bench.step(&[(&sequence, &table, 70..150)]).remove(0);
        let want = &want[70 * case.heads * case.layer.v_dim..];
        assert_same(&again, want, &format.to_string());
    }
}

#[test]
fn what_is_not_finite_harms_the_rows_that_see_it_and_no_other() {
    for case in cases() {
        let healthy = Sequence::new(&case, 31, 290);
        let mut sick = Sequence::new(&case, 32, 290);
        let Case { heads, layer, .. } = case;
        // A key of head 0 at 100, a value of the last KV head at 200, a query of the last head at 10.
        sick.k[100 * layer.kv_heads * layer.k_dim + 3] = f32::INFINITY;
        sick.v[201 * layer.kv_heads * layer.v_dim - 1] = f32::NAN;
        sick.q[11 * heads * layer.k_dim - 2] = f32::NAN;
        let want = run(case, Isa::best(), 1, &healthy, 290);
        let one = run(case, Isa::Scalar, 1, &sick, 290);
        for isa in Isa::available() {
            let mut bench = Bench::new(case, isa, 2, 16, 5);
            let (a, b) = (bench.table(290), bench.table(290));
            let outs = bench.step(&[(&sick, &a, 0..290), (&healthy, &b, 0..290)]);
            assert_same(&outs[0], &one, &format!("{case:?} {}", isa.name()));
            assert_same(&outs[1], &want, &format!("{case:?} {}", isa.name()));
        }
        assert_same(&run(case, Isa::best(), 2, &sick, 33), &one, &format!("{case:?} in chunks"));
        let sees = |position: usize, key| key <= position && key >= first_visible(position, case.window);
        for (index, out) in one.chunks_exact(layer.v_dim).enumerate() {
            let (position, head) = (index / heads, index % heads);
            let kv_head = head / (heads / layer.kv_heads);
            let poisoned = kv_head == 0 && sees(position, 100)
                || kv_head == layer.kv_heads - 1 && sees(position, 200)
                || position == 10 && head == heads - 1;
            assert!(out.iter().all(|x| x.is_nan() == poisoned), "{case:?} position {position} head {head}");
        }
    }
}

#[test]
fn extreme_but_finite_vectors_stay_exact_and_in_range() {
    for format in FORMATS {
        for dim in [64, 128, 256] {
            let case = Case { window: None, ..Case::new(format, 2, 1, dim, dim) };
            let mut sequence = Sequence::new(&case, 77, 300);
            for (i, x) in sequence.q.iter_mut().chain(&mut sequence.k).enumerate() {
                // Equal magnitudes with one sign: the largest dot products that codes of this norm can have.
                *x = if i / dim % 3 == 0 { 1.0 } else { 0.999 };
            }
            sequence.v.fill(-60_000.0);
            let last = 299 * dim;
            sequence.k[last..last + dim].fill(1e-30);
            sequence.v[last..last + dim].fill(0.0);
            let want = naive(&case, &sequence);
            let scalar = run(case, Isa::Scalar, 1, &sequence, 300);
            for isa in Isa::available() {
                assert_same(&run(case, isa, 1, &sequence, 300), &scalar, isa.name());
            }
            for (got, want) in scalar.iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 60_000.0 * 3e-4, "{format} {dim}: {got} {want}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "append to the same KV block")]
fn two_spans_must_not_write_to_one_block() {
    let case = Case::new(KvFormat::I16, 1, 1, 16, 16);
    let sequence = Sequence::new(&case, 1, 3);
    let mut bench = Bench::new(case, Isa::Scalar, 1, 2, 1);
    bench.step(&[(&sequence, &[1], 0..3), (&sequence, &[1], 0..3)]);
}
