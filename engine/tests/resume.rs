//! An answer that is cut anywhere and resumed from its tokens goes on as if nothing had happened: tokens, texts, what is
//! held back, log probabilities, the sampler's state and the end. The logits are made up, so no model is needed.

mod common;

use std::sync::{Arc, LazyLock};

use proptest::{collection::vec, prelude::*, sample::select};
use zllm_engine::{
    Accepted, FinishReason, Generation, GenerationParams, Resumed, TextModel,
    gguf::GgufFile,
    sampling::{SamplerState, SamplingParams},
    spec::ModelSpec,
};

/// Longest sequence: the prompt and 40 tokens.
const CONTEXT: usize = PROMPT.len() + 40;
const PROMPT: [u32; 6] = [70, 71, 70, 71, 72, 73];
/// What the made-up model says; some of it only in pieces of characters.
const SAID: &str = "ab.é€🙂";

static FIXTURE: LazyLock<Fixture> = LazyLock::new(Fixture::new);

struct Fixture {
    text_model: Arc<TextModel>,
    /// Tokens that have a chance: each byte of [`SAID`], the end token, and one that only pads the embedding.
    likely: Vec<u32>,
}

impl Fixture {
    fn new() -> Self {
        let file = |name| GgufFile::open(&common::testdata(name)).expect("a sound file");
        let vocabulary = file("tokenizers/byte-pairs.gguf");
        let mut spec = ModelSpec::read(&file("archs/llama-dense.f16.gguf"), None).expect("a sound model");
        (spec.vocab_size, spec.context_length) = (usize::MAX, CONTEXT);
        let tokens = TextModel::read(&vocabulary, &spec, None).tokenizer().expect("a tokenizer").vocab_size();
        spec.vocab_size = tokens + 3;
        let text_model = TextModel::read(&vocabulary, &spec, None);
        let tokenizer = text_model.tokenizer().expect("a tokenizer");
        let is_said =
            |id: &u32| matches!(tokenizer.token_bytes(*id), [byte] if SAID.as_bytes().contains(byte));
        let mut likely: Vec<u32> = (0..tokens as u32).filter(is_said).collect();
        assert_eq!(likely.len(), 3 + 9 - 1, "all bytes of the text; two of them are the same");
        likely.push(tokenizer.ends_of_generation()[0]);
        likely.push(tokens as u32 + 1);
        Self { text_model: Arc::new(text_model), likely }
    }

    /// Depends on everything that a model sees, and often favours what came before.
    fn logits(&self, seed: u64, tokens: &[u32]) -> Vec<f32> {
        let mut logits = vec![-30.0; self.text_model.vocab_size()];
        let mut hash = tokens.iter().fold(seed | 1, |hash, &token| mix(hash ^ u64::from(token)));
        for &token in &self.likely {
            hash = mix(hash);
            logits[token as usize] = (hash >> 40) as f32 / (1u64 << 22) as f32;
        }
        logits
    }

    /// Draws to the end; `tokens` grows with it. Each token's outcome, with what is held back after it.
    fn draw(&self, mut generation: Generation, seed: u64, tokens: &mut Vec<u32>) -> Vec<(Accepted, String)> {
        let mut drawn = Vec::new();
        loop {
            let accepted = generation.accept(&mut self.logits(seed, tokens)).expect("a number to draw");
            tokens.push(accepted.token);
            let is_over = accepted.finish.is_some();
            drawn.push((accepted, generation.held().to_owned()));
            if is_over {
                return drawn;
            }
        }
    }

    fn whole(&self, params: &GenerationParams, seed: u64) -> (Vec<u32>, Vec<(Accepted, String)>) {
        let generation = Generation::new(self.text_model.clone(), &PROMPT, params).expect("sound parameters");
        let mut tokens = PROMPT.to_vec();
        let drawn = self.draw(generation, seed, &mut tokens);
        (tokens.split_off(PROMPT.len()), drawn)
    }
}

fn mix(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number ^ number >> 29
}

fn chain() -> impl Strategy<Value = SamplingParams> {
    let drawn = SamplingParams { temperature: 1.2, top_k: 0, min_p: 0.01, ..SamplingParams::default() };
    select(vec![
        SamplingParams::greedy(),
        SamplingParams::default(),
        drawn.clone(),
        SamplingParams { dynatemp_range: 0.7, ..drawn.clone() },
        SamplingParams { typical_p: 0.7, ..drawn.clone() },
        SamplingParams { xtc_probability: 0.5, ..drawn },
        SamplingParams { mirostat_tau: 2.0, mirostat_eta: 0.3, ..SamplingParams::mirostat() },
        SamplingParams { temperature: 1.5, mirostat_tau: 3.0, ..SamplingParams::mirostat() },
    ])
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let penalties = prop_oneof![
        Just((1.0, 0.0, 0.0, 64)),
        (select(vec![0.8f32, 1.0, 1.3]), select(vec![0.0f32, 0.4]), Just(-0.3f32), 1u32..50),
    ];
    let dry = prop::option::of((1u32..4, select(vec![3u32, 9, 64]), any::<bool>()));
    (chain(), penalties, dry, any::<u64>(), 0u32..3).prop_map(|(mut chain, penalties, dry, seed, choice)| {
        (chain.repeat_penalty, chain.frequency_penalty, chain.presence_penalty, chain.repeat_last_n) =
            penalties;
        if let Some((allowed, window, breakers)) = dry {
            (chain.dry_multiplier, chain.dry_allowed_length, chain.dry_penalty_last_n) =
                (0.8, allowed, window);
            let breakers = if breakers { &["b", "€🙂"][..] } else { &[] };
            chain.dry_sequence_breakers = breakers.iter().map(ToString::to_string).collect();
        }
        chain.seed = seed;
        chain.for_choice(choice)
    })
}

