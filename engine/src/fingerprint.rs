//! What the keys and values of a loaded model depend on, as one hash: the root of its block keys. Blocks that were computed
//! under one fingerprint may be used wherever a model has the same, in another run and on another machine.
//!
//! `blake3` over the fields below, each with its length (u64, little-endian) in front, in this order:
//! 1. `zllm fingerprint` and [`VERSION`];
//! 2. how blocks are kept: the KV format, and the device's layout of it with its version and byte order;
//! 3. the content of every tensor that is computed with (`runtime/content.rs`);
//! 4. each part's header: all metadata, and the records of all tensors;
//! 5. each layer's mixer as the spec says it. It follows from the file and from the context that is used, which decides
//!    between the factors of some ropes;
//! 6. the tokenizer, with what was configured over the file's own, or nothing where there is none.
//!
//! An adapter, once there are any, changes the weights that are computed with: its content and its scale become a seventh
//! field. The tenant is no part of it: `zllm_state`'s root key has both.

use zllm_kernels::backend::KvFormat;

use crate::{gguf::GgufFile, spec::ModelSpec, tokenizer::Tokenizer};

/// To be raised when the fields change, or when the same file begins to give other keys and values.
const VERSION: u32 = 2;

/// What a model's keys and values depend on beside its file.
pub(crate) struct Computed<'a> {
    pub(crate) kv_format: KvFormat,
    pub(crate) kv_layout: &'static str,
    /// The content hash of the weights.
    pub(crate) content: [u8; 32],
    pub(crate) tokenizer: Option<&'a Tokenizer>,
}

/// The fingerprint of the model that was read from `file`.
pub(crate) fn fingerprint(file: &GgufFile, spec: &ModelSpec, computed: &Computed<'_>) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    let mut field = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    field(b"zllm fingerprint");
    field(&VERSION.to_le_bytes());
    field(computed.kv_format.to_string().as_bytes());
    field(computed.kv_layout.as_bytes());
    field(&computed.content);
    file.headers().for_each(&mut field);
    // As derived `Debug` writes it, so that no field can be forgotten. Floats are written in full, and if a compiler
    // writes something else, blocks are computed again.
    spec.layers.iter().for_each(|layer| field(format!("{:?}", layer.mixer).as_bytes()));
    field(computed.tokenizer.map(Tokenizer::fingerprint).as_ref().map_or(&[], |hash| hash.as_slice()));
    *hash.finalize().as_bytes()
}
