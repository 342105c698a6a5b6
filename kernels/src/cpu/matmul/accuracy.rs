//! What the rounding of activations to 8 bits costs a product, measured for each format and written to docs/FORMATS.md.

use super::tests::{Matrix, Random, twin};
use crate::{blocks::BlockFormat, cpu::isa::Isa};

const ROWS: usize = 64;
const COLS: usize = 2048;
const INPUTS: usize = 8;

/// One channel in this many is an outlier, as residual streams of language models have them,
const OUTLIER_EVERY: usize = 128;
/// this much larger than the others.
const OUTLIER: f32 = 50.0;

/// Normalised mean square errors that no quantised format may exceed. A step of 1/127 of the greatest of 32 normal values makes
/// 3e-5. Outliers take the greater part of the energy, and the 31 values beside one share its large step.
const NORMAL_BOUND: f64 = 5e-5;
const OUTLIER_BOUND: f64 = 3e-4;
/// For BF16 weights activations keep 8 bits of mantissa, large and small ones alike: 2e-6.
const BFLOAT_BOUND: f64 = 4e-6;
/// Other float weights meet activations as they are: what is left is the f32 sum.
const FLOAT_BOUND: f64 = 3e-12;

/// The error of products beside f64, relative to their energy.
fn nmse(random: &mut Random, format: BlockFormat, input: &[f32]) -> f64 {
    let matrix = Matrix::random(random, Isa::best(), format, ROWS, COLS);
    let weights: Vec<_> = (0..ROWS).map(|row| matrix.decoded_row(row)).collect();
    let got = twin(&matrix.packed, input);
    let (mut error, mut total) = (0.0, 0.0);
    for (x, got) in input.chunks_exact(COLS).zip(got.chunks_exact(ROWS)) {
        for (weights, &got) in weights.iter().zip(got) {
            let exact: f64 = x.iter().zip(weights).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            error += (exact - f64::from(got)).powi(2);
            total += exact.powi(2);
        }
    }
    error / total
}

#[test]
fn rounded_activations_cost_every_format_as_little_as_is_written_down() {
    println!("{:<8} {:>10} {:>10}", "format", "normal", "outliers");
    let mut wrong = Vec::new();
    for format in BlockFormat::ALL {
        let mut random = Random(17);
        let normal = random.activations(INPUTS * COLS);
        let mut outliers = normal.clone();
        outliers.iter_mut().step_by(OUTLIER_EVERY).for_each(|x| *x *= OUTLIER);
        let [normal, outliers] = [normal, outliers].map(|input| nmse(&mut random, format, &input));
        println!("{format:<8} {normal:>10.1e} {outliers:>10.1e}");
        let [most, most_of_outliers] = match format {
            BlockFormat::F32 | BlockFormat::F16 => [FLOAT_BOUND; 2],
            BlockFormat::BF16 => [BFLOAT_BOUND; 2],
            _ => [NORMAL_BOUND, OUTLIER_BOUND],
        };
        if !(normal <= most && outliers <= most_of_outliers) {
            wrong.push(format);
        }
    }
    assert!(wrong.is_empty(), "beyond their bounds: {wrong:?}");
}
