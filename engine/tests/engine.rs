//! The embeddable engine with a real model: what any Rust program gets.

mod common;

use std::ops::ControlFlow;

use zllm_engine::{
    Chat, Engine, FinishReason, GenerateError, GenerationParams, LoadOptions, Message, Prompt, RequestError,
    Summary, TemplateChoice, sampling::SamplingParams,
};

fn engine(options: LoadOptions) -> Engine {
    Engine::load(&common::model("smollm2-135m"), &options, &mut |_| {}).expect("a model")
}

fn small() -> LoadOptions {
    LoadOptions { kv_budget_bytes: 64 << 20, ..LoadOptions::default() }
}

fn greedy(max_tokens: u32) -> GenerationParams {
    GenerationParams {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        ..GenerationParams::default()
    }
}

fn text(text: &str) -> Prompt {
    Prompt::Text { text: text.into(), parse_special: false }
}

/// The summary, and what the callback got put together.
fn generate(engine: &mut Engine, prompt: &Prompt, params: &GenerationParams) -> (Summary, String) {
    let mut streamed = String::new();
    let summary = engine.generate(prompt, params, |piece| {
        streamed.push_str(piece);
        ControlFlow::Continue(())
    });
    (summary.expect("an answer"), streamed)
}

#[test]
fn the_same_prompt_gives_the_same_answer_cold_and_warm_in_any_chunks() {
    let prompt = text(&"The quick brown fox jumps over the lazy dog. ".repeat(20));
    let mut first = engine(small());
    let (cold, streamed) = generate(&mut first, &prompt, &greedy(24));
    assert_eq!(streamed, cold.text);
    assert_eq!((cold.cached_tokens, cold.tokens.len(), cold.finish), (0, 24, FinishReason::Length));
    let (warm, _) = generate(&mut first, &prompt, &greedy(24));
    assert_eq!(warm.cached_tokens, cold.prompt_tokens - 1, "all but the last token");
    assert_eq!(warm.tokens, cold.tokens);
    let (small_chunks, _) =
        generate(&mut engine(LoadOptions { prefill_chunk_tokens: 7, ..small() }), &prompt, &greedy(24));
    assert_eq!(small_chunks.tokens, cold.tokens);

    let sampled = |seed| GenerationParams {
        sampling: SamplingParams { temperature: 1.2, seed, ..SamplingParams::default() },
        ..greedy(24)
    };
    let (one, _) = generate(&mut first, &prompt, &sampled(1));
    assert_eq!(generate(&mut first, &prompt, &sampled(1)).0.tokens, one.tokens);
    assert_ne!(generate(&mut first, &prompt, &sampled(2)).0.tokens, one.tokens);
}

#[test]
fn a_conversation_computes_only_its_new_turn() {
    let mut engine = engine(small());
    let mut messages = vec![Message::user("My name is Ada. Say hello to me.")];
    let chat = |messages: &[Message]| Prompt::Chat(Chat::new(messages.to_vec()));
    let (first, _) = generate(&mut engine, &chat(&messages), &greedy(40));
    assert_eq!(first.cached_tokens, 0);
    messages.extend([Message::assistant(first.text.as_str()), Message::user("What is my name?")]);
    let (second, _) = generate(&mut engine, &chat(&messages), &greedy(40));
    assert!(second.cached_tokens >= first.prompt_tokens, "{second:?}");
    assert_eq!(engine.kv().tokens, second.prompt_tokens + second.tokens.len() - 1);
    engine.reset();
    assert_eq!((engine.kv().tokens, engine.kv().used_blocks), (0, 0));
    assert_eq!(generate(&mut engine, &chat(&messages), &greedy(40)).0.tokens, second.tokens);
}

#[test]
fn stop_strings_callbacks_and_handles_end_an_answer() {
    let mut engine = engine(small());
    let prompt = text("1, 2, 3, 4, 5, 6, 7,");
    let (free, _) = generate(&mut engine, &prompt, &greedy(32));
    let stop = free.text.get(4..9).expect("some text").to_owned();
    let params = GenerationParams { stop: vec![stop.clone()], ..greedy(32) };
    let (stopped, streamed) = generate(&mut engine, &prompt, &params);
    assert_eq!(
        (stopped.text.as_str(), stopped.finish),
        (free.text.split(&stop).next().unwrap(), FinishReason::Stop)
    );
    assert_eq!(streamed, stopped.text);

    let broken = engine.generate(&prompt, &greedy(32), |_| ControlFlow::Break(())).expect("an answer");
    assert_eq!(broken.finish, FinishReason::Cancelled);
    assert!(free.text.starts_with(&broken.text) && broken.text.len() < free.text.len());

    engine.cancel_handle().cancel();
    let (cancelled, _) = generate(&mut engine, &prompt, &greedy(32));
    assert_eq!((cancelled.finish, cancelled.tokens.len()), (FinishReason::Cancelled, 0));
    assert_eq!(generate(&mut engine, &prompt, &greedy(32)).0.text, free.text, "a cancel ends one answer");
}

