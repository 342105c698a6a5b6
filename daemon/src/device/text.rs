//! The engine's text side behind the daemon's port, and the protocol's parameters in the engine's words.

use super::port::{Generate, TextFacts, TextModel};
use crate::scheduler::plan::Accepted;
use std::sync::Arc;
use zllm_engine::sampling::SamplingParams;
use zllm_engine::{Generation, Message};

/// One model's text side.
pub(super) struct EngineText {
    text: Arc<zllm_engine::TextModel>,
    facts: TextFacts,
}

impl EngineText {
    pub(super) fn new(text: Arc<zllm_engine::TextModel>) -> Self {
        let facts = TextFacts {
            architecture: text.architecture().to_owned(),
            context_tokens: text.context_length(),
            has_template: text.has_template(),
            fingerprint: text.fingerprint(),
        };
        Self { text, facts }
    }
}

impl TextModel for EngineText {
    fn facts(&self) -> &TextFacts {
        &self.facts
    }

    fn encode(&self, prompt: &zllm_wire::Prompt) -> Result<Vec<u32>, String> {
        self.text.encode(&engine_prompt(prompt)?).map_err(|error| error.to_string())
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

    fn generation(
        &self,
        prompt: &[u32],
        params: &zllm_wire::GenerationParams,
    ) -> Result<Box<dyn Generate>, String> {
        let generation = Generation::new(self.text.clone(), prompt, &engine_params(params));
        generation.map(|generation| Box::new(generation) as _).map_err(|error| error.to_string())
    }
}

impl Generate for Generation {
    fn accept(&mut self, logits: &mut [f32]) -> Result<Accepted, String> {
        let accepted = Generation::accept(self, logits).map_err(|error| error.to_string())?;
        let zllm_engine::Accepted { token, text, finish } = accepted;
        let finish = finish.map(|finish| match finish {
            zllm_engine::FinishReason::Stop => zllm_wire::FinishReason::Stop,
            zllm_engine::FinishReason::Length => zllm_wire::FinishReason::Length,
            zllm_engine::FinishReason::Cancelled => zllm_wire::FinishReason::Cancelled,
        });
        let held = if finish.is_some() { String::new() } else { self.held().to_owned() };
        Ok(Accepted { token, text, held, finish })
    }
}

fn engine_prompt(prompt: &zllm_wire::Prompt) -> Result<zllm_engine::Prompt, String> {
    Ok(match prompt {
        zllm_wire::Prompt::Text { text, parse_special } => {
            zllm_engine::Prompt::Text { text: text.clone(), parse_special: *parse_special }
        }
        zllm_wire::Prompt::Tokens(tokens) => zllm_engine::Prompt::Tokens(tokens.0.clone()),
        zllm_wire::Prompt::Chat { messages_json, tools_json } => {
            let messages: Vec<Message> =
                serde_json::from_str(messages_json).map_err(|error| format!("messages: {error}"))?;
            let tools = tools_json.as_deref().map(serde_json::from_str).transpose();
            zllm_engine::Prompt::Chat { messages, tools: tools.map_err(|error| format!("tools: {error}"))? }
        }
    })
}

/// What a request leaves open takes the engine's default; the seed too, so that the same request gives the same text.
fn engine_params(params: &zllm_wire::GenerationParams) -> zllm_engine::GenerationParams {
    let given = &params.sampling;
    let default = SamplingParams::default();
    let sampling = SamplingParams {
        temperature: given.temperature.unwrap_or(default.temperature),
        top_k: given.top_k.unwrap_or(default.top_k),
        top_p: given.top_p.unwrap_or(default.top_p),
        min_p: given.min_p.unwrap_or(default.min_p),
        repeat_penalty: given.repeat_penalty.unwrap_or(default.repeat_penalty),
        repeat_last_n: given.penalty_window_tokens.unwrap_or(default.repeat_last_n),
        frequency_penalty: given.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: given.presence_penalty.unwrap_or(default.presence_penalty),
        logit_bias: given.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect(),
        seed: given.seed.unwrap_or(default.seed),
    };
    zllm_engine::GenerationParams {
        sampling,
        max_tokens: params.max_tokens,
        stop: params.stop.clone(),
        ignore_eos: params.ignore_eos,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_goes_through_and_what_is_not_takes_the_default() {
        let mut params = zllm_wire::GenerationParams::default();
        assert_eq!(engine_params(&params).sampling, SamplingParams::default());
        params.sampling.temperature = Some(0.0);
        params.sampling.penalty_window_tokens = Some(9);
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

    #[test]
    fn conversations_are_json_and_mistakes_in_them_are_named() {
        let chat = |messages: &str| {
            engine_prompt(&zllm_wire::Prompt::Chat { messages_json: messages.into(), tools_json: None })
        };
        let prompt = chat(r#"[{"role":"user","content":"hello"}]"#).expect("a conversation");
        let expected = vec![Message::user("hello")];
        assert_eq!(prompt, zllm_engine::Prompt::Chat { messages: expected, tools: None });
        for wrong in ["", "{}", r#"[{"content":"no role"}]"#] {
            assert!(chat(wrong).expect_err("no conversation").starts_with("messages: "), "{wrong}");
        }
    }
}
