//! Where a model is cut, so that several devices can have a part each.

use std::ops::Range;

use crate::loaded::{LoadError, bad};

/// One part of a model: consecutive layers. The first stage has the embedding too, the last one the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its number, from 0.
    pub index: usize,
    /// Stages of the model.
    pub of: usize,
    /// Layers of each stage, first to last; `None`: as many as each other, as far as that is possible.
    pub split: Option<Vec<usize>>,
}

impl Stage {
    /// The only stage of a model that is not cut.
    pub const WHOLE: Self = Self { index: 0, of: 1, split: None };

    /// The layers of this stage, of `layers` in all.
    ///
    /// # Errors
    /// A stage without layers, or layers without a stage.
    pub(crate) fn layers(&self, layers: usize) -> Result<Range<usize>, LoadError> {
        let Self { index, of, split } = self;
        if index >= of {
            return Err(bad("stage", index, &format!("{of} stages are numbered from 0")));
        }
        if *of > layers {
            let expected = format!("the model has {layers} layers, and each stage has at least one of them");
            return Err(bad("stages", of, &expected));
        }
        let Some(split) = split else {
            return Ok(index * layers / of..(index + 1) * layers / of);
        };
        let sum = split.iter().fold(0, |sum: usize, own| sum.saturating_add(*own));
        if split.len() != *of || split.contains(&0) || sum != layers {
            let expected =
                format!("{of} numbers work, each at least 1, whose sum is the {layers} layers of the model");
            return Err(bad("split", &format!("{split:?}"), &expected));
        }
        let start = split[..*index].iter().sum();
        Ok(start..start + split[*index])
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(of: usize, split: Option<&[usize]>, layers: usize) -> Vec<Range<usize>> {
        let stage = |index| Stage { index, of, split: split.map(<[usize]>::to_vec) };
        (0..of).map(|index| stage(index).layers(layers).expect("a cut that works")).collect()
    }

    #[test]
    fn stages_follow_one_another_and_have_every_layer() {
        assert_eq!(stages(2, None, 24), [0..12, 12..24]);
        assert_eq!(stages(3, None, 31), [0..10, 10..20, 20..31]);
        assert_eq!(stages(3, Some(&[1, 20, 3]), 24), [0..1, 1..21, 21..24]);
        for layers in 1..40 {
            for of in 1..=layers {
                let cut = stages(of, None, layers);
                assert!(cut.windows(2).all(|two| two[0].end == two[1].start), "{cut:?}");
                assert_eq!((cut[0].start, cut[of - 1].end), (0, layers));
                let most = layers.div_ceil(of);
                assert!(cut.iter().all(|own| own.len() == most || own.len() == layers / of), "{cut:?}");
            }
        }
    }

    #[test]
    fn cuts_that_lose_a_layer_or_have_an_empty_stage_are_named() {
        let error = |index, of, split: Option<&[usize]>| {
            let stage = Stage { index, of, split: split.map(<[usize]>::to_vec) };
            stage.layers(24).expect_err("a cut that does not work").to_string()
        };
        assert_eq!(error(2, 2, None), "stage is 2; 2 stages are numbered from 0");
        assert!(error(0, 25, None).starts_with("stages is 25; the model has 24 layers"));
        for wrong in [&[12, 11][..], &[12, 13], &[24, 0], &[24], &[8, 8, 8], &[usize::MAX, 25]] {
            let message = error(0, 2, Some(wrong));
            assert!(message.starts_with(&format!("split is {wrong:?}; 2 numbers work")), "{message}");
            assert!(message.contains("24 layers"), "{message}");
        }
    }
}
