//! `keys`: who may ask over HTTP.

use crate::cli::{AddKeyArgs, KeysCommand};
use crate::client::{Context, unexpected};
use crate::failure::Failure;
use crate::units::{self, Align, Table};
use crate::{clock, output, words};
use serde_json::json;
use zllm_wire::{Answer, KeyInfo, KeyName, Op};

/// `keys`.
pub(crate) fn keys(context: &Context, command: KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Add(args) => add(context, args),
        KeysCommand::List => match context.ask(Op::Keys)? {
            Answer::Keys(keys) if context.json => output::print_json(&keys),
            Answer::Keys(keys) => list(&keys),
            other => Err(unexpected(&other)),
        },
        KeysCommand::Revoke { name } => revoke(context, &name),
    }
}

/// What it means that there is no key: not that nobody is answered.
const NO_KEYS: &str =
    "no keys: over TCP every program on this machine may do everything without one, and nobody else anything";

fn revoke(context: &Context, name: &KeyName) -> Result<(), Failure> {
    let mut connection = context.connect()?;
    match connection.ask(Op::RevokeKey { name: name.clone() })? {
        Answer::Done if context.json => output::print_json(&json!({ "revoked": name }))?,
        Answer::Done => output::print(&format!("{name} revoked\n"))?,
        other => return Err(unexpected(&other)),
    }
    match connection.ask(Op::Keys)? {
        Answer::Keys(keys) if keys.is_empty() => eprintln!("that was the last one; {NO_KEYS}"),
        Answer::Keys(_) => {}
        other => return Err(unexpected(&other)),
    }
    Ok(())
}

/// Prints the key alone to stdout, so that it can go where it is used.
fn add(context: &Context, args: AddKeyArgs) -> Result<(), Failure> {
    let settings = args.settings();
    match context.ask(Op::AddKey(settings.clone()))? {
        Answer::NewKey { key } if context.json => {
            output::print_json(&json!({ "key": key, "settings": settings }))
        }
        Answer::NewKey { key } => {
            output::print(&format!("{key}\n"))?;
            eprintln!(
                "this is the only time that it is shown; requests with it are tenant {}'s",
                settings.tenant
            );
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

fn list(keys: &[KeyInfo]) -> Result<(), Failure> {
    if keys.is_empty() {
        eprintln!("{NO_KEYS}");
        return Ok(());
    }
    let now = clock::unix_seconds();
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("TENANT", Align::Left),
        ("CLASS", Align::Left),
        ("ADMIN", Align::Left),
        ("AT ONCE", Align::Right),
        ("MADE", Align::Right),
    ]);
    for KeyInfo { settings, created_unix_s } in keys {
        table.row([
            settings.name.to_string(),
            settings.tenant.to_string(),
            words::class(settings.class).into(),
            if settings.admin { "yes" } else { "no" }.into(),
            settings.max_requests.map_or_else(|| "any".into(), |most| most.to_string()),
            units::age(now.saturating_sub(*created_unix_s) * 1000),
        ]);
    }
    output::print(&table.render())
}
