//! A conversation whose last message, the assistant's, is to be continued: its prompt ends within that message.
//!
//! As Hugging Face's `continue_final_message` does it: a mark is put behind the message's text, the template renders all
//! as if the message were complete, and the prompt is what stands before the mark. So it does not matter what the template
//! writes behind a message, or whether the text stands elsewhere too. The mark ends with a tab; where the template took
//! that away it trims, and then the text's own blanks at its end go too.

use crate::message::Message;
use serde_json::Value;
use std::borrow::Cow;
use thiserror::Error;

/// Letters that templates leave alone. Should they stand in the conversation too, the last are still ours.
const MARK: &str = "ZLLM-CONTINUES-HERE";

/// Why the last message cannot be continued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PrefillError {
    /// There is none, or it is somebody else's.
    #[error("there is no last message of the assistant's to continue; the last message's role is {role:?}")]
    NotAssistant {
        /// Who speaks last; empty if there is no message.
        role: String,
    },
    /// It ends with calls, and not with its text.
    #[error(
        "the last message calls tools, so it cannot be continued; leave out tool_calls, or add the results"
    )]
    Calls,
    /// It has content that is neither text nor a list of parts that are.
    #[error("the last message cannot be continued: its content must be a string or parts of type text")]
    NotText,
    /// The template left it out.
    #[error(
        "the last message cannot be continued: the chat template does not write its text; end with the user's message"
    )]
    NotRendered,
}

/// A conversation with the mark in it.
#[derive(Debug)]
pub(crate) struct Prefill {
    /// To be rendered without a generation prompt.
    pub(crate) messages: Vec<Message>,
    /// The blanks at the end of the text.
    blanks: String,
}

impl Prefill {
    pub(crate) fn new(messages: &[Message]) -> Result<Self, PrefillError> {
        let text = text(messages)?;
        let words = text.trim_end();
        let blanks = if words.is_empty() { String::new() } else { text[words.len()..].to_owned() };
        let (last, before) = messages.split_last().expect("it has a text");
        let marked = last.clone().with("content", format!("{text}{MARK}\t"));
        Ok(Self { messages: before.iter().cloned().chain([marked]).collect(), blanks })
    }

    /// The prompt, from the rendered conversation.
    pub(crate) fn cut(&self, mut rendered: String) -> Result<String, PrefillError> {
        let mark = rendered.rfind(MARK).ok_or(PrefillError::NotRendered)?;
        let trims = !rendered[mark + MARK.len()..].starts_with('\t');
        rendered.truncate(mark);
        if trims && rendered.ends_with(&self.blanks) {
            rendered.truncate(mark - self.blanks.len());
        }
        Ok(rendered)
    }
}

/// The text to continue; parts are joined, since few templates take them.
pub(crate) fn text(messages: &[Message]) -> Result<Cow<'_, str>, PrefillError> {
    let last = messages.last().filter(|last| last.role() == "assistant").ok_or_else(|| {
        PrefillError::NotAssistant { role: messages.last().map_or("", Message::role).to_owned() }
    })?;
    if matches!(last.fields().get("tool_calls"), Some(Value::Array(calls)) if !calls.is_empty()) {
        return Err(PrefillError::Calls);
    }
    let part = |part: &'_ Value| {
        let is_text = part.get("type").is_some_and(|kind| kind == "text");
        part.get("text").and_then(Value::as_str).filter(|_| is_text).map(str::to_owned)
    };
    match last.fields().get("content") {
        Some(Value::String(text)) => Ok(Cow::Borrowed(text)),
        Some(Value::Array(parts)) => {
            parts.iter().map(part).collect::<Option<String>>().map(Cow::Owned).ok_or(PrefillError::NotText)
        }
        _ => Err(PrefillError::NotText),
    }
}

#[cfg(test)]
mod tests {
    use super::{Prefill, PrefillError};
    use crate::message::Message;
    use crate::template::{BUILTIN_NAMES, ChatTemplate, Conversation, TemplateContext};
    use serde_json::{Value, json};

    fn render(template: &ChatTemplate, messages: &[Message]) -> String {
        let conversation = Conversation { add_generation_prompt: false, ..Conversation::new(messages) };
        template.render(&conversation).unwrap()
    }

    fn prompt(template: &ChatTemplate, content: impl Into<Value>) -> Result<String, PrefillError> {
        let prefill = Prefill::new(&[Message::user("hi"), Message::assistant(content)])?;
        prefill.cut(render(template, &prefill.messages))
    }

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, TemplateContext::default()).unwrap()
    }

    const KEEPS: &str = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }} </s>{% endfor %}";
    const TRIMS: &str = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }} </s>{% endfor %}";

    #[test]
    fn the_prompt_ends_with_the_text_as_the_template_writes_it() {
        for (source, content, expected) in [
            (KEEPS, "The", "The"),
            (KEEPS, " a b \n", " a b \n"),
            (KEEPS, "", ""),
            (KEEPS, "s>", "s>"),
            (KEEPS, "user", "user"),
            (KEEPS, "\n", "\n"),
            (KEEPS, "ZLLM-CONTINUES-HERE and", "ZLLM-CONTINUES-HERE and"),
            (TRIMS, " a b \n", "a b"),
            (TRIMS, "assistant\t", "assistant"),
            (TRIMS, "", ""),
            (TRIMS, "\n", ""),
        ] {
            let expected = format!("<|user|>\nhi </s><|assistant|>\n{expected}");
            assert_eq!(prompt(&template(source), content), Ok(expected), "{source} {content:?}");
        }
    }

    #[test]
    fn parts_are_as_their_texts_joined() {
        let parts = json!([{"type": "text", "text": "The "}, {"type": "text", "text": "end"}]);
        let template = template(KEEPS);
        assert_eq!(prompt(&template, parts), prompt(&template, "The end"));
    }

    #[test]
    fn every_built_in_template_can_be_continued() {
        for name in BUILTIN_NAMES {
            let context = TemplateContext { bos_token: "<s>".into(), eos_token: "</s>".into() };
            let template = ChatTemplate::builtin(name, context).unwrap().unwrap();
            let whole = render(&template, &[Message::user("hi"), Message::assistant("The capital is")]);
            let cut = prompt(&template, "The capital").unwrap();
            assert!(cut.ends_with("The capital"), "{name}: {cut}");
            assert!(whole.starts_with(&cut), "{name}: {cut}\n{whole}");
        }
    }

    #[test]
    fn what_cannot_be_continued_is_refused() {
        let refused = |messages: Value| {
            let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
            Prefill::new(&messages).unwrap_err()
        };
        let role = String::new();
        assert_eq!(refused(json!([])), PrefillError::NotAssistant { role });
        let role = "user".to_owned();
        assert_eq!(refused(json!([{"role": "user", "content": "x"}])), PrefillError::NotAssistant { role });
        let last = json!([{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]);
        assert_eq!(refused(last), PrefillError::Calls);
        for content in [json!(null), json!(7), json!([{"type": "image", "text": "x"}]), json!(["x"])] {
            assert_eq!(refused(json!([{"role": "assistant", "content": content}])), PrefillError::NotText);
        }
        let silent = template("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
        assert_eq!(prompt(&silent, "x"), Err(PrefillError::NotRendered));
    }
}
