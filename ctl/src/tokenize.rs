//! `tokenize`: texts to token ids, one line a text.

use crate::cli::TokenizeArgs;
use crate::client::{Connection, Context, unexpected};
use crate::failure::Failure;
use crate::output;
use std::{
    fs,
    io::{self, Read},
    path::Path,
};
use zllm_wire::{Answer, Op, TokenIds};

/// `tokenize`.
pub(crate) fn tokenize(context: &Context, args: TokenizeArgs) -> Result<(), Failure> {
    let texts = match (args.text, &args.text_file) {
        (Some(text), _) => text,
        (None, Some(path)) => read(path)?,
        (None, None) => return Err(Failure::Usage("tokenize needs a text or --text-file".into())),
    };
    let mut connection = context.connect()?;
    for text in texts.split('\0') {
        let ids = ids(&mut connection, &args.model, text, args.special)?;
        if context.json {
            output::print_json(&ids)?;
        } else {
            let words: Vec<String> = ids.0.iter().map(u32::to_string).collect();
            output::print(&format!("{}\n", words.join(" ")))?;
        }
    }
    Ok(())
}

fn ids(connection: &mut Connection, model: &str, text: &str, special: bool) -> Result<TokenIds, Failure> {
    let (model, text) = (model.to_owned(), text.to_owned());
    connection.send(Op::Tokenize { model, text, parse_special: special, add_bos: special })?;
    loop {
        match connection.answer()? {
            Answer::Tokens(ids) => return Ok(ids),
            Answer::Progress { .. } => {}
            other => return Err(unexpected(&other)),
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    read.map_err(|error| Failure::Usage(format!("cannot read texts from {}: {error}", path.display())))
}
