//! The granitemoe family: as granite, and positions are always marked.

use zllm_kernels::backend::RopeStyle;

use super::{
    ModelSpec, SpecError,
    granite::{Scales, scaled_decoder},
    read::Reader,
};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    let d = reader.dimensions()?;
    let rope = reader.rope(RopeStyle::Interleaved, &d)?;
    scaled_decoder(reader, &d, Some(rope), &Scales::read(reader)?)
}
