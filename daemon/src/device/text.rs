//! The engine's text side behind the daemon's port, and the protocol's parameters in the engine's words.

use super::port::{Customs, Generate, Objection, Resumed, TextFacts, TextModel, too_long};
use crate::scheduler::plan::Accepted;
use std::sync::Arc;
use zllm_engine::sampling::{SamplerState, SamplingError, SamplingParams};
use zllm_engine::{Chat, Generation, Message, RequestError, SpeechStyle, TemplateChoice, TokenReport};
use zllm_wire::{ChoiceEnd, ErrorCode, Fault, FinishReason, StopCause, TokenLogprob, TopLogprob};

/// One model's text side.
pub(super) struct EngineText {
    text: Arc<zllm_engine::TextModel>,
    facts: TextFacts,
}

impl EngineText {
    /// The text side of the model with this fingerprint.
    pub(super) fn new(text: Arc<zllm_engine::TextModel>, fingerprint: [u8; 32]) -> Self {
        let facts = TextFacts {
            architecture: text.architecture().to_owned(),
            context_tokens: text.context_length(),
            width: text.width(),
            pooling: text.pooling().map_err(|error| error.to_string()),
            has_template: text.has_template(),
            fingerprint,
        };
        Self { text, facts }
    }
}

impl TextModel for EngineText {
    fn facts(&self) -> &TextFacts {
        &self.facts
    }

    fn encode(&self, prompt: &zllm_wire::Prompt, now_unix_s: i64) -> Result<(Vec<u32>, SpeechStyle), Fault> {
        let prompt = engine_prompt(prompt, now_unix_s).map_err(invalid)?;
        self.text.encode_for_speech(&prompt).map_err(|error| match error {
            RequestError::ContextExceeded { tokens, context } => too_long(tokens, context),
            error => invalid(error.to_string()),
        })
    }

    fn render(
        &self,
        prompt: &zllm_wire::Prompt,
        now_unix_s: i64,
        add_generation_prompt: bool,
    ) -> Result<String, Fault> {
        match engine_prompt(prompt, now_unix_s).map_err(invalid)? {
            zllm_engine::Prompt::Text { text, .. } => Ok(text),
            zllm_engine::Prompt::Tokens(_) => Err(invalid("the prompt is token ids, not text".into())),
            zllm_engine::Prompt::Chat(chat) => {
                let text = self.text.render_until(&chat, add_generation_prompt);
                text.map_err(|error| invalid(error.to_string()))
            }
        }
    }

    fn pieces(&self, tokens: &[u32]) -> Result<Vec<Vec<u8>>, String> {
        let tokenizer = self.text.tokenizer().map_err(|error| error.to_string())?;
        let size = tokenizer.vocab_size();
        if let Some(place) = tokens.iter().position(|&token| token as usize >= size) {
            let token = tokens[place];
            return Err(format!("token {token} at place {place} is none of the {size} of the vocabulary"));
        }
        Ok(tokens.iter().map(|&token| tokenizer.token_bytes(token).to_vec()).collect())
    }

    fn customs(&self) -> Customs {
        let tokenizer = self.text.tokenizer().ok();
        let text = |id: Option<u32>| {
            let text = tokenizer.zip(id).map(|(tokenizer, id)| tokenizer.token_text(id).to_owned());
            text.unwrap_or_default()
        };
        let template = self.text.default_template(false).ok();
        Customs {
            takes_tools: self.text.default_template(true).is_ok_and(|template| template.takes_tools()),
            thinks: template.as_ref().is_some_and(|template| template.speech_style().reasoning),
            template: template.map(|template| template.source().to_owned()),
            bos_token: text(tokenizer.and_then(|tokenizer| tokenizer.bos())),
            eos_token: text(tokenizer.and_then(|tokenizer| tokenizer.eos())),
        }
    }

    fn encode_whole(&self, text: &zllm_wire::Prompt, cut: bool) -> Result<Vec<u32>, Fault> {
        // No conversation, and so no date.
        let prompt = engine_prompt(text, 0).map_err(invalid)?;
        self.text.encode_whole(&prompt, cut).map_err(|error| {
            let message = error.to_string();
            match error {
                RequestError::InputTooLong { tokens, context } => {
                    let code = ErrorCode::TooLong { tokens: tokens as u64, context: context as u64 };
                    Fault { code, message }
                }
                _ => invalid(message),
            }
        })
    }

