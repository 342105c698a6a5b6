//! How an answer of the embeddable engine ends, on a real model: what is streamed is the answer, whoever ends it.

mod common;

use std::ops::ControlFlow;

use zllm_engine::{
    Engine, FinishReason, GenerateError, GenerationParams, LoadError, LoadOptions, Prompt, Summary,
    sampling::SamplingParams,
};

/// One block of 64 tokens of this model.
const ONE_BLOCK_BYTES: u64 = 2 << 20;

fn engine(kv_budget_bytes: u64) -> Engine {
    let options = LoadOptions { threads: 2, kv_budget_bytes, ..LoadOptions::default() };
    Engine::load(&common::model("smollm2-135m"), &options, &mut |_| {}).expect("a model")
}

fn prompt(text: &str) -> Prompt {
    Prompt::Text { text: text.to_owned(), parse_special: false }
}

fn params(stop: &str) -> GenerationParams {
    let stop = Some(stop.to_owned()).filter(|stop| !stop.is_empty());
    GenerationParams {
        sampling: SamplingParams::greedy(),
        stop: stop.into_iter().collect(),
        ignore_eos: true,
        ..GenerationParams::default()
    }
}

/// The summary, and what was streamed until `more` said no.
fn answer(
    engine: &mut Engine,
    text: &str,
    params: &GenerationParams,
    mut more: impl FnMut(usize) -> bool,
) -> (Summary, String) {
    let (mut pieces, mut streamed) = (0, String::new());
    let on_text = |text: &str| {
        pieces += 1;
        streamed.push_str(text);
        if more(pieces) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let summary = engine.generate(&prompt(text), params, on_text).expect("an answer");
    (summary, streamed)
}

#[test]
fn an_answer_is_streamed_whole_when_the_memory_ends_it() {
    let mut engine = engine(ONE_BLOCK_BYTES);
    assert_eq!(engine.kv().total_blocks, 1);
    let (plain, streamed) = answer(&mut engine, "The capital of France is", &params(""), |_| true);
    assert_eq!((plain.finish, streamed.as_str()), (FinishReason::Length, plain.text.as_str()));
    // Every token but the last is in the one block.
    assert_eq!(plain.prompt_tokens + plain.tokens.len(), 64 + 1);

    // A stop that the answer's last characters begin: they are held back, and belong to the answer after all.
    let last = plain.text.chars().last().expect("an answer");
    let held = params(&format!("{last}\u{1}"));
    let (again, streamed) = answer(&mut engine, "The capital of France is", &held, |_| true);
    assert_eq!(again.cached_tokens, plain.prompt_tokens - 1);
    assert_eq!((again.tokens, again.text), (plain.tokens, plain.text.clone()));
    assert_eq!(streamed, plain.text);

    let long = engine.generate(&prompt(&"one two ".repeat(40)), &params(""), |_| ControlFlow::Continue(()));
    assert!(matches!(long, Err(GenerateError::KvBudget { budget: 64, .. })));
}

#[test]
fn an_answer_ends_when_it_is_stopped_cancelled_or_not_wanted() {
    let mut engine = engine(8 * ONE_BLOCK_BYTES);
    let limited = GenerationParams { max_tokens: Some(12), ..params("") };
    let (whole, streamed) = answer(&mut engine, "Once upon a time", &limited, |_| true);
    assert_eq!((whole.finish, whole.tokens.len()), (FinishReason::Length, 12));
    assert_eq!(streamed, whole.text);

    // From the middle of the answer on.
    let middle = whole.text.char_indices().nth(whole.text.chars().count() / 2).expect("a character").0;
    let stop = &whole.text[middle..];
    let (stopped, streamed) = answer(&mut engine, "Once upon a time", &params(stop), |_| true);
    let first = whole.text.find(stop).expect("it is a part of the answer");
    assert_eq!((stopped.finish, stopped.text.as_str()), (FinishReason::Stop, &whole.text[..first]));
    assert_eq!(streamed, stopped.text);

    let (unwanted, streamed) = answer(&mut engine, "Once upon a time", &limited, |pieces| pieces < 2);
    assert_eq!(unwanted.finish, FinishReason::Cancelled);
    assert!(
        unwanted.text == streamed && whole.text.starts_with(&streamed) && streamed.len() < whole.text.len()
    );

    let handle = engine.cancel_handle();
    let (cancelled, streamed) = answer(&mut engine, "Once upon a time", &limited, |pieces| {
        if pieces == 3 {
            handle.cancel();
        }
        true
    });
    assert_eq!(cancelled.finish, FinishReason::Cancelled);
    assert!(
        cancelled.text == streamed && whole.text.starts_with(&streamed) && streamed.len() < whole.text.len()
    );

    // Neither end stays: the same answer comes once more.
    assert_eq!(answer(&mut engine, "Once upon a time", &limited, |_| true).0.tokens, whole.tokens);
}

#[test]
fn options_that_cannot_work_are_refused_by_name() {
    let refused = |options: LoadOptions| {
        let path = common::testdata("archs/llama-dense.f16.gguf");
        match Engine::load(&path, &options, &mut |_| {}).map(drop).expect_err("it cannot work") {
            LoadError::BadOption { option, .. } => option,
            other => panic!("{other}"),
        }
    };
    let usual = LoadOptions { threads: 1, ..LoadOptions::default() };
    assert_eq!(refused(LoadOptions { threads: 0, ..usual.clone() }), "threads");
    assert_eq!(refused(LoadOptions { threads: 1 << 20, ..usual.clone() }), "threads");
    assert_eq!(refused(LoadOptions { prefill_chunk_tokens: 0, ..usual.clone() }), "prefill_chunk_tokens");
    assert_eq!(refused(LoadOptions { max_batch_rows: 0, ..usual.clone() }), "max_batch_rows");
    assert_eq!(refused(LoadOptions { context_limit: Some(1), ..usual.clone() }), "context_limit");
    assert_eq!(refused(LoadOptions { kv_budget_bytes: 1, ..usual }), "kv_budget_bytes");
}

#[test]
fn a_budget_beyond_memory_is_refused_and_not_an_abort() {
    let options = LoadOptions { threads: 1, kv_budget_bytes: 1 << 49, ..LoadOptions::default() };
    let path = common::testdata("quants/llama-dense.q8_0.gguf");
    let error = Engine::load(&path, &options, &mut |_| {}).map(drop).expect_err("nobody has that much");
    assert!(error.to_string().contains("bytes for keys and values"), "{error}");
}

/// A small model whose last norm is NaN, so that no logit is a number.
#[test]
fn a_model_that_gives_no_number_fails_and_says_so() {
    let source = common::testdata("archs/llama-dense.f16.gguf");
    let sound = zllm_engine::gguf::GgufFile::open(&source).expect("a reference file");
    let norm = sound.require_tensor("output_norm.weight").expect("llama has a last norm").range();
    let mut bytes = std::fs::read(&source).expect("a reference file");
    bytes[norm].chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&f32::NAN.to_le_bytes()));
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("nan.gguf");
    std::fs::write(&path, bytes).expect("the scratch folder can be written");

    let options = LoadOptions { kv_budget_bytes: 1 << 20, ..LoadOptions::default() };
    let mut engine = Engine::load(&path, &options, &mut |_| {}).expect("its numbers are not looked at");
    let prompt = Prompt::Tokens(vec![1, 2, 3]);
    let error = engine.generate(&prompt, &params(""), |_| ControlFlow::Continue(())).expect_err("no number");
    assert!(matches!(error, GenerateError::NoLogits(_)), "{error}");
    assert!(error.to_string().contains("token 3"), "{error}");
}
