//! Real models' templates: how their answers are written, and conversations that go on within the assistant's message.

mod common;

use serde_json::json;
use zllm_engine::{
    CallStyle, Chat, Message, Piece, PrefillError, Prompt, RequestError, SpeechReader, SpeechStyle,
    TemplateChoice, TextModel, detokenizer::Detokenizer, gguf::GgufFile, spec::ModelSpec,
};

fn model(name: &str) -> TextModel {
    let file = GgufFile::open(&common::model(name)).expect("a sound model");
    let spec = ModelSpec::read(&file, None).expect("a known family");
    TextModel::read(&file, &spec, None)
}

/// A question, and an answer to go on with.
fn continued(content: impl Into<serde_json::Value>) -> Chat {
    let messages = vec![Message::system("Be brief."), Message::user("Where?"), Message::assistant(content)];
    Chat { continue_last: true, ..Chat::new(messages) }
}

fn tools() -> serde_json::Value {
    json!([{"type": "function", "function": {"name": "where", "parameters": {"type": "object"}}}])
}

#[test]
fn speech_goes_on_within_the_last_message() {
    let gemma = Some(TemplateChoice::Named("gemma".into()));
    let chatml = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n";
    let turns = "<bos><start_of_turn>user\nBe brief.\n\nWhere?<end_of_turn>\n<start_of_turn>model\n";
    for (name, template, before, trims) in [
        ("smollm2-135m", None, chatml, false),
        ("qwen2.5-coder-0.5b", None, chatml, false),
        ("gemma3-270m", gemma, turns, true),
    ] {
        let model = model(name);
        let chat = |content| Chat { template: template.clone(), ..continued(content) };
        for text in ["It is in", "It is ", "", "end", "assistant\n"] {
            let expected = if trims { text.trim() } else { text };
            let prompt = model.render(&chat(json!(text))).expect("a prompt");
            assert_eq!(prompt, format!("{before}{expected}"), "{name}");
            let parts = json!([{"type": "text", "text": text}]);
            assert_eq!(model.render(&chat(parts)).expect("a prompt"), prompt, "{name}: parts");
        }
        // The text's last token is the prompt's, and not the end of a turn.
        let tokens = model.encode(&Prompt::Chat(chat(json!("It is in")))).expect("tokens");
        let last = *tokens.last().expect("a token");
        assert_eq!(model.tokenizer().expect("a tokenizer").token_bytes(last), b" in", "{name}");
    }
}

#[test]
fn speech_that_cannot_go_on_is_refused() {
    let model = model("qwen2.5-coder-0.5b");
    let refused = |chat: &Chat| match model.render(chat) {
        Err(RequestError::Prefill(error)) => error,
        other => panic!("not refused: {other:?}"),
    };
    let asked = Chat { continue_last: true, ..Chat::new(vec![Message::user("Where?")]) };
    let error = refused(&asked);
    assert_eq!(error, PrefillError::NotAssistant { role: "user".into() });
    assert!(error.to_string().contains("the last message's role is \"user\""), "{error}");
    assert_eq!(refused(&continued(json!(null))), PrefillError::NotText);
    let silent = TemplateChoice::Source("{{ messages[0].content }}".into());
    assert_eq!(refused(&Chat { template: Some(silent), ..continued("It") }), PrefillError::NotRendered);
}

#[test]
fn speech_style_is_read_from_the_template() {
    let plain = SpeechStyle::default();
    let hermes = SpeechStyle { calls: CallStyle::Hermes, ..plain };
    let style = |model: &TextModel, chat: &Chat| {
        model.speech_style(chat, &model.render(chat).expect("a prompt")).expect("a style")
    };
    let hello = Chat::new(vec![Message::user("Where?")]);
    let with_tools = Chat { tools: Some(tools()), ..hello.clone() };
    let (smollm2, qwen) = (model("smollm2-135m"), model("qwen2.5-coder-0.5b"));
    assert_eq!(style(&smollm2, &hello), plain);
    assert!(matches!(smollm2.speech_style(&with_tools, ""), Err(RequestError::NoTools { .. })));
    assert_eq!(style(&qwen, &hello), plain, "no tools were shown");
    assert_eq!(style(&qwen, &with_tools), hermes);
    assert_eq!(style(&qwen, &Chat { tools: Some(json!([])), ..hello.clone() }), plain);
    let gemma = TemplateChoice::Named("gemma".into());
    assert_eq!(style(&model("gemma3-270m"), &Chat { template: Some(gemma), ..hello.clone() }), plain);

    // A template that thinks, opened by itself or by the message to go on with.
    let thinks = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}\
                  {% if add_generation_prompt %}<|assistant|><think>\n{% endif %}";
    let thinks = Some(TemplateChoice::Source(thinks.into()));
    let within = SpeechStyle { reasoning: true, starts_in_reasoning: true, ..plain };
    assert_eq!(style(&qwen, &Chat { template: thinks.clone(), ..hello }), within);
    for (content, starts_in_reasoning) in
        [("<think>\nWell", true), ("<think>\nWell</think>It", false), ("It", false)]
    {
        let chat = Chat { template: thinks.clone(), ..continued(content) };
        assert_eq!(style(&qwen, &chat), SpeechStyle { starts_in_reasoning, ..within }, "{content}");
    }
}

#[test]
fn speech_of_real_tokens_has_the_tags_in_it() {
    let model = model("qwen2.5-coder-0.5b");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let mut tokens = Vec::new();
    let answer = "Let me look.\n<tool_call>\n{\"name\": \"where\", \"arguments\": {\"what\": \"größte 😀\"}}\n</tool_call>";
    tokenizer.encode(answer, true, &mut tokens);
    let chat = Chat { tools: Some(tools()), ..Chat::new(vec![Message::user("Where?")]) };
    let prompt = model.render(&chat).expect("a prompt");
    let mut reader = SpeechReader::new(model.speech_style(&chat, &prompt).expect("a style"));
    let mut detokenizer = Detokenizer::new();
    let mut pieces = Vec::new();
    for token in tokens {
        let mut text = String::new();
        detokenizer.push(tokenizer, token, &mut text);
        pieces.extend(reader.push(&text));
    }
    pieces.extend(reader.finish());
    let (mut said, mut arguments, mut rest) = (String::new(), String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Text(text) => said.push_str(&text),
            Piece::Arguments { index: 0, json } => arguments.push_str(&json),
            other => rest.push(other),
        }
    }
    assert_eq!((said.as_str(), arguments.as_str()), ("Let me look.", "{\"what\": \"größte 😀\"}"));
    assert_eq!(rest, [Piece::Call { index: 0, name: "where".into() }, Piece::CallEnd { index: 0 }]);
}