    fn tokenize(&self, text: &str, parse_special: bool, add_bos: bool) -> Result<Vec<u32>, String> {
        let tokenizer = self.text.tokenizer().map_err(|error| error.to_string())?;
        let mut tokens = Vec::new();
        if add_bos {
            tokenizer.encode_with_bos(text, parse_special, &mut tokens);
        } else {
            tokenizer.encode(text, parse_special, &mut tokens);
        }
        Ok(tokens)
    }

    fn text_of(&self, tokens: &[u32]) -> String {
        let Ok(tokenizer) = self.text.tokenizer() else { return format!("{tokens:?}") };
        let known = tokens.iter().filter(|&&id| (id as usize) < tokenizer.vocab_size());
        let bytes: Vec<u8> = known.flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn generation(
        &self,
        prompt: &[u32],
        params: &zllm_wire::GenerationParams,
        choice: u32,
    ) -> Result<Box<dyn Generate>, Objection> {
        let generation = Generation::new(self.text.clone(), prompt, &choice_params(params, choice));
        generation.map(|generation| Box::new(generation) as _).map_err(|error| objection(&error))
    }

    fn resume(
        &self,
        prompt: &[u32],
        params: &zllm_wire::GenerationParams,
        choice: u32,
        generated: &[u32],
        state: f32,
    ) -> Result<Resumed, String> {
        let (text, params) = (self.text.clone(), choice_params(params, choice));
        let resumed =
            Generation::resume(text, prompt, &params, generated, SamplerState { mirostat_mu: state });
        match resumed.map_err(|error| error.to_string())? {
            zllm_engine::Resumed::Going(generation) => Ok(Resumed::Going(generation)),
            zllm_engine::Resumed::Ended { finish, stop, .. } => {
                Ok(Resumed::Ended(choice_end(finish, stop, &params.stop)))
            }
        }
    }
}

impl Generate for Generation {
    fn accept(&mut self, logits: &mut [f32]) -> Result<Accepted, String> {
        let accepted = Generation::accept(self, logits).map_err(|error| error.to_string())?;
        let zllm_engine::Accepted { token, text, finish, stop, report, state } = accepted;
        let finish = finish.map(|finish| choice_end(finish, stop, self.stop_strings()));
        let held = if finish.is_some() { String::new() } else { self.held().to_owned() };
        let logprob = report.map(wire_logprob);
        Ok(Accepted { token, text, held, logprob, finish, state: state.mirostat_mu })
    }
}

fn invalid(message: String) -> Fault {
    Fault { code: ErrorCode::Invalid, message }
}

/// An objection to the parameter that an error is about. The engine's parameters are named as the protocol's.
fn objection(error: &RequestError) -> Objection {
    let field = match error {
        RequestError::BadParameter { field, .. } => field,
        RequestError::Stop(_) => "stop",
        RequestError::Sampling(error) => match error {
            SamplingError::OutOfRange { field, .. }
            | SamplingError::Conflict { field, .. }
            | SamplingError::Idle { field, .. }
            | SamplingError::UnknownToken { field, .. } => field,
            SamplingError::Mirostat { .. } => "mirostat",
            SamplingError::BreakerLength { .. } | SamplingError::TooManyBreakers { .. } => {
                "dry_sequence_breakers"
            }
            SamplingError::TooManyBiases { .. } => "logit_bias",
        },
        _ => return invalid(error.to_string()).into(),
    };
    Objection::to(field, error.to_string())
}

/// An answer's end in the protocol's words; `stops` are its stop strings.
fn choice_end(
    finish: zllm_engine::FinishReason,
    stop: Option<zllm_engine::StopCause>,
    stops: &[String],
) -> ChoiceEnd {
    ChoiceEnd {
        reason: match finish {
            zllm_engine::FinishReason::Stop => FinishReason::Stop,
            zllm_engine::FinishReason::Length => FinishReason::Length,
            zllm_engine::FinishReason::Cancelled => FinishReason::Cancelled,
        },
        stop: stop.map(|stop| match stop {
            zllm_engine::StopCause::EndOfText { token } => StopCause::EndOfText { token },
            zllm_engine::StopCause::Token { token } => StopCause::Token { token },
            zllm_engine::StopCause::Text { index } => StopCause::Text { text: stops[index].clone() },
        }),
    }
}

fn wire_logprob(report: TokenReport) -> TokenLogprob {
    let top = report.alternatives.into_iter().map(|other| TopLogprob {
        token: other.token,
        bytes: other.bytes,
        logprob: other.log_probability,
    });
    TokenLogprob {
        token: report.token,
        bytes: report.bytes,
        logprob: report.log_probability,
        offset: report.offset as u64,
        top: top.collect(),
    }
}

fn engine_prompt(prompt: &zllm_wire::Prompt, now_unix_s: i64) -> Result<zllm_engine::Prompt, String> {
    Ok(match prompt {
        zllm_wire::Prompt::Text { text, parse_special } => {
            zllm_engine::Prompt::Text { text: text.clone(), parse_special: *parse_special }
        }
        zllm_wire::Prompt::Tokens(tokens) => zllm_engine::Prompt::Tokens(tokens.0.clone()),
        zllm_wire::Prompt::Continue { session, .. } => {
            return Err(format!("the tokens of session {session} are the daemon's to add, not the model's"));
        }
        zllm_wire::Prompt::Chat { messages_json, tools_json, template, continue_last } => {
            let messages: Vec<Message> =
                serde_json::from_str(messages_json).map_err(|error| format!("messages: {error}"))?;
            let tools = tools_json.as_deref().map(serde_json::from_str).transpose();
            let tools: Option<serde_json::Value> = tools.map_err(|error| format!("tools: {error}"))?;
            if tools.as_ref().is_some_and(|tools| !tools.is_array() && !tools.is_null()) {
                return Err("tools: not an array of tool definitions".to_owned());
            }
            let template = template.as_ref().map(|template| match template {
                zllm_wire::Template::Named(name) => TemplateChoice::Named(name.clone()),
                zllm_wire::Template::Source(source) => TemplateChoice::Source(source.clone()),
            });
            zllm_engine::Prompt::Chat(Chat {
                messages,
                tools,
                template,
                now_unix_s: Some(now_unix_s),
                continue_last: *continue_last,
            })
        }
    })
}

/// The engine's parameters of one of a request's answers.
fn choice_params(params: &zllm_wire::GenerationParams, choice: u32) -> zllm_engine::GenerationParams {
    let params = engine_params(params);
    zllm_engine::GenerationParams { sampling: params.sampling.for_choice(choice), ..params }
}

/// What a request leaves open takes the engine's default; the seed too, so that the same request gives the same text.
/// With mirostat the filters that it takes the place of are off by default.
fn engine_params(params: &zllm_wire::GenerationParams) -> zllm_engine::GenerationParams {
    let given = params.sampling.clone();
    let default =
        if given.mirostat == Some(2) { SamplingParams::mirostat() } else { SamplingParams::default() };
    let sampling = SamplingParams {
        temperature: given.temperature.unwrap_or(default.temperature),
        dynatemp_range: given.dynatemp_range.unwrap_or(default.dynatemp_range),
        dynatemp_exponent: given.dynatemp_exponent.unwrap_or(default.dynatemp_exponent),
        top_k: given.top_k.unwrap_or(default.top_k),
        top_p: given.top_p.unwrap_or(default.top_p),
        min_p: given.min_p.unwrap_or(default.min_p),
        typical_p: given.typical_p.unwrap_or(default.typical_p),
        xtc_probability: given.xtc_probability.unwrap_or(default.xtc_probability),
        xtc_threshold: given.xtc_threshold.unwrap_or(default.xtc_threshold),
        mirostat: given.mirostat.unwrap_or(default.mirostat),
        mirostat_tau: given.mirostat_tau.unwrap_or(default.mirostat_tau),
        mirostat_eta: given.mirostat_eta.unwrap_or(default.mirostat_eta),
        repeat_penalty: given.repeat_penalty.unwrap_or(default.repeat_penalty),
        repeat_last_n: given.repeat_last_n.unwrap_or(default.repeat_last_n),
        frequency_penalty: given.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: given.presence_penalty.unwrap_or(default.presence_penalty),
        dry_multiplier: given.dry_multiplier.unwrap_or(default.dry_multiplier),
        dry_base: given.dry_base.unwrap_or(default.dry_base),
        dry_allowed_length: given.dry_allowed_length.unwrap_or(default.dry_allowed_length),
        dry_penalty_last_n: given.dry_penalty_last_n.unwrap_or(default.dry_penalty_last_n),
        dry_sequence_breakers: given.dry_sequence_breakers.unwrap_or(default.dry_sequence_breakers),
        logit_bias: given.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect(),
        seed: given.seed.unwrap_or(default.seed),
    };
    zllm_engine::GenerationParams {
        sampling,
        max_tokens: params.max_tokens,
        min_tokens: params.min_tokens.unwrap_or(0),
        stop: params.stop.clone(),
        stop_tokens: params.stop_tokens.clone(),
        ignore_eos: params.ignore_eos,
        logprobs: params.logprobs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of bytes; its text side needs no weights.
    fn small_model() -> EngineText {
        let file = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name);
            zllm_engine::gguf::GgufFile::open(&path).expect("a sound file")
        };
        let spec = zllm_engine::spec::ModelSpec::read(&file("archs/llama-dense.f16.gguf"), None);
        let spec = zllm_engine::spec::ModelSpec { vocab_size: 1 << 14, ..spec.expect("a sound model") };
        let text = zllm_engine::TextModel::read(&file("tokenizers/byte-pairs.gguf"), &spec, None);
        EngineText::new(Arc::new(text), [0; 32])
    }

