//! The templates that a model file brings, and which of them renders a request.
//!
//! A file has one in `tokenizer.chat_template`, and may have more: `tokenizer.chat_templates` lists their names and each
//! is in `tokenizer.chat_template.NAME` (as gguf-py's `add_chat_template` writes them). Which is used is what Hugging
//! Face's `apply_chat_template` does: the one that is asked for, else `tool_use` when there are tools and there is one,
//! else the first. What is asked for goes before what the configuration says, and that before the file's own.
//!
//! A template is never replaced by another in silence: one that is missing or does not compile is an error.

use super::{BUILTIN_NAMES, ChatTemplate, TemplateContext};
use crate::gguf::GgufFile;
use crate::request::RequestError;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The name of the file's first template among the others.
const DEFAULT: &str = "default";
/// The name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";
/// Named templates of one file; the largest known has three.
const MAX_NAMED: usize = 64;

/// A template that is wanted instead of the model's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateChoice {
    /// One of the file's own by name, else one of [`BUILTIN_NAMES`].
    Named(String),
    /// The text of a template.
    Source(String),
}

/// A model's templates.
#[derive(Debug)]
pub struct ModelTemplates {
    context: TemplateContext,
    /// Instead of the file's own.
    configured: Option<ChatTemplate>,
    /// The file's own by name, or why they cannot be used.
    own: BTreeMap<String, Result<ChatTemplate, String>>,
}

impl ModelTemplates {
    /// Reads and compiles those of `file`.
    pub fn read(file: &GgufFile, context: TemplateContext) -> Self {
        let metadata = file.metadata();
        let mut own = BTreeMap::new();
        let mut add = |name: &str, key: &str| {
            let source = metadata.opt_str(key).map_err(|error| error.to_string()).transpose();
            let template = source.map(|source| {
                source.and_then(|s| ChatTemplate::new(s, context.clone()).map_err(|e| e.to_string()))
            });
            if let Some(template) = template {
                own.insert(name.to_owned(), template);
            }
        };
        add(DEFAULT, "tokenizer.chat_template");
        match metadata.opt_strings("tokenizer.chat_templates") {
            Ok(names) => {
                let names = names.into_iter().flatten().take(MAX_NAMED);
                for name in names.filter_map(|name| std::str::from_utf8(name).ok()) {
                    add(name, &format!("tokenizer.chat_template.{name}"));
                }
            }
            Err(error) => _ = own.insert(DEFAULT.to_owned(), Err(error.to_string())),
        }
        Self { context, configured: None, own }
    }

    /// Puts a template before the file's own.
    ///
    /// # Errors
    /// As for [`Self::choose`].
    pub fn configure(&mut self, model: &str, choice: &TemplateChoice) -> Result<(), RequestError> {
        self.configured = Some(self.find(model, choice)?.into_owned());
        Ok(())
    }

    /// Whether a conversation can be rendered without a choice, if the template compiles.
    pub fn has_default(&self) -> bool {
        self.configured.is_some() || self.own.contains_key(DEFAULT)
    }

    /// The template for a request to `model`.
    ///
    /// # Errors
    /// There is no such template, none at all, or it does not compile.
    pub fn choose(
        &self,
        model: &str,
        choice: Option<&TemplateChoice>,
        with_tools: bool,
    ) -> Result<Cow<'_, ChatTemplate>, RequestError> {
        if let Some(choice) = choice {
            return self.find(model, choice);
        }
        if let Some(configured) = &self.configured {
            return Ok(Cow::Borrowed(configured));
        }
        let for_tools = self.own.get(TOOL_USE).filter(|_| with_tools);
        match for_tools.or_else(|| self.own.get(DEFAULT)) {
            Some(template) => usable(model, template),
            None if self.own.is_empty() => Err(RequestError::NoTemplate { model: model.to_owned() }),
            None => Err(RequestError::NoDefaultTemplate { model: model.to_owned(), own: self.own_names() }),
        }
    }

    fn find(&self, model: &str, choice: &TemplateChoice) -> Result<Cow<'_, ChatTemplate>, RequestError> {
        let name = match choice {
            TemplateChoice::Source(source) => {
                return Ok(Cow::Owned(ChatTemplate::new(source, self.context.clone())?));
            }
            TemplateChoice::Named(name) => name,
        };
        if let Some(template) = self.own.get(name) {
            return usable(model, template);
        }
        match ChatTemplate::builtin(name, self.context.clone()) {
            Some(template) => Ok(Cow::Owned(template?)),
            None => Err(RequestError::UnknownTemplate {
                model: model.to_owned(),
                name: name.chars().take(64).collect(),
                own: if self.own.is_empty() { "none".to_owned() } else { self.own_names() },
            }),
        }
    }

    fn own_names(&self) -> String {
        self.own.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

fn usable<'a>(
    model: &str,
    template: &'a Result<ChatTemplate, String>,
) -> Result<Cow<'a, ChatTemplate>, RequestError> {
    let broken =
        |reason: &String| RequestError::BrokenTemplate { model: model.to_owned(), reason: reason.clone() };
    template.as_ref().map(Cow::Borrowed).map_err(broken)
}

