//! The text side of a model: tokenizer, template and limits, without a weight. Shared read-only by every thread that
//! renders prompts or speaks of the model.

use std::borrow::Cow;

use zllm_kernels::cpu::isa::Isa;

use crate::{
    gguf::GgufFile,
    pooling::Pooling,
    prefill::{self, Prefill},
    request::{Chat, Prompt, RequestError},
    spec::ModelSpec,
    speech::{self, CallStyle, SpeechStyle},
    template::{ChatTemplate, Conversation, ModelTemplates, TemplateChoice, TemplateContext},
    tokenizer::Tokenizer,
};

/// Tokenizer, template and limits of one model.
pub struct TextModel {
    name: String,
    architecture: String,
    context_length: usize,
    width: usize,
    pooling: Result<Pooling, u64>,
    vocab_size: usize,
    tokenizer: Result<Tokenizer, String>,
    templates: ModelTemplates,
    isa: Isa,
}

impl TextModel {
    /// Reads what `file` says about text. A file without a usable tokenizer still serves token ids: what is wrong with
    /// it is said when text is asked for. `tokenizer_pre` goes before what the file says of its pre-tokenizer.
    pub fn read(file: &GgufFile, spec: &ModelSpec, tokenizer_pre: Option<&str>) -> Self {
        let tokenizer = Tokenizer::with_pre_tokenizer(file, tokenizer_pre).map_err(|e| e.to_string());
        let tokenizer = tokenizer.and_then(|tokenizer| {
            let (found, rows) = (tokenizer.vocab_size(), spec.vocab_size);
            if found <= rows {
                Ok(tokenizer)
            } else {
                Err(format!("its vocabulary has {found} tokens and the embedding {rows} rows"))
            }
        });
        let text = |id: Option<u32>| {
            let tokenizer = tokenizer.as_ref().ok();
            tokenizer.and_then(|t| id.map(|id| t.token_text(id).to_owned())).unwrap_or_default()
        };
        let (bos, eos) = tokenizer.as_ref().map_or((None, None), |t| (t.bos(), t.eos()));
        let context = TemplateContext { bos_token: text(bos), eos_token: text(eos) };
        let templates = ModelTemplates::read(file, context);
        Self {
            name: spec.name.clone(),
            architecture: spec.architecture.clone(),
            context_length: spec.context_length,
            width: spec.width,
            pooling: spec.pooling,
            vocab_size: spec.vocab_size,
            tokenizer,
            templates,
            isa: Isa::best(),
        }
    }

