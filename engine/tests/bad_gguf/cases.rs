//! Builds 46 small malformed GGUF files, each a kind of fault that public bug reports against GGUF readers describe.

use crate::gguf_writer::*;

/// A malformed file and what its refusal must say.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    /// Words that the message must hold: the key, tensor or offset, and what is wrong.
    pub(crate) says: &'static [&'static str],
}

/// The beginning of a file whose first entry is the architecture.
fn llama(tensors: u64, more_entries: u64) -> File {
    File::new(tensors, 1 + more_entries).text("general.architecture", "llama")
}

/// A whole llama header of eight entries without tensors; `key` has `value` instead of a sensible one.
fn llama_header(key: &str, value: u32, also: Option<(&str, u32)>) -> File {
    let sensible = [
        ("llama.block_count", 1),
        ("llama.context_length", 64),
        ("llama.embedding_length", 32),
        ("llama.feed_forward_length", 32),
        ("llama.attention.head_count", 1),
        ("llama.attention.head_count_kv", 1),
    ];
    let pick = |k: &str, v: u32| match also {
        Some((other, w)) if other == k => w,
        _ if k == key => value,
        _ => v,
    };
    let file = sensible.iter().fold(llama(0, 7), |file, &(k, v)| file.number(k, pick(k, v)));
    file.entry("llama.attention.layer_norm_rms_epsilon", F32, &1e-5f32.to_le_bytes())
}

fn file(name: &'static str, file: File, says: &'static [&'static str]) -> Case {
    Case { name, bytes: file.0, says }
}

/// All 46.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = headers();
    cases.extend(metadata());
    cases.extend(tensors());
    cases.extend(models());
    cases
}

fn headers() -> Vec<Case> {
    let mut big_endian = b"GGUF".to_vec();
    big_endian.extend(3u32.to_be_bytes());
    big_endian.extend([0; 16]);
    vec![
        file("empty", File(vec![]), &["byte 0", "magic"]),
        file("magic_only", File(b"GGUF".to_vec()), &["byte 4", "version"]),
        file("wrong_magic", File::header(b"GGML", 3, 0, 0), &["not a GGUF file"]),
        file("big_endian", File(big_endian), &["big-endian", "0x03000000"]),
        file("version_1", File::header(b"GGUF", 1, 0, 0), &["version 1", "32 bits"]),
        file("version_99", File::header(b"GGUF", 99, 0, 0), &["version 99"]),
        file(
            "kv_count_huge",
            File::new(0, 1 << 61).text("general.architecture", "llama"),
            &["byte 24", "2305843009213693952 metadata entries"],
        ),
        file(
            "tensor_count_huge",
            File::new(1 << 61, 1).text("general.architecture", "llama"),
            &["byte 24", "2305843009213693952 tensors"],
        ),
        file(
            "tensor_count_wraps",
            File::new((i64::MAX as u64) / 56, 1).text("general.architecture", "llama"),
            &["byte 24", "tensors"],
        ),
    ]
}

fn metadata() -> Vec<Case> {
    let name = || File::new(0, 1).string(b"general.name").u32(STRING);
    let deep = File::new(0, 1).string(b"x").u32(ARRAY);
    let deep = (0..5000).fold(deep, |file, _| file.u32(ARRAY).u64(1)).u32(U8).u64(0);
    let tokens = File::new(0, 1).string(b"tokenizer.ggml.tokens").u32(ARRAY).u32(STRING).u64(1 << 61);
    let aligned = |value_type, payload: &[u8]| {
        llama(1, 1).entry("general.alignment", value_type, payload).tensor("t", &[32], 0, 0)
    };
    let third = llama(0, 2).entry("split.count", U16, &[3, 0]).entry("split.no", U16, &[1, 0]);
    vec![
        file("string_len_max", name().u64(u64::MAX), &["metadata value", "18446744073709551615"]),
        file("string_len_2_40", name().u64(1 << 40), &["metadata value", "1099511627776"]),
        file("array_len_2_61", tokens, &["2305843009213693952 array elements"]),
        file("array_nested_deep", deep, &["`x`", "array of arrays"]),
        file("unknown_value_type", File::new(0, 1).string(b"x").u32(77).u64(0), &["`x`", "type 77"]),
        file("empty_key", File::new(0, 1).number("", 1), &["byte 24", "length 0"]),
        file("duplicate_key", File::new(0, 2).number("a.b", 1).number("a.b", 2), &["`a.b`", "second time"]),
        file(
            "invalid_utf8_key",
            File::new(0, 1).string(b"\xff\xfe").u32(U32).u32(1),
            &["byte 24", "not UTF-8"],
        ),
        file(
            "bool_is_2",
            File::new(0, 1).entry("tokenizer.ggml.add_bos_token", BOOL, &[2]),
            &["`tokenizer.ggml.add_bos_token`", "byte 2"],
        ),
        file("alignment_zero", aligned(U32, &[0; 4]), &["`general.alignment` is 0", "power of two"]),
        file("alignment_not_power_of_two", aligned(U32, &[24, 0, 0, 0]), &["`general.alignment` is 24"]),
        file(
            "alignment_wrong_type",
            aligned(STRING, b"\x02\0\0\0\0\0\0\x0032"),
            &["`general.alignment`", "type string"],
        ),
        file(
            "alignment_huge",
            aligned(U64, &(1u64 << 63).to_le_bytes()),
            &["`general.alignment`", "9223372036854775808"],
        ),
        file(
            "no_architecture",
            File::new(0, 1).text("general.name", "x"),
            &["`general.architecture` is missing"],
        ),
        file(
            "architecture_wrong_type",
            File::new(0, 1).number("general.architecture", 1),
            &["`general.architecture`", "type u32"],
        ),
        file("split_missing", third, &["part 2 of 3"]),
    ]
}

