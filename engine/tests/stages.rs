//! A model that is cut in stages gives what a whole one gives, bit for bit: the logits of prefill chunks and decode batches,
//! the fingerprint, and KV blocks that go from one cut to another.

mod common;

use zllm_engine::{
    Engine, FingerprintPart, LoadOptions, LoadedModel, Stage, StageOutput, StagesError, StepError, StepRow,
    Want,
};

/// All stages of a model.
struct Pipeline(Vec<LoadedModel>);

impl Pipeline {
    fn load(file: &str, of: usize, split: Option<&[usize]>) -> Self {
        let split = split.map(<[usize]>::to_vec);
        let path = if file.contains('/') { common::testdata(file) } else { common::model(file) };
        let load = |index| {
            let stage = Stage { index, of, split: split.clone() };
            let options = LoadOptions { stage, ..options() };
            LoadedModel::load(&path, &options, &mut |_| {}).expect("a model in stages")
        };
        Self((0..of).map(load).collect())
    }

    /// The bits of the logits that are wanted, a row each.
    fn step(&mut self, rows: &[StepRow<'_>]) -> Vec<Vec<u32>> {
        let mut hidden: Option<Vec<f32>> = None;
        for stage in &mut self.0 {
            match stage.step_stage(rows, hidden.as_deref()).expect("a step") {
                StageOutput::Hidden(rows) => hidden = Some(rows.to_vec()),
                StageOutput::Last { mut logits, .. } => {
                    let bits = |row: &mut [f32]| row.iter().map(|x| x.to_bits()).collect();
                    return (0..logits.rows()).map(|i| bits(logits.row_mut(i))).collect();
                }
            }
        }
        panic!("the last stage gives logits")
    }

    fn block(&mut self, id: u32) -> Vec<u8> {
        let part = |stage: &mut LoadedModel| {
            let mut bytes = vec![0; stage.kv_block_bytes() as usize];
            stage.read_block(id, &mut bytes).expect("a block of the arena");
            bytes
        };
        self.0.iter_mut().flat_map(part).collect()
    }

    fn put(&mut self, id: u32, mut bytes: &[u8]) {
        for stage in &mut self.0 {
            let (own, rest) = bytes.split_at(stage.kv_block_bytes() as usize);
            stage.write_block(id, own).expect("a block of the arena");
            bytes = rest;
        }
        assert!(bytes.is_empty(), "the parts are the whole block");
    }

    fn fingerprint(&self) -> [u8; 32] {
        FingerprintPart::join(self.0.iter().map(|stage| stage.fingerprint())).expect("stages of one model")
    }
}

fn options() -> LoadOptions {
    LoadOptions { threads: 2, kv_budget_bytes: 32 << 20, prefill_chunk_tokens: 96, ..LoadOptions::default() }
}

/// Tokens of a sequence that every vocabulary has.
fn tokens(sequence: usize) -> Vec<u32> {
    (0..150).map(|i| ((i * 37 + sequence * 11 + i * i) % 128) as u32).collect()
}

/// Two sequences: chunks of both in one step, a chunk of one beside a decoded token of the other, then tokens of both.
fn history(model: &mut Pipeline) -> Vec<Vec<u32>> {
    let (one, other) = (tokens(0), tokens(1));
    let row = |tokens, position, blocks, want| StepRow { tokens, position, blocks, want };
    let (first, second): (&[u32], &[u32]) = (&[2, 0, 1], &[3, 5, 4]);
    let mut all = Vec::new();
    let mut step = |rows: &[StepRow<'_>]| all.extend(model.step(rows));
    step(&[row(&one[..70], 0, first, Want::Nothing), row(&other[..9], 0, second, Want::All)]);
    step(&[row(&other[9..10], 9, second, Want::Last), row(&one[70..140], 70, first, Want::Last)]);
    for i in 0..10 {
        let (at, beside) = (140 + i, 10 + i);
        step(&[
            row(&one[at..at + 1], at, first, Want::Last),
            row(&other[beside..beside + 1], beside, second, Want::Last),
        ]);
    }
    all
}

/// What the blocks of `history` hold: full ones, and the begun ones up to their last token.
fn blocks(model: &mut Pipeline) -> Vec<Vec<u8>> {
    [2, 0, 1, 3].map(|id| model.block(id)).into()
}

fn every_cut_gives_the_same(file: &str, cuts: &[(usize, Option<&[usize]>)]) {
    let mut whole = Pipeline::load(file, 1, None);
    let logits = history(&mut whole);
    assert_eq!(logits.len(), 9 + 2 + 20, "the logits that were wanted");
    let (kept, fingerprint) = (blocks(&mut whole), whole.fingerprint());
    // The next token of the first sequence, on blocks that were brought back.
    let last = |model: &mut Pipeline| {
        let row = StepRow { tokens: &[7], position: 150, blocks: &[2, 0, 1], want: Want::Last };
        model.step(&[row])
    };
    let next = last(&mut whole);
    let whole_bytes = whole.0[0].weight_bytes();
    let mut before: Option<Pipeline> = None;
    for &(of, split) in cuts {
        let mut cut = Pipeline::load(file, of, split);
        let what = format!("{file} in {of} stages, {split:?}");
        assert!(cut.0.iter().all(|stage| stage.weight_bytes() < whole_bytes), "{what}: each has a part");
        assert!(cut.0.iter().all(|stage| stage.kv_blocks() == whole.0[0].kv_blocks()), "{what}");
        assert_eq!(cut.fingerprint(), fingerprint, "{what}");
        assert!(history(&mut cut) == logits, "{what}: logits");
        assert!(blocks(&mut cut) == kept, "{what}: the parts of a block are the whole block");
        assert!(last(&mut cut) == next, "{what}");

        // From another cut, or from the whole, to this one, in other slots.
        let giver = before.as_mut().unwrap_or(&mut whole);
        for (id, slot) in [(2, 6), (0, 7), (1, 8)] {
            let bytes = giver.block(id);
            cut.put(slot, &bytes);
        }
        let row = StepRow { tokens: &[7], position: 150, blocks: &[6, 7, 8], want: Want::Last };
        assert!(cut.step(&[row]) == next, "{what}: blocks of another cut");
        before = Some(cut);
    }
}

/// Dense; windows and post-norms; experts with sinks; fused products.
#[test]
fn small_models_of_several_families() {
    for family in
        ["llama-dense", "gemma3-dense", "gpt-oss-moe", "phi3-dense", "qwen2moe-moe", "granite-dense"]
    {
        every_cut_gives_the_same(&format!("archs/{family}.f16.gguf"), &[(2, None)]);
    }
}

/// A tied head is in the first and in the last stage.
#[test]
fn real_models_in_two_and_three_stages() {
    every_cut_gives_the_same("smollm2-135m", &[(2, None), (3, Some(&[1, 20, 9]))]);
    every_cut_gives_the_same("gemma3-270m", &[(2, Some(&[7, 11])), (3, None)]);
}

#[test]
fn a_stage_that_gets_what_is_anothers_is_an_error() {
    let mut cut = Pipeline::load("archs/llama-dense.f16.gguf", 2, None);
    let row = || StepRow { tokens: &[1, 2], position: 0, blocks: &[0], want: Want::Last };
    let mut error = |stage: usize, hidden: Option<&[f32]>| {
        cut.0[stage].step_stage(&[row()], hidden).expect_err("not this stage's").to_string()
    };
    assert!(error(0, Some(&[0.0; 7])).contains("got 7 hidden values; it begins with 0"));
    assert!(error(1, None).contains("got 0 hidden values"));
    assert!(error(1, Some(&[0.0; 7])).contains("got 7 hidden values"));
    assert!(matches!(cut.0[0].step(&[row()]), Err(StepError::NoLogits { .. })));
    let halves = [cut.0[0].fingerprint(), cut.0[0].fingerprint()];
    assert!(matches!(FingerprintPart::join(halves), Err(StagesError::Incomplete { .. })));
}

#[test]
fn cuts_that_do_not_work_are_refused_before_anything_is_loaded() {
    let path = common::testdata("archs/llama-dense.f16.gguf");
    let options = |index, of, split| LoadOptions { stage: Stage { index, of, split }, ..options() };
    let load = |options| LoadedModel::load(&path, &options, &mut |_| panic!("nothing is loaded"));
    let error = |options| load(options).err().expect("it cannot be cut so").to_string();
    assert!(error(options(0, 100, None)).starts_with("stages is 100; the model has"));
    assert!(error(options(0, 2, Some(vec![1, 100]))).starts_with("split is [1, 100]; 2 numbers work"));
    let engine = Engine::load(&path, &options(0, 2, None), &mut |_| {}).err().expect("half a model");
    assert_eq!(engine.to_string(), "stages is 2; an engine runs a whole model");
}
