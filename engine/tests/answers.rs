//! What a request says of its answer's end and of log probabilities, on a real model.

mod common;

use std::ops::ControlFlow;

use zllm_engine::{
    Engine, FinishReason, GenerateError, GenerationParams, LoadOptions, Prompt, StopCause, Summary,
    sampling::SamplingParams,
};

fn engine() -> Engine {
    let options = LoadOptions { threads: 2, kv_budget_bytes: 16 << 20, ..LoadOptions::default() };
    Engine::load(&common::model("smollm2-135m"), &options, &mut |_| {}).expect("a model")
}

fn greedy(max_tokens: u32) -> GenerationParams {
    GenerationParams {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..GenerationParams::default()
    }
}

fn ask(engine: &mut Engine, text: &str, params: &GenerationParams) -> Result<Summary, GenerateError> {
    let prompt = Prompt::Text { text: text.to_owned(), parse_special: false };
    engine.generate(&prompt, params, |_| ControlFlow::Continue(()))
}

fn answer(engine: &mut Engine, text: &str, params: &GenerationParams) -> Summary {
    ask(engine, text, params).expect("an answer")
}

#[test]
fn log_probabilities_are_the_models_own_and_say_where_each_token_stands() {
    let mut engine = engine();
    for text in ["The capital of France is", "🎉🎊🎉🎊🎉🎊", "日本語の文。日本語の"] {
        let plain = answer(&mut engine, text, &greedy(16));
        assert!(plain.reports.is_empty());
        let told = answer(&mut engine, text, &GenerationParams { logprobs: Some(20), ..greedy(16) });
        assert_eq!((&told.tokens, &told.text), (&plain.tokens, &plain.text));
        assert_eq!(told.reports.len(), told.tokens.len());
        let mut bytes = Vec::new();
        for (report, &token) in told.reports.iter().zip(&told.tokens) {
            assert_eq!((report.token, report.offset), (token, bytes.len()));
            bytes.extend_from_slice(&report.bytes);
            // Greedy takes the likeliest, and the list begins with it.
            let first = &report.alternatives[0];
            assert_eq!((first.token, first.log_probability), (token, report.log_probability));
            assert_eq!(report.alternatives.len(), 20);
            assert!(report.alternatives.is_sorted_by(|a, b| a.log_probability >= b.log_probability));
            let sum: f32 = report.alternatives.iter().map(|other| other.log_probability.exp()).sum();
            assert!(sum > 0.05 && sum < 1.0001, "{sum}");
        }
        assert_eq!(String::from_utf8_lossy(&bytes), told.text);
    }

    // A bias and a temperature change what is drawn, not what the model thought of it.
    let first = answer(&mut engine, "Once upon a", &GenerationParams { logprobs: Some(9), ..greedy(1) });
    let unlikely = first.reports[0].alternatives[7].clone();
    let mut pushed = GenerationParams { logprobs: Some(0), ..greedy(1) };
    pushed.sampling =
        SamplingParams { logit_bias: vec![(unlikely.token, 500.0)], ..SamplingParams::default() };
    let drawn = answer(&mut engine, "Once upon a", &pushed).reports.remove(0);
    assert_eq!((drawn.token, &drawn.bytes), (unlikely.token, &unlikely.bytes));
    assert_eq!(drawn.log_probability, unlikely.log_probability);
    assert!(drawn.alternatives.is_empty());
}

#[test]
fn an_answer_says_which_stop_ended_it() {
    let mut engine = engine();
    let whole =
        answer(&mut engine, "Once upon a time", &GenerationParams { logprobs: Some(0), ..greedy(16) });
    assert_eq!((whole.finish, whole.stop), (FinishReason::Length, None));

    let token = whole.tokens[9];
    let at = whole.tokens.iter().position(|&other| other == token).expect("it is there");
    let by_token = GenerationParams { stop_tokens: vec![u32::from(u16::MAX) / 2, token], ..greedy(16) };
    let stopped = answer(&mut engine, "Once upon a time", &by_token);
    assert_eq!((stopped.finish, stopped.stop), (FinishReason::Stop, Some(StopCause::Token { token })));
    assert_eq!(stopped.tokens, whole.tokens[..=at]);
    assert_eq!(stopped.text, whole.text[..whole.reports[at].offset]);

    let stop = ["never said", whole.text[12..].split_inclusive(' ').next().expect("a word")];
    let by_text = GenerationParams { stop: stop.map(String::from).to_vec(), ..greedy(16) };
    let stopped = answer(&mut engine, "Once upon a time", &by_text);
    assert_eq!((stopped.finish, stopped.stop), (FinishReason::Stop, Some(StopCause::Text { index: 1 })));
    assert_eq!(stopped.text, whole.text[..whole.text.find(stop[1]).expect("a part")]);

    let ends = engine.text().tokenizer().expect("a tokenizer").ends_of_generation().to_vec();
    let mut ending = GenerationParams { ignore_eos: false, ..greedy(16) };
    ending.sampling.logit_bias = vec![(ends[0], 500.0)];
    let stopped = answer(&mut engine, "Once upon a time", &ending);
    assert_eq!(stopped.stop, Some(StopCause::EndOfText { token: ends[0] }));
    assert_eq!((stopped.tokens.as_slice(), stopped.text.as_str()), (&ends[..1], ""));
    let going_on = answer(&mut engine, "Once upon a time", &GenerationParams { ignore_eos: true, ..ending });
    assert_eq!((going_on.finish, going_on.tokens), (FinishReason::Length, vec![ends[0]; 16]));
}

