//! Chat templates by name, for models whose file has none or a wrong one.
//!
//! Each is a file of its own in `builtin/`, written from the vendor's public template or description; where llama.cpp's
//! built-in of the same name gives something else, the file's head says what and why. They know text from system, user
//! and assistant and nothing more: whatever else a conversation has is refused here, never left out.

use super::TemplateError;
use crate::message::Message;
use serde_json::Value;

macro_rules! builtins {
    ($($name:literal)*) => {
        /// Names of the built-in templates, in order.
        pub const BUILTIN_NAMES: &[&str] = &[$($name),*];

        /// The name as it is kept here and the source of a built-in template.
        pub(super) fn find(name: &str) -> Option<(&'static str, &'static str)> {
            match name {
                $($name => Some(($name, include_str!(concat!("builtin/", $name, ".jinja")))),)*
                _ => None,
            }
        }
    };
}

builtins! {
    "chatml" "command-r" "deepseek" "deepseek2" "deepseek3" "exaone3" "falcon3" "gemma" "glm4" "gpt-oss" "granite"
    "llama2" "llama3" "llama4" "minicpm" "mistral-v1" "mistral-v3" "mistral-v3-tekken" "mistral-v7" "mistral-v7-tekken"
    "olmo2" "openchat" "phi3" "phi4" "smollm2" "vicuna" "zephyr"
}

/// Refuses what no built-in template can say.
pub(super) fn check(name: &'static str, messages: &[Message]) -> Result<(), TemplateError> {
    let refused =
        |place: usize, found: String| TemplateError::NotExpressible { template: name, place, found };
    for (place, message) in messages.iter().enumerate() {
        if !matches!(message.role(), "system" | "user" | "assistant") {
            return Err(refused(place, format!("is from {:?}", message.role())));
        }
        if message.fields().get("tool_calls").is_some_and(is_something) {
            return Err(refused(place, "calls tools".to_owned()));
        }
        if message.text().is_none() {
            return Err(refused(place, "has a content that is no text".to_owned()));
        }
    }
    Ok(())
}

fn is_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages_of, testdata};
    use super::super::{ChatTemplate, Conversation, TemplateContext, TemplateError};
    use super::BUILTIN_NAMES;
    use serde_json::{Value, json};

    fn text(value: &Value) -> String {
        value.as_str().expect("text").to_owned()
    }

    #[test]
    fn give_what_the_vendors_templates_or_llama_cpp_give() {
        let data = testdata("builtin_templates.json");
        let templates = data["templates"].as_object().unwrap();
        assert_eq!(
            templates.keys().collect::<Vec<_>>(),
            BUILTIN_NAMES,
            "each is checked, and named in order"
        );
        let mut wrong = Vec::new();
        let mut checked = 0;
        for (name, of) in templates {
            let context = TemplateContext { bos_token: text(&of["bos"]), eos_token: text(&of["eos"]) };
            let template = ChatTemplate::builtin(name, context).unwrap().unwrap();
            for case in of["cases"].as_array().unwrap() {
                let messages = messages_of(&data["messages"][case["messages"].as_str().unwrap()]);
                let got = template.render(&Conversation {
                    add_generation_prompt: case["add_generation_prompt"] == true,
                    now_unix_s: data["now_unix_s"].as_i64(),
                    ..Conversation::new(&messages)
                });
                let expected = match case["error"].as_str() {
                    Some(message) => Err(TemplateError::Raised(message.to_owned())),
                    None => Ok(text(&case["expect"])),
                };
                checked += 1;
                if got != expected {
                    wrong.push(format!("{name}: {got:?}\n  expected {case}"));
                }
            }
        }
        println!("built-in templates: {} of {checked} renderings as expected", checked - wrong.len());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(checked, 27 * 9 * 2);
    }

    #[test]
    fn refuse_what_they_cannot_say() {
        let user = json!({"role": "user", "content": "hi"});
        for name in BUILTIN_NAMES {
            let template = ChatTemplate::builtin(name, TemplateContext::default()).unwrap().unwrap();
            assert!(!template.takes_tools(), "{name}");
            for (message, words) in [
                (json!({"role": "tool", "content": "21"}), "message 2 is from \"tool\""),
                (
                    json!({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}),
                    "message 2 calls tools",
                ),
                (json!({"role": "assistant", "content": null}), "message 2 has a content that is no text"),
                (
                    json!({"role": "user", "content": [{"type": "text", "text": "x"}]}),
                    "message 2 has a content",
                ),
            ] {
                let messages = messages_of(&json!([user, message]));
                let error = template.render(&Conversation::new(&messages)).unwrap_err().to_string();
                assert!(error.contains(words) && error.contains(name), "{error}");
            }
            // Where nothing was called the field says nothing.
            let plain = json!({"role": "assistant", "content": "yes", "tool_calls": []});
            let messages = messages_of(&json!([user, plain]));
            assert!(template.render(&Conversation::new(&messages)).is_ok(), "{name}");
        }
        assert!(ChatTemplate::builtin("nonsense", TemplateContext::default()).is_none());
    }

    #[test]
    fn a_late_system_message_is_said_or_refused() {
        let messages = messages_of(&json!([
            {"role": "user", "content": "one"},
            {"role": "system", "content": "standing orders"},
            {"role": "user", "content": "two"},
        ]));
        for name in BUILTIN_NAMES {
            let template = ChatTemplate::builtin(name, TemplateContext::default()).unwrap().unwrap();
            match template.render(&Conversation::new(&messages)) {
                Ok(text) => assert!(text.contains("standing orders"), "{name}: {text}"),
                Err(error) => assert_eq!(error.to_string(), "a system message must be the first", "{name}"),
            }
        }
    }
}
