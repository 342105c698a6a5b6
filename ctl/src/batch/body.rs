//! A request's body in OpenAI's words, read as a job of the daemon.
//!
//! Invariant: nothing that is asked for is passed over. A field that means nothing here, or a value of one that would not
//! be followed, is refused by its name; only `null` is the same as absent. Ranges are the daemon's to check.

mod fields;

use fields::Fields;
use serde_json::{Map, Value, json};
use zllm_wire::{
    GenerationParams, LogitBias, Prompt, SamplingParams, TokenIds,
    limits::{MAX_LOGIT_BIASES, MAX_LOGPROBS, MAX_STOP_STRINGS},
};

/// Which of OpenAI's APIs a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Endpoint {
    /// The API that a line's `url` names.
    pub(crate) fn of_url(url: &str) -> Result<Self, String> {
        match url {
            "/v1/chat/completions" => Ok(Self::Chat),
            "/v1/completions" => Ok(Self::Completions),
            "/v1/embeddings" => Err("url \"/v1/embeddings\" is not served yet".into()),
            _ => Err(format!("url {url:?}; \"/v1/chat/completions\" and \"/v1/completions\" work")),
        }
    }
}

/// What a job is made of.
#[derive(Debug, PartialEq)]
pub(crate) struct Body {
    /// The model's name.
    pub(crate) model: String,
    /// What it is given.
    pub(crate) prompt: Prompt,
    /// How it answers.
    pub(crate) params: GenerationParams,
}

impl Body {
    /// Reads a body.
    ///
    /// # Errors
    /// The first field that cannot be followed.
    pub(crate) fn parse(endpoint: Endpoint, body: Map<String, Value>) -> Result<Self, String> {
        let mut fields = Fields::new(body);
        let model = fields.text("model")?.ok_or("no model")?;
        if fields.boolean("stream")? == Some(true) {
            return Err("stream is for requests that somebody listens to; leave it out".into());
        }
        let mut params = shared_params(&mut fields)?;
        let prompt = match endpoint {
            Endpoint::Chat => {
                chat_params(&mut fields, &mut params)?;
                conversation(&mut fields)?
            }
            Endpoint::Completions => {
                completion_params(&mut fields, &mut params)?;
                plain_prompt(&mut fields)?
            }
        };
        fields.none_left()?;
        Ok(Self { model, prompt, params })
    }
}

/// What both APIs have.
fn shared_params(fields: &mut Fields) -> Result<GenerationParams, String> {
    let sampling = SamplingParams {
        temperature: fields.float("temperature")?,
        top_p: fields.float("top_p")?,
        top_k: fields.whole("top_k")?,
        min_p: fields.float("min_p")?,
        frequency_penalty: fields.float("frequency_penalty")?,
        presence_penalty: fields.float("presence_penalty")?,
        logit_bias: logit_bias(fields)?,
        seed: fields.whole("seed")?,
        ..SamplingParams::default()
    };
    Ok(GenerationParams {
        sampling,
        max_tokens: fields.whole("max_tokens")?,
        stop: stop(fields)?,
        n: fields.whole("n")?,
        ..GenerationParams::default()
    })
}

fn chat_params(fields: &mut Fields, params: &mut GenerationParams) -> Result<(), String> {
    // The newer name of the same; one of them is enough.
    if let Some(newer) = fields.whole("max_completion_tokens")? {
        if params.max_tokens.is_some_and(|older| older != newer) {
            return Err("max_tokens and max_completion_tokens differ; give one of them".into());
        }
        params.max_tokens = Some(newer);
    }
    let (told, top) = (fields.boolean("logprobs")?, fields.whole("top_logprobs")?);
    params.logprobs = match (told, top) {
        (Some(true), top) => Some(at_most_20("top_logprobs", top.unwrap_or(0))?),
        (_, Some(_)) => return Err("top_logprobs has no effect without \"logprobs\": true".into()),
        _ => None,
    };
    if let Some(format) = fields.take("response_format")
        && format.get("type") != Some(&json!("text"))
    {
        return Err(format!("response_format {format}; only {{\"type\":\"text\"}} works"));
    }
    Ok(())
}

fn completion_params(fields: &mut Fields, params: &mut GenerationParams) -> Result<(), String> {
    params.logprobs = fields.whole("logprobs")?.map(|top| at_most_20("logprobs", top)).transpose()?;
    if fields.boolean("echo")? == Some(true) {
        return Err("echo is not served; the prompt is in the request".into());
    }
    let best_of: Option<u32> = fields.whole("best_of")?;
    if best_of.is_some_and(|best_of| best_of != params.n.unwrap_or(1)) {
        return Err("best_of is not served, unless it is n: every answer that is computed is given".into());
    }
    Ok(())
}

