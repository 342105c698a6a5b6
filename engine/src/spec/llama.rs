//! The llama family: grouped-query attention, neighbouring rope pairs with optional frequency factors, SiLU gate.

use zllm_kernels::backend::RopeStyle;

use super::{ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    reader.plain_decoder(RopeStyle::Interleaved)
}
