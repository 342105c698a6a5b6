//! Tensors by kind and format. Kinds follow the names that GGUF files give their tensors.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::gguf::GgufFile;

/// Tensors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorGroup {
    /// `embedding`, `attention`, `feed_forward`, `experts`, `norms`, `output` or `other`.
    pub kind: &'static str,
    /// How many.
    pub tensors: u64,
    /// Numbers in them.
    pub parameters: u64,
    /// Bytes in the file.
    pub bytes: u64,
    /// Their formats, the one with the most bytes first.
    pub formats: Vec<FormatShare>,
}

/// The part of a group that has one format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormatShare {
    /// Its name.
    pub format: &'static str,
    /// How many tensors.
    pub tensors: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

/// Kinds in the order of a forward pass.
const KINDS: [&str; 7] = ["embedding", "attention", "feed_forward", "experts", "norms", "output", "other"];

/// A name's kind. The first pattern that it has a part of decides: norms are also of the attention, experts of the
/// feed-forward network.
fn kind(name: &str) -> &'static str {
    const PARTS: [(&str, &str); 9] = [
        ("_norm", "norms"),
        ("_exps", "experts"),
        ("_shexp", "experts"),
        ("ffn_gate_inp", "experts"),
        ("exp_probs_b", "experts"),
        ("token_embd", "embedding"),
        ("attn_", "attention"),
        ("ffn_", "feed_forward"),
        ("output.", "output"),
    ];
    PARTS.into_iter().find(|(part, _)| name.contains(part)).map_or("other", |(_, kind)| kind)
}

/// All tensors in groups, with the numbers and bytes of all.
pub(super) fn groups(file: &GgufFile) -> (Vec<TensorGroup>, u64, u64) {
    let mut kinds: BTreeMap<&str, TensorGroup> = BTreeMap::new();
    for tensor in file.tensors() {
        let kind = kind(tensor.name());
        let group = kinds.entry(kind).or_insert_with(|| TensorGroup {
            kind,
            tensors: 0,
            parameters: 0,
            bytes: 0,
            formats: Vec::new(),
        });
        let bytes = tensor.bytes().len() as u64;
        let format = tensor.ggml_type().name;
        let place = group.formats.iter().position(|share| share.format == format).unwrap_or_else(|| {
            group.formats.push(FormatShare { format, tensors: 0, bytes: 0 });
            group.formats.len() - 1
        });
        group.formats[place].tensors += 1;
        group.formats[place].bytes += bytes;
        group.tensors += 1;
        group.parameters += tensor.dims().iter().map(|&dim| dim as u64).product::<u64>();
        group.bytes += bytes;
    }
    let mut groups: Vec<TensorGroup> = KINDS.into_iter().filter_map(|kind| kinds.remove(kind)).collect();
    for group in &mut groups {
        group.formats.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.format.cmp(b.format)));
    }
    let sum = |of: fn(&TensorGroup) -> u64| groups.iter().map(of).sum();
    let (parameters, bytes) = (sum(|group| group.parameters), sum(|group| group.bytes));
    (groups, parameters, bytes)
}

/// What is wrong with the tensors' formats, once for each format that cannot be decoded.
pub(super) fn problems(file: &GgufFile) -> Vec<String> {
    let mut refused: BTreeMap<&str, String> = BTreeMap::new();
    for tensor in file.tensors() {
        if let Err(error) = tensor.format() {
            refused.entry(tensor.ggml_type().name).or_insert_with(|| error.to_string());
        }
    }
    refused.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_names() {
        for (name, expected) in [
            ("token_embd.weight", "embedding"),
            ("token_embd_norm.weight", "norms"),
            ("blk.3.attn_q.weight", "attention"),
            ("blk.3.attn_output.weight", "attention"),
            ("blk.3.attn_sinks.weight", "attention"),
            ("blk.3.attn_q_norm.weight", "norms"),
            ("blk.3.post_attention_norm.weight", "norms"),
            ("blk.3.ffn_up.weight", "feed_forward"),
            ("blk.3.ffn_up_exps.weight", "experts"),
            ("blk.3.ffn_down_shexp.weight", "experts"),
            ("blk.3.ffn_gate_inp.weight", "experts"),
            ("blk.3.exp_probs_b.bias", "experts"),
            ("output.weight", "output"),
            ("output_norm.weight", "norms"),
            ("rope_freqs.weight", "other"),
        ] {
            assert_eq!(kind(name), expected, "{name}");
            assert!(KINDS.contains(&expected));
        }
    }
}