    /// Draws from made-up logits until the end, or `most` tokens; the last token's end.
    fn draw(generation: &mut dyn Generate, from: usize, most: usize) -> (Vec<Accepted>, Option<ChoiceEnd>) {
        let mut drawn = Vec::new();
        for position in from..from + most {
            let mut logits: Vec<f32> =
                (0..1 << 14).map(|id| ((id * 7 + position * 3) % 1009) as f32 / 150.0).collect();
            drawn.push(generation.accept(&mut logits).expect("a number to draw"));
            if drawn.last().expect("pushed above").finish.is_some() {
                break;
            }
        }
        let end = drawn.last().and_then(|accepted| accepted.finish.clone());
        (drawn, end)
    }

    #[test]
    fn an_answer_is_resumed_with_its_choices_seed_and_its_samplers_state() {
        let model = small_model();
        let mut params = zllm_wire::GenerationParams { max_tokens: Some(12), ..Default::default() };
        params.sampling.mirostat = Some(2);
        params.logprobs = Some(1);
        for choice in [0, 2] {
            let mut generation = model.generation(&[1, 2], &params, choice).expect("sound parameters");
            let (whole, end) = draw(&mut *generation, 0, 12);
            let tokens: Vec<u32> = whole.iter().map(|accepted| accepted.token).collect();
            let resume = |cut: usize| {
                model
                    .resume(&[1, 2], &params, choice, &tokens[..cut], whole[cut - 1].state)
                    .expect("drawn so")
            };
            for cut in 1..tokens.len() {
                let Resumed::Going(mut generation) = resume(cut) else { panic!("it is not over at {cut}") };
                assert_eq!(draw(&mut *generation, cut, 12).0, whole[cut..]);
            }
            let Resumed::Ended(again) = resume(tokens.len()) else { panic!("it is over") };
            assert_eq!(Some(again), end);
        }
        assert!(model.resume(&[1, 2], &params, 0, &[3; 13], 0.0).is_err_and(|why| why.contains("13 tokens")));
    }

