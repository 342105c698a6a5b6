//! How much a GGUF file may hold. Far above real files, and low enough that what is kept of a hostile one stays small.

/// Metadata entries. Real files have under a hundred.
pub const MAX_METADATA_ENTRIES: usize = 1 << 16;
/// Files of a split model. The largest real models have under two hundred.
pub const MAX_PARTS: usize = 1 << 10;
/// Tensors of all parts together. The largest real files have a few thousand.
pub const MAX_TENSORS: usize = 1 << 18;
/// Bytes of a metadata key, from the GGUF specification.
pub const MAX_KEY_BYTES: usize = (1 << 16) - 1;
/// Bytes of a tensor's name. The specification says 64; fine-tunes with long prefixes exceed it.
pub const MAX_TENSOR_NAME_BYTES: usize = 255;
/// Dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
