//! From the rows of a text to its embedding: one vector of length 1.
//!
//! The rows are those that the head would get: hidden rows after the last norm, as llama.cpp pools them. A pool takes them
//! in order and in pieces of any length, and sums in f64 in that order, so that no bit of the vector depends on how the
//! text was cut into steps or on what else was in them.

use crate::runtime::Want;

/// Which of a text's rows speak for it: `{architecture}.pooling_type` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all (1).
    Mean,
    /// The first one (2), that of a classification token.
    Cls,
    /// The last one (3). Also where a file says nothing (or 0): in a causal model no other row has seen the whole text.
    Last,
}

impl Pooling {
    /// The one with this number in a file.
    ///
    /// # Errors
    /// The number, of one that gives no embedding: 4 ranks a text, and what is above is not known.
    pub(crate) fn of_file(number: Option<u64>) -> Result<Self, u64> {
        match number {
            None | Some(0) => Ok(Self::Last),
            Some(1) => Ok(Self::Mean),
            Some(2) => Ok(Self::Cls),
            Some(3) => Ok(Self::Last),
            Some(other) => Err(other),
        }
    }
}

/// Rows that gave no vector.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolError {
    /// Nothing was pooled.
    #[error("an embedding of no rows; give at least one token")]
    NoRows,
    /// Infinite, not a number, or zero.
    #[error("the model gave rows whose length is {length}; only a finite one above 0 has a direction")]
    NoDirection {
        /// The length of what was pooled.
        length: String,
    },
}

/// What of a text is pooled so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    pooling: Pooling,
    /// The sum, or the row; empty before the first.
    values: Vec<f64>,
}

impl Pool {
    /// Before the first row.
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, values: Vec::new() }
    }

    /// What a step is to give for the next rows of the text.
    pub fn want(&self) -> Want {
        match self.pooling {
            Pooling::Cls if !self.values.is_empty() => Want::Nothing,
            Pooling::Mean | Pooling::Cls | Pooling::Last => Want::Hidden,
        }
    }

    /// Takes the next rows in, `width` values each.
    ///
    /// # Panics
    /// When they are no whole rows, or not as wide as those before.
    pub fn add(&mut self, rows: &[f32], width: usize) {
        assert!(rows.len().is_multiple_of(width), "{} values are no rows of {width}", rows.len());
        for row in rows.chunks_exact(width) {
            if self.values.is_empty() {
                self.values = row.iter().copied().map(f64::from).collect();
                continue;
            }
            assert_eq!(self.values.len(), width, "all rows of a model are equally wide");
            let values = self.values.iter_mut().zip(row);
            match self.pooling {
                // The vector's length is made 1, so that the sum is as good as the mean.
                Pooling::Mean => values.for_each(|(value, x)| *value += f64::from(*x)),
                Pooling::Cls => {}
                Pooling::Last => values.for_each(|(value, x)| *value = f64::from(*x)),
            }
        }
    }

    /// The embedding: the first `dimensions` values of what was pooled (`None`, or more than there are: all), of length 1.
    ///
    /// # Errors
    /// Rows that have no direction.
    pub fn finish(&self, dimensions: Option<usize>) -> Result<Vec<f32>, PoolError> {
        let count = dimensions.unwrap_or(usize::MAX).min(self.values.len());
        let values = &self.values[..count];
        if values.is_empty() {
            return Err(PoolError::NoRows);
        }
        let length = values.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 {
            return Err(PoolError::NoDirection { length: length.to_string() });
        }
        Ok(values.iter().map(|x| (x / length) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [f32; 6] = [3.0, 4.0, 1.0, 0.0, -1.0, 2.0];

    fn pooled(pooling: Pooling, dimensions: Option<usize>) -> Vec<f32> {
        let mut pool = Pool::new(pooling);
        pool.add(&ROWS, 2);
        pool.finish(dimensions).expect("a direction")
    }

    #[test]
    fn each_way_takes_its_rows_and_makes_their_length_one() {
        assert_eq!(pooled(Pooling::Cls, None), [0.6, 0.8]);
        let five = 5f64.sqrt();
        assert_eq!(pooled(Pooling::Last, None), [(-1.0 / five) as f32, (2.0 / five) as f32]);
        let sum = 45f64.sqrt();
        assert_eq!(pooled(Pooling::Mean, None), [(3.0 / sum) as f32, (6.0 / sum) as f32]);
    }

    #[test]
    fn fewer_dimensions_have_length_one_too() {
        assert_eq!(pooled(Pooling::Cls, Some(1)), [1.0]);
        assert_eq!(pooled(Pooling::Last, Some(1)), [-1.0]);
        assert_eq!(pooled(Pooling::Cls, Some(9)), [0.6, 0.8]);
    }

    #[test]
    fn pieces_give_the_bits_of_the_whole() {
        let width = 3;
        let rows: Vec<f32> = (0..60).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(i % 9 - 4)).collect();
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let mut whole = Pool::new(pooling);
            whole.add(&rows, width);
            for piece in 1..20 {
                let mut pool = Pool::new(pooling);
                for rows in rows.chunks(piece * width) {
                    if pool.want() == Want::Hidden {
                        pool.add(rows, width);
                    }
                }
                assert_eq!(pool, whole, "{pooling:?} in pieces of {piece} rows");
            }
        }
    }

    #[test]
    fn what_has_no_direction_is_refused() {
        let error = |rows: &[f32]| {
            let mut pool = Pool::new(Pooling::Mean);
            pool.add(rows, 2);
            pool.finish(None).expect_err("no direction").to_string()
        };
        assert!(error(&[]).contains("no rows"));
        assert!(error(&[0.0, 0.0]).contains("length is 0"));
        assert!(error(&[f32::NAN, 1.0]).contains("length is NaN"));
        assert!(error(&[f32::INFINITY, 1.0]).contains("length is inf"));
        assert_eq!(Pool::new(Pooling::Last).finish(Some(0)), Err(PoolError::NoRows));
    }

    #[test]
    fn numbers_of_files() {
        let found = [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(9)].map(Pooling::of_file);
        let last = Ok(Pooling::Last);
        assert_eq!(found, [last, last, Ok(Pooling::Mean), Ok(Pooling::Cls), last, Err(4), Err(9)]);
    }
}
