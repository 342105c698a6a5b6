//! `exp`, `ln` and powers that give the same bits on every machine: additions, multiplications and divisions in a fixed
//! order, where the system's own functions may differ by a bit from one library to the next.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// e to the power of `exponent`, to about 1e-15 of its size; 0 below -700. `exponent` is at most 700.
///
/// 2^n times the Taylor polynomial of the rest (|rest| <= ln 2 / 2), of degree 13.
pub(super) fn exp(exponent: f64) -> f64 {
    /// ln 2 in two parts; the first has few bits, so that its product with n is exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if exponent < -700.0 {
        return 0.0;
    }
    debug_assert!(exponent <= 700.0, "e^{exponent} leaves f64's range");
    let n = (exponent * LOG2_E).round();
    let rest = exponent - n * LN_2_HIGH - n * LN_2_LOW;
    let mut sum = 1.0;
    for divisor in (1..=13).rev() {
        sum = 1.0 + sum * rest / f64::from(divisor);
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// The natural logarithm of a positive, normal number, to about 1e-15.
///
/// `ln x = n ln 2 + 2 atanh((m - 1) / (m + 1))` with `x = m 2^n` and m between 1/sqrt 2 and sqrt 2.
pub(super) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0, "ln({x})");
    let bits = x.to_bits();
    let mut n = (bits >> 52) as i32 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > SQRT_2 {
        m *= 0.5;
        n += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in (0..=10).rev() {
        sum = sum * square + 1.0 / f64::from(2 * odd + 1);
    }
    f64::from(n) * LN_2 + 2.0 * s * sum
}

/// `base` (0 to 1) to the power of `exponent` (0 or more); 0 to the power of 0 is 1.
pub(super) fn power(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 {
        1.0
    } else if base < f64::MIN_POSITIVE {
        0.0
    } else {
        exp(exponent * ln(base))
    }
}

/// `base` to the power of a whole number; infinite when that is too large.
pub(super) fn whole_power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_the_library(x in -699.0f64..700.0, y in 1e-300f64..1e300, base in 0.0f64..1.0, exponent in 0.0f64..50.0) {
            prop_assert!((exp(x) / x.exp() - 1.0).abs() < 2e-15, "exp({x})");
            prop_assert!((ln(y) - y.ln()).abs() <= 1e-15 * (1.0 + y.ln().abs()), "ln({y})");
            prop_assert!((ln(base + 0.5) - (base + 0.5).ln()).abs() < 1e-15);
            let expected = base.powf(exponent);
            prop_assert!((power(base, exponent) - expected).abs() <= 1e-13 * expected, "{base}^{exponent}");
        }

        #[test]
        fn whole_powers(base in 1.0f64..3.0, exponent in 0u32..200) {
            let expected = base.powi(exponent as i32);
            prop_assert!((whole_power(base, exponent) / expected - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn ends() {
        assert_eq!((exp(0.0), exp(-701.0), ln(1.0)), (1.0, 0.0, 0.0));
        assert_eq!((power(0.0, 0.0), power(0.0, 2.0), power(1.0, 9.0)), (1.0, 0.0, 1.0));
        assert_eq!(
            (whole_power(7.0, 0), whole_power(1.0, u32::MAX), whole_power(2.0, 10)),
            (1.0, 1.0, 1024.0)
        );
        assert_eq!(whole_power(10.0, 400), f64::INFINITY);
    }
}
