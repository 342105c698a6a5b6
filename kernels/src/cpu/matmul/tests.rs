//! Every instruction set, shape and thread count against the scalar twin, to the bit; the twin against f64.

use super::*;
use crate::{
    backend::{Activation, WeightSource},
    blocks,
    cpu::ops,
};
use proptest::prelude::*;
use std::ops::Range;

/// Row counts on both sides of every change of plan.
const ROW_COUNTS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 13, 23, 64];
const SENTINEL: f32 = -1234.5;
const SENTINELS: usize = 64;

/// Relative root mean square error of a product against f64, random weights and activations of normal spread: for quantised
/// formats all of it is the rounding of activations to 8 bits (0.0055 expected), for BF16 that to 8 bits of mantissa (0.0016),
/// for other floats the f32 sum.
const fn tolerance(format: BlockFormat) -> f64 {
    match format {
        BlockFormat::F32 | BlockFormat::F16 => 1e-6,
        BlockFormat::BF16 => 0.0025,
        _ => 0.008,
    }
}

/// The same against activations rounded beforehand: what remains is the f32 sum over blocks.
const SUM_TOLERANCE: f64 = 1e-6;

pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0..1
    fn fraction(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Twelve fractions: close enough to a normal distribution.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.fraction()).sum::<f32>() - 6.0
    }

    pub(super) fn activations(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// A file matrix: random codes, scales of either sign and of usual size.
    fn weights(&mut self, format: BlockFormat, rows: usize, cols: usize) -> Vec<u8> {
        if !format.is_quantised() {
            let values = (0..rows * cols).map(|_| 0.1 * self.normal());
            return match format {
                BlockFormat::F32 => values.flat_map(f32::to_le_bytes).collect(),
                BlockFormat::F16 => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
                _ => values.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            };
        }
        let mut bytes: Vec<u8> =
            (0..rows * format.row_bytes(cols).unwrap()).map(|_| (self.next() >> 33) as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            let mut half = |at: usize, size: f32| {
                let value = half::f16::from_f32(size * (self.fraction() - 0.3));
                block[at..at + 2].copy_from_slice(&value.to_le_bytes());
            };
            match format {
                BlockFormat::Q2_K => {
                    half(80, 4e-3);
                    half(82, 3e-3);
                }
                BlockFormat::Q3_K => half(108, 1e-3),
                BlockFormat::Q6_K => half(208, 2e-4),
                BlockFormat::TQ1_0 => half(52, 0.1),
                BlockFormat::TQ2_0 => half(64, 0.1),
                // Powers of two around 2^-7, and small floats around 1.
                BlockFormat::MXFP4 => block[0] = 116 + block[0] % 8,
                BlockFormat::NVFP4 => block[..4].iter_mut().for_each(|s| *s = 40 + *s % 32),
                // The highest nibbles of four words are an f16: here 2^-11 to 2^-7.
                BlockFormat::IQ1_M => {
                    for (at, nibble) in [(53, block[53] & 3), (55, 1)] {
                        block[at] = block[at] & 15 | nibble << 4;
                    }
                }
                BlockFormat::IQ4_XS | BlockFormat::IQ2_XXS | BlockFormat::IQ2_XS | BlockFormat::IQ2_S => {
                    half(0, 1e-3);
                }
                BlockFormat::IQ1_S | BlockFormat::IQ3_XXS | BlockFormat::IQ3_S => half(0, 1e-3),
                BlockFormat::Q4_K | BlockFormat::Q5_K => {
                    half(0, 4e-4);
                    half(2, 3e-3);
                }
                BlockFormat::Q4_1 | BlockFormat::Q5_1 => {
                    half(0, 0.01);
                    half(2, 0.1);
                }
                _ => half(0, 0.01),
            }
        }
        bytes
    }
}

pub(super) struct Matrix {
    pub(super) packed: PackedWeight,
    file: Vec<u8>,
}

impl Matrix {
    pub(super) fn random(
        random: &mut Random,
        isa: Isa,
        format: BlockFormat,
        rows: usize,
        cols: usize,
    ) -> Self {
        let file = random.weights(format, rows, cols);
        let packed = PackedWeight::pack(&Pool::new(1), isa, format, rows, cols, &file).unwrap();
        Self { packed, file }
    }