fn at_most_20(name: &str, top: u32) -> Result<u32, String> {
    if top <= MAX_LOGPROBS {
        Ok(top)
    } else {
        Err(format!("{name} is {top}, must be from 0 to {MAX_LOGPROBS}"))
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, String> {
    let stop = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(list) => {
            serde_json::from_value(list).map_err(|_| "stop is neither a text nor a list of texts")?
        }
    };
    if stop.len() > MAX_STOP_STRINGS {
        return Err(format!("stop has {} texts; at most {MAX_STOP_STRINGS}", stop.len()));
    }
    Ok(stop)
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<LogitBias>, String> {
    let Some(biases) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let wrong = || "logit_bias is not an object of numbers by token id, such as {\"42\": -1.5}".to_owned();
    let Value::Object(biases) = biases else { return Err(wrong()) };
    if biases.len() > MAX_LOGIT_BIASES {
        return Err(format!("logit_bias has {} tokens; at most {MAX_LOGIT_BIASES}", biases.len()));
    }
    let biases = biases.into_iter().map(|(token, bias)| {
        let bias = bias.as_f64().map(|bias| bias as f32);
        Some(LogitBias { token: token.parse().ok()?, bias: bias? })
    });
    biases.collect::<Option<_>>().ok_or_else(wrong)
}

fn conversation(fields: &mut Fields) -> Result<Prompt, String> {
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(_) => return Err("messages is not a list, or an empty one".into()),
        None => return Err("no messages".into()),
    };
    let messages = (1..).zip(messages).map(|(number, message)| {
        plain_message(message).map_err(|fault| format!("message {number}: {fault}"))
    });
    let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
    let tools = match fields.take("tools") {
        None => None,
        Some(Value::Array(tools)) if tools.is_empty() => None,
        Some(Value::Array(tools)) => Some(tools),
        Some(_) => return Err("tools is not a list".into()),
    };
    let tools = match fields.take("tool_choice") {
        None => tools,
        Some(choice) if choice == "auto" => tools,
        // Not to be called, so not to be spoken of.
        Some(choice) if choice == "none" => None,
        Some(choice) => return Err(format!("tool_choice {choice}; \"auto\" and \"none\" work")),
    };
    Ok(Prompt::Chat {
        messages_json: Value::Array(messages).to_string(),
        tools_json: tools.map(|tools| Value::Array(tools).to_string()),
        template: None,
        continue_last: false,
    })
}

/// A message whose content is text: chat templates know no parts of it. Parts are joined with line feeds.
fn plain_message(message: Value) -> Result<Value, String> {
    let Value::Object(mut message) = message else { return Err("not an object".into()) };
    match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        _ => return Err("no role".into()),
    }
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().map(part_text).collect::<Result<_, _>>()?;
            let content = texts.join("\n");
            message.insert("content".into(), content.into());
        }
        Some(_) => return Err("content is neither a text nor a list of parts".into()),
    }
    Ok(Value::Object(message))
}

fn part_text(part: &Value) -> Result<&str, String> {
    match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text"), None) => Err("a part of type \"text\" has no text".into()),
        (Some(kind), _) => Err(format!("a part of type {kind:?}; only \"text\" works")),
        (None, _) => Err("a part without a type".into()),
    }
}

/// A text as it is, or token ids as they are.
fn plain_prompt(fields: &mut Fields) -> Result<Prompt, String> {
    let as_it_is = |text| Ok(Prompt::Text { text, parse_special: true });
    let several = "prompt is a list of several; give each a line of its own";
    match fields.take("prompt") {
        None => Err("no prompt".into()),
        Some(Value::String(text)) => as_it_is(text),
        Some(Value::Array(mut list)) if list.len() == 1 && !list[0].is_number() => match list.remove(0) {
            Value::String(text) => as_it_is(text),
            inner => tokens(inner),
        },
        Some(Value::Array(list)) if list.iter().any(|item| !item.is_number()) => Err(several.into()),
        Some(list) => tokens(list),
    }
}

