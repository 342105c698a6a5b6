//! The options of a command that measures: `--name VALUE` or `--name`.

use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// The words after an option.
pub(crate) struct Values<'a> {
    option: &'a str,
    rest: std::slice::Iter<'a, String>,
}

impl<'a> Values<'a> {
    /// The next word.
    pub(crate) fn text(&mut self) -> Result<&'a str> {
        self.rest.next().map(String::as_str).with_context(|| format!("{} needs a value", self.option))
    }

    /// The next word, a number of at least 1.
    pub(crate) fn count(&mut self) -> Result<usize> {
        let text = self.text()?;
        match usize::from_str(text) {
            Ok(count) if count > 0 => Ok(count),
            _ => bail!("{} must be a number of at least 1, not {text:?}", self.option),
        }
    }
}

/// Gives each option to `take`, which says whether there is such a one. Prints the usage and returns false when help is
/// asked for.
pub(crate) fn read<'a>(
    args: &'a [String],
    usage: &str,
    mut take: impl FnMut(&str, &mut Values<'a>) -> Result<bool>,
) -> Result<bool> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{usage}");
        return Ok(false);
    }
    let mut values = Values { option: "", rest: args.iter() };
    while let Some(option) = values.rest.next() {
        values.option = option;
        if !take(option, &mut values)? {
            bail!("no option {option:?}\n{usage}");
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_refused() {
        let read = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(ToString::to_string).collect();
            let (mut rounds, mut write) = (5, true);
            let go_on = read(&args, "usage\n", |option, values| {
                match option {
                    "--rounds" => rounds = values.count()?,
                    "--no-write" => write = false,
                    _ => return Ok(false),
                }
                Ok(true)
            });
            go_on.map(|go_on| (go_on, rounds, write))
        };
        assert_eq!(read(&["--rounds", "3", "--no-write"]).unwrap(), (true, 3, false));
        assert_eq!(read(&["--rounds", "x", "--help"]).unwrap(), (false, 5, true));
        for bad in [&["--rounds"][..], &["--rounds", "0"], &["--rounds", "x"], &["--fast"]] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(bad[0]), "{error}");
        }
    }
}
