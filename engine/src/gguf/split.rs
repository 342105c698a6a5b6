//! Split models: `NAME-00001-of-00003.gguf` and its siblings, found beside the first and checked to belong together.
//!
//! Every part is a GGUF file with tensors of its own. The first has the model's metadata; the others repeat
//! `split.no` (from 0), `split.count` and `split.tensors.count` (over all parts), and rarely more.
//! Source: `llama_split_path` in `src/llama.cpp`, `src/llama-model-loader.cpp` and `tools/gguf-split` of llama.cpp.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    ALIGNMENT_KEY,
    error::{GgufError, GgufErrorKind},
    limits::MAX_PARTS,
    metadata::Metadata,
    part::Part,
};

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// The name of a part: `PREFIX-NUMBER-of-COUNT.gguf`, both numbers with five digits, the first from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitName<'a> {
    /// What all parts' names begin with.
    pub prefix: &'a str,
    /// Which part, from 1 to `count`.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl<'a> SplitName<'a> {
    /// Takes a file's name apart; `None` when it is not the name of a part.
    pub fn parse(file_name: &'a str) -> Option<Self> {
        let (rest, count) = file_name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| (text.len() == 5).then(|| decimal(text)).flatten();
        let (number, count) = (digits(number)?, digits(count)?);
        (!prefix.is_empty() && (1..=count).contains(&number)).then_some(Self { prefix, number, count })
    }

    /// The name of part `number` of the same model.
    pub fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count)
    }
}

fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The files that belong to the model at `path` by its name: all parts where it is the name of a first one, else only
/// itself. Whether they are there is not looked at.
pub fn part_paths(path: &Path) -> Vec<PathBuf> {
    match name_of(path) {
        Some(name) if name.number == 1 && name.count as usize <= MAX_PARTS => {
            (1..=name.count).map(|number| path.with_file_name(name.sibling(number))).collect()
        }
        _ => vec![path.to_owned()],
    }
}

fn name_of(path: &Path) -> Option<SplitName<'_>> {
    SplitName::parse(path.file_name()?.to_str()?)
}

/// What a part says of the split.
struct Split {
    /// From 1.
    number: u64,
    count: u64,
}

impl Split {
    /// `None` for a file that is a whole model.
    fn of(metadata: &Metadata<'_>) -> Result<Option<Self>, GgufError> {
        let count = metadata.opt_u64(COUNT_KEY)?.unwrap_or(1);
        let number = metadata.opt_u64(NUMBER_KEY)?.unwrap_or(0).saturating_add(1);
        Ok((count > 1).then_some(Self { number, count }))
    }
}

/// Refuses a part of a split model, where there are no files to find the others by.
pub(super) fn refuse(file: &Part) -> Result<(), GgufError> {
    match Split::of(&file.metadata())? {
        None => Ok(()),
        Some(Split { number, count }) => Err(file.error(GgufErrorKind::PartAlone { number, count })),
    }
}

/// Opens the other parts of the model that `first` begins. A whole model is its only part.
pub(super) fn complete(first: Part) -> Result<Vec<Part>, GgufError> {
    let Some(Split { number, count }) = Split::of(&first.metadata())? else { return Ok(vec![first]) };
    let name = name_of(&first.path);
    if number != 1 {
        let name = name.filter(|name| u64::from(name.count) == count);
        let first_name = name.map_or_else(|| "the first one".to_owned(), |name| name.sibling(1));
        return Err(first.error(GgufErrorKind::NotFirstPart { number, count, first_name }));
    }
    if count > MAX_PARTS as u64 {
        return Err(first.error(GgufErrorKind::TooManyParts { count }));
    }
    if name.is_none_or(|name| name.number != 1 || u64::from(name.count) != count) {
        return Err(first.error(GgufErrorKind::PartName { count }));
    }
    let paths = part_paths(&first.path);
    let mut parts = Vec::with_capacity(paths.len());
    parts.push(first);
    for (path, number) in paths[1..].iter().zip(2..) {
        let part = Part::open(path).map_err(|error| match error.kind {
            GgufErrorKind::Open(e) if e.kind() == ErrorKind::NotFound => {
                GgufError::new(path, GgufErrorKind::MissingPart { number, count })
            }
            _ => error,
        })?;
        check(&part, number, &parts[0], count)?;
        parts.push(part);
    }
    check_tensor_count(&parts)?;
    Ok(parts)
}

/// Checks that `part` is number `number` of the `count` parts that `first` begins.
fn check(part: &Part, number: u64, first: &Part, count: u64) -> Result<(), GgufError> {
    let metadata = part.metadata();
    let found = metadata.opt_u64(COUNT_KEY)?.unwrap_or(1);
    if found != count {
        return Err(part.error(GgufErrorKind::PartCount { found, expected: count }));
    }
    let found = metadata.opt_u64(NUMBER_KEY)?.unwrap_or(0).saturating_add(1);
    if found != number {
        return Err(part.error(GgufErrorKind::PartNumber { found, expected: number }));
    }
    let first_metadata = first.metadata();
    // Each part has its own number, and may be aligned in its own way.
    let told = metadata.iter().filter(|(key, _)| ![NUMBER_KEY, ALIGNMENT_KEY].contains(key));
    for (key, value) in told {
        if first_metadata.get(key).is_some_and(|expected| !expected.is_same(&value)) {
            let (key, first) = (key.to_owned(), first.path.display().to_string());
            return Err(part.error(GgufErrorKind::PartOfAnother { key, first }));
        }
    }
    Ok(())
}

fn check_tensor_count(parts: &[Part]) -> Result<(), GgufError> {
    let metadata = parts[0].metadata();
    let expected = metadata
        .opt_u64(TENSORS_KEY)?
        .ok_or_else(|| metadata.missing(TENSORS_KEY, "how many tensors all parts have together"))?;
    let found = parts.iter().map(|part| part.tensor_count).fold(0, u64::saturating_add);
    match found == expected {
        true => Ok(()),
        false => Err(parts[0].error(GgufErrorKind::PartsTensors { found, expected })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_taken_apart_and_put_together() {
        let name = SplitName::parse("a-b-00002-of-00003.gguf").expect("a part's name");
        assert_eq!(name, SplitName { prefix: "a-b", number: 2, count: 3 });
        assert_eq!(name.sibling(1), "a-b-00001-of-00003.gguf");
        for other in [
            "a.gguf",
            "-00001-of-00003.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-0001-of-0003.gguf",
            "a-+0001-of-00003.gguf",
            "a-00001-of-00003.GGUF",
            "a-00001-of-00003",
        ] {
            assert_eq!(SplitName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_first_part_names_all_and_any_other_file_itself() {
        let all = part_paths(Path::new("/m/a-00001-of-00002.gguf"));
        assert_eq!(all, [Path::new("/m/a-00001-of-00002.gguf"), Path::new("/m/a-00002-of-00002.gguf")]);
        for alone in ["/m/a.gguf", "/m/a-00002-of-00002.gguf", "/m/a-00001-of-99999.gguf"] {
            assert_eq!(part_paths(Path::new(alone)), [Path::new(alone)]);
        }
    }
}
