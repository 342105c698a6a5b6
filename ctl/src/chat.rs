//! `run` without a prompt: a conversation at the terminal, with line editing and history.
//!
//! The whole conversation is sent each time; the daemon finds the part that it has computed before in its KV cache.

use crate::client::Context;
use crate::events::{Printer, stats_line};
use crate::failure::Failure;
use crate::generate;
use crate::interrupt::Interrupt;
use crate::limits::HISTORY_LINES;
use crate::units;
use rustyline::{Config, DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use zllm_wire::{Prompt, Submit, Template, TokenTiers, Usage};

const HELP: &str = "\
/stats  what the last answer and the whole conversation took
/reset  begin a new conversation
/exit   leave (or Ctrl-D)
Ctrl-C cuts an answer short; twice leaves.";

/// What a chat begins with.
pub(crate) struct Setup {
    /// Model, parameters and session; the prompt is filled in.
    pub(crate) submit: Submit,
    /// Whether each line goes to the model as it is, alone.
    pub(crate) raw: bool,
    /// The system message.
    pub(crate) system: Option<String>,
    /// The chat template, if not the model's.
    pub(crate) template: Option<Template>,
}

/// Talks until the user leaves.
pub(crate) fn chat(context: &Context, interrupt: &Interrupt, setup: Setup) -> Result<(), Failure> {
    let history = history_file();
    let mut editor = editor(history.as_deref())?;
    let mut chat = Chat { turns: Vec::new(), last: None, total: Usage::default(), setup };
    eprintln!("{}; /help lists the commands", chat.setup.submit.model);
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("/exit or Ctrl-D leaves");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(Failure::Failed(format!("cannot read from the terminal: {error}"))),
        };
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        remember(&mut editor, history.as_deref(), text);
        match text {
            "/exit" | "/quit" => break,
            "/help" => eprintln!("{HELP}"),
            "/reset" => chat.reset(),
            "/stats" => chat.stats(),
            _ if text.starts_with('/') => eprintln!("no command {text}; /help lists them"),
            _ => chat.turn(context, interrupt, text)?,
        }
    }
    Ok(())
}

struct Chat {
    setup: Setup,
    /// Messages so far, without the system message.
    turns: Vec<Value>,
    last: Option<Usage>,
    total: Usage,
}

impl Chat {
    /// One question and its answer. Only a stdout that is gone ends the chat.
    fn turn(&mut self, context: &Context, interrupt: &Interrupt, text: &str) -> Result<(), Failure> {
        interrupt.reset();
        let mut printer = Printer::new(context.json, 0);
        let submit = Submit { prompt: self.prompt(text), ..self.setup.submit.clone() };
        let answered = context
            .connect()
            .and_then(|connection| generate::answer(connection, submit, &mut printer, interrupt))
            .and_then(|()| printer.outcome());
        printer.end_line()?;
        let keep = match answered {
            Ok(usage) => {
                self.count(usage);
                true
            }
            Err(Failure::StdoutClosed) => return Err(Failure::StdoutClosed),
            // What was said before Ctrl-C was said.
            Err(Failure::Interrupted) => !printer.text.is_empty(),
            Err(failure) => {
                eprintln!("{failure}");
                false
            }
        };
        interrupt.reset();
        if keep && !self.setup.raw {
            self.turns.push(json!({ "role": "user", "content": text }));
            self.turns.push(json!({ "role": "assistant", "content": printer.text }));
        }
        Ok(())
    }

    fn prompt(&self, text: &str) -> Prompt {
        if self.setup.raw {
            return generate::raw(text);
        }
        let system = self.setup.system.iter().map(|content| json!({ "role": "system", "content": content }));
        let last = json!({ "role": "user", "content": text });
        let messages: Vec<_> = system.chain(self.turns.iter().cloned()).chain([last]).collect();
        generate::conversation(&messages, self.setup.template.clone())
    }

    fn count(&mut self, usage: Usage) {
        self.last = Some(usage);
        self.total.prompt_tokens += usage.prompt_tokens;
        self.total.cached_tokens += usage.cached_tokens;
        let (sum, more) = (&mut self.total.cached_by_tier, usage.cached_by_tier);
        *sum =
            TokenTiers { device: sum.device + more.device, ram: sum.ram + more.ram, ssd: sum.ssd + more.ssd };
        self.total.generated_tokens += usage.generated_tokens;
    }

    fn reset(&mut self) {
        self.turns.clear();
        (self.last, self.total) = (None, Usage::default());
        eprintln!("a new conversation");
    }

    fn stats(&self) {
        match &self.last {
            None => eprintln!("nothing was asked yet"),
            Some(last) => {
                let Usage { prompt_tokens, cached_tokens, cached_by_tier, generated_tokens, .. } = self.total;
                let cached = units::cached(cached_tokens, &cached_by_tier);
                eprintln!("last   {}", stats_line(last));
                eprintln!(
                    "total  prompts {prompt_tokens} tokens ({cached}), generated {generated_tokens} tokens"
                );
            }
        }
    }
}

fn editor(history: Option<&Path>) -> Result<DefaultEditor, Failure> {
    let failed = |error: ReadlineError| Failure::Failed(format!("cannot edit lines here: {error}"));
    let config = Config::builder().max_history_size(HISTORY_LINES).map_err(failed)?.build();
    let mut editor = DefaultEditor::with_config(config).map_err(failed)?;
    if let Some(path) = history {
        // The first chat has no history yet.
        let _ = editor.load_history(path);
    }
    Ok(editor)
}

/// Keeps a line at once, however the chat ends. A history that cannot be kept is no reason to stop talking.
fn remember(editor: &mut DefaultEditor, history: Option<&Path>, line: &str) {
    let _ = editor.add_history_entry(line);
    if let Some(path) = history {
        let _ = editor.save_history(path);
    }
}

/// `$XDG_STATE_HOME/zllm/history`, its folder made; `None` where there is no place for it.
fn history_file() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let dir = state.join("zllm");
    fs::create_dir_all(&dir).ok()?;
    Some(dir.join("history"))
}
