//! Each operation against an f64 twin, and in every instruction set and thread count against the scalar bits.

use super::*;
use crate::backend::RopeStyle;

/// Errors of the elementary functions, relative.
const FUNCTION_TOLERANCE: f64 = 3e-7;
/// Errors of activations, relative to the larger of the result and a hundredth of `gate * up`: in the tail of negative
/// gates the rounding of the exponent counts, but not the result.
const ACTIVATION_TOLERANCE: f64 = 1e-6;
/// Errors of norms and rotations, relative to the row's largest element.
const ROW_TOLERANCE: f64 = 5e-7;
const SENTINEL: f32 = -77.0;

fn noise(seed: u32, len: usize, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    (0..len).map(|_| next() as f32 * size).collect()
}

/// Runs `op` on `x` between sentinels in every instruction set and with 1 to 3 threads; all must agree.
fn everywhere(x: &[f32], op: impl Fn(&Pool, Isa, &mut [f32])) -> Vec<f32> {
    let mut results: Vec<Vec<f32>> = vec![];
    for threads in 1..=3 {
        let pool = Pool::new(threads);
        for isa in Isa::available() {
            let mut buffer = vec![SENTINEL; x.len() + 34];
            buffer[17..17 + x.len()].copy_from_slice(x);
            op(&pool, isa, &mut buffer[17..17 + x.len()]);
            assert!(buffer[..17].iter().chain(&buffer[17 + x.len()..]).all(|&v| v == SENTINEL));
            results.push(buffer[17..17 + x.len()].to_vec());
        }
    }
    for other in &results[1..] {
        for (i, (a, b)) in results[0].iter().zip(other).enumerate() {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{a} and {b} at {i}");
        }
    }
    results.swap_remove(0)
}

fn assert_close(got: &[f32], want: impl Iterator<Item = f64>, tolerance: f64, floor: impl Fn(usize) -> f64) {
    let mut count = 0;
    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
        let bound = tolerance * want.abs().max(floor(i));
        assert!((f64::from(got) - want).abs() <= bound, "{got} for {want} at {i}");
        count += 1;
    }
    assert_eq!(got.len(), count);
}

/// Every 9973rd float from `from` to `to`, both signs.
fn many_floats(from: f32, to: f32) -> Vec<f32> {
    (from.to_bits()..to.to_bits()).step_by(9973).map(f32::from_bits).flat_map(|x| [x, -x]).collect()
}

struct Apply<F>(F);

macro_rules! function_map {
    ($name:ident, $function:expr) => {
        struct $name;
        impl Map for Apply<$name> {
            #[inline(always)]
            fn map<S: Simd>(&self, s: S, x: S::F, _: S::F) -> S::F {
                $function(s, x)
            }
        }
    };
}
function_map!(Exp, exp);
function_map!(Exp2, crate::cpu::math::exp2);
function_map!(Tanh, tanh);

#[test]
fn elementary_functions_are_accurate() {
    let x: Vec<f32> = many_floats(1e-20, 86.0);
    let got = everywhere(&x, |pool, isa, x| by_rows(pool, isa, x, 1, &Alone(Apply(Exp))));
    assert_close(&got, x.iter().map(|&x| f64::from(x).exp()), FUNCTION_TOLERANCE, |_| 0.0);
    let got = everywhere(&x, |pool, isa, x| by_rows(pool, isa, x, 1, &Alone(Apply(Tanh))));
    assert_close(&got, x.iter().map(|&x| f64::from(x).tanh()), FUNCTION_TOLERANCE, |_| 0.0);
    let x: Vec<f32> = many_floats(1e-20, 90.0).into_iter().map(|x| -x.abs()).collect();
    let got = everywhere(&x, |pool, isa, x| by_rows(pool, isa, x, 1, &Alone(Apply(Exp2))));
    assert_close(&got, x.iter().map(|&x| f64::from(x).exp2()), FUNCTION_TOLERANCE, |_| 0.0);
    let edges = [0.0, -0.0, -90.0, -90.001, f32::NEG_INFINITY, f32::NAN];
    let got = everywhere(&edges, |pool, isa, x| by_rows(pool, isa, x, 1, &Alone(Apply(Exp2))));
    assert_eq!(got[..2], [1.0, 1.0]);
    assert!(got[2] > 0.0 && got[3] == 0.0 && got[4] == 0.0 && got[5].is_nan());
    let edges = [0.0, -0.0, 200.0, -200.0, f32::INFINITY, f32::NAN];
    let got = everywhere(&edges, |pool, isa, x| by_rows(pool, isa, x, 1, &Alone(Apply(Tanh))));
    assert_eq!(got[..5], [0.0, -0.0, 1.0, -1.0, 1.0]);
    assert!(got[1].is_sign_negative() && got[5].is_nan());
}

