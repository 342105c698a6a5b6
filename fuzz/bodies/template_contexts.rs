//! Any conversation, tools and variables through the templates of `testdata/templates.json` and the built-in ones, or through a template of
//! any text.

use std::{collections::BTreeMap, sync::OnceLock};

use serde_json::Value;
use zllm_engine::{
    message::Message,
    template::{BUILTIN_NAMES, ChatTemplate, Conversation, TemplateContext, TemplateError},
};

use super::{Bytes, json};

/// First bytes from here on bring a template of their own.
const OWN_TEMPLATE: u8 = 192;
/// Longest such template.
const MAX_OWN_BYTES: usize = 4 << 10;
/// Messages of a conversation.
const MAX_MESSAGES: usize = 6;
/// What the fuel of a rendering allows, and more than any conversation here needs; see `engine/src/template.rs`.
const MAX_PROMPT_BYTES: usize = 128 << 20;

/// A template gives a prompt or a typed error, the same each time, within its fuel.
pub(crate) fn template_contexts(data: &[u8]) {
    static TEMPLATES: OnceLock<Vec<ChatTemplate>> = OnceLock::new();
    let templates = TEMPLATES.get_or_init(known);
    let mut input = Bytes(data);
    let selector = input.next();
    let own;
    let template = if selector < OWN_TEMPLATE {
        &templates[usize::from(selector) % templates.len()]
    } else {
        let source = input.until_zero();
        let source = String::from_utf8_lossy(&source[..source.len().min(MAX_OWN_BYTES)]);
        match ChatTemplate::new(&source, context()) {
            Ok(template) => own = template,
            Err(TemplateError::Syntax { message, .. }) => {
                assert!(!message.is_empty(), "an error without words");
                return;
            }
            Err(other) => panic!("{other}"),
        }
        &own
    };
    let flags = input.next();
    let messages: Vec<Message> =
        (0..usize::from(input.next()) % MAX_MESSAGES).map(|_| message(&mut input)).collect();
    let tools = (flags & 1 != 0).then(|| json::value(&mut input, 0));
    let extra = (flags & 2 != 0).then(|| json::object(&mut input, 0));
    let conversation = Conversation {
        tools: tools.as_ref(),
        extra: extra.as_ref(),
        add_generation_prompt: flags & 4 != 0,
        now_unix_s: (flags & 8 != 0).then(|| i64::from(flags) << (flags >> 2)),
        ..Conversation::new(&messages)
    };
    let rendered = template.render(&conversation);
    match &rendered {
        Ok(prompt) => assert!(prompt.len() <= MAX_PROMPT_BYTES, "{} bytes", prompt.len()),
        Err(TemplateError::Raised(_) | TemplateError::NotExpressible { .. }) => {}
        Err(TemplateError::Render { .. } | TemplateError::OutOfFuel { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    assert!(template.render(&conversation) == rendered, "another prompt of the same conversation");
}

fn message(input: &mut Bytes<'_>) -> Message {
    let message = Message::new(&json::text(input), json::value(input, 0));
    let more = json::object(input, 0);
    more.into_iter().fold(message, |message, (name, value)| message.with(&name, value))
}

fn known() -> Vec<ChatTemplate> {
    let file: Value = serde_json::from_str(include_str!("../../testdata/templates.json")).expect("JSON");
    let sources: BTreeMap<String, String> =
        serde_json::from_value(file["templates"].clone()).expect("sources by name");
    assert!(!sources.is_empty(), "templates.json has templates");
    let known = sources.values().map(|source| ChatTemplate::new(source, context()));
    let builtin =
        BUILTIN_NAMES.iter().map(|name| ChatTemplate::builtin(name, context()).expect("a known name"));
    known.chain(builtin).map(|template| template.expect("a sound template")).collect()
}

fn context() -> TemplateContext {
    TemplateContext { bos_token: "<s>".to_owned(), eos_token: "</s>".to_owned() }
}