    pub(super) fn decoded_row(&self, row: usize) -> Vec<f32> {
        let row_bytes = self.packed.format().row_bytes(self.packed.cols()).unwrap();
        let mut out = vec![0.0; self.packed.cols()];
        blocks::decode_row(self.packed.format(), &self.file[row * row_bytes..][..row_bytes], &mut out);
        if self.packed.format() == BlockFormat::BF16 {
            let tiny = |w: &&mut f32| w.abs() < rows::SMALLEST_BFLOAT;
            out.iter_mut().filter(tiny).for_each(|w| *w = 0f32.copysign(*w));
        }
        out
    }
}

/// The products of all `m` rows with each weight.
fn product(
    pool: &Pool,
    isa: Isa,
    weights: &[&PackedWeight],
    input: &[f32],
    m: usize,
    scratch: &mut RowsScratch,
) -> Vec<Vec<f32>> {
    let all: Vec<_> = weights.iter().map(|&weight| (weight, 0..m)).collect();
    ranged_product(pool, isa, &all, input, input.len() / m, scratch)
}

/// The products of some rows with each weight, each in its own buffer between sentinels that must survive.
fn ranged_product(
    pool: &Pool,
    isa: Isa,
    weights: &[(&PackedWeight, Range<usize>)],
    input: &[f32],
    cols: usize,
    scratch: &mut RowsScratch,
) -> Vec<Vec<f32>> {
    let len = |(weight, rows): &(&PackedWeight, Range<usize>)| rows.len() * weight.rows() + 2 * SENTINELS;
    let mut buffers: Vec<_> = weights.iter().map(|w| vec![SENTINEL; len(w)]).collect();
    let terms = weights.iter().zip(&mut buffers).map(|((weight, rows), buffer)| {
        let end = buffer.len() - SENTINELS;
        Term { weight, rows: rows.clone(), finish: Finish::NONE, output: &mut buffer[SENTINELS..end] }
    });
    multiply(pool, isa, Input::Rows(input), cols, terms, scratch);
    for buffer in &mut buffers {
        let after = buffer.split_off(buffer.len() - SENTINELS);
        let before = buffer.drain(..SENTINELS);
        assert!(before.chain(after).all(|v| v == SENTINEL), "{} wrote outside its output", isa.name());
    }
    buffers
}

/// Bit patterns. All NaN are one: which of two operands' payloads survives is the compiler's choice.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

/// Scalar, one thread, one row at a time: what all others must equal.
pub(super) fn twin(weight: &PackedWeight, input: &[f32]) -> Vec<f32> {
    let pool = Pool::new(1);
    let mut scratch = RowsScratch::new();
    let rows = input.chunks_exact(weight.cols());
    rows.flat_map(|row| product(&pool, Isa::Scalar, &[weight], row, 1, &mut scratch).remove(0)).collect()
}