#[test]
fn the_exp2_table_holds_the_sixteenths() {
    // 2^(i/16) itself comes out within one rounding.
    for i in 0..16 {
        let x = i as f32 / 16.0 - 1.0;
        let got = everywhere(&[x], |pool, isa, x| by_rows(pool, isa, x, 1, &Alone(Apply(Exp2))));
        assert!((f64::from(got[0]) - f64::from(x).exp2()).abs() < 6e-8, "{x}");
    }
}

#[test]
fn gates_match_f64() {
    let x: Vec<f32> = many_floats(1e-6, 30.0);
    let up = noise(3, x.len(), 12.0);
    // What becomes of the gate, and what it is multiplied with.
    let silu = |x: f64, up: f64| (x / (1.0 + (-x).exp()), up);
    let gelu = |x: f64, up: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        (x / (1.0 + (-2.0 * u).exp()), up)
    };
    let clamped = |x: f64, up: f64| {
        let x = x.min(7.0);
        (x / (1.0 + (-f64::from(1.702f32) * x).exp()), up.clamp(-7.0, 7.0) + 1.0)
    };
    for (activation, twin) in [
        (Activation::Silu, &silu as &dyn Fn(f64, f64) -> (f64, f64)),
        (Activation::GeluTanh, &gelu),
        (Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 }, &clamped),
    ] {
        let twin = |i: usize| twin(f64::from(x[i]), f64::from(up[i]));
        let got = everywhere(&x, |pool, isa, x| gated(pool, isa, x, &up, activation));
        let want = (0..x.len()).map(|i| twin(i).0 * twin(i).1);
        assert_close(&got, want, ACTIVATION_TOLERANCE, |i| (f64::from(x[i]) * twin(i).1).abs() * 1e-2);
    }
}

#[test]
fn factors_and_gates_are_of_their_own_row() {
    for (rows, cols) in [(1, 1), (7, 33), (300, 130), (0, 5)] {
        let (x, factors) = (noise(1, rows * cols, 3.0), noise(2, rows, 9.0));
        let got = everywhere(&x, |pool, isa, x| scale_rows(pool, isa, x, &factors));
        assert!(got.iter().enumerate().all(|(i, g)| *g == x[i] * factors[i / cols]));
        let got = everywhere(&x, |pool, isa, x| gate_rows(pool, isa, x, &factors));
        let gate = |i: usize| 1.0 / (1.0 + f64::from(-factors[i / cols]).exp());
        let want = (0..x.len()).map(|i| f64::from(x[i]) * gate(i));
        assert_close(&got, want, 2.0 * FUNCTION_TOLERANCE, |_| 0.0);
    }
    let got = everywhere(&[1.0; 6], |pool, isa, x| gate_rows(pool, isa, x, &[0.0, f32::NAN, 0.0]));
    assert!(got[..2].iter().chain(&got[4..]).all(|x| *x == 0.5) && got[2].is_nan() && got[3].is_nan());
}

