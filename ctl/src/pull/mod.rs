//! `pull`: brings a model file into the models folder, whole and checked or not at all.
//!
//! Whatever the source, the file is made in `NAME.partial/` beside its place, checked, and renamed into it. What is
//! in that folder when a pull breaks off is used by the next one.

mod catalogue;
mod hub;
mod local;
mod partial;
mod pypi;

use crate::cli::PullArgs;
use crate::client::Context;
use crate::failure::Failure;
use crate::output;
use crate::units::{self, Align, Table};
use catalogue::Entry;
use partial::{Expected, Installed, Partial};
use serde_json::json;
use std::path::{Path, PathBuf};
use zllm_wire::default_models_dir;

/// `pull`.
pub(crate) fn pull(context: &Context, args: &PullArgs) -> Result<(), Failure> {
    let Some(name) = &args.name else {
        return show_catalogue(context);
    };
    let models_dir = match &args.models_dir {
        Some(dir) => dir.clone(),
        None => default_models_dir().ok_or_else(|| {
            Failure::Usage("no place for models: set HOME or ZLLM_MODELS_DIR, or give --models-dir".into())
        })?,
    };
    check_name(name)?;
    let entry = source_is_catalogue(args).then(|| find_entry(name)).transpose()?;
    let sha256 = args.sha256.clone().or(entry.map(|entry| entry.sha256.to_owned()));
    let expected = Expected { bytes: entry.map(|entry| entry.bytes), sha256 };
    let target = models_dir.join(format!("{name}.gguf"));
    let installed = match existing(&target, &expected, args.force)? {
        Some(installed) => {
            eprintln!("{name} is there already");
            installed
        }
        None => fetch(args, entry, &Partial::open(&models_dir, name)?, expected)?,
    };
    report(context, name, &installed, entry)
}

fn fetch(
    args: &PullArgs,
    entry: Option<&Entry>,
    partial: &Partial,
    mut expected: Expected,
) -> Result<Installed, Failure> {
    let file = if let Some(entry) = entry {
        pypi::fetch(entry, partial)?
    } else if let Some(source) = &args.file {
        local::fetch(source, partial)?
    } else if let (Some(repo), Some(filename)) = (&args.repo, &args.filename) {
        let (file, told) = hub::fetch(&hub::Source::new(repo, filename, &args.revision)?, partial)?;
        expected.bytes = told.bytes;
        expected.sha256 = expected.sha256.or(told.sha256);
        file
    } else {
        return Err(Failure::Usage("pull needs a catalogue name, --file or --repo".into()));
    };
    partial.install(&file, &expected)
}

/// The file that is in the place already, if it may stay there.
fn existing(target: &Path, expected: &Expected, force: bool) -> Result<Option<Installed>, Failure> {
    if force || !target.exists() {
        return Ok(None);
    }
    let exists = format!("{} exists", target.display());
    if expected.sha256.is_none() {
        return Err(Failure::Refused(format!("{exists}; --force replaces it")));
    }
    let installed = Installed::measure(target)?;
    match expected.check(&installed) {
        Ok(()) => Ok(Some(installed)),
        Err(difference) => Err(Failure::Refused(format!("{exists} and {difference}; --force replaces it"))),
    }
}

fn source_is_catalogue(args: &PullArgs) -> bool {
    args.file.is_none() && args.repo.is_none()
}

fn find_entry(name: &str) -> Result<&'static Entry, Failure> {
    catalogue::ENTRIES.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<_> = catalogue::ENTRIES.iter().map(|entry| entry.name).collect();
        Failure::Refused(format!(
            "{name:?} is not in the catalogue ({}); --repo or --file says where it is",
            names.join(", ")
        ))
    })
}

fn check_name(name: &str) -> Result<(), Failure> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && !name.starts_with('.') && name.chars().all(good) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{name:?} is no name for a model: letters, digits, '.', '_' and '-' are allowed, '.' not in front"
    )))
}

fn report(
    context: &Context,
    name: &str,
    installed: &Installed,
    entry: Option<&Entry>,
) -> Result<(), Failure> {
    let file: &PathBuf = &installed.path;
    if context.json {
        return output::print_json(&json!({
            "name": name,
            "file": file,
            "bytes": installed.bytes,
            "sha256": installed.sha256,
            "license": entry.map(|entry| entry.license),
        }));
    }
    let mut rows = vec![
        ("name", name.to_owned()),
        ("file", file.display().to_string()),
        ("size", units::bytes(installed.bytes)),
        ("sha256", installed.sha256.clone()),
    ];
    rows.extend(entry.map(|entry| ("license", entry.license.to_owned())));
    output::print(&units::pairs(&rows))
}

fn show_catalogue(context: &Context) -> Result<(), Failure> {
    let entries = catalogue::ENTRIES;
    if context.json {
        let rows: Vec<_> = entries
            .iter()
            .map(|e| json!({ "name": e.name, "bytes": e.bytes, "sha256": e.sha256, "license": e.license, "about": e.about }))
            .collect();
        return output::print_json(&rows);
    }
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("LICENSE", Align::Left),
        ("WHAT", Align::Left),
    ]);
    for entry in entries {
        table.row([entry.name.into(), units::bytes(entry.bytes), entry.license.into(), entry.about.into()]);
    }
    output::print(&table.render())
}
