//! `run` and `submit`: a prompt goes in, an answer comes out.

use crate::chat;
use crate::cli::{PromptArgs, RunArgs, SubmitArgs, TimesArgs};
use crate::client::{Connection, Context, unexpected};
use crate::events::{Printer, stats_line};
use crate::failure::Failure;
use crate::follow::{self, Follower};
use crate::interrupt::Interrupt;
use crate::{models, output};
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, IsTerminal, Read},
    path::Path,
};
use zllm_wire::{
    Answer, BUILTIN_TEMPLATES, Class, JobId, ModelInfo, Op, Prompt, Submit, Template, is_template_file,
    limits::MAX_TEMPLATE_BYTES,
};

/// `run`: one answer, or a chat when there is no prompt and a person to give some.
pub(crate) fn run(context: &Context, args: RunArgs) -> Result<(), Failure> {
    let RunArgs { class, times, prompt: args } = args;
    let submit = without_prompt(&args, class.into(), &times)?;
    let template = template(&args)?;
    if args.sampling.logprobs.is_some() && !context.json {
        return Err(Failure::Usage("--logprobs is shown with --json; give both".into()));
    }
    let text = read_prompt(&args)?;
    if text.is_none() && args.continued.is_some() {
        return Err(Failure::Usage("--continue needs a prompt; a chat sends the whole conversation".into()));
    }
    let interrupt = Interrupt::install()?;
    let mut connection = context.connect()?;
    interrupt.guard(connection.stream())?;
    let info = models::load_on(&mut connection, &args.model).map_err(|failure| interrupt.explain(failure))?;
    needs_template(&args, &info)?;
    let Some(text) = text else {
        if args.sampling.n.is_some_and(|n| n > 1) {
            return Err(Failure::Usage("a chat goes on from one answer; --n needs a prompt".into()));
        }
        drop(connection);
        let setup = chat::Setup { submit, raw: args.raw, system: args.system, template };
        return chat::chat(context, &interrupt, setup);
    };
    let submit = Submit { prompt: prompt(&args, &text, template), ..submit };
    let mut printer = Printer::new(context.json, 0);
    let answered = answer(connection, submit, &mut printer, &interrupt);
    printer.end_line()?;
    answered?;
    eprintln!("{}", stats_line(&printer.outcome()?));
    Ok(())
}

/// `submit`: the job goes on without us.
pub(crate) fn submit(context: &Context, args: SubmitArgs) -> Result<(), Failure> {
    let submit = without_prompt(&args.prompt, args.class.into(), &args.times)?;
    let template = template(&args.prompt)?;
    let Some(text) = read_prompt(&args.prompt)? else {
        return Err(Failure::Usage("submit needs a prompt; \"-\" reads it from stdin".into()));
    };
    let interrupt = args.wait.then(Interrupt::install).transpose()?;
    let mut connection = context.connect()?;
    let info = describe(&mut connection, &args.prompt.model)?;
    needs_template(&args.prompt, &info)?;
    let prompt = prompt(&args.prompt, &text, template);
    let SubmitArgs { wait: stream, label, key, batch, .. } = args;
    let submit = Submit { prompt, detached: true, stream, label, key, batch, ..submit };
    let (job, known) = accepted(&mut connection, submit)?;
    if context.json {
        output::print_json(&json!({ "job": job, "known": known }))?;
    } else if known {
        eprintln!("submitted before with this key");
    }
    let Some(interrupt) = interrupt else {
        return if context.json { Ok(()) } else { output::print(&format!("{job}\n")) };
    };
    if !context.json {
        eprintln!("job {job}");
    }
    Follower::new(context, job, 0, args.reconnect_for, interrupt).follow(connection)
}

/// Submits and prints the answer; the job ends with the connection.
pub(crate) fn answer(
    mut connection: Connection,
    submit: Submit,
    printer: &mut Printer,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    interrupt.guard(connection.stream())?;
    accepted(&mut connection, submit)
        .and_then(|_| follow::stream(connection, printer, interrupt))
        .map_err(|failure| interrupt.explain(failure))
}

/// The whole prompt for one message of the user.
fn prompt(args: &PromptArgs, text: &str, template: Option<Template>) -> Prompt {
    if let Some(session) = args.continued.clone() {
        return Prompt::Continue { session, text: text.to_owned(), parse_special: true };
    }
    if args.raw {
        return raw(text);
    }
    let system = args.system.iter().map(|content| json!({ "role": "system", "content": content }));
    let messages: Vec<_> = system.chain([json!({ "role": "user", "content": text })]).collect();
    conversation(&messages, template)
}

