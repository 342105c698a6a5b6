//! Documents: ARCHITECTURE stays short enough to be read, and no relative link is broken.

use std::path::{Component, Path, PathBuf};

use super::{TextFile, Violation};

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";
const MAX_ARCHITECTURE_LINES: usize = 350;

/// Checks the Markdown files; `exists` says whether a path relative to the root is there.
pub(crate) fn check(files: &[TextFile], exists: impl Fn(&Path) -> bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        let lines = file.text.lines().count();
        if file.path == ARCHITECTURE && lines > MAX_ARCHITECTURE_LINES {
            let what = format!("{lines} lines, over its budget of {MAX_ARCHITECTURE_LINES}");
            violations.push(Violation::new(&file.path, 0, what));
        }
        for (number, line) in file.text.lines().enumerate() {
            for target in links(line) {
                let target = target.split('#').next().unwrap_or_default();
                let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
                if !target.is_empty() && !target.contains("://") && !exists(&tidied(&folder.join(target))) {
                    violations.push(Violation::new(
                        &file.path,
                        number + 1,
                        format!("the link to {target} is broken"),
                    ));
                }
            }
        }
    }
    violations
}

/// The targets of a line's `[text](target)` links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// The path with `..` resolved by name.
fn tidied(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_and_a_long_architecture_are_caught() {
        let file = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("README.md", "[a](docs/A.md#part) [b](docs/B.md) [c](https://example.com/x) [d](#here)\n"),
            file("docs/A.md", "[up](../README.md)\n\n[gone](../docs/C.md)\n"),
            file(ARCHITECTURE, &"line\n".repeat(MAX_ARCHITECTURE_LINES + 1)),
        ];
        let there = |path: &Path| ["README.md", "docs/A.md"].contains(&path.to_str().unwrap());
        let found: Vec<String> = check(&files, there).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "README.md:1: the link to docs/B.md is broken",
                "docs/A.md:3: the link to ../docs/C.md is broken",
                "docs/ARCHITECTURE.md: 351 lines, over its budget of 350",
            ]
        );
    }
}