#[test]
fn softcap_matches_f64() {
    let x = many_floats(1e-6, 500.0);
    let got = everywhere(&x, |pool, isa, x| softcap(pool, isa, x, 30.0));
    assert_close(
        &got,
        x.iter().map(|&x| (f64::from(x) / 30.0).tanh() * 30.0),
        2.0 * FUNCTION_TOLERANCE,
        |_| 0.0,
    );
}

#[test]
fn sums_and_scales_are_exact() {
    for len in [0, 1, 15, 16, 100, 40_000] {
        let (x, y) = (noise(1, len, 3.0), noise(2, len, 3.0));
        for factor in [1.0, 0.22] {
            let got = everywhere(&x, |pool, isa, x| add(pool, isa, x, &y, factor));
            assert!(got.iter().zip(x.iter().zip(&y)).all(|(g, (x, y))| *g == x + factor * y));
        }
        let got = everywhere(&x, |pool, isa, x| scale(pool, isa, x, 1.7));
        assert!(got.iter().zip(&x).all(|(g, x)| *g == x * 1.7));
    }
}

#[test]
fn norms_match_f64_in_place_and_out_of_place() {
    for (rows, cols) in [(1, 1), (5, 17), (3, 64), (60, 576), (7, 1100)] {
        let (x, weight) = (noise(1, rows * cols, 9.0), noise(2, cols, 1.5));
        let norm = Norm { weight: &weight, epsilon: 1e-5 };
        let got = everywhere(&x, |pool, isa, x| rms_norm_in_place(pool, isa, x, norm));
        let apart = everywhere(&vec![0.0; x.len()], |pool, isa, out| {
            rms_norm(pool, isa, &x, norm, out);
        });
        assert!(got.iter().zip(&apart).all(|(a, b)| a.to_bits() == b.to_bits()));
        let want = x.chunks(cols).flat_map(|row| {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
            let factor = 1.0 / (mean + 1e-5).sqrt();
            row.iter().zip(&weight).map(move |(&x, &w)| f64::from(x) * factor * f64::from(w))
        });
        assert_close(&got, want, ROW_TOLERANCE, |_| 0.0);
        let residual = noise(3, rows * cols, 2.0);
        for factor in [1.0, 0.22] {
            let sums = everywhere(&residual, |pool, isa, r| add_normed(pool, isa, r, &x, norm, factor));
            let parts = residual.iter().zip(&got);
            assert!(sums.iter().zip(parts).all(|(sum, (r, normed))| *sum == r + normed * factor));
        }
    }
}

#[test]
fn ropes_match_f64_and_depend_on_the_position_only() {
    let cases = [
        (64, 64, 1e6, 1.0, 1.0),
        (80, 80, 1e4, 0.125, 1.0),
        (64, 24, 5e5, 1.0, 1.2),
        (16, 16, 1e4, 1.0, 1.0),
    ];
    for (head_dim, rotary_dim, base, freq_scale, attn_factor) in cases {
        let (rows, heads) = (9, 3);
        let positions = [0, 1, 2, 77, 4095, 31_000, 131_071, 5, 5];
        let factors: Vec<f32> = (0..rotary_dim / 2).map(|i| 1.0 + i as f32 * 0.25).collect();
        let mut x = noise(4, rows * heads * head_dim, 1.0);
        let width = heads * head_dim;
        x.copy_within(7 * width..8 * width, 8 * width);
        for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
            let rotated = |pool: &Pool, isa, x: &mut [f32], positions: &[usize]| {
                let mut tables =
                    RopeTables::new(style, rotary_dim, base, freq_scale, Some(&factors), attn_factor);
                let mut turn = |x: &mut [f32]| {
                    turn_heads(pool, isa, [Heads { x, norm: None }], head_dim, positions, Some(&mut tables));
                };
                // The second time from the kept table.
                turn(&mut x.to_vec());
                turn(x);
            };
            let got = everywhere(&x, |pool, isa, x| rotated(pool, isa, x, &positions));
            assert_eq!(got[7 * width..8 * width], got[8 * width..]);
            let mut alone = x[4 * width..5 * width].to_vec();
            rotated(&Pool::new(1), Isa::best(), &mut alone, &positions[4..5]);
            assert_eq!(alone, got[4 * width..5 * width]);
            let want = (0..x.len()).map(|i| {
                let (position, at) = (positions[i / width] as f64, i % head_dim);
                if at >= rotary_dim {
                    return f64::from(x[i]);
                }
                let half = rotary_dim / 2;
                let (pair, first, other) = match style {
                    RopeStyle::Neox => (at % half, at < half, if at < half { i + half } else { i - half }),
                    RopeStyle::Interleaved => (at / 2, at % 2 == 0, i ^ 1),
                };
                let frequency = freq_scale * f64::powf(base, -2.0 * pair as f64 / rotary_dim as f64);
                let (sin, cos) = (position * frequency / f64::from(factors[pair])).sin_cos();
                let (own, other) = (f64::from(x[i]), f64::from(x[other]));
                f64::from(attn_factor) * if first { own * cos - other * sin } else { own * cos + other * sin }
            });
            assert_close(&got, want, ROW_TOLERANCE, |_| 1.0);
        }
    }
}

