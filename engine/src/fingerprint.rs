//! What the keys and values of a loaded model depend on, as one hash: the root of its block keys. Blocks that were computed
//! under one fingerprint may be used wherever a model has the same, in another run, on another machine, and cut in other
//! stages: each stage knows its part, and together they give what a whole model gives.
//!
//! `blake3` over the fields below, each with its length (u64, little-endian) in front, in this order:
//! 1. `zllm fingerprint` and [`VERSION`];
//! 2. the hash of what all stages have in common;
//! 3. for each tensor that is computed with, in the order of their names: the name, and the hash of its bytes
//!    (`runtime/content.rs`).
//!
//! In common they have, as `blake3` over fields of the same kind:
//! 1. how blocks are kept: the KV format, and the device's layout of it with its version and byte order;
//! 2. each part's header: all metadata, and the records of all tensors;
//! 3. each layer's mixer as the spec says it. It follows from the file and from the context that is used, which decides
//!    between the factors of some ropes;
//! 4. the tokenizer, with what was configured over the file's own, or nothing where there is none.
//!
//! An adapter, once there are any, changes the weights that are computed with: its content and its scale become further
//! fields. The tenant is no part of it: `zllm_state`'s root key has both.

use std::collections::BTreeMap;

use zllm_kernels::backend::KvFormat;

use crate::{gguf::GgufFile, spec::ModelSpec, tokenizer::Tokenizer};

/// To be raised when the fields change, or when the same file begins to give other keys and values.
const VERSION: u32 = 4;

/// What one stage of a model knows of the fingerprint; that of a whole model knows all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FingerprintPart {
    /// The hash of what all stages have in common.
    pub common: [u8; 32],
    /// The hash of each tensor of this stage, by name.
    pub tensors: BTreeMap<String, [u8; 32]>,
    /// Tensors of the whole model.
    pub of: usize,
}

/// Stages that are not those of one model.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StagesError {
    /// They do not agree.
    #[error("the stages were not loaded from the same file in the same way; load them again")]
    Different,
    /// Some are missing.
    #[error("the stages have {found} of the model's {of} tensors")]
    Incomplete {
        /// Tensors that some stage has.
        found: usize,
        /// Tensors of the model.
        of: usize,
    },
}

impl FingerprintPart {
    pub(crate) fn new(
        file: &GgufFile,
        spec: &ModelSpec,
        kv: (KvFormat, &'static str),
        tokenizer: Option<&Tokenizer>,
        tensors: BTreeMap<String, [u8; 32]>,
    ) -> Self {
        let (format, layout) = kv;
        let mut fields = Fields::default();
        fields.add(format.to_string().as_bytes());
        fields.add(layout.as_bytes());
        file.headers().for_each(|header| fields.add(header));
        // As derived `Debug` writes it, so that no field can be forgotten. Floats are written in full, and if a compiler
        // writes something else, blocks are computed again.
        spec.layers.iter().for_each(|layer| fields.add(format!("{:?}", layer.mixer).as_bytes()));
        fields.add(tokenizer.map(Tokenizer::fingerprint).as_ref().map_or(&[], |hash| hash.as_slice()));
        Self { common: fields.hash(), tensors, of: spec.tensor_names().len() }
    }

    /// The fingerprint of the model that these are all stages of.
    ///
    /// # Errors
    /// They are not; a file that was replaced between two loads shows here.
    pub fn join<'p>(parts: impl IntoIterator<Item = &'p Self>) -> Result<[u8; 32], StagesError> {
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or(StagesError::Incomplete { found: 0, of: 0 })?;
        let mut tensors: BTreeMap<&str, &[u8; 32]> = BTreeMap::new();
        for part in std::iter::once(first).chain(parts) {
            if (part.common, part.of) != (first.common, first.of) {
                return Err(StagesError::Different);
            }
            for (name, hash) in &part.tensors {
                // A tied embedding is in two stages.
                if tensors.insert(name, hash).is_some_and(|before| before != hash) {
                    return Err(StagesError::Different);
                }
            }
        }
        let (found, of) = (tensors.len(), first.of);
        if found != of {
            return Err(StagesError::Incomplete { found, of });
        }
        let mut fields = Fields::default();
        fields.add(b"zllm fingerprint");
        fields.add(&VERSION.to_le_bytes());
        fields.add(&first.common);
        for (name, hash) in tensors {
            fields.add(name.as_bytes());
            fields.add(hash);
        }
        Ok(fields.hash())
    }
}

/// A hash over byte strings, each with its length.
#[derive(Default)]
struct Fields(blake3::Hasher);

impl Fields {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }

    fn hash(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(names: &[(&str, u8)]) -> FingerprintPart {
        let tensors = names.iter().map(|(name, byte)| ((*name).to_owned(), [*byte; 32])).collect();
        FingerprintPart { common: [7; 32], tensors, of: 3 }
    }

    #[test]
    fn stages_give_what_the_whole_model_gives_in_any_cut_and_order() {
        let whole = FingerprintPart::join([&part(&[("a", 1), ("b", 2), ("c", 3)])]).expect("whole");
        let (one, other) = (part(&[("b", 2)]), part(&[("a", 1), ("c", 3)]));
        assert_eq!(FingerprintPart::join([&one, &other]), Ok(whole));
        assert_eq!(FingerprintPart::join([&other, &one]), Ok(whole));
        let tied = part(&[("a", 1), ("b", 2)]);
        assert_eq!(FingerprintPart::join([&tied, &other]), Ok(whole), "a tensor may be in two stages");
        let swapped = part(&[("a", 2), ("b", 1), ("c", 3)]);
        assert_ne!(FingerprintPart::join([&swapped]), Ok(whole), "each hash belongs to its name");
    }

    #[test]
    fn stages_of_two_models_and_missing_ones_are_errors() {
        let (one, other) = (part(&[("b", 2)]), part(&[("a", 1), ("c", 3)]));
        let incomplete = |found| Err(StagesError::Incomplete { found, of: 3 });
        assert_eq!(FingerprintPart::join([&one]), incomplete(1));
        assert_eq!(FingerprintPart::join([&other, &other]), incomplete(2));
        let elsewhere = FingerprintPart { common: [8; 32], ..other.clone() };
        assert_eq!(FingerprintPart::join([&one, &elsewhere]), Err(StagesError::Different));
        let replaced = part(&[("a", 9), ("b", 2)]);
        assert_eq!(FingerprintPart::join([&replaced, &other]), Err(StagesError::Different));
    }
}
