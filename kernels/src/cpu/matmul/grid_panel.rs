//! From units of the grid formats ([`super::grid`]) to panels: what the instruction sets share. Scales are plain Rust, compiled for
//! each of them; codes are decoded by [`super::grid_avx2`] and [`super::grid_avx512`].

use super::{
    codes::Quad,
    grid::{Plane, sign_plane},
    layout::{BLOCK_COLS, GROUP_ROWS, QUADS},
};
use crate::blocks::{BlockFormat, widened_half};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// A value for each row.
pub(super) type Lanes<T> = [T; GROUP_ROWS];
/// The codes of a block: four columns of all rows, the first column lowest.
pub(super) type Quads = [Quad; QUADS];

/// Blocks of a unit.
const UNIT_BLOCKS: usize = 8;

/// Decodes units to a panel of as many blocks; a block's codes by `decode_block`: the unit's planes, the block, where its quads go.
///
/// # Panics
/// When `panel` is too small.
#[inline(always)]
pub(super) fn decode_units(
    format: BlockFormat,
    units: &[u8],
    panel: &mut [u32],
    decode_block: impl Fn(&[Plane], usize, &mut Quads),
) {
    let spans = BLOCK_COLS / format.scale_span();
    let mut blocks = panel.as_chunks_mut::<GROUP_ROWS>().0.chunks_exact_mut(spans + QUADS);
    for unit in units.chunks_exact(GROUP_ROWS * format.block_bytes()) {
        let planes = unit.as_chunks::<GROUP_ROWS>().0;
        let step = steps(format, planes);
        for b in 0..UNIT_BLOCKS {
            fetch(&planes[b * planes.len() / UNIT_BLOCKS..(b + 1) * planes.len() / UNIT_BLOCKS], units.len());
            let (tables, quads) = blocks.next().expect("a panel for all units").split_at_mut(spans);
            for (span, table) in tables.iter_mut().enumerate() {
                let multiple = multiples(format, planes, b * spans + span);
                *table = lanes(|r| (step[r] * f32::from(2 * multiple[r] + 1)).to_bits());
            }
            decode_block(planes, b, quads.first_chunk_mut().expect("eight quads"));
        }
    }
}