#[test]
fn heads_are_normed_and_then_turned() {
    let (head_dim, rows) = (48, 70);
    let positions: Vec<usize> = (0..rows).map(|row| row * 37).collect();
    let widths = [5 * head_dim, 2 * head_dim];
    let tensors = widths.map(|width| noise(width as u32, rows * width, 2.0));
    // A norm of heads, a norm of the row, none.
    for lens in [[Some(head_dim), Some(widths[1])], [Some(widths[0]), None], [None, None]] {
        let weights = lens.map(|len| noise(7, len.unwrap_or(0), 1.0));
        let norms = [0, 1].map(|i| lens[i].map(|_| Norm { weight: &weights[i], epsilon: 1e-6 }));
        for rope in [None, Some(RopeStyle::Neox), Some(RopeStyle::Interleaved)] {
            let tables = || rope.map(|style| RopeTables::new(style, 40, 1e4, 1.0, None, 1.0));
            // One after the other, in passes of their own.
            let want = [0, 1].map(|i| {
                let (pool, mut x) = (Pool::new(1), tensors[i].clone());
                if let Some(norm) = norms[i] {
                    rms_norm_in_place(&pool, Isa::Scalar, &mut x, norm);
                }
                let heads = [Heads { x: &mut x, norm: None }];
                turn_heads(&pool, Isa::Scalar, heads, head_dim, &positions, tables().as_mut());
                x
            });
            everywhere(&[], |pool, isa, _| {
                let mut got = tensors.clone();
                let [q, k] = &mut got;
                let heads = [Heads { x: q, norm: norms[0] }, Heads { x: k, norm: norms[1] }];
                turn_heads(pool, isa, heads, head_dim, &positions, tables().as_mut());
                assert_eq!(got, want, "{} {rope:?} {lens:?}", isa.name());
            });
        }
    }
}

#[test]
fn nan_stays_in_its_row() {
    let (rows, cols) = (4, 40);
    let mut x = noise(8, rows * cols, 1.0);
    x[cols + 5] = f32::NAN;
    let norm = Norm { weight: &vec![1.0; cols], epsilon: 1e-6 };
    let got = everywhere(&x, |pool, isa, x| rms_norm_in_place(pool, isa, x, norm));
    assert!(got.iter().enumerate().all(|(i, v)| v.is_nan() == (i / cols == 1)));
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
    for activation in [Activation::Silu, Activation::GeluTanh, clamped] {
        let clean = noise(1, x.len(), 1.0);
        let got = everywhere(&x, |pool, isa, x| gated(pool, isa, x, &clean, activation));
        assert!(got.iter().enumerate().all(|(i, v)| v.is_nan() == (i == cols + 5)));
        let got = everywhere(&clean, |pool, isa, gate| gated(pool, isa, gate, &x, activation));
        assert!(got.iter().enumerate().all(|(i, v)| v.is_nan() == (i == cols + 5)));
    }
}
