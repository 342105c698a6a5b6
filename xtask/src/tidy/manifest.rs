//! The workspace's `Cargo.toml`: every dependency has its reason beside it, and somebody uses it.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::arrows::dependencies;
use super::{TextFile, Violation};

/// A third-party line of `[workspace.dependencies]` without a comment is a violation.
pub(crate) fn check(files: &[TextFile]) -> Result<Vec<Violation>> {
    Ok(without_reason(&root_manifest(files)?.text))
}

/// Workspace dependencies that no member names.
pub(crate) fn unused(files: &[TextFile]) -> Result<Vec<String>> {
    let root: toml::Table = root_manifest(files)?.text.parse()?;
    let mut used = BTreeSet::new();
    for file in files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let manifest: toml::Table = file.text.parse().with_context(|| file.path.clone())?;
        used.extend(dependencies(&manifest).into_iter().map(|(name, _)| name));
    }
    let declared =
        root.get("workspace").and_then(|table| table.get("dependencies")).and_then(toml::Value::as_table);
    let declared = declared.context("Cargo.toml has no [workspace.dependencies]")?;
    let unused = declared.keys().filter(|name| !used.contains(*name));
    Ok(unused.map(|name| format!("Cargo.toml: nobody uses the workspace dependency {name}")).collect())
}

fn root_manifest(files: &[TextFile]) -> Result<&TextFile> {
    files.iter().find(|file| file.path == "Cargo.toml").context("no Cargo.toml at the root")
}

fn without_reason(manifest: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut inside = false;
    for (number, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        } else if inside && !line.is_empty() && !line.starts_with('#') && !line.contains("path = ") {
            let reason = line.rsplit_once('#').map_or("", |(_, reason)| reason.trim());
            if reason.is_empty() {
                let name = line.split(['=', '.', ' ']).next().unwrap_or(line);
                violations.push(Violation::new(
                    "Cargo.toml",
                    number + 1,
                    format!("{name} has no reason beside it"),
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_a_reason_is_caught() {
        let manifest = "[workspace]\nmembers = []\n[workspace.dependencies]\n# all of them\nours = { path = \"x\" }\n\
            half = \"2\" # f16\nserde = { version = \"1\" }\nanyhow = \"1\" #\n[profile.dev]\nopt-level = 1\n";
        let lines: Vec<usize> =
            without_reason(manifest).into_iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [7, 8]);
    }

    #[test]
    fn an_unused_dependency_is_named() {
        let file = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("Cargo.toml", "[workspace.dependencies]\nhalf = \"2\" # f16\nserde = \"1\" # all\n"),
            file("kernels/Cargo.toml", "[dependencies]\nhalf.workspace = true\n"),
        ];
        assert_eq!(unused(&files).unwrap(), ["Cargo.toml: nobody uses the workspace dependency serde"]);
    }
}
