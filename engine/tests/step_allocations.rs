//! A decode step allocates nothing once its memory has grown, from the rows to the logits, through the sampler to the text;
//! but for the text itself, which is given away: a `String` for each token that shows some. Counted by the allocator, in a
//! process without other threads than the pool's.

mod common;

use zllm_engine::{
    Generation, GenerationParams, KV_BLOCK_TOKENS, LoadOptions, LoadedModel, StepRow, Want,
    sampling::SamplingParams,
};
use zllm_kernels::counting::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Steps in which memory grows, and steps that are counted.
const WARM_UP: usize = 80;
const COUNTED: usize = 40;

/// What the counted steps did.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    by_steps: usize,
    by_samplers: usize,
    texts: usize,
}

fn main() {
    real_model();
    for name in
        ["archs/llama-moe.f16", "archs/gpt-oss-moe.f16", "archs/mistral3-dense.f16", "archs/gemma2-dense.f16"]
    {
        random_model(name);
    }
}

/// A real model, one session and eight, each with a sampler of its own; every filter is on in one of the rounds.
fn real_model() {
    let options = LoadOptions { threads: 2, kv_budget_bytes: 64 << 20, ..LoadOptions::default() };
    let mut model =
        LoadedModel::load(&common::model("smollm2-135m"), &options, &mut |_| {}).expect("a model");
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let filtered = SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.02, ..greedy.clone() };
    let drawn = SamplingParams { temperature: 1.1, top_k: 0, top_p: 1.0, min_p: 0.0, ..greedy.clone() };
    for (what, sampling) in
        [("greedy", greedy), ("top-k, top-p, min-p", filtered), ("temperature alone", drawn)]
    {
        for sessions in [1, 8] {
            let counts = decode(&mut model, &sampling, sessions);
            println!("{what}, {sessions} sessions, {COUNTED} steps: {counts:?}");
            assert_eq!(counts.by_steps, 0, "{what}, {sessions} sessions");
            assert_eq!(counts.by_samplers, counts.texts, "{what}, {sessions} sessions: a text each");
            assert!(counts.texts > 0, "{what}: the count counts");
        }
    }
}

/// Decodes in `sessions` sequences at once; all have the same prompt but their own seeds.
fn decode(model: &mut LoadedModel, sampling: &SamplingParams, sessions: usize) -> Counts {
    let text = model.text();
    let prompt = [1u32, 19, 4093, 28, 411, 260];
    let blocks_each = (prompt.len() + WARM_UP + COUNTED).div_ceil(KV_BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..(sessions * blocks_each) as u32).collect();
    let params = |session| GenerationParams {
        sampling: sampling.for_choice(session),
        // It goes on, whatever is drawn.
        ignore_eos: true,
        stop: vec!["\u{1}no such text\u{1}".into()],
        ..GenerationParams::default()
    };
    let generation = |session| Generation::new(text.clone(), &prompt, &params(session)).expect("parameters");
    let mut generations: Vec<_> = (0..sessions as u32).map(generation).collect();
    let mut last = vec![0; sessions];
    let mut counts = Counts { by_steps: 0, by_samplers: 0, texts: 0 };
    for step in 0..WARM_UP + COUNTED {
        let tokens = |session: usize| if step == 0 { &prompt[..] } else { &last[session..=session] };
        let position = if step == 0 { 0 } else { prompt.len() + step - 1 };
        let rows: Vec<_> = (0..sessions)
            .map(|session| StepRow {
                tokens: tokens(session),
                position,
                blocks: &blocks[session * blocks_each..][..blocks_each],
                want: Want::Last,
            })
            .collect();
        let before = ALLOCATOR.allocations();
        let mut logits = model.step(&rows).expect("a step");
        let after_step = ALLOCATOR.allocations();
        drop(rows);
        let mut texts = 0;
        for (session, generation) in generations.iter_mut().enumerate() {
            let accepted = generation.accept(logits.row_mut(session)).expect("logits");
            texts += usize::from(!accepted.text.is_empty());
            last[session] = accepted.token;
        }
        if step >= WARM_UP {
            counts.by_steps += after_step - before;
            counts.by_samplers += ALLOCATOR.allocations() - after_step;
            counts.texts += texts;
        }
    }
    counts
}

/// A small model with random weights, of a kind with parts that the real ones lack: experts, sinks, windows, caps, queries
/// that grow.
fn random_model(name: &str) {
    let options = LoadOptions { threads: 2, kv_budget_bytes: 8 << 20, ..LoadOptions::default() };
    let path = common::testdata(&format!("{name}.gguf"));
    let mut model = LoadedModel::load(&path, &options, &mut |_| {}).expect("a model");
    let mut allocated = 0;
    for position in 0..48 {
        let blocks: &[u32] = &[0, 1, 2, 3];
        // Other tokens each time: rows choose among experts anew.
        let tokens = [3, 7, 1, 5].map(|token| (token * (position as u32 + 1)) % 50);
        let row = |at: usize| StepRow {
            tokens: &tokens[at..=at],
            position,
            blocks: &blocks[at..=at],
            want: Want::Last,
        };
        let rows = [row(0), row(1), row(2), row(3)];
        let before = ALLOCATOR.allocations();
        model.step(&rows).expect("a step");
        allocated = if position < 24 { 0 } else { allocated + ALLOCATOR.allocations() - before };
    }
    println!("{name}: {allocated} allocations in 24 steps");
    assert_eq!(allocated, 0, "{name}");
}
