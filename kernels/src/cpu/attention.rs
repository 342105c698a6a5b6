//! Causal attention over the paged KV cache, for prefill and decode alike.
//!
//! A *row* is one query head of one token. Its bits depend on the row and on the cached keys and values that it sees, and
//! on nothing else: not on the batch, chunking, tiles, blocks, threads or instruction set. The contract that makes it so
//! (all f32, rounded to nearest even, `fma` only where written):
//!
//! 1. **Encode** K, V and q (K and q after rope), per token and head. Keys and values have a codec each; that of the keys
//!    encodes q. `am = max|x|`; `n2 = sum x*x` in 16 lanes (lane = dimension mod 16, ascending, `fma`), then the tree of
//!    `simd`. Codes are rne(x*inv).
//!    * q for I16 and Q8G64: `inv = min(32767/am, 46300/sqrt(n2))`, `qs = (scale*log2 e)/inv`.
//!    * I16: K likewise with `ks = 1/inv`: the bound of the 2-norm makes every dot product exact in i32 (Cauchy-Schwarz).
//!      V: `inv = 4095/am`, `vs = am/4095`.
//!    * Q8G64: K and V in groups of 64 dimensions (the last one of a head may be shorter), each with `ks` or `vs` =
//!      `am/127` rounded *up* to f16, so that no code passes 127, and `inv = 1/ks`. Codes of q have 16 bits all the same.
//!    * F16: K and V rounded to half; q times `scale*log2 e`.
//! 2. **Range** r = keys at absolute positions [256 r, 256 r + 256) of the sequence. Its size is part of the contract.
//! 3. **Scores** in log2 units. I16 and Q8G64: for each group of dimensions with one scale, ascending,
//!    `s = fma(f32(dot)*qs, ks, s)` from 0, each dot exact in i32. F16: an `fma` chain over the dimensions, ascending. With
//!    a softcap `c`: `s = tanh(s * (1/(c*log2 e))) * (c*log2 e)`. Not visible (causal, window): `s = -inf`.
//! 4. `m_r` = max over the range; `p = exp2(s - m_r)`, the fixed function of `math`: exactly 1 at 0, exactly 0 below -90,
//!    so that a masked key is an exact no-op.
//! 5. `l_r` = sum of p in 16 lanes (lane = position mod 16), groups of 16 keys ascending, then the tree.
//! 6. I16 and Q8G64, for each group of dimensions with one scale: `t = p*vs`; `T` = max, `S` = sum (as 5);
//!    `c = min(32767/T, 520000/S)`, for Q8G64 `32767/T` (when T is not above 2^-100, O_r is 0); `pc = rne(t*c)` as i16;
//!    `O_r[d] = f32(sum of pc*v) * (1/c)`, exact in i32. F16: `O_r[d]` = an `fma` chain over the keys, ascending from 0.
//! 7. **Merge**, ranges ascending, ranges without a visible key skipped. The state starts at m = -inf, l = 0, O = 0; with a
//!    learned sink at m = sink*log2 e, l = 1, O = 0. `mn = max(m, m_r)`, `a = exp2(m - mn)` (0 when m is -inf),
//!    `b = exp2(m_r - mn)`, `l = fma(l, a, l_r*b)`, `O = fma(O, a, O_r*b)`, `m = mn`.
//! 8. Output `O * (1/l)`.
//!
//! **Extremes.** A vector whose largest magnitude is below 2^-56 is kept as zeros. A K or V vector with a component that is
//! not finite or beyond 2^56 (F16: 65504; Q8G64: 127 x 65504) *poisons* its token and head: K becomes NaN, V zeros, and exactly the rows that
//! see the key come out NaN. Such a q makes its own row NaN. Nothing else is harmed.
//!
//! Layouts: q `rows x heads x k_dim`, k and v `rows x kv_heads x dim`, out `rows x heads x v_dim`; heads `[g*h, g*h + g)`
//! share KV head h, where g = heads / kv_heads.

use std::ops::Range;

use super::{
    isa::Isa,
    kv::{KvArena, LayerPlace},
    pool::Pool,
    share::Shared,
    simd::{self, Kernel, Simd},
};
use crate::backend::{KV_BLOCK_TOKENS, Span};

mod append;
mod codec;
mod schedule;
#[cfg(test)]
mod tests;
mod tile;
mod work;

pub use append::append;
use schedule::{Merge, Work, schedule};
use work::{Context, ThreadScratch};

/// Keys of a range: the unit of partial softmax. Part of the contract.
const RANGE_KEYS: usize = 256;

impl Span<'_> {
    /// The position after its last row.
    fn end(&self) -> usize {
        self.position + self.rows
    }

    /// Checks that rows from `first_position` on can be read and written: blocks exist.
    fn check_blocks(&self, first_position: usize, blocks: usize) {
        let needed = self.end().div_ceil(KV_BLOCK_TOKENS);
        assert!(
            self.blocks.len() >= needed,
            "a table of {} blocks for {} tokens",
            self.blocks.len(),
            self.end()
        );
        for &id in &self.blocks[first_position / KV_BLOCK_TOKENS..needed] {
            assert!((id as usize) < blocks, "KV block {id} of {blocks}");
        }
    }
}

