//! What several runs of a measurement add up to. All of these want at least one value, and no NaN.

/// The value in the middle; of two, their mean.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    sorted[(sorted.len() - 1) / 2].midpoint(sorted[sorted.len() / 2])
}

/// The largest over the smallest.
pub(crate) fn spread(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    sorted[sorted.len() - 1] / sorted[0]
}

/// The smallest of the values that at least this part of them does not exceed.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let sorted = sorted(values);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// A table's cell; a dash where there is nothing to say.
pub(crate) fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "–".to_owned())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|part| quantile(&values, part)), [100.0, 198.0, 200.0]);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn medians_and_spreads_do_not_depend_on_order() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(spread(&[2.0, 4.0, 1.0]), 4.0);
    }
}