    /// Clients name templates and bound their size by what the protocol says.
    #[test]
    fn the_protocol_and_the_engine_have_the_same_templates() {
        assert_eq!(zllm_engine::template::BUILTIN_NAMES, zllm_wire::BUILTIN_TEMPLATES);
        assert_eq!(zllm_engine::template::MAX_SOURCE_BYTES, zllm_wire::limits::MAX_TEMPLATE_BYTES);
    }

    #[test]
    fn what_is_given_goes_through_and_what_is_not_takes_the_default() {
        let mut params = zllm_wire::GenerationParams::default();
        assert_eq!(engine_params(&params).sampling, SamplingParams::default());
        params.sampling.temperature = Some(0.0);
        params.sampling.repeat_last_n = Some(9);
        params.sampling.seed = Some(42);
        params.sampling.logit_bias = vec![zllm_wire::LogitBias { token: 3, bias: -1.5 }];
        params.stop = vec!["end".into()];
        params.max_tokens = Some(5);
        let engine = engine_params(&params);
        assert_eq!(
            (engine.sampling.temperature, engine.sampling.repeat_last_n, engine.sampling.seed),
            (0.0, 9, 42)
        );
        assert_eq!(engine.sampling.logit_bias, [(3, -1.5)]);
        assert_eq!((engine.max_tokens, engine.stop.as_slice()), (Some(5), &["end".to_owned()][..]));
    }