    /// Lets tokens be drawn with the instructions of `isa`, which this machine must have. Which one changes no token.
    pub fn with_isa(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// The instructions that tokens are drawn with.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// Puts a chat template before the file's own.
    ///
    /// # Errors
    /// A name that is no template's, or a text that does not compile.
    pub fn with_template(mut self, choice: &TemplateChoice) -> Result<Self, RequestError> {
        self.templates.configure(&self.name, choice)?;
        Ok(self)
    }

    /// Gives it another name for messages.
    pub fn with_name(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// What messages call the model: its own name for itself, if it was given no other.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its family, e.g. `llama`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Tokens that a sequence may have.
    pub fn context_length(&self) -> usize {
        self.context_length
    }

    /// Values of an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// What makes an embedding of a text's rows.
    ///
    /// # Errors
    /// The model's way gives none.
    pub fn pooling(&self) -> Result<Pooling, RequestError> {
        self.pooling.map_err(|found| RequestError::NoEmbeddings { model: self.name.clone(), found })
    }

    /// Rows of the logits.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The template of a conversation that names none.
    ///
    /// # Errors
    /// There is none, or it is broken.
    pub fn default_template(&self, with_tools: bool) -> Result<Cow<'_, ChatTemplate>, RequestError> {
        self.templates.choose(&self.name, None, with_tools)
    }

    /// Whether there is a template for conversations that name none. One that turns out to be broken counts too.
    pub fn has_template(&self) -> bool {
        self.templates.has_default()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The file has none that can be used.
    pub fn tokenizer(&self) -> Result<&Tokenizer, RequestError> {
        self.tokenizer
            .as_ref()
            .map_err(|reason| RequestError::NoTokenizer { model: self.name.clone(), reason: reason.clone() })
    }

    /// The tokens of a prompt, with the begin token where the model wants one. At least one, and room for an answer.
    ///
    /// # Errors
    /// A prompt that is empty, too long, or that the template refuses.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, RequestError> {
        Ok(self.encode_for_speech(prompt)?.0)
    }

    /// The same, and how the answer is written: of a prompt that is no conversation, as plain text.
    ///
    /// # Errors
    /// As for [`Self::encode`].
    pub fn encode_for_speech(&self, prompt: &Prompt) -> Result<(Vec<u32>, SpeechStyle), RequestError> {
        let (tokens, speech) = self.tokens(prompt)?;
        if tokens.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if tokens.len() >= self.context_length {
            return Err(RequestError::ContextExceeded { tokens: tokens.len(), context: self.context_length });
        }
        Ok((tokens, speech))
    }

    /// The tokens of a text that is read to its end and not gone on with, to be embedded: with the begin and end tokens that
    /// the model wants round a text; token ids are used as they are. At least one. With `cut`, what does not fit into the
    /// context is left out, but not the end token.
    ///
    /// # Errors
    /// A text that is empty or, without `cut`, too long.
    pub fn encode_whole(&self, prompt: &Prompt, cut: bool) -> Result<Vec<u32>, RequestError> {
        let (mut tokens, _) = self.tokens(prompt)?;
        let is_text = !matches!(prompt, Prompt::Tokens(_));
        let end = self.tokenizer.as_ref().ok().filter(|t| is_text && t.add_eos()).and_then(Tokenizer::eos);
        // A begin token alone is no text.
        if matches!(prompt, Prompt::Text { text, .. } if text.is_empty()) || tokens.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        // The text may have written it itself; it must not stand there twice.
        tokens.pop_if(|last| Some(*last) == end);
        let context = self.context_length;
        if cut {
            tokens.truncate(context - usize::from(end.is_some()));
        }
        tokens.extend(end);
        if tokens.len() > context {
            return Err(RequestError::InputTooLong { tokens: tokens.len(), context });
        }
        Ok(tokens)
    }

    /// What a prompt says, however long, and how an answer to it is written.
    fn tokens(&self, prompt: &Prompt) -> Result<(Vec<u32>, SpeechStyle), RequestError> {
        let mut speech = SpeechStyle::default();
        let tokens = match prompt {
            Prompt::Tokens(tokens) => {
                let bad = tokens.iter().position(|t| *t as usize >= self.vocab_size);
                if let Some(place) = bad {
                    return Err(RequestError::BadToken {
                        token: tokens[place],
                        place,
                        vocab_size: self.vocab_size,
                    });
                }
                tokens.clone()
            }
            Prompt::Text { text, parse_special } => self.encode_text(text, *parse_special)?,
            Prompt::Chat(chat) => {
                let text = self.render(chat)?;
                speech = self.speech_style(chat, &text)?;
                self.encode_text(&text, true)?
            }
        };
        Ok((tokens, speech))
    }

    /// The text of a conversation, ready for the model to answer, or to go on with its own last message.
    ///
    /// # Errors
    /// There is no template for it, the template refuses it, or its last message cannot be continued.
    pub fn render(&self, chat: &Chat) -> Result<String, RequestError> {
        self.render_until(chat, true)
    }

    /// The same; without `add_generation_prompt` it ends behind the last message, as templates can be asked to.
    ///
    /// # Errors
    /// As for [`Self::render`].
    pub fn render_until(&self, chat: &Chat, add_generation_prompt: bool) -> Result<String, RequestError> {
        let (template, _) = self.template(chat)?;
        let prefill = chat.continue_last.then(|| Prefill::new(&chat.messages)).transpose()?;
        let conversation = Conversation {
            tools: chat.tools.as_ref(),
            now_unix_s: chat.now_unix_s,
            add_generation_prompt: add_generation_prompt && prefill.is_none(),
            ..Conversation::new(prefill.as_ref().map_or(&chat.messages, |prefill| &prefill.messages))
        };
        let rendered = template.render(&conversation)?;
        Ok(match prefill {
            Some(prefill) => prefill.cut(rendered)?,
            None => rendered,
        })
    }

    /// How the answer to `chat` is written, whose prompt is `prompt`, as [`Self::render`] gave it. Calls are looked for
    /// only where tools were shown.
    ///
    /// # Errors
    /// As for [`Self::render`].
    pub fn speech_style(&self, chat: &Chat, prompt: &str) -> Result<SpeechStyle, RequestError> {
        let (template, with_tools) = self.template(chat)?;
        let style = template.speech_style();
        let is_continued = chat.continue_last && speech::is_in_reasoning(&prefill::text(&chat.messages)?);
        Ok(SpeechStyle {
            calls: if with_tools { style.calls } else { CallStyle::None },
            starts_in_reasoning: style.reasoning && (is_continued || speech::opens_reasoning(prompt)),
            ..style
        })
    }

    /// The template for a conversation, and whether it has tools to show.
    fn template(&self, chat: &Chat) -> Result<(Cow<'_, ChatTemplate>, bool), RequestError> {
        let tools = chat.tools.as_ref().filter(|tools| !tools.is_null());
        let with_tools = tools.is_some_and(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let template = self.templates.choose(&self.name, chat.template.as_ref(), with_tools)?;
        if with_tools && !template.takes_tools() {
            return Err(RequestError::NoTools { model: self.name.clone() });
        }
        Ok((template, with_tools))
    }

    fn encode_text(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, RequestError> {
        let tokenizer = self.tokenizer()?;
        let mut tokens = Vec::new();
        tokenizer.encode(text, parse_special, &mut tokens);
        // A template usually writes the begin token itself; it must not stand there twice.
        if let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.add_bos() && tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }
}
