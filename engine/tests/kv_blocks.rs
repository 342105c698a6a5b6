//! Keys and values that were copied out and brought back give the same tokens, bit for bit, wherever in the arena they lie
//! now; and a prefix can be resumed at any token, also inside a block and with layers that see a window only.

mod common;

use zllm_engine::{BlockError, KV_BLOCK_TOKENS, KvFormat, LoadOptions, LoadedModel, StepRow, Want};

/// Plain; windows of 32 in every other layer; the same with sinks and experts.
const FAMILIES: [&str; 3] = ["llama-dense", "gemma3-dense", "gpt-oss-moe"];
/// Two blocks and a part of a third.
const PROMPT: usize = 150;
const ANSWER: usize = 12;

fn load(family: &str, kv_format: KvFormat) -> LoadedModel {
    let options = LoadOptions {
        threads: 2,
        kv_format,
        kv_budget_bytes: 1 << 20,
        ram_budget_bytes: 1 << 20,
        prefill_chunk_tokens: PROMPT,
        ..LoadOptions::default()
    };
    let path = common::testdata(&format!("archs/{family}.f16.gguf"));
    let model = LoadedModel::load(&path, &options, &mut |_| {}).expect("a reference file");
    assert_eq!(model.ram_blocks() * 2, model.kv_blocks(), "both budgets give blocks");
    model
}

/// A prompt whose tokens depend on `seed` from position `from` on.
fn prompt(seed: usize, from: usize) -> Vec<u32> {
    let token = |i: usize| (i * 37 + i * i + if i < from { 0 } else { seed * 11 }) % 128;
    (0..PROMPT).map(|i| token(i) as u32).collect()
}

/// Computes `prompt` from `position` on and answers greedily: the bits of all logits on the way.
fn answer(model: &mut LoadedModel, prompt: &[u32], mut position: usize, blocks: &[u32]) -> Vec<Vec<u32>> {
    let mut tokens = prompt[position..].to_vec();
    let mut all = Vec::new();
    for _ in 0..ANSWER {
        let row = StepRow { tokens: &tokens, position, blocks, want: Want::Last };
        let mut logits = model.step(&[row]).expect("a step");
        let logits = logits.row_mut(0);
        position += tokens.len();
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("a vocabulary");
        tokens = vec![best as u32];
        all.push(logits.iter().map(|x| x.to_bits()).collect());
    }
    all
}

fn block_bytes(model: &mut LoadedModel, id: u32) -> Vec<u8> {
    let mut bytes = vec![0; model.kv_block_bytes() as usize];
    model.read_block(id, &mut bytes).expect("a block of the arena");
    bytes
}

#[test]
fn blocks_that_were_away_give_the_same_bits_in_other_slots() {
    for family in FAMILIES {
        for kv_format in KvFormat::all() {
            let mut model = load(family, kv_format);
            let what = format!("{family} {kv_format}");
            let last = model.kv_blocks() - 1;
            let prompt = prompt(0, 0);
            let cold = answer(&mut model, &prompt, 0, &[0, 1, 2]);
            let kept = [0, 1, 2].map(|id| block_bytes(&mut model, id));
            let wipe = |model: &mut LoadedModel| {
                let other = vec![0x3c; model.kv_block_bytes() as usize];
                (0..=last).for_each(|id| model.write_block(id, &other).expect("a block of the arena"));
            };
            wipe(&mut model);
            let slots = [last, 0, 4];
            slots.iter().zip(&kept).for_each(|(id, bytes)| model.write_block(*id, bytes).expect("a block"));
            assert!(answer(&mut model, &prompt, PROMPT - 1, &slots) == cold, "{what}");

            wipe(&mut model);
            let wrong = [0, last, 4];
            wrong.iter().zip(&kept).for_each(|(id, bytes)| model.write_block(*id, bytes).expect("a block"));
            assert!(
                answer(&mut model, &prompt, PROMPT - 1, &slots) != cold,
                "{what}: two blocks in wrong slots"
            );
        }
    }
}

/// Another prompt shares the first `shared` tokens: it takes the full blocks, copies the one in which they part, and starts
/// inside it.
#[test]
fn a_prefix_is_resumed_at_any_token() {
    for family in FAMILIES {
        for kv_format in KvFormat::all() {
            let mut model = load(family, kv_format);
            for shared in [1, 31, 63, 64, 65, 101, 128, 149] {
                let what = format!("{family} {kv_format}: {shared} shared tokens");
                let (first, second) = (prompt(0, 0), prompt(1, shared));
                assert_eq!(first[..shared], second[..shared]);
                assert_ne!(first[shared], second[shared]);
                let cold = answer(&mut model, &second, 0, &[5, 6, 7]);
                answer(&mut model, &first, 0, &[0, 1, 2]);
                let before = [0, 1, 2].map(|id| block_bytes(&mut model, id));
                let whole = shared / KV_BLOCK_TOKENS;
                let blocks: Vec<u32> =
                    (0..3).map(|i| if i < whole { i as u32 } else { i as u32 + 8 }).collect();
                model.copy_block(whole as u32, blocks[whole]).expect("blocks of the arena");
                assert!(answer(&mut model, &second, shared, &blocks) == cold, "{what}");
                let after = [0, 1, 2].map(|id| block_bytes(&mut model, id));
                assert!(after == before, "{what}: shared blocks stay as they are");
            }
        }
    }
}

#[test]
fn wrong_blocks_and_sizes_are_errors() {
    let mut model = load("llama-dense", KvFormat::I16);
    let (arena, expected) = (model.kv_blocks() as usize, model.kv_block_bytes() as usize);
    let mut bytes = vec![0; expected];
    let beyond = arena as u32;
    let no_such_block = Err(BlockError::NoSuchBlock { id: beyond, arena });
    assert_eq!(model.read_block(beyond, &mut bytes), no_such_block);
    assert_eq!(model.write_block(beyond, &bytes), no_such_block);
    assert_eq!(model.copy_block(beyond, 0), no_such_block);
    assert_eq!(model.copy_block(0, beyond), no_such_block);
    for found in [0, expected - 1, expected + 1] {
        bytes.resize(found, 0);
        let wrong_size = Err(BlockError::WrongSize { found, expected });
        assert_eq!(model.read_block(0, &mut bytes), wrong_size);
        assert_eq!(model.write_block(0, &bytes), wrong_size);
    }
}