/// About `blocks` blocks of 32 columns (up to 736: more than a panel), as whole blocks of the format.
fn cols_of(format: BlockFormat, blocks: usize, odd: usize) -> usize {
    match format.block_len() {
        1 => blocks * 32 - odd,
        len => (blocks * 32).next_multiple_of(len),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bits_do_not_depend_on_isa_rows_or_threads(blocks in 1..24usize, odd in 0..32usize, rows in 1..150usize, seed in 1u64..) {
        let mut random = Random(seed);
        let mut scratch = RowsScratch::new();
        let pools = [1, 2, 3].map(Pool::new);
        for format in BlockFormat::ALL {
            let cols = cols_of(format, blocks, odd);
            let weight = Matrix::random(&mut random, Isa::best(), format, rows, cols).packed;
            let input = random.activations(64 * cols);
            let want = bits(&twin(&weight, &input));
            for (pool, isa) in pools.iter().flat_map(|p| Isa::available().into_iter().map(move |isa| (p, isa))) {
                for m in ROW_COUNTS {
                    let got = product(pool, isa, &[&weight], &input[..m * cols], m, &mut scratch).remove(0);
                    let differ = bits(&got).iter().zip(&want).filter(|(g, w)| g != w).count();
                    prop_assert_eq!(
                        differ, 0, "of {} outputs: {} {} columns, {}, {} rows, {} threads",
                        got.len(), format, cols, isa.name(), m, pool.threads()
                    );
                }
            }
        }
    }

    #[test]
    fn packed_rows_decode_as_file_rows(blocks in 1..24usize, odd in 0..32usize, rows in 1..70usize, seed in 1u64..) {
        // Any bytes at all: scales may be NaN and infinite.
        let mut random = Random(seed);
        for format in BlockFormat::ALL {
            let cols = cols_of(format, blocks, odd);
            let row_bytes = format.row_bytes(cols).unwrap();
            let file: Vec<u8> = (0..rows * row_bytes).map(|_| (random.next() >> 33) as u8).collect();
            let pack = |isa| PackedWeight::pack(&Pool::new(2), isa, format, rows, cols, &file).unwrap();
            let packed = pack(Isa::Scalar);
            for isa in Isa::available() {
                prop_assert!(pack(isa).groups() == packed.groups(), "{} {}", format, isa.name());
            }
            // The file's bytes, and nothing beside them but the rows that fill the last group.
            prop_assert_eq!(packed.bytes(), rows.next_multiple_of(32) * row_bytes, "{}", format);
            let matrix = Matrix { packed, file };
            let mut got = vec![0.0; cols];
            for row in 0..rows {
                matrix.packed.decode_row(row, &mut got);
                prop_assert_eq!(bits(&got), bits(&matrix.decoded_row(row)), "{} row {}", format, row);
            }
        }
    }
}

/// A prompt's rows, of which only so many differ that the twin need not compute all: a prime number, so that equal rows fall
/// in different places of tiles and pieces.
#[test]
fn five_hundred_rows_have_the_bits_of_one() {
    const M: usize = 512;
    const DISTINCT: usize = 37;
    let pools = [1, 3].map(Pool::new);
    for format in BlockFormat::ALL {
        let mut random = Random(29);
        let mut scratch = RowsScratch::new();
        let (rows, cols) = (70, cols_of(format, 9, 5));
        let weight = Matrix::random(&mut random, Isa::best(), format, rows, cols).packed;
        let distinct = random.activations(DISTINCT * cols);
        let want = bits(&twin(&weight, &distinct));
        let input: Vec<f32> = distinct.iter().copied().cycle().take(M * cols).collect();
        for (pool, isa) in pools.iter().flat_map(|p| Isa::available().into_iter().map(move |isa| (p, isa))) {
            let got = bits(&product(pool, isa, &[&weight], &input, M, &mut scratch)[0]);
            let want = want.chunks_exact(rows).cycle();
            let wrong = got.chunks_exact(rows).zip(want).filter(|(got, want)| got != want).count();
            assert_eq!(wrong, 0, "rows of {M}: {format} {}, {} threads", isa.name(), pool.threads());
        }
    }
}

/// Codes beyond what a kernel's sums have room for would overflow them in silence.
#[test]
fn no_bytes_make_a_code_beyond_the_bound_of_its_kernel() {
    let mut random = Random(31);
    for format in BlockFormat::ALL {
        let (largest, offset) = layout::with_format!(format, F => {
            use layout::Codes;
            (F::LARGEST as i32, F::OFFSET)
        }, panel => continue, _ => continue);
        let mut seen = 0;
        for _ in 0..2000 {
            let block: Vec<u8> = (0..format.block_bytes()).map(|_| (random.next() >> 33) as u8).collect();
            let mut codes = vec![0; format.block_len()];
            blocks::unpack_codes(format, &block, &mut codes);
            let size = |&c: &u8| if offset == 128 { (i32::from(c) - 128).abs() } else { i32::from(c) };
            seen = codes.iter().map(size).fold(seen, i32::max);
        }
        assert!(largest / 2 < seen && seen <= largest, "{format}: {seen} of {largest}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn terms_multiply_their_own_rows(
        format in proptest::sample::select(BlockFormat::ALL.to_vec()),
        (blocks, odd) in (1..24usize, 0..32usize),
        terms in proptest::collection::vec((1..80usize, 0..40usize, 0..40usize, any::<bool>()), 0..20),
        seed in 1u64..,
    ) {
        const INPUT_ROWS: usize = 40;
        let cols = cols_of(format, blocks, odd);
        let mut random = Random(seed);
        let input = random.activations(INPUT_ROWS * cols);
        let terms: Vec<_> = terms.into_iter().map(|(outputs, a, b, float)| {
            let format = if float { BlockFormat::F16 } else { format };
            (Matrix::random(&mut random, Isa::best(), format, outputs, cols).packed, a.min(b)..a.max(b))
        }).collect();
        let ranged: Vec<_> = terms.iter().map(|(weight, rows)| (weight, rows.clone())).collect();
        let want: Vec<_> = ranged.iter().map(|(weight, rows)| {
            bits(&twin(weight, &input[rows.start * cols..rows.end * cols]))
        }).collect();
        let mut scratch = RowsScratch::new();
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            for isa in Isa::available() {
                let got = ranged_product(&pool, isa, &ranged, &input, cols, &mut scratch);
                for (got, want) in got.iter().zip(&want) {
                    prop_assert_eq!(&bits(got), want, "{} {}", isa.name(), threads);
                }
            }
        }
    }
}

#[test]
fn decoded_groups_and_panels_stay_in_their_room() {
    const COLS: usize = 768;
    const AFTER: usize = 4096;
    for (format, isa) in
        BlockFormat::ALL.into_iter().flat_map(|f| Isa::available().into_iter().map(move |isa| (f, isa)))
    {
        let mut random = Random(23);
        let weight = Matrix::random(&mut random, isa, format, 33, COLS).packed;
        for m in [1, 64] {
            let input = random.activations(m * COLS);
            let room = decoded_group_bytes(isa, format, m, COLS);
            let mut scratch = RowsScratch::new();
            rows::tests::decoded(&mut scratch, room + AFTER).fill(0xa5);
            product(&Pool::new(1), isa, &[&weight], &input, m, &mut scratch);
            let after = &rows::tests::decoded(&mut scratch, room + AFTER)[room..];
            assert!(after.iter().all(|&b| b == 0xa5), "{format} {} wrote past {room} bytes", isa.name());
        }
    }
}

#[test]
fn the_twin_is_close_to_f64() {
    const ROWS: usize = 40;
    const COLS: usize = 1024;
    for format in BlockFormat::ALL {
        let mut random = Random(7);
        let matrix = Matrix::random(&mut random, Isa::Scalar, format, ROWS, COLS);
        let input = random.activations(3 * COLS);
        let got = twin(&matrix.packed, &input);
        let (mut error, mut rounded_error, mut total) = (0.0, 0.0, 0.0);
        for (x, got) in input.chunks_exact(COLS).zip(got.chunks_exact(ROWS)) {
            let rounded: Vec<f32> = match format {
                BlockFormat::F32 | BlockFormat::F16 => x.to_vec(),
                BlockFormat::BF16 => x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect(),
                _ => rows::tests::rounded(x),
            };
            for (n, &got) in got.iter().enumerate() {
                let weights = matrix.decoded_row(n);
                let dot = |x: &[f32]| {
                    x.iter().zip(&weights).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                };
                error += (dot(x) - f64::from(got)).powi(2);
                rounded_error += (dot(&rounded) - f64::from(got)).powi(2);
                total += dot(x).powi(2);
            }
        }
        let relative = |e: f64| (e / total).sqrt();
        assert!(relative(error) < tolerance(format), "{format}: {}", relative(error));
        assert!(relative(rounded_error) < SUM_TOLERANCE, "{format}: {}", relative(rounded_error));
    }
}

#[test]
fn terms_of_a_call_do_not_touch_each_other() {
    const COLS: usize = 512;
    let mut random = Random(11);
    let shapes = [
        (BlockFormat::Q5_0, 70),
        (BlockFormat::Q2_K, 45),
        (BlockFormat::Q8_0, 33),
        (BlockFormat::Q6_K, 1),
        (BlockFormat::MXFP4, 67),
        (BlockFormat::F16, 300),
        (BlockFormat::BF16, 67),
        (BlockFormat::IQ2_XS, 40),
    ];
    let weights =
        shapes.map(|(format, rows)| Matrix::random(&mut random, Isa::best(), format, rows, COLS).packed);
    let input = random.activations(9 * COLS);
    let all: Vec<_> = weights.iter().collect();
    let mut scratch = RowsScratch::new();
    for isa in Isa::available() {
        for threads in 1..=3 {
            let together = product(&Pool::new(threads), isa, &all, &input, 9, &mut scratch);
            for (weight, got) in weights.iter().zip(&together) {
                assert_eq!(bits(got), bits(&twin(weight, &input)), "{} {}", isa.name(), weight.format());
            }
        }
    }
}

/// Cuts lines of all kinds into pieces of all sizes: each group is in one of them, and pieces are about equal.
#[test]
fn every_group_is_in_one_piece() {
    let mut random = Random(17);
    let [small, large] = [(5, 96), (700, 96)]
        .map(|(n, k)| Matrix::random(&mut random, Isa::best(), BlockFormat::F16, n, k).packed);
    for (count, many) in [(1, 1), (3, 16), (200, 17), (7, 300)] {
        let mut line = Line::default();
        let terms: Vec<_> = (0..count)
            .map(|i| (if i % 3 == 0 { &large } else { &small }, if i % 2 == 0 { 1 } else { many }))
            .collect();
        let mut outputs: Vec<_> =
            terms.iter().map(|(weight, rows)| vec![0f32; weight.rows() * rows]).collect();
        for ((weight, rows), output) in terms.iter().zip(&mut outputs) {
            line.push(Term { weight, rows: 0..*rows, finish: Finish::NONE, output }, many, 96);
        }
        let spread = line.spread();
        for grain in [1, 7, spread.grain, spread.items] {
            let mut groups: Vec<Vec<usize>> = vec![vec![]; count];
            for start in (0..spread.items).step_by(grain) {
                // SAFETY: weights and outputs are alive.
                for part in unsafe { line.parts(&spread, start..(start + grain).min(spread.items)) } {
                    let own =
                        outputs.iter().position(|o| o.as_ptr_range().contains(&part.output.cast_const()));
                    let own = own.expect("an output of one of the terms");
                    let first = part.groups.start * GROUP_ROWS;
                    assert_eq!(part.output.cast_const(), outputs[own][first..].as_ptr());
                    assert_eq!((part.weight.rows(), part.rows), (terms[own].0.rows(), 0..terms[own].1));
                    groups[own].extend(part.groups);
                }
            }
            for (groups, (weight, _)) in groups.iter().zip(&terms) {
                let all: Vec<_> = (0..weight.rows().div_ceil(GROUP_ROWS)).collect();
                assert_eq!(*groups, all, "{count} terms of {many} rows, {grain} of {} items", spread.items);
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows 1..4 of an input of 3")]
fn rows_that_the_input_does_not_have_are_refused() {
    let weight = Matrix::random(&mut Random(1), Isa::Scalar, BlockFormat::F32, 2, 8).packed;
    let mut scratch = RowsScratch::new();
    ranged_product(&Pool::new(1), Isa::Scalar, &[(&weight, 1..4)], &[0.0; 24], 8, &mut scratch);
}

#[test]
fn non_finite_activations_reach_their_own_row_alone() {
    const COLS: usize = 256;
    for format in BlockFormat::ALL {
        let mut random = Random(13);
        let weight = Matrix::random(&mut random, Isa::best(), format, 35, COLS).packed;
        let mut input = random.activations(4 * COLS);
        let want = twin(&weight, &input);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            input[2 * COLS + 77] = bad;
            for isa in Isa::available() {
                let mut scratch = RowsScratch::new();
                let got = product(&Pool::new(2), isa, &[&weight], &input, 4, &mut scratch).remove(0);
                for (m, (got, want)) in got.chunks_exact(35).zip(want.chunks_exact(35)).enumerate() {
                    if m == 2 {
                        assert!(got.iter().all(|v| !v.is_finite()), "{format} {}", isa.name());
                    } else {
                        assert_eq!(bits(got), bits(want), "{format} {} row {m}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_matrix_that_does_not_fit_is_refused_by_name() {
    let pool = Pool::new(1);
    let pack = |format, rows, cols, len: usize| {
        PackedWeight::pack(&pool, Isa::Scalar, format, rows, cols, &vec![0; len]).err().map(|e| e.to_string())
    };
    let text = pack(BlockFormat::Q4_K, 1, 128, 72).unwrap();
    assert_eq!(text, "128 columns are not a whole number of Q4_K blocks of 256");
    assert_eq!(pack(BlockFormat::F16, 2, 3, 11).unwrap(), "a 2 x 3 F16 matrix does not have 11 bytes");
    assert_eq!(pack(BlockFormat::F16, 0, 3, 0).unwrap(), "a 0 x 3 matrix holds nothing");
    assert!(pack(BlockFormat::F32, usize::MAX, 2, 8).is_some());
    assert_eq!(pack(BlockFormat::F16, 2, 3, 12), None);
}

#[test]
fn released_ranges_cover_the_file_once() {
    let (rows, cols, format) = (3000, 1024, BlockFormat::Q8_0);
    let file = Random(3).weights(format, rows, cols);
    let mut arena = WeightArena::default();
    assert!(arena.reserve(2 * file.len()));
    // Whole, and as parts that are not whole groups, the last shorter than a piece.
    for parts in [1, 5, 60] {
        let ranges = std::sync::Mutex::new(Vec::new());
        let part_bytes = file.len() / parts;
        let releases: Vec<_> = (0..parts)
            .map(|part| {
                let (ranges, start) = (&ranges, part * part_bytes);
                move |range: Range<usize>| ranges.lock().unwrap().push(start + range.start..start + range.end)
            })
            .collect();
        let sources: Vec<_> = file
            .chunks_exact(part_bytes)
            .zip(&releases)
            .map(|(bytes, release)| WeightSource {
                name: "",
                format,
                rows: rows / parts,
                cols,
                bytes,
                release,
            })
            .collect();
        PackedWeight::pack_all(&Pool::new(2), Isa::best(), &mut arena, &sources).unwrap();
        let mut ranges = ranges.into_inner().unwrap();
        ranges.sort_by_key(|r| r.start);
        assert!(ranges.len() > 1);
        let mut end = 0;
        for range in ranges {
            assert_eq!(range.start, end);
            end = range.end;
        }
        assert_eq!(end, file.len());
    }
}

#[test]
fn matrices_packed_together_are_those_packed_alone() {
    let (rows, cols, count) = (70, 256, 9);
    let mut random = Random(5);
    let mut arena = WeightArena::default();
    for format in [BlockFormat::F32, BlockFormat::Q5_1, BlockFormat::Q6_K] {
        let files: Vec<_> = (0..count).map(|_| random.weights(format, rows, cols)).collect();
        let source = |bytes| WeightSource { name: "", format, rows, cols, bytes, release: &|_| {} };
        let sources: Vec<_> = files.iter().map(|bytes| source(bytes)).collect();
        let together = PackedWeight::pack_all(&Pool::new(2), Isa::best(), &mut arena, &sources).unwrap();
        assert_eq!(together.len(), count);
        for (packed, file) in together.iter().zip(&files) {
            let alone = PackedWeight::pack(&Pool::new(1), Isa::Scalar, format, rows, cols, file).unwrap();
            assert!(packed.groups() == alone.groups() && packed.bytes() == alone.bytes(), "{format}");
        }
        let mut sources = sources;
        sources[4].bytes = &files[4][1..];
        let error = PackedWeight::pack_all(&Pool::new(1), Isa::best(), &mut arena, &sources).err().unwrap();
        assert!(matches!(error, (4, PackError::WrongSize { .. })), "{error:?}");
    }
}

/// Input that is made on the way, and outputs that are finished on theirs, have the bits of passes over whole tensors.
#[test]
fn made_input_and_finished_outputs_are_as_in_passes_of_their_own() {
    const ROWS: usize = 37;
    let mut random = Random(21);
    let formats =
        [BlockFormat::Q4_0, BlockFormat::Q6_K, BlockFormat::IQ4_XS, BlockFormat::F16, BlockFormat::BF16];
    let pools = [1, 2, 3].map(Pool::new);
    // More than one piece of made values, whole groups and a partial one, more groups than are kept to be added.
    for (cols, outputs) in [(768, 70), (256, 1100)] {
        let matrices =
            formats.map(|format| Matrix::random(&mut random, Isa::best(), format, outputs, cols).packed);
        let [rows, others] = [(); 2].map(|()| random.activations(ROWS * cols));
        let weight = random.activations(cols);
        let [bias, residual] = [outputs, ROWS * outputs].map(|len| random.activations(len));
        let norm = ops::Norm { weight: &weight, epsilon: 1e-5 };
        let silu = Activation::Silu;
        let picks: Vec<u32> = (0..ROWS as u32).map(|row| (row * 7) % 5).collect();
        let mut normed = rows.clone();
        ops::rms_norm_in_place(&pools[0], Isa::Scalar, &mut normed, norm);
        let mut gated = rows.clone();
        ops::gated(&pools[0], Isa::Scalar, &mut gated, &others, silu);
        let picked: Vec<f32> =
            picks.iter().flat_map(|&p| &rows[p as usize * cols..][..cols]).copied().collect();
        for (input, made) in [
            (Input::Rows(&rows), &rows),
            (Input::Picked { rows: &rows, picks: &picks }, &picked),
            (Input::Normed { rows: &rows, norm }, &normed),
            (Input::Gated { gate: &rows, up: &others, activation: silu }, &gated),
        ] {
            let want: Vec<_> = matrices.iter().map(|matrix| twin(matrix, made)).collect();
            for (scale, bias, added) in
                [(1.0, None, None), (0.7, Some(&bias), None), (0.7, Some(&bias), Some(0.3))]
            {
                let finish = Finish { scale, bias: bias.map(Vec::as_slice), added };
                let want: Vec<_> = want
                    .iter()
                    .map(|product| {
                        let values = product.iter().enumerate().map(|(i, x)| {
                            let y = x * scale + bias.map_or(0.0, |bias| bias[i % outputs]);
                            added.map_or(y, |factor| residual[i] + factor * y)
                        });
                        bits(&values.collect::<Vec<_>>())
                    })
                    .collect();
                for (pool, isa) in
                    pools.iter().flat_map(|p| Isa::available().into_iter().map(move |isa| (p, isa)))
                {
                    let mut scratch = RowsScratch::new();
                    let mut got = vec![residual.clone(); matrices.len()];
                    let terms = matrices.iter().zip(&mut got);
                    let terms = terms.map(|(weight, output)| Term { weight, rows: 0..ROWS, finish, output });
                    multiply(pool, isa, input, cols, terms, &mut scratch);
                    for ((got, want), format) in got.iter().zip(&want).zip(formats) {
                        assert!(bits(got) == *want, "{} {format} {finish:?} {cols} x {outputs}", isa.name());
                    }
                }
            }
        }
    }
}

/// BF16 weights and activations where `vdpbf16ps` differs from `fma`, if anywhere: about the smallest that are not made 0,
/// where sums cancel and where they overflow, subnormal numbers, infinities and NaN.
#[test]
fn bfloats_of_every_size_have_the_bits_of_the_twin() {
    const ROWS: usize = 64;
    const INPUTS: usize = 250;
    // The least exponent of weights (as their bits have it) and how many there are, and the same of activations.
    const KINDS: [(u32, u32, u32, u32); 8] = [
        (72, 1, 72, 1),
        (69, 6, 69, 6),
        (72, 1, 72, 60),
        (120, 8, 120, 8),
        (190, 2, 190, 2),
        (250, 6, 0, 8),
        (0, 4, 250, 5),
        (0, 256, 0, 256),
    ];
    let mut random = Random(41);
    let mut scratch = RowsScratch::new();
    let pool = Pool::new(1);
    for ((weight, weights, x, count), cols) in
        KINDS.into_iter().flat_map(|kind| [1, 2, 3, 8, 63, 64].map(|cols| (kind, cols)))
    {
        let mut number = |from: u32, count: u32| {
            let [sign, exponent, mantissa] = [2, count, 128].map(|n| (random.next() >> 32) as u32 % n);
            f32::from_bits(sign << 31 | (from + exponent) << 23 | mantissa << 16)
        };
        let file: Vec<u8> = (0..ROWS * cols)
            .flat_map(|_| half::bf16::from_f32(number(weight, weights)).to_le_bytes())
            .collect();
        let input: Vec<f32> = (0..INPUTS * cols).map(|_| number(x, count)).collect();
        let packed = PackedWeight::pack(&pool, Isa::best(), BlockFormat::BF16, ROWS, cols, &file).unwrap();
        let want = bits(&twin(&packed, &input));
        for isa in Isa::available() {
            let got = bits(&product(&pool, isa, &[&packed], &input, INPUTS, &mut scratch)[0]);
            let wrong = got.iter().zip(&want).filter(|(got, want)| got != want).count();
            assert_eq!(wrong, 0, "{}: {cols} columns, exponents {weight}.. by {x}..", isa.name());
        }
        // As `matmul` argues: nothing subnormal, and no negative zero.
        let is_normal = |&bits: &u32| bits == 0 || !f32::from_bits(bits).is_subnormal() && bits << 1 != 0;
        assert!(want.iter().all(is_normal), "{cols} columns, exponents {weight}.. by {x}..");
    }
}
