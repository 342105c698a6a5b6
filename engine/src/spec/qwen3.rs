//! The qwen3 family: as qwen2, with norms of q and k heads. A file may hold the head of a reranker, which has no part in
//! what comes next.

use zllm_kernels::backend::RopeStyle;

use super::{ModelSpec, SpecError, read::Reader};

pub(super) fn read(reader: &Reader<'_>) -> Result<ModelSpec, SpecError> {
    reader.ignore("cls.output.");
    reader.plain_decoder(RopeStyle::Neox)
}