#[test]
fn requests_that_cannot_be_served_say_why_and_harm_nothing() {
    let mut engine =
        engine(LoadOptions { context_limit: Some(64), kv_budget_bytes: 8 << 20, ..LoadOptions::default() });
    let mut refused = |prompt: Prompt, params: GenerationParams| {
        let result = engine.generate(&prompt, &params, |_| ControlFlow::Continue(()));
        match result.expect_err("a refusal") {
            GenerateError::Request(error) => error,
            other => panic!("{other}"),
        }
    };
    let long = refused(Prompt::Tokens(vec![5; 64]), greedy(1));
    assert_eq!(
        long.to_string(),
        "the prompt has 64 tokens and the context holds 64, one of them for the answer"
    );
    assert!(matches!(refused(text(""), greedy(1)), RequestError::EmptyPrompt));
    assert!(matches!(
        refused(Prompt::Tokens(vec![1, 1 << 20]), greedy(1)),
        RequestError::BadToken { place: 1, .. }
    ));
    assert!(refused(text("a"), greedy(0)).to_string().contains("max_tokens"));
    let hot = GenerationParams {
        sampling: SamplingParams { temperature: f32::NAN, ..SamplingParams::greedy() },
        ..greedy(1)
    };
    assert!(refused(text("a"), hot).to_string().contains("temperature"));
    // The last prompt that fits has room for one token.
    let (last, _) = generate(&mut engine, &Prompt::Tokens(vec![5; 63]), &greedy(9));
    assert_eq!((last.tokens.len(), last.finish), (1, FinishReason::Length));
}

#[test]
fn a_model_without_a_template_serves_text_and_refuses_conversations() {
    let mut engine = Engine::load(&common::model("gemma3-270m"), &small(), &mut |_| {}).expect("a model");
    assert!(!engine.text().has_template());
    let prompt = Prompt::Chat(Chat::new(vec![Message::user("hi")]));
    let error = engine.generate(&prompt, &greedy(1), |_| ControlFlow::Continue(())).expect_err("a refusal");
    assert!(error.to_string().contains("has no chat template; name one"), "{error}");
    assert!(error.to_string().contains("chatml, command-r,"), "{error}");

    // A template by name or as text renders; the begin token that it writes is not put there again.
    let encode = |template: TemplateChoice| {
        let chat = Chat { template: Some(template), ..Chat::new(vec![Message::user("hi")]) };
        engine.text().encode(&Prompt::Chat(chat))
    };
    let rendered = "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n";
    let mut ids = Vec::new();
    engine.text().tokenizer().expect("a tokenizer").encode_with_bos(rendered, true, &mut ids);
    assert_eq!(ids[..2], [2, 105], "<bos> and <start_of_turn>");
    assert_eq!(encode(TemplateChoice::Named("gemma".into())).expect("a prompt"), ids);
    let source =
        "<start_of_turn>user\n{{ messages[0].content }}<end_of_turn>\n<start_of_turn>model{{ '\n' }}";
    assert_eq!(encode(TemplateChoice::Source(source.into())).expect("a prompt"), ids, "<bos> is put before");
    let error = encode(TemplateChoice::Named("nonsense".into())).expect_err("no such template").to_string();
    assert!(error.starts_with("there is no chat template \"nonsense\"; model "), "{error}");
    let raising = "{{ raise_exception('only one message, please') }}";
    let error = encode(TemplateChoice::Source(raising.into())).expect_err("a refusal").to_string();
    assert_eq!(error, "only one message, please");

    let configured = LoadOptions { template: Some(TemplateChoice::Named("gemma".into())), ..small() };
    let other = Engine::load(&common::model("gemma3-270m"), &configured, &mut |_| {}).expect("a model");
    assert!(other.text().has_template());
    let prompt = Prompt::Chat(Chat::new(vec![Message::user("hi")]));
    assert_eq!(other.text().encode(&prompt).expect("a prompt"), ids);
    let (answer, _) = generate(&mut engine, &text("The capital of France is"), &greedy(8));
    assert_eq!(answer.tokens.len(), 8);
}