/// Fetches what lies `ahead` bytes after planes: units are read plane by plane, which the hardware does not foresee (IQ3_S from
/// memory: 4.4 ns a vector of codes without, 1.9 with it).
#[inline(always)]
fn fetch(planes: &[Plane], ahead: usize) {
    for line in (0..planes.as_flattened().len()).step_by(64) {
        let at = planes.as_ptr().cast::<i8>().wrapping_add(line + ahead);
        // SAFETY: a hint that cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
}

/// What the scales of the rows' blocks are odd multiples of.
#[inline(always)]
fn steps(format: BlockFormat, planes: &[Plane]) -> [f32; GROUP_ROWS] {
    let part = match format {
        BlockFormat::IQ3_S => 1.0,
        BlockFormat::IQ3_XXS => 0.25,
        _ => 0.125,
    };
    let bits: [u16; GROUP_ROWS] = if format == BlockFormat::IQ1_M {
        lanes(|r| {
            let nibble = |i: usize| u16::from(planes[49 + 2 * i][r] >> 4) << (4 * i);
            nibble(0) | nibble(1) | nibble(2) | nibble(3)
        })
    } else {
        words(planes, 0)
    };
    lanes(|r| widened_half(bits[r]) * part)
}

/// Half the odd multiples, rounded down, for the rows' columns `sub * scale_span..` of a unit.
#[inline(always)]
fn multiples(format: BlockFormat, planes: &[Plane], sub: usize) -> Plane {
    let nibbles = |first: usize| {
        let plane = &planes[first + sub / 2];
        lanes(|r| plane[r] >> (4 * (sub % 2)) & 15)
    };
    match format {
        BlockFormat::IQ1_S => {
            let high = &planes[35 + 2 * sub];
            lanes(|r| high[r] >> 4 & 7)
        }
        BlockFormat::IQ1_M => {
            let words = words(planes, 48 + sub / 4 * 2);
            lanes(|r| (words[r] >> (3 * (sub % 4)) & 7) as u8)
        }
        BlockFormat::IQ2_XXS | BlockFormat::IQ3_XXS => {
            let bits = &planes[sign_plane(format, sub, 0)..][..4];
            lanes(|r| bits[0][r] & 1 | (bits[1][r] & 1) << 1 | (bits[2][r] & 1) << 2 | (bits[3][r] & 1) << 3)
        }
        BlockFormat::IQ2_XS => nibbles(66),
        BlockFormat::IQ2_S => nibbles(74),
        _ => nibbles(106),
    }
}

/// What `value` says for each row. Unlike those of arrays, it is inlined, and so compiled for the instruction set.
#[inline(always)]
pub(super) fn lanes<T: Copy + Default>(value: impl Fn(usize) -> T) -> Lanes<T> {
    let mut lanes = [T::default(); GROUP_ROWS];
    for (r, lane) in lanes.iter_mut().enumerate() {
        *lane = value(r);
    }
    lanes
}

/// The rows' words whose bytes are planes `first` and the next.
#[inline(always)]
pub(super) fn words(planes: &[Plane], first: usize) -> [u16; GROUP_ROWS] {
    let [low, high] = [&planes[first], &planes[first + 1]];
    lanes(|r| u16::from_le_bytes([low[r], high[r]]))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            grid::tests::{UNITS, packed, random_bytes},
            grid_avx2, grid_avx512,
            layout::is_decoded_first,
        },
        *,
    };
    use crate::{
        blocks::{scales, unpack_codes},
        cpu::isa::Isa,
    };
    use std::collections::HashSet;

    const UNIT_COLS: usize = UNIT_BLOCKS * BLOCK_COLS;

    /// Points of the grid with the signs that each may have, or in IQ1 with its shifts.
    fn eights_and_signs(format: BlockFormat) -> (usize, usize) {
        match format {
            BlockFormat::IQ1_S | BlockFormat::IQ1_M => (2 * 2048, 1),
            BlockFormat::IQ2_XXS => (256, 128),
            BlockFormat::IQ2_XS => (512, 128),
            BlockFormat::IQ2_S => (1024, 256),
            BlockFormat::IQ3_XXS => (256, 128),
            _ => (512, 256),
        }
    }

    /// What a panel must hold, from the file's blocks, a NaN as the usual one; and that the blocks have all that a format can say.
    fn panel_of_blocks(format: BlockFormat, rows: &[u8]) -> Vec<u32> {
        let spans = BLOCK_COLS / format.scale_span();
        let block_words = (spans + QUADS) * GROUP_ROWS;
        let mut panel = vec![0; UNITS * UNIT_BLOCKS * block_words];
        let (mut points, mut signs) = (HashSet::new(), HashSet::new());
        for (i, block) in rows.chunks_exact(format.block_bytes()).enumerate() {
            let (row, unit) = (i / UNITS, i % UNITS);
            let mut codes = [0; UNIT_COLS];
            unpack_codes(format, block, &mut codes);
            for (b, codes) in codes.as_chunks::<BLOCK_COLS>().0.iter().enumerate() {
                let decoded = &mut panel[(unit * UNIT_BLOCKS + b) * block_words..][..block_words];
                for span in 0..spans {
                    let scale = scales(format, block, b * spans + span).scale;
                    decoded[span * GROUP_ROWS + row] =
                        if scale.is_nan() { f32::NAN } else { scale }.to_bits();
                }
                for (quad, four) in codes.as_chunks::<4>().0.iter().enumerate() {
                    decoded[(spans + quad) * GROUP_ROWS + row] = u32::from_le_bytes(*four);
                }
            }
            for eight in codes.as_chunks::<8>().0 {
                let magnitudes = eight.map(|code| code.abs_diff(128));
                match format {
                    BlockFormat::IQ1_S | BlockFormat::IQ1_M => drop(points.insert(eight.to_vec())),
                    BlockFormat::IQ3_XXS | BlockFormat::IQ3_S => {
                        points.extend(magnitudes.as_chunks::<4>().0.iter().map(|four| four.to_vec()));
                    }
                    _ => drop(points.insert(magnitudes.to_vec())),
                }
                signs.insert(match format {
                    BlockFormat::IQ1_S | BlockFormat::IQ1_M => [false; 8],
                    _ => eight.map(|code| code < 128),
                });
            }
        }
        assert_eq!((points.len(), signs.len()), eights_and_signs(format), "{format}");
        panel
    }

    #[test]
    fn all_points_and_signs_decode_as_in_blocks() {
        for format in BlockFormat::ALL.into_iter().filter(|&f| is_decoded_first(f)) {
            let rows = random_bytes(GROUP_ROWS * UNITS * format.block_bytes());
            let group = packed(format, &rows);
            let want = panel_of_blocks(format, &rows);
            for isa in Isa::available() {
                let mut got = vec![0; want.len()];
                match isa {
                    Isa::Scalar => continue,
                    // SAFETY: the machine has the instruction set.
                    Isa::Avx2 => unsafe { grid_avx2::decode_units(format, &group, &mut got) },
                    // SAFETY: as above.
                    Isa::Avx512 | Isa::Avx512Bf16 => unsafe {
                        grid_avx512::decode_units(format, &group, &mut got)
                    },
                }
                let spans = BLOCK_COLS / format.scale_span();
                for (i, part) in got.chunks_exact_mut(GROUP_ROWS).enumerate() {
                    if i % (spans + QUADS) < spans {
                        part.iter_mut()
                            .filter(|s| f32::from_bits(**s).is_nan())
                            .for_each(|s| *s = f32::NAN.to_bits());
                    }
                    assert_eq!(
                        part,
                        &want[i * GROUP_ROWS..][..GROUP_ROWS],
                        "{format} {} part {i}",
                        isa.name()
                    );
                }
            }
        }
    }
}
