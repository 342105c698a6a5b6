//! The same tokens give the same logits, bit for bit, however the work is cut: prefill in any chunks, prefill and append
//! in every split, beside other sequences, on any threads and instruction set. For every family, on small models.

mod common;

use zllm_engine::{Isa, KV_BLOCK_TOKENS, KvFormat, LoadOptions, LoadedModel, StepRow, Want};

/// Longer than a block, and than the windows of 32 that some of the models have.
const TOKENS: usize = 80;

/// Every family, and the queries that grow with their position.
const FAMILIES: [&str; 25] = [
    "archs/ernie4_5-moe-moe.f16",
    "archs/gemma2-dense.f16",
    "archs/gemma3-dense.f16",
    "archs/glm4-dense.f16",
    "archs/glm4moe-moe.f16",
    "archs/gpt-oss-moe.f16",
    "archs/granite-dense.f16",
    "archs/granite-moe.f16",
    "archs/granitemoe-dense.f16",
    "archs/granitemoe-moe.f16",
    "archs/llama-dense.f16",
    "archs/llama-moe.f16",
    "archs/minicpm-dense.f16",
    "archs/minicpm-moe.f16",
    "archs/mistral3-dense.f16",
    "archs/mistral3-moe.f16",
    "archs/olmo2-dense.f16",
    "archs/olmoe-moe.f16",
    "archs/phi3-dense.f16",
    "archs/qwen2-dense.f16",
    "archs/qwen2moe-moe.f16",
    "archs/qwen3-dense.f16",
    "archs/qwen3moe-moe.f16",
    "archs/smollm3-dense.f16",
    "variants/mistral3-yarn",
];

fn load(family: &str, options: LoadOptions) -> LoadedModel {
    let options = LoadOptions { kv_budget_bytes: 4 << 20, max_batch_rows: 8, ..options };
    let path = common::testdata(&format!("{family}.gguf"));
    LoadedModel::load(&path, &options, &mut |_| {}).expect("a reference file")
}

fn options() -> LoadOptions {
    LoadOptions { threads: 2, prefill_chunk_tokens: TOKENS, ..LoadOptions::default() }
}

/// Tokens of a sequence; each `sequence` has its own.
fn tokens(sequence: usize) -> Vec<u32> {
    (0..TOKENS).map(|i| ((i * 37 + sequence * 11 + i * i) % 128) as u32).collect()
}

/// Blocks that no other sequence has, not in order.
fn blocks(sequence: usize) -> Vec<u32> {
    let count = TOKENS.div_ceil(KV_BLOCK_TOKENS);
    (0..count).rev().map(|i| (sequence * count + i) as u32).collect()
}

/// The bits of the logits after the last token, fed in runs of these lengths.
fn last_logits(model: &mut LoadedModel, sequence: usize, runs: &[usize]) -> Vec<u32> {
    let (tokens, blocks) = (tokens(sequence), blocks(sequence));
    let (mut position, mut bits) = (0, Vec::new());
    for run in runs {
        let tokens = &tokens[position..position + run];
        let row = StepRow { tokens, position, blocks: &blocks, want: Want::Last };
        bits = model.step(&[row]).expect("a step").row_mut(0).iter().map(|x| x.to_bits()).collect();
        position += run;
    }
    assert_eq!(position, TOKENS, "runs cover the sequence");
    bits
}

#[test]
fn every_split_and_chunk_gives_the_same_bits() {
    for family in FAMILIES {
        for kv_format in [KvFormat::I16, KvFormat::F16, KvFormat::Q8G64] {
            let mut model = load(family, LoadOptions { kv_format, ..options() });
            let whole = last_logits(&mut model, 0, &[TOKENS]);
            for split in 1..TOKENS {
                let found = last_logits(&mut model, 0, &[split, TOKENS - split]);
                assert!(found == whole, "{family} {kv_format}: split at {split}");
            }
            for chunk in [1, 7, 33, 64, 65] {
                let mut runs = vec![chunk; TOKENS / chunk];
                runs.extend(Some(TOKENS % chunk).filter(|rest| *rest > 0));
                assert!(
                    last_logits(&mut model, 0, &runs) == whole,
                    "{family} {kv_format}: chunks of {chunk}"
                );
            }
        }
    }
}

/// What was computed in one format must not be found by a model that keeps another.
#[test]
fn every_pair_of_kv_formats_has_a_fingerprint_of_its_own() {
    let fingerprint = |kv_format| {
        load("archs/llama-dense.f16", LoadOptions { kv_format, ..options() }).fingerprint().common
    };
    let found: std::collections::HashSet<_> = KvFormat::all().map(fingerprint).collect();
    assert_eq!(found.len(), KvFormat::all().count());
    assert!(found.contains(&fingerprint(KvFormat::default())), "and keeps it");
}

#[test]
fn threads_and_instruction_sets_give_the_same_bits() {
    for family in FAMILIES {
        let whole = last_logits(&mut load(family, options()), 0, &[TOKENS]);
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut model = load(family, LoadOptions { threads, isa: Some(isa), ..options() });
                let found = last_logits(&mut model, 0, &[50, 1, TOKENS - 51]);
                assert!(found == whole, "{family}: {isa:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn neighbours_in_a_batch_change_no_bit() {
    for family in FAMILIES {
        let mut model = load(family, LoadOptions { prefill_chunk_tokens: 4 * TOKENS, ..options() });
        let alone: Vec<_> = (0..4).map(|s| last_logits(&mut model, s, &[TOKENS])).collect();
        // All four prefill a part, then decode to the end together, in a different order at each step.
        let sequences: Vec<_> = (0..4).map(|s| (tokens(s), blocks(s))).collect();
        let row = |s: usize, from: usize, to: usize| StepRow {
            tokens: &sequences[s].0[from..to],
            position: from,
            blocks: &sequences[s].1,
            want: Want::Last,
        };
        let start = [50, 1, 79, 64];
        let first: Vec<_> = (0..4).map(|s| row(s, 0, start[s])).collect();
        model.step(&first).expect("a step");
        let mut done = start;
        let mut found = vec![Vec::new(); 4];
        while done.iter().any(|d| *d < TOKENS) {
            let turn = done.iter().sum::<usize>();
            let ready: Vec<_> = (0..4).map(|i| (i + turn) % 4).filter(|s| done[*s] < TOKENS).collect();
            let rows: Vec<_> = ready.iter().map(|s| row(*s, done[*s], done[*s] + 1)).collect();
            let mut logits = model.step(&rows).expect("a step");
            for (i, s) in ready.into_iter().enumerate() {
                found[s] = logits.row_mut(i).iter().map(|x| x.to_bits()).collect();
                done[s] += 1;
            }
        }
        for s in 0..4 {
            assert!(found[s] == alone[s], "{family}: sequence {s}");
        }
    }
}

#[test]
fn a_wrong_bit_would_be_seen() {
    let mut model = load("archs/llama-dense.f16", options());
    let whole = last_logits(&mut model, 0, &[TOKENS]);
    assert!(last_logits(&mut model, 1, &[TOKENS]) != whole, "another sequence gives other logits");
}
