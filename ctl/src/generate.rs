//! `run` and `submit`: a prompt goes in, an answer comes out.

use crate::chat;
use crate::cli::{PromptArgs, RunArgs, SubmitArgs};
use crate::client::{Connection, Context, unexpected};
use crate::events::{Printer, stats_line};
use crate::failure::Failure;
use crate::follow::{self, Follower};
use crate::interrupt::Interrupt;
use crate::{models, output};
use serde_json::json;
use std::{
    fs,
    io::{self, IsTerminal, Read},
    path::Path,
};
use zllm_wire::{Answer, JobId, ModelInfo, Op, Prompt, Submit};

/// `run`: one answer, or a chat when there is no prompt and a person to give some.
pub(crate) fn run(context: &Context, args: RunArgs) -> Result<(), Failure> {
    let args = args.prompt;
    let submit = template(&args)?;
    let text = read_prompt(&args)?;
    let interrupt = Interrupt::install()?;
    let mut connection = context.connect()?;
    interrupt.guard(connection.stream())?;
    let info = models::load_on(&mut connection, &args.model).map_err(|failure| interrupt.explain(failure))?;
    let raw = is_raw(&args, &info);
    let Some(text) = text else {
        drop(connection);
        return chat::chat(context, &interrupt, chat::Setup { submit, raw, system: args.system });
    };
    let submit = Submit { prompt: prompt(&text, args.system.as_deref(), raw), ..submit };
    let mut printer = Printer::new(context.json, 0);
    let answered = answer(connection, submit, &mut printer, &interrupt);
    printer.end_line()?;
    answered?;
    eprintln!("{}", stats_line(&printer.outcome()?));
    Ok(())
}

/// `submit`: the job goes on without us.
pub(crate) fn submit(context: &Context, args: SubmitArgs) -> Result<(), Failure> {
    let submit = template(&args.prompt)?;
    let Some(text) = read_prompt(&args.prompt)? else {
        return Err(Failure::Usage("submit needs a prompt; \"-\" reads it from stdin".into()));
    };
    let interrupt = args.wait.then(Interrupt::install).transpose()?;
    let mut connection = context.connect()?;
    let info = describe(&mut connection, &args.prompt.model)?;
    let prompt = prompt(&text, args.prompt.system.as_deref(), is_raw(&args.prompt, &info));
    let submit = Submit { prompt, detached: true, stream: args.wait, label: args.label, ..submit };
    let job = accepted(&mut connection, submit)?;
    if context.json {
        output::print_json(&json!({ "job": job }))?;
    }
    let Some(interrupt) = interrupt else {
        return if context.json { Ok(()) } else { output::print(&format!("{job}\n")) };
    };
    if !context.json {
        eprintln!("job {job}");
    }
    Follower::new(context, job, 0, interrupt).follow(connection)
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
pub(crate) fn prompt(text: &str, system: Option<&str>, raw: bool) -> Prompt {
    if raw {
        return Prompt::Text { text: text.to_owned(), parse_special: true };
    }
    let system = system.map(|content| json!({ "role": "system", "content": content }));
    let messages: Vec<_> = system.into_iter().chain([json!({ "role": "user", "content": text })]).collect();
    Prompt::Chat { messages_json: json!(messages).to_string(), tools_json: None }
}

fn accepted(connection: &mut Connection, submit: Submit) -> Result<JobId, Failure> {
    connection.send(Op::Submit(Box::new(submit)))?;
    match connection.answer()? {
        Answer::Accepted { job } => Ok(job),
        other => Err(unexpected(&other)),
    }
}

/// What the arguments say about the job, without its prompt.
fn template(args: &PromptArgs) -> Result<Submit, Failure> {
    Ok(Submit {
        model: args.model.clone(),
        prompt: Prompt::Text { text: String::new(), parse_special: false },
        params: args.sampling.params().map_err(Failure::Usage)?,
        session: args.session.clone(),
        detached: false,
        stream: true,
        label: None,
    })
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

/// Whether the prompt goes without a template; says so when that is not the user's own wish.
fn is_raw(args: &PromptArgs, info: &ModelInfo) -> bool {
    let missing = info.has_template == Some(false);
    if missing && !args.raw {
        let system = if args.system.is_some() { ", and the system message is left out" } else { "" };
        eprintln!("{} has no chat template: the prompt is given to it as it is{system}", info.name);
    }
    args.raw || missing
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