/// Checks that spans cover disjoint, ascending rows of a batch of `rows`.
fn check_spans(spans: &[Span<'_>], rows: usize) {
    let mut free = 0;
    for span in spans {
        assert!(span.first_row >= free, "spans in ascending order of rows, without overlap");
        free = span.first_row + span.rows;
    }
    assert!(free <= rows, "spans end at row {free} of {rows}");
}

/// What to attend to. See the module's header for layouts.
#[derive(Debug)]
pub struct AttendArgs<'a> {
    /// Layer of the arena.
    pub layer: usize,
    /// Query heads, a multiple of the layer's KV heads.
    pub heads: usize,
    /// The sequences of the batch, ascending and disjoint in rows. Rows of no span are left alone.
    pub spans: &'a [Span<'a>],
    /// `rows x heads x k_dim`, after rope.
    pub q: &'a [f32],
    /// Multiplies the dot products.
    pub scale: f32,
    /// The row at position p sees keys at positions above p - window.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// A learned logit a head that takes part in the softmax without a value.
    pub sinks: Option<&'a [f32]>,
    /// `rows x heads x v_dim`.
    pub out: &'a mut [f32],
}

/// Memory that [`attend`] keeps between calls. It allocates only while it grows.
#[derive(Default)]
pub struct AttendScratch {
    works: Vec<Work>,
    merges: Vec<Merge>,
    records: Vec<f32>,
    threads: Vec<ThreadScratch>,
}

/// Attends every row of `args.spans` to the cached keys that it sees, its own included: append first.
///
/// # Panics
/// When sizes do not fit one another, or a block that a row sees is not in the arena.
pub fn attend(pool: &Pool, isa: Isa, arena: &KvArena, args: AttendArgs<'_>, scratch: &mut AttendScratch) {
    let place = arena.layout().place(args.layer);
    check(arena, place, &args);
    let kv_heads = place.layer.kv_heads;
    let group = args.heads / kv_heads;
    let record_len = work::record_len(place.layer.v_dim);
    let AttendScratch { works, merges, records, threads } = scratch;
    let plan = schedule(args.spans, args.window, kv_heads, group, pool.threads(), works, merges);
    if records.len() < plan.records * record_len {
        records.resize(plan.records * record_len, 0.0);
    }
    threads.resize_with(pool.threads().max(threads.len()), ThreadScratch::default);
    for thread in threads.iter_mut() {
        thread.prepare(plan.rows, place.layer);
    }
    let context = Context {
        bytes: arena.bytes(),
        block_bytes: arena.layout().block_bytes(),
        format: arena.layout().format(),
        place,
        group,
        heads: args.heads,
        spans: args.spans,
        q: args.q,
        scale: args.scale * std::f32::consts::LOG2_E,
        window: args.window,
        softcap: args.softcap.map(|cap| cap * std::f32::consts::LOG2_E),
        sinks: args.sinks,
        out: Shared::new(args.out),
        records: Shared::new(records),
    };
    let threads = Shared::new(threads);
    let run = |range: Range<usize>, thread: usize| {
        // SAFETY: the pool runs one piece at a time on a thread, and each thread takes its own scratch.
        let [scratch] = (unsafe { threads.part(thread..thread + 1) }) else { unreachable!("a range of one") };
        let following = works.get(range.end);
        simd::dispatch(isa, Run { context: &context, works: &works[range], following, scratch });
    };
    match plan.blocks {
        // Few rows: a stream from memory, in which each thread fetches ahead what it takes next.
        0 => pool.split_in_order(works.len(), 1, &run),
        _ => pool.split(works.len(), 1, &run),
    }
    pool.split(merges.len(), 1, &|range, thread| {
        // SAFETY: as above.
        let [scratch] = (unsafe { threads.part(thread..thread + 1) }) else { unreachable!("a range of one") };
        simd::dispatch(isa, Finish { context: &context, merges: &merges[range], scratch });
    });
}

fn check(arena: &KvArena, place: &LayerPlace, args: &AttendArgs<'_>) {
    let layer = place.layer;
    assert!(args.heads > 0 && args.heads.is_multiple_of(layer.kv_heads), "{} heads, {layer:?}", args.heads);
    assert!(args.window != Some(0), "a window of 0 sees nothing");
    assert!(args.sinks.is_none_or(|sinks| sinks.len() == args.heads), "one sink a head");
    let rows = args.q.len() / (args.heads * layer.k_dim);
    assert_eq!(args.q.len(), rows * args.heads * layer.k_dim, "q is rows x heads x k_dim");
    assert_eq!(args.out.len(), rows * args.heads * layer.v_dim, "out is rows x heads x v_dim");
    check_spans(args.spans, rows);
    for span in args.spans.iter().filter(|span| span.rows > 0) {
        span.check_blocks(first_visible(span.position, args.window), arena.blocks());
    }
}

/// The lowest position that a row at `position` sees.
fn first_visible(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// Some of the scheduled works, on one thread.
struct Run<'a> {
    context: &'a Context<'a>,
    works: &'a [Work],
    /// The work after these.
    following: Option<&'a Work>,
    scratch: &'a mut ThreadScratch,
}

impl Kernel for Run<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, work) in self.works.iter().enumerate() {
            let following = self.works.get(index + 1).or(self.following);
            work::run(s, self.context, work, following, self.scratch);
        }
    }
}

/// Some of the scheduled merges, on one thread.
struct Finish<'a> {
    context: &'a Context<'a>,
    merges: &'a [Merge],
    scratch: &'a mut ThreadScratch,
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for merge in self.merges {
            work::merge_records(s, self.context, merge, self.scratch);
        }
    }
}