fn params() -> impl Strategy<Value = GenerationParams> {
    let stop = vec("[ab.é€🙂]{1,4}", 0..4);
    let max_tokens = prop::option::of(1u32..50);
    let rest = (any::<bool>(), prop::option::of(0u32..4), any::<bool>());
    (sampling(), stop, max_tokens, 0u32..12, rest).prop_map(
        |(sampling, stop, max_tokens, min_tokens, (ignore_eos, logprobs, stop_token))| GenerationParams {
            sampling,
            stop,
            max_tokens,
            min_tokens: min_tokens.min(max_tokens.unwrap_or(40)),
            stop_tokens: if stop_token { vec![FIXTURE.likely[1]] } else { vec![] },
            ignore_eos,
            logprobs,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn an_answer_cut_anywhere_goes_on_to_the_bit(params in params(), seed in any::<u64>()) {
        let fixture = &*FIXTURE;
        let (tokens, whole) = fixture.whole(&params, seed);
        for cut in 0..=tokens.len() {
            let (before, after) = whole.split_at(cut);
            let fresh = SamplerState { mirostat_mu: f32::NAN };
            let state = before.last().map_or(fresh, |(accepted, _)| accepted.state);
            let text_model = fixture.text_model.clone();
            let resumed = Generation::resume(text_model, &PROMPT, &params, &tokens[..cut], state);
            match resumed.expect("tokens that were drawn so") {
                Resumed::Going(generation) => {
                    let held = before.last().map_or("", |(_, held)| held);
                    prop_assert_eq!(generation.held(), held);
                    let mut all = PROMPT.to_vec();
                    all.extend_from_slice(&tokens[..cut]);
                    prop_assert_eq!(&fixture.draw(*generation, seed, &mut all)[..], after, "cut at {}", cut);
                }
                Resumed::Ended { text, finish, stop } => {
                    let (last, _) = whole.last().expect("a token");
                    prop_assert_eq!(cut, tokens.len());
                    prop_assert_eq!((text, Some(finish), stop), (last.text.clone(), last.finish, last.stop));
                }
            }
        }
    }
}

/// The harness sees what a resume loses that only knows the tokens: here each loss on its own shows in some answer.
#[test]
fn a_resume_that_forgets_anything_is_noticed() {
    let fixture = &*FIXTURE;
    let base = || GenerationParams { ignore_eos: true, max_tokens: Some(30), ..GenerationParams::default() };
    let sampled = |sampling| GenerationParams { sampling, ..base() };
    let mirostat = SamplingParams { mirostat_tau: 2.0, mirostat_eta: 0.5, ..SamplingParams::mirostat() };
    let cases = [
        ("mirostat", sampled(mirostat)),
        ("held", GenerationParams { stop: vec!["a.".into(), "b.".into(), "é.".into()], ..base() }),
        ("offsets", GenerationParams { logprobs: Some(0), ..base() }),
        ("characters", base()),
        ("left", base()),
        ("must", GenerationParams { min_tokens: 25, stop: vec!["a".into(), "b".into()], ..base() }),
    ];
    for (what, params) in cases {
        let differs = |seed: u64| {
            let (tokens, whole) = fixture.whole(&params, seed);
            (1..tokens.len()).any(|cut| {
                let mut all = [&PROMPT[..], &tokens[..cut]].concat();
                // As an answer to a prompt that ends with what was generated.
                let shorter = params.max_tokens.map(|most| most - cut as u32).filter(|_| what != "left");
                let must = if what == "must" { 0 } else { params.min_tokens };
                let naive = GenerationParams { max_tokens: shorter, min_tokens: must, ..params.clone() };
                let generation =
                    Generation::new(fixture.text_model.clone(), &all, &naive).expect("sound parameters");
                fixture.draw(generation, seed, &mut all) != whole[cut..]
            })
        };
        assert!((0..50).any(differs), "{what} makes no difference");
    }
}

#[test]
fn tokens_that_cannot_have_been_drawn_are_refused() {
    let fixture = &*FIXTURE;
    let params = GenerationParams { max_tokens: Some(3), ignore_eos: true, ..GenerationParams::default() };
    let state = SamplerState::new(&params.sampling);
    let resume =
        |tokens: &[u32]| Generation::resume(fixture.text_model.clone(), &PROMPT, &params, tokens, state);
    assert!(matches!(resume(&[70, 71]), Ok(Resumed::Going(_))));
    assert!(matches!(resume(&[70, 71, 72]), Ok(Resumed::Ended { finish: FinishReason::Length, .. })));
    let message = |tokens: &[u32]| resume(tokens).err().expect("it cannot be").to_string();
    assert!(
        message(&[70, 71, 72, 73])
            .starts_with("the answer was complete with token 72 at place 2, but has 4 tokens")
    );
    assert!(message(&[70, u32::MAX]).starts_with("token 4294967295 at place 1 is outside the vocabulary of"));
}