fn tensors() -> Vec<Case> {
    let one = |dims: &[u64], ggml_type, offset, zeros| {
        llama(1, 0).tensor("t", dims, ggml_type, offset).zeros(zeros)
    };
    let two =
        |a: &str, b: &str, offset| llama(2, 0).tensor(a, &[32], 0, 0).tensor(b, &[32], 0, offset).zeros(512);
    vec![
        file("dims_zero", one(&[32, 0], 0, 0, 64), &["dimension 1 of tensor `t` is 0"]),
        file("dims_negative", one(&[u64::MAX], 0, 0, 64), &["dimension 0 of tensor `t` is -1"]),
        file(
            "dims_product_overflows",
            one(&[(1 << 63) - 1, 2, 1, 1], I8, 0, 64),
            &["tensor `t`", "overflows"],
        ),
        file(
            "dims_wrap_to_zero",
            one(&[1 << 22, (1 << 42) + 1, 1, 1], 0, 0, 64),
            &["tensor `t`", "overflows"],
        ),
        file("dims_count_9", one(&[1; 9], 0, 0, 64), &["tensor `t` has 9 dimensions"]),
        file("row_not_block_multiple", one(&[33, 4], Q4_0, 0, 256), &["tensor `t`", "33", "Q4_0", "32"]),
        file("tensor_type_unknown", one(&[32], 200, 0, 256), &["tensor `t`", "type number 200"]),
        file("tensor_type_removed", one(&[32], Q4_2, 0, 256), &["tensor `t`", "Q4_2", "removed"]),
        file(
            "offset_past_end",
            one(&[32], 0, 1 << 40, 256),
            &["tensor `t`", "1099511627776", "past the end"],
        ),
        file("offset_misaligned", one(&[32], 0, 7, 256), &["tensor `t`", "offset 7", "alignment 32"]),
        file("offset_overflows", one(&[32], 0, u64::MAX - 31, 256), &["tensor `t`", "18446744073709551584"]),
        file("tensors_overlap", two("a", "b", 32), &["`a` and `b` share bytes", "offset 32"]),
        file("duplicate_tensor", two("t", "t", 128), &["tensor `t`", "second time"]),
        file("data_truncated", one(&[4096], 0, 0, 100), &["tensor `t`", "16384 bytes", "past the end"]),
    ]
}

fn models() -> Vec<Case> {
    const HEADS: &str = "llama.attention.head_count";
    const KV_HEADS: &str = "llama.attention.head_count_kv";
    let zebra = File::new(0, 1).text("general.architecture", "zebra9");
    vec![
        file("architecture_unknown", zebra, &["zebra9", "llama"]),
        file("metadata_only", llama_header("", 0, None), &["token_embd.weight"]),
        file("block_count_zero", llama_header("llama.block_count", 0, None), &["block_count"]),
        file("block_count_huge", llama_header("llama.block_count", 1 << 31, None), &["block_count"]),
        file("head_count_zero", llama_header(HEADS, 0, None), &["head_count"]),
        file("head_count_kv_zero", llama_header(KV_HEADS, 0, None), &["head_count_kv"]),
        file("head_count_not_divisible", llama_header(HEADS, 5, Some((KV_HEADS, 3))), &["5", "3"]),
    ]
}