/// A prompt that goes to the model as it is.
pub(crate) fn raw(text: &str) -> Prompt {
    Prompt::Text { text: text.to_owned(), parse_special: true }
}

/// A prompt that a chat template makes of messages.
pub(crate) fn conversation(messages: &[Value], template: Option<Template>) -> Prompt {
    Prompt::Chat {
        messages_json: json!(messages).to_string(),
        tools_json: None,
        template,
        continue_last: false,
    }
}

/// The job, and whether it was there before.
fn accepted(connection: &mut Connection, submit: Submit) -> Result<(JobId, bool), Failure> {
    connection.send(Op::Submit(Box::new(submit)))?;
    match connection.answer()? {
        Answer::Accepted { job, known } => Ok((job, known)),
        other => Err(unexpected(&other)),
    }
}

/// What the arguments say about the job, without its prompt.
fn without_prompt(args: &PromptArgs, class: Class, times: &TimesArgs) -> Result<Submit, Failure> {
    Ok(Submit {
        model: args.model.clone(),
        prompt: Prompt::Text { text: String::new(), parse_special: false },
        params: args.sampling.params().map_err(Failure::Usage)?,
        // What goes on from a session is a turn of it, unless another is named.
        session: args.session.clone().or_else(|| args.continued.clone()),
        tenant: args.tenant.tenant.clone(),
        detached: false,
        stream: true,
        label: None,
        class,
        deadline_ms: times.deadline,
        max_wait_ms: times.max_wait,
        key: None,
        batch: None,
    })
}

/// The template that was asked for. Whether there is one of that name is the daemon's to say.
fn template(args: &PromptArgs) -> Result<Option<Template>, Failure> {
    let Some(word) = &args.template else { return Ok(None) };
    if !is_template_file(word) {
        return Ok(Some(Template::Named(word.clone())));
    }
    let mut source = String::new();
    let opened = fs::File::open(word);
    let read = opened.and_then(|file| file.take(MAX_TEMPLATE_BYTES as u64 + 1).read_to_string(&mut source));
    read.map_err(|error| Failure::Usage(format!("cannot read the chat template from {word}: {error}")))?;
    if source.len() > MAX_TEMPLATE_BYTES {
        return Err(Failure::Usage(format!(
            "{word} is no chat template: longer than {MAX_TEMPLATE_BYTES} bytes"
        )));
    }
    Ok(Some(Template::Source(source)))
}

/// The prompt, or `None` when it is to be asked for at the terminal.
fn read_prompt(args: &PromptArgs) -> Result<Option<String>, Failure> {
    match (&args.prompt, &args.prompt_file) {
        (Some(text), _) if text != "-" => Ok(Some(text.clone())),
        (None, Some(path)) if path != Path::new("-") => fs::read_to_string(path).map(Some).map_err(|error| {
            Failure::Usage(format!("cannot read the prompt from {}: {error}", path.display()))
        }),
        (None, None) if io::stdin().is_terminal() => Ok(None),
        _ => {
            let mut text = String::new();
            io::stdin()
                .lock()
                .read_to_string(&mut text)
                .map_err(|error| Failure::Usage(format!("cannot read the prompt from stdin: {error}")))?;
            Ok(Some(text))
        }
    }
}

/// Refuses a conversation with a model that has no template for it, before anything is typed or sent.
fn needs_template(args: &PromptArgs, info: &ModelInfo) -> Result<(), Failure> {
    if args.raw || args.continued.is_some() || args.template.is_some() || info.has_template != Some(false) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "model {} has no chat template; give one with --template NAME or FILE, or set `template` in zllmd's \
         configuration, or send the prompt as it is with --raw; built in are: {}",
        info.name,
        BUILTIN_TEMPLATES.join(", ")
    )))
}

/// What the daemon knows of a model; loads it only if it was never looked into.
fn describe(connection: &mut Connection, model: &str) -> Result<ModelInfo, Failure> {
    connection.send(Op::Models)?;
    match connection.answer()? {
        Answer::Models(models) => match models.into_iter().find(|info| info.name == model) {
            Some(info) if info.has_template.is_some() => Ok(info),
            _ => models::load_on(connection, model),
        },
        other => Err(unexpected(&other)),
    }
}
