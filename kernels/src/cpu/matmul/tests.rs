//! Every instruction set, shape and thread count against the scalar twin, to the bit; the twin against f64.

use super::*;
use crate::blocks;
use proptest::prelude::*;

/// Row counts on both sides of every change of plan.
const ROW_COUNTS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 13, 23, 64];
const SENTINEL: f32 = -1234.5;
const SENTINELS: usize = 64;

/// Relative root mean square error of a product against f64, random weights and activations of normal spread: for quantised
/// formats all of it is the rounding of activations to 8 bits (0.0055 expected), for floats the f32 sum.
const fn tolerance(format: BlockFormat) -> f64 {
    if format.is_quantised() { 0.008 } else { 1e-6 }
}

/// The same against activations rounded beforehand: what remains is the f32 sum over blocks.
const SUM_TOLERANCE: f64 = 1e-6;

fn multiplied() -> impl Iterator<Item = BlockFormat> {
    BlockFormat::ALL.into_iter().filter(|&f| layout::is_multiplied(f))
}

struct Random(u64);

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

    fn activations(&mut self, count: usize) -> Vec<f32> {
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
                BlockFormat::Q6_K => half(208, 2e-4),
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

struct Matrix {
    packed: PackedWeight,
    file: Vec<u8>,
}

impl Matrix {
    fn random(random: &mut Random, isa: Isa, format: BlockFormat, rows: usize, cols: usize) -> Self {
        let file = random.weights(format, rows, cols);
        let packed = PackedWeight::pack(&Pool::new(1), isa, format, rows, cols, &file).unwrap();
        Self { packed, file }
    }

    fn decoded_row(&self, row: usize) -> Vec<f32> {
        let row_bytes = self.packed.format().row_bytes(self.packed.cols()).unwrap();
        let mut out = vec![0.0; self.packed.cols()];
        blocks::decode_row(self.packed.format(), &self.file[row * row_bytes..][..row_bytes], &mut out);
        out
    }
}

/// The products, each in its own buffer between sentinels that must survive.
fn product(
    pool: &Pool,
    isa: Isa,
    weights: &[&PackedWeight],
    input: &[f32],
    m: usize,
    scratch: &mut RowsScratch,
) -> Vec<Vec<f32>> {
    let mut buffers: Vec<_> = weights.iter().map(|w| vec![SENTINEL; m * w.rows() + 2 * SENTINELS]).collect();
    let mut terms: Vec<_> = weights
        .iter()
        .zip(&mut buffers)
        .map(|(&weight, buffer)| {
            let end = buffer.len() - SENTINELS;
            Term { weight, output: &mut buffer[SENTINELS..end] }
        })
        .collect();
    multiply(pool, isa, input, m, &mut terms, scratch);
    for buffer in &mut buffers {
        let after = buffer.split_off(buffer.len() - SENTINELS);
        let before = buffer.drain(..SENTINELS);
        assert!(before.chain(after).all(|v| v == SENTINEL), "{} wrote outside its output", isa.name());
    }
    buffers
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Scalar, one thread, one row at a time: what all others must equal.
fn twin(weight: &PackedWeight, input: &[f32]) -> Vec<f32> {
    let pool = Pool::new(1);
    let mut scratch = RowsScratch::new();
    let rows = input.chunks_exact(weight.cols());
    rows.flat_map(|row| product(&pool, Isa::Scalar, &[weight], row, 1, &mut scratch).remove(0)).collect()
}

fn format_and_cols() -> impl Strategy<Value = (BlockFormat, usize)> {
    (proptest::sample::select(multiplied().collect::<Vec<_>>()), 1..24usize, 0..32usize).prop_map(
        |(format, blocks, odd)| match format.block_len() {
            1 => (format, blocks * 32 - odd),
            32 => (format, blocks * 32),
            len => (format, (1 + blocks / 6) * len),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bits_do_not_depend_on_isa_rows_or_threads((format, cols) in format_and_cols(), rows in 1..150usize, seed in 1u64..) {
        let mut random = Random(seed);
        let weight = Matrix::random(&mut random, Isa::best(), format, rows, cols).packed;
        let input = random.activations(64 * cols);
        let want = bits(&twin(&weight, &input));
        let mut scratch = RowsScratch::new();
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            for isa in Isa::available() {
                for m in ROW_COUNTS {
                    let got = product(&pool, isa, &[&weight], &input[..m * cols], m, &mut scratch).remove(0);
                    let differ = bits(&got).iter().zip(&want).filter(|(g, w)| g != w).count();
                    prop_assert_eq!(differ, 0, "of {} outputs: {}, {} rows, {} threads", got.len(), isa.name(), m, threads);
                }
            }
        }
    }

    #[test]
    fn packed_rows_decode_as_file_rows((format, cols) in format_and_cols(), rows in 1..70usize, seed in 1u64..) {
        // Any bytes at all: scales may be NaN and infinite.
        let mut random = Random(seed);
        let file: Vec<u8> =
            (0..rows * format.row_bytes(cols).unwrap()).map(|_| (random.next() >> 33) as u8).collect();
        for isa in Isa::available() {
            let packed = PackedWeight::pack(&Pool::new(2), isa, format, rows, cols, &file).unwrap();
            let matrix = Matrix { packed, file: file.clone() };
            let mut got = vec![0.0; cols];
            for row in 0..rows {
                matrix.packed.decode_row(row, &mut got);
                prop_assert_eq!(bits(&got), bits(&matrix.decoded_row(row)), "{} row {}", format, row);
            }
        }
    }
}

#[test]
fn the_twin_is_close_to_f64() {
    const ROWS: usize = 40;
    const COLS: usize = 1024;
    for format in multiplied() {
        let mut random = Random(7);
        let matrix = Matrix::random(&mut random, Isa::Scalar, format, ROWS, COLS);
        let input = random.activations(3 * COLS);
        let got = twin(&matrix.packed, &input);
        let (mut error, mut rounded_error, mut total) = (0.0, 0.0, 0.0);
        for (x, got) in input.chunks_exact(COLS).zip(got.chunks_exact(ROWS)) {
            let rounded = rows::tests::rounded(x);
            let rounded = if format.is_quantised() { &rounded } else { x };
            for (n, &got) in got.iter().enumerate() {
                let weights = matrix.decoded_row(n);
                let dot = |x: &[f32]| {
                    x.iter().zip(&weights).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                };
                error += (dot(x) - f64::from(got)).powi(2);
                rounded_error += (dot(rounded) - f64::from(got)).powi(2);
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
    let shapes =
        [(BlockFormat::Q5_0, 70), (BlockFormat::Q8_0, 33), (BlockFormat::Q6_K, 1), (BlockFormat::F16, 300)];
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

#[test]
fn non_finite_activations_reach_their_own_row_alone() {
    const COLS: usize = 256;
    for format in multiplied() {
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
    assert!(pack(BlockFormat::IQ1_S, 1, 256, 50).unwrap().starts_with("IQ1_S weights cannot be multiplied"));
    assert_eq!(pack(BlockFormat::F16, 0, 3, 0).unwrap(), "a 0 x 3 matrix holds nothing");
    assert!(pack(BlockFormat::F32, usize::MAX, 2, 8).is_some());
    assert_eq!(pack(BlockFormat::F16, 2, 3, 12), None);
}

#[test]
fn released_ranges_cover_the_file_once() {
    let (rows, cols) = (3000, 1024);
    let file = Random(3).weights(BlockFormat::Q8_0, rows, cols);
    let ranges = std::sync::Mutex::new(Vec::new());
    let release = |range: Range<usize>| ranges.lock().unwrap().push(range);
    PackedWeight::pack_and_release(
        &Pool::new(2),
        Isa::best(),
        BlockFormat::Q8_0,
        rows,
        cols,
        &file,
        &release,
    )
    .unwrap();
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