/// The built-in names, for messages.
pub(crate) fn builtin_names() -> String {
    BUILTIN_NAMES.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GGUF file of version 3 with no tensors and these entries: a text, or a list of texts.
    fn file(entries: &[(&str, Result<&str, &[&str]>)]) -> (tempfile::TempDir, GgufFile) {
        let (string, array) = (8u32, 9u32);
        let mut bytes = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
        let put = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        let architecture = ("general.architecture", Ok("llama"));
        bytes.extend((1 + entries.len() as u64).to_le_bytes());
        for (key, value) in [architecture].iter().chain(entries) {
            put(&mut bytes, key);
            match value {
                Ok(text) => {
                    bytes.extend(string.to_le_bytes());
                    put(&mut bytes, text);
                }
                Err(list) => {
                    bytes.extend(array.to_le_bytes());
                    bytes.extend(string.to_le_bytes());
                    bytes.extend((list.len() as u64).to_le_bytes());
                    list.iter().for_each(|text| put(&mut bytes, text));
                }
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        let file = GgufFile::open(&path).unwrap();
        (folder, file)
    }

    fn templates(entries: &[(&str, Result<&str, &[&str]>)]) -> ModelTemplates {
        let (_folder, file) = file(entries);
        ModelTemplates::read(&file, TemplateContext::default())
    }

    /// What the chosen template renders of no messages.
    fn text(templates: &ModelTemplates, name: Option<&str>, with_tools: bool) -> Result<String, String> {
        let choice = name.map(|name| TemplateChoice::Named(name.to_owned()));
        let template = templates.choose("m", choice.as_ref(), with_tools).map_err(|e| e.to_string())?;
        template.render(&crate::template::Conversation::new(&[])).map_err(|e| e.to_string())
    }

    const NAMES: (&str, Result<&str, &[&str]>) =
        ("tokenizer.chat_templates", Err(&["tool_use", "rag", "absent"]));
    const TOOLS: (&str, Result<&str, &[&str]>) = ("tokenizer.chat_template.tool_use", Ok("with tools"));
    const RAG: (&str, Result<&str, &[&str]>) = ("tokenizer.chat_template.rag", Ok("{% broken"));
    const FIRST: (&str, Result<&str, &[&str]>) = ("tokenizer.chat_template", Ok("first"));

    #[test]
    fn tools_and_names_choose_among_a_files_templates() {
        let all = templates(&[NAMES, TOOLS, RAG, FIRST]);
        assert!(all.has_default());
        for (name, with_tools, expected) in [
            (None, false, "first"),
            (None, true, "with tools"),
            (Some("tool_use"), false, "with tools"),
            (Some("default"), true, "first"),
            (Some("phi4"), true, "<|im_start|>assistant<|im_sep|>"),
        ] {
            assert_eq!(text(&all, name, with_tools).as_deref(), Ok(expected), "{name:?} {with_tools}");
        }
        let broken = text(&all, Some("rag"), false).unwrap_err();
        assert!(
            broken.starts_with("the chat template of model m cannot be used: chat template line 1:"),
            "{broken}"
        );
        let unknown = text(&all, Some("absent"), false).unwrap_err();
        assert!(
            unknown.contains("\"absent\"; model m's own: default, rag, tool_use; built in are: chatml"),
            "{unknown}"
        );

        let no_first = templates(&[NAMES, TOOLS]);
        assert!(!no_first.has_default());
        assert_eq!(text(&no_first, None, true).as_deref(), Ok("with tools"));
        let error = text(&no_first, None, false).unwrap_err();
        assert!(error.contains("no default chat template; name one of its own (tool_use)"), "{error}");
        let error = text(&templates(&[]), None, true).unwrap_err();
        assert!(error.starts_with("model m has no chat template; name one"), "{error}");
    }

    #[test]
    fn a_configured_template_goes_before_the_files_and_a_requests_before_both() {
        let mut all = templates(&[NAMES, TOOLS, FIRST]);
        all.configure("m", &TemplateChoice::Source("configured".to_owned())).unwrap();
        assert_eq!(text(&all, None, true).as_deref(), Ok("configured"));
        assert_eq!(text(&all, Some("tool_use"), true).as_deref(), Ok("with tools"));
        let mut none = templates(&[]);
        none.configure("m", &TemplateChoice::Named("phi4".to_owned())).unwrap();
        assert!(none.has_default());
        let error = none.configure("m", &TemplateChoice::Source("{% if".to_owned())).unwrap_err().to_string();
        assert!(error.starts_with("chat template line 1: "), "{error}");
    }

    #[test]
    fn what_is_no_template_is_an_error_when_it_is_wanted() {
        let wrong = templates(&[("tokenizer.chat_template", Err(&["a"]))]);
        let error = text(&wrong, None, false).unwrap_err();
        assert!(
            wrong.has_default() && error.contains("cannot be used") && error.contains("chat_template"),
            "{error}"
        );
        let wrong = templates(&[("tokenizer.chat_templates", Ok("a")), FIRST]);
        assert!(text(&wrong, None, false).unwrap_err().contains("tokenizer.chat_templates"));
    }
}