fn tokens(list: Value) -> Result<Prompt, String> {
    let tokens: Vec<u32> =
        serde_json::from_value(list).map_err(|_| "prompt is neither a text nor a list of token ids")?;
    Ok(Prompt::Tokens(TokenIds(tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(endpoint: Endpoint, body: Value) -> Result<Body, String> {
        let Value::Object(body) = body else { panic!("a body is an object") };
        Body::parse(endpoint, body)
    }

    #[test]
    fn every_field_of_a_conversation() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let body = parse(
            Endpoint::Chat,
            json!({
                "model": "m", "max_completion_tokens": 7, "temperature": 0.5, "top_p": 1, "seed": 9, "n": 2,
                "stop": ["a", "b"], "logprobs": true, "top_logprobs": 3, "frequency_penalty": 0.25,
                "presence_penalty": -1, "logit_bias": {"42": -1.5, "7": 100}, "stream": false, "top_k": 0, "min_p": 0,
                "response_format": {"type": "text"}, "tools": tools, "tool_choice": "auto", "user": null,
                "messages": [
                    {"role": "system", "content": "be short"},
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}]},
                    {"role": "assistant", "content": null, "tool_calls": []},
                ],
            }),
        )
        .unwrap();
        let messages = r#"[{"role":"system","content":"be short"},{"role":"user","content":"a\né"},{"role":"assistant","content":null,"tool_calls":[]}]"#;
        let sampling = SamplingParams {
            temperature: Some(0.5),
            top_p: Some(1.0),
            top_k: Some(0),
            min_p: Some(0.0),
            frequency_penalty: Some(0.25),
            presence_penalty: Some(-1.0),
            logit_bias: vec![LogitBias { token: 42, bias: -1.5 }, LogitBias { token: 7, bias: 100.0 }],
            seed: Some(9),
            ..SamplingParams::default()
        };
        let params = GenerationParams {
            sampling,
            max_tokens: Some(7),
            stop: vec!["a".into(), "b".into()],
            n: Some(2),
            logprobs: Some(3),
            ..GenerationParams::default()
        };
        let prompt = Prompt::Chat {
            messages_json: messages.into(),
            tools_json: Some(tools.to_string()),
            template: None,
            continue_last: false,
        };
        assert_eq!(body, Body { model: "m".into(), prompt, params });
    }

    #[test]
    fn prompts_of_completions() {
        let prompt = |prompt: Value| {
            parse(Endpoint::Completions, json!({"model": "m", "prompt": prompt})).map(|body| body.prompt)
        };
        let text = Prompt::Text { text: "p".into(), parse_special: true };
        assert_eq!(prompt(json!("p")), Ok(text.clone()));
        assert_eq!(prompt(json!(["p"])), Ok(text));
        for list in [json!([1, 2]), json!([[1, 2]])] {
            assert_eq!(prompt(list), Ok(Prompt::Tokens(TokenIds(vec![1, 2]))));
        }
        assert_eq!(prompt(json!([7])), Ok(Prompt::Tokens(TokenIds(vec![7]))));
        for list in [json!(["p", "q"]), json!([[1], [2]])] {
            assert!(prompt(list).unwrap_err().contains("a line of its own"));
        }
        for wrong in [json!(7), json!([-1, 2]), json!([[1.5]]), json!({})] {
            assert!(prompt(wrong.clone()).unwrap_err().contains("neither a text nor"), "{wrong}");
        }
    }

    #[test]
    fn no_tools_are_spoken_of_that_may_not_be_called() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [{}], "tool_choice": "none"});
        let Ok(Body { prompt: Prompt::Chat { tools_json: None, .. }, .. }) = parse(Endpoint::Chat, body)
        else {
            panic!("tools were passed on")
        };
    }

    #[test]
    fn what_cannot_be_followed_is_refused_by_name() {
        let cases = [
            (json!({"store": true}), r#"unknown field "store""#),
            (json!({"stream": true}), "stream is for"),
            (
                json!({"response_format": {"type": "json_object"}}),
                r#"response_format {"type":"json_object"}"#,
            ),
            (json!({"tool_choice": "required"}), r#"tool_choice "required""#),
            (json!({"tool_choice": {"type": "function"}}), "tool_choice {"),
            (json!({"temperature": "warm"}), "temperature is not a number"),
            (json!({"n": 1.5}), "n is not a whole number"),
            (json!({"n": -1}), "n is not a whole number"),
            (json!({"seed": -7}), "seed is not a whole number"),
            (json!({"max_tokens": 1, "max_completion_tokens": 2}), "differ"),
            (json!({"top_logprobs": 2}), "no effect without"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs is 21"),
            (json!({"logprobs": 2}), "logprobs is neither true nor false"),
            (json!({"stop": 7}), "stop is neither"),
            (json!({"stop": vec!["a"; 17]}), "stop has 17 texts"),
            (json!({"logit_bias": {"a": 1}}), "logit_bias is not"),
            (json!({"logit_bias": [1]}), "logit_bias is not"),
            (json!({"messages": []}), "messages is not a list"),
            (json!({"messages": [{"content": "a"}]}), "message 1: no role"),
            (json!({"messages": [{"role": "user", "content": 7}]}), "message 1: content is neither"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                r#"type "image_url""#,
            ),
            (json!({"tools": {}}), "tools is not a list"),
        ];
        for (fields, wanted) in cases {
            let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
            for (name, value) in fields.as_object().unwrap() {
                body[name] = value.clone();
            }
            let fault = parse(Endpoint::Chat, body).unwrap_err();
            assert!(fault.contains(wanted), "{fields}: {fault}");
        }
        for (fields, wanted) in [
            (json!({"echo": true}), "echo is not served"),
            (json!({"best_of": 2}), "best_of is not served"),
            (json!({"suffix": "x"}), r#"unknown field "suffix""#),
            (json!({"logprobs": 21}), "logprobs is 21"),
            (json!({"max_completion_tokens": 2}), "unknown field"),
        ] {
            let mut body = json!({"model": "m", "prompt": "p"});
            for (name, value) in fields.as_object().unwrap() {
                body[name] = value.clone();
            }
            let fault = parse(Endpoint::Completions, body).unwrap_err();
            assert!(fault.contains(wanted), "{fields}: {fault}");
        }
        assert_eq!(parse(Endpoint::Chat, json!({"model": "m"})), Err("no messages".into()));
        assert_eq!(parse(Endpoint::Completions, json!({"model": "m"})), Err("no prompt".into()));
    }
}
