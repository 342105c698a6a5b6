//! The qwen2 family: as llama, with rope pairs half a head apart; its biases on q, k and v are found in the file.

use zllm_kernels::backend::RopeStyle;

use super::{ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    reader.plain_decoder(RopeStyle::Neox)
}