#[test]
fn nothing_ends_an_answer_before_its_fewest_tokens() {
    let mut engine = engine();
    let whole = answer(&mut engine, "Once upon a time", &greedy(16));
    let ends = engine.text().tokenizer().expect("a tokenizer").ends_of_generation().to_vec();

    // The end token is the likeliest everywhere, and comes as soon as it may.
    let mut ending = GenerationParams { ignore_eos: false, min_tokens: 6, ..greedy(16) };
    ending.sampling.logit_bias = vec![(ends[0], 500.0)];
    let late = answer(&mut engine, "Once upon a time", &ending);
    assert_eq!(late.tokens[..6], whole.tokens[..6]);
    assert_eq!((late.tokens.len(), late.stop), (7, Some(StopCause::EndOfText { token: ends[0] })));

    // A stop token is not drawn before it may be: another stands in its place.
    let token = whole.tokens[2];
    let stops = GenerationParams { stop_tokens: vec![token], min_tokens: 4, ..greedy(16) };
    let late = answer(&mut engine, "Once upon a time", &stops);
    assert_eq!(late.tokens[..2], whole.tokens[..2]);
    assert!(!late.tokens[..4].contains(&token) && late.tokens.len() >= 4);

    // A stop string that stands in the first tokens does not count; the next one does.
    let letters = GenerationParams { stop: vec!["e".into()], ..greedy(16) };
    let soon = answer(&mut engine, "Once upon a time", &letters);
    let late = answer(&mut engine, "Once upon a time", &GenerationParams { min_tokens: 5, ..letters });
    assert_eq!(late.finish, FinishReason::Stop);
    assert!(late.text.len() > soon.text.len() && whole.text.starts_with(&late.text), "{soon:?} {late:?}");
    assert!(late.tokens.len() > 5);
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let mut engine = engine();
    let mut refused = |change: fn(&mut GenerationParams)| {
        let mut params = greedy(8);
        change(&mut params);
        ask(&mut engine, "x", &params).expect_err("it cannot be honoured").to_string()
    };
    assert_eq!(refused(|p| p.min_tokens = 9), "min_tokens is 9; it must be at most max_tokens, 8");
    assert_eq!(refused(|p| p.logprobs = Some(21)), "logprobs is 21; it must be from 0 to 20");
    assert!(refused(|p| p.stop_tokens = vec![1, 1 << 20]).starts_with("stop_tokens names token 1048576"));
    assert_eq!(
        refused(|p| p.stop_tokens = vec![1; 65]),
        "stop_tokens is a list of 65; at most 64 tokens are allowed"
    );
    let room = refused(|p| (p.max_tokens, p.min_tokens) = (None, 1 << 20));
    assert!(
        room.starts_with("min_tokens is 1048576; it must be at most the tokens there is room for"),
        "{room}"
    );
    assert!(refused(|p| p.sampling.mirostat = 1).starts_with("mirostat is 1"));

    // A model without a tokenizer has no text to look for stops in.
    let options = LoadOptions { threads: 1, kv_budget_bytes: 1 << 20, ..LoadOptions::default() };
    let path = common::testdata("archs/llama-dense.f16.gguf");
    let mut bare = Engine::load(&path, &options, &mut |_| {}).expect("a model");
    let mut refused = |change: fn(&mut GenerationParams)| {
        let mut params = greedy(8);
        change(&mut params);
        let prompt = Prompt::Tokens(vec![1, 2, 3]);
        let answer = bare.generate(&prompt, &params, |_| ControlFlow::Continue(()));
        answer.expect_err("it cannot be honoured").to_string()
    };
    assert!(
        refused(|p| p.stop = vec!["x".into()]).starts_with("stop is a list of texts; it must be empty here")
    );
    let breakers = refused(|p| p.sampling.dry_multiplier = 1.0);
    assert!(
        breakers.starts_with("dry_sequence_breakers is a list of texts; it must be empty here"),
        "{breakers}"
    );
    // Stop tokens and DRY without breakers work there too.
    let mut params = greedy(8);
    params.sampling.dry_multiplier = 0.5;
    params.sampling.dry_sequence_breakers.clear();
    params.logprobs = Some(2);
    let prompt = Prompt::Tokens(vec![1, 2, 3]);
    let whole = bare.generate(&prompt, &params, |_| ControlFlow::Continue(())).expect("an answer");
    assert_eq!((whole.reports.len(), whole.text.as_str()), (8, ""));
    params.stop_tokens = vec![whole.tokens[3]];
    let stopped = bare.generate(&prompt, &params, |_| ControlFlow::Continue(())).expect("an answer");
    assert_eq!(stopped.stop, Some(StopCause::Token { token: whole.tokens[3] }));
}
