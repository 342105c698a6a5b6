//! Encodes new keys and values into their blocks: step 1 of the contract.

use std::ops::Range;

use super::{
    Span, check_spans,
    codec::{KeyCodec, Measure, ValueCodec, limit, with_codec},
};
use crate::backend::{KV_BLOCK_TOKENS, KvCodec, KvFormat};
use crate::cpu::{
    isa::Isa,
    kv::{BLOCK_GROUPS, GROUP_TOKENS, KvArena, LayerPlace, MAX_HEAD_DIM},
    pool::Pool,
    share::Shared,
    simd::{self, Kernel, Simd},
};

/// Values of K and V that a thread should at least take: below, a hand-off costs more than it saves.
const GRAIN_VALUES: usize = 8192;

/// Writes K and V of the rows of `spans` into their blocks of layer `layer`: `k` is `rows x kv_heads x k_dim`, after
/// rope; `v` likewise. Positions that were written before are overwritten, as after a truncation; a group of 16 positions
/// is to be written from its first one on before it is attended to.
///
/// # Panics
/// When sizes do not fit one another, a block is not in the arena, or two spans write to the same block.
pub fn append(
    pool: &Pool,
    isa: Isa,
    arena: &mut KvArena,
    layer: usize,
    spans: &[Span<'_>],
    k: &[f32],
    v: &[f32],
) {
    let place = *arena.layout().place(layer);
    let (kv_heads, dims) = (place.layer.kv_heads, place.layer.k_dim + place.layer.v_dim);
    let rows = k.len() / (kv_heads * place.layer.k_dim);
    assert_eq!(k.len(), rows * kv_heads * place.layer.k_dim, "k is rows x kv_heads x k_dim");
    assert_eq!(v.len(), rows * kv_heads * place.layer.v_dim, "v is rows x kv_heads x v_dim");
    check_spans(spans, rows);
    for span in spans.iter().filter(|span| span.rows > 0) {
        span.check_blocks(span.position, arena.blocks());
    }
    assert!(written_once(spans), "two spans, or two places of a table, append to the same KV block");
    let format = arena.layout().format();
    let block_bytes = arena.layout().block_bytes();
    let target = Target { bytes: Shared::new(arena.bytes_mut()), block_bytes, place, spans, k, v };
    // A unit is one group of 16 tokens of one span and KV head: no two touch the same bytes.
    let units = spans.iter().map(|span| groups(span).len()).sum::<usize>() * kv_heads;
    let values_per_unit = (rows * kv_heads * dims).div_ceil(units.max(1));
    let grain = (GRAIN_VALUES / values_per_unit.max(1)).max(1);
    pool.split(units, grain, &|units, _| simd::dispatch(isa, Append { target: &target, format, units }));
}

/// The groups, counted from position 0, that a span writes to.
fn groups(span: &Span<'_>) -> Range<usize> {
    if span.rows == 0 { 0..0 } else { span.position / GROUP_TOKENS..span.end().div_ceil(GROUP_TOKENS) }
}

/// Whether no block is written from two places: few blocks are written in a step, so each is compared with each.
fn written_once(spans: &[Span<'_>]) -> bool {
    let blocks = |span: &Span<'_>| span.position / KV_BLOCK_TOKENS..span.end().div_ceil(KV_BLOCK_TOKENS);
    let written = || {
        let filled = spans.iter().filter(|span| span.rows > 0);
        filled.flat_map(|span| span.blocks[blocks(span)].iter())
    };
    written().enumerate().all(|(i, id)| written().skip(i + 1).all(|other| other != id))
}

/// Where rows go.
struct Target<'a> {
    bytes: Shared<'a, u8>,
    block_bytes: usize,
    place: LayerPlace,
    spans: &'a [Span<'a>],
    k: &'a [f32],
    v: &'a [f32],
}

/// Some units, on one thread.
struct Append<'a> {
    target: &'a Target<'a>,
    format: KvFormat,
    units: Range<usize>,
}

impl Kernel for Append<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for unit in self.units {
            self.target.unit(s, self.format, unit);
        }
    }
}

impl Target<'_> {
    /// Span, group and KV head of a unit.
    fn locate(&self, unit: usize) -> (&Span<'_>, usize, usize) {
        let kv_heads = self.place.layer.kv_heads;
        let (mut group, head) = (unit / kv_heads, unit % kv_heads);
        for span in self.spans {
            let groups = groups(span);
            if group < groups.len() {
                return (span, groups.start + group, head);
            }
            group -= groups.len();
        }
        unreachable!("unit {unit} is beyond the spans")
    }

    #[inline(always)]
    fn unit<S: Simd>(&self, s: S, format: KvFormat, unit: usize) {
        static ZEROS: [f32; MAX_HEAD_DIM] = [0.0; MAX_HEAD_DIM];
        let (span, group, head) = self.locate(unit);
        let (place, layer) = (&self.place, self.place.layer);
        let block = span.blocks[group / BLOCK_GROUPS] as usize * self.block_bytes;
        let part = |offset: usize, len: usize| {
            // SAFETY: no other unit has this group of this block and head (`written_once`), K and V groups are apart.
            unsafe { self.bytes.part(block + offset..block + offset + len) }
        };
        let keys = part(place.k_offset(head, group % BLOCK_GROUPS), place.k_group_bytes);
        let values = part(place.v_offset(head, group % BLOCK_GROUPS), place.v_group_bytes);
        let positions =
            (group * GROUP_TOKENS).max(span.position)..((group + 1) * GROUP_TOKENS).min(span.end());
        for position in positions {
            let row = (span.first_row + position - span.position) * layer.kv_heads + head;
            let token = position % GROUP_TOKENS;
            if token == 0 {
                // What an earlier owner left must not meet the weight 0 of a key that is not there: 0 x NaN is NaN.
                values.fill(0);
            }
            let k = &self.k[row * layer.k_dim..(row + 1) * layer.k_dim];
            let v = &self.v[row * layer.v_dim..(row + 1) * layer.v_dim];
            let (k_measure, v_measure) = (Measure::of(s, k), Measure::of(s, v));
            let valid = k_measure.within(limit(format.keys)) && v_measure.within(limit(format.values));
            let k_measure = valid.then_some(k_measure);
            let (v, v_measure) = if valid { (v, v_measure) } else { (&ZEROS[..v.len()], Measure::ZERO) };
            with_codec!(format.keys, C => C::put_key(s, k, k_measure, token, keys));
            with_codec!(format.values, C => C::put_value(s, v, v_measure, token, values));
        }
    }
}
