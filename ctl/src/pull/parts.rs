//! Split models: `PREFIX-00001-of-00003.gguf` and its siblings beside it become parts of the new name beside each other.
//!
//! Invariant: the first part, by which a model is known, gets its place when all others have theirs.

use super::Source;
use super::partial::{Expected, Installed, Partial};
use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// What the name of a first part says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split {
    prefix: String,
    count: u32,
}

impl Split {
    /// Reads the name of a source's file; `None`: it is a whole model.
    ///
    /// # Errors
    /// It is a part that is not the first.
    pub(super) fn of(file_name: &str) -> Result<Option<Self>, Failure> {
        let Some((prefix, number, count)) = take_apart(file_name) else { return Ok(None) };
        let split = Self { prefix: prefix.to_owned(), count };
        if number != 1 {
            let first = split.source(1);
            return Err(Failure::Usage(format!(
                "{file_name} is part {number} of {count}; give the first, {first}"
            )));
        }
        Ok((count > 1).then_some(split))
    }

    fn source(&self, number: u32) -> String {
        format!("{}.gguf", self.stem(&self.prefix, number))
    }

    /// The name of a part of the model that is to be called `name`, without `.gguf`.
    pub(super) fn stem(&self, name: &str, number: u32) -> String {
        format!("{name}-{number:05}-of-{:05}", self.count)
    }
}

/// Prefix, number and count of a part's name, `PREFIX-NUMBER-of-COUNT.gguf` with five digits each.
fn take_apart(file_name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = file_name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let decimal = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (number, count) = (decimal(number)?, decimal(count)?);
    (!prefix.is_empty() && (1..=count).contains(&number)).then_some((prefix, number, count))
}

/// Fetches every part, then gives each its name. What was fetched when a pull breaks off is used by the next one.
pub(super) fn fetch(
    source: &Source<'_>,
    split: &Split,
    models_dir: &Path,
    name: &str,
) -> Result<Vec<Installed>, Failure> {
    let mut fetched = Vec::new();
    for number in 1..=split.count {
        let partial = Partial::open(models_dir, &split.stem(name, number))?;
        let (file, expected) = source.sibling(&split.source(number)).fetch(&partial)?;
        fetched.push((partial, file, expected));
    }
    let install = |(partial, file, expected): (Partial, PathBuf, Expected)| partial.install(&file, &expected);
    let mut installed = fetched.into_iter().rev().map(install).collect::<Result<Vec<_>, _>>()?;
    installed.reverse();
    Ok(installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_part_names_its_siblings() {
        let split = Split::of("dir/big-00001-of-00003.gguf").unwrap().expect("a split model");
        assert_eq!(split.source(3), "dir/big-00003-of-00003.gguf");
        assert_eq!(split.stem("mine", 2), "mine-00002-of-00003");
        for whole in [
            "a.gguf",
            "a-1-of-3.gguf",
            "a-00001-of-00001.gguf",
            "-00001-of-00003.gguf",
            "a-00004-of-00003.gguf",
        ] {
            assert_eq!(Split::of(whole).unwrap(), None, "{whole}");
        }
        let message = Split::of("a-00002-of-00003.gguf").unwrap_err().to_string();
        assert_eq!(message, "a-00002-of-00003.gguf is part 2 of 3; give the first, a-00001-of-00003.gguf");
    }
}