    /// A field that is added and not passed on would be ignored in silence.
    #[test]
    fn every_parameter_of_the_protocol_arrives() {
        let json = r#"{"sampling": {"temperature": 1.5, "dynatemp_range": 1.5, "dynatemp_exponent": 1.5, "top_k": 9,
            "top_p": 0.25, "min_p": 0.25, "typical_p": 0.25, "xtc_probability": 0.25, "xtc_threshold": 0.25,
            "mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.25, "repeat_penalty": 1.5, "repeat_last_n": 9,
            "frequency_penalty": 1.5, "presence_penalty": 1.5, "dry_multiplier": 1.5, "dry_base": 1.5,
            "dry_allowed_length": 9, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["x"],
            "logit_bias": [{"token": 9, "bias": 1.5}], "seed": 9},
            "max_tokens": 9, "min_tokens": 9, "stop": ["x"], "stop_tokens": [9], "ignore_eos": true, "n": 1, "logprobs": 9}"#;
        let params: zllm_wire::GenerationParams = serde_json::from_str(json).expect("every field");
        let engine = serde_json::to_value(engine_params(&params)).expect("plain data");
        let default = zllm_engine::GenerationParams::default();
        let default = serde_json::to_value(default).expect("plain data");
        let mut compared = 0;
        for part in ["", "/sampling"] {
            let fields = default.pointer(part).and_then(|value| value.as_object()).expect("an object");
            for (name, default) in fields {
                assert_ne!(engine.pointer(part).expect("the same")[name], *default, "{name} does not arrive");
                compared += 1;
            }
        }
        assert_eq!(compared, 7 + 23);
    }

    #[test]
    fn mirostat_takes_the_place_of_the_filters() {
        let mut params = zllm_wire::GenerationParams::default();
        params.sampling.mirostat = Some(2);
        assert_eq!(engine_params(&params).sampling, SamplingParams::mirostat());
        params.sampling.top_k = Some(40);
        assert!(engine_params(&params).sampling.validate(10).is_err(), "what was asked for is not dropped");
    }

    #[test]
    fn conversations_are_json_and_mistakes_in_them_are_named() {
        let chat = |messages: &str, tools: Option<&str>| {
            let template = Some(zllm_wire::Template::Named("chatml".into()));
            let (messages_json, tools_json) = (messages.into(), tools.map(str::to_owned));
            engine_prompt(
                &zllm_wire::Prompt::Chat { messages_json, tools_json, template, continue_last: true },
                7,
            )
        };
        let hello = r#"[{"role":"user","content":"hello"}]"#;
        let expected = Chat {
            tools: Some(serde_json::json!([{"type": "function"}])),
            template: Some(TemplateChoice::Named("chatml".into())),
            now_unix_s: Some(7),
            continue_last: true,
            ..Chat::new(vec![Message::user("hello")])
        };
        let prompt = chat(hello, Some(r#"[{"type":"function"}]"#)).expect("a conversation");
        assert_eq!(prompt, zllm_engine::Prompt::Chat(expected));
        for wrong in ["{}", "nonsense", "7"] {
            assert!(chat(hello, Some(wrong)).expect_err("no tools").starts_with("tools: "), "{wrong}");
        }
        for wrong in ["", "{}", r#"[{"content":"no role"}]"#] {
            assert!(chat(wrong, None).expect_err("no conversation").starts_with("messages: "), "{wrong}");
        }
    }
}
