//! `cargo xtask canaries`: proves that clippy catches what `clippy.toml` and the workspace's lint table forbid.
//!
//! A ban that names a path wrongly is silent, so each one has a line in `xtask/canaries/bans.rs` that must be an error.
//! The canary crate is made under the target folder from the workspace's own manifest: same lints, same versions, same
//! profile, so that its dependencies are those already built.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;

const SOURCE: &str = "xtask/canaries/bans.rs";
const CRATE: &str = "zllm-canary";
const DISALLOWED: &str = "clippy::disallowed_methods";

/// A line that must be an error, or an error that clippy reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Catch {
    line: usize,
    lint: String,
    /// The banned path for `clippy::disallowed_methods`, else empty.
    path: String,
}

/// Builds the canary and compares what clippy says with what the marks ask for.
pub(crate) fn run() -> Result<()> {
    let root = process::root();
    let source = fs::read_to_string(root.join(SOURCE)).context(SOURCE)?;
    let bans = bans(&fs::read_to_string(root.join("clippy.toml")).context("clippy.toml")?)?;
    let target = process::target_dir()?;
    let folder = target.join("canary");
    fs::create_dir_all(&folder)?;
    let manifest = manifest(&fs::read_to_string(root.join("Cargo.toml"))?, &root.join(SOURCE))?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;

    let output = process::cargo()
        .args(["clippy", "--quiet", "--message-format=json", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target)
        .env("CLIPPY_CONF_DIR", root)
        .output()
        .context("could not start cargo clippy")?;
    let reported = reported(&String::from_utf8_lossy(&output.stdout))?;
    if output.status.success() || reported.is_empty() {
        bail!("the canary was not refused:\n{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let faults = compare(&marks(&source)?, &reported, &bans);
    for fault in &faults {
        eprintln!("{SOURCE}:{fault}");
    }
    if !faults.is_empty() {
        bail!("canaries: {} faults", faults.len());
    }
    println!("canaries: clippy caught all {} lines, for {} bans", reported.len(), bans.len());
    Ok(())
}

/// The canary crate's manifest, out of the workspace's.
fn manifest(workspace: &str, source: &Path) -> Result<String> {
    let root: toml::Table = workspace.parse().context("Cargo.toml")?;
    let at = |keys: &[&str]| {
        let mut place = root.get(keys[0]);
        for key in &keys[1..] {
            place = place.and_then(|table| table.get(*key));
        }
        place.cloned().with_context(|| format!("Cargo.toml has no {}", keys.join(".")))
    };
    // All of the workspace's, not only what the canary uses: then cargo chooses the same features of each.
    let mut dependencies = at(&["workspace", "dependencies"])?;
    if let Some(dependencies) = dependencies.as_table_mut() {
        dependencies.retain(|_, value| value.get("path").is_none());
    }
    let mut profile = at(&["profile", "dev"])?;
    // Settings for single packages of ours would only bring warnings that they are not here.
    if let Some(packages) = profile.get_mut("package").and_then(toml::Value::as_table_mut) {
        packages.retain(|name, _| name == "*");
    }
    let mut made = toml::Table::new();
    let package = [
        ("name", CRATE.into()),
        ("version", "0.0.0".into()),
        ("edition", at(&["workspace", "package", "edition"])?),
    ];
    made.insert("package".to_owned(), table(package));
    made.insert("lib".to_owned(), table([("path", source.to_string_lossy().into_owned().into())]));
    made.insert("workspace".to_owned(), table([]));
    made.insert("dependencies".to_owned(), dependencies);
    made.insert("lints".to_owned(), at(&["workspace", "lints"])?);
    made.insert("profile".to_owned(), table([("dev", profile)]));
    Ok(made.to_string())
}

fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Value {
    toml::Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The paths that `clippy.toml` bans.
fn bans(clippy: &str) -> Result<BTreeSet<String>> {
    let table: toml::Table = clippy.parse().context("clippy.toml")?;
    let entries = table.get("disallowed-methods").and_then(toml::Value::as_array);
    let mut bans = BTreeSet::new();
    for entry in entries.context("clippy.toml has no disallowed-methods")? {
        let path = entry.get("path").and_then(toml::Value::as_str).context("a ban has no path")?;
        if entry.get("reason").and_then(toml::Value::as_str).is_none_or(|reason| reason.trim().is_empty()) {
            bail!("clippy.toml: the ban of {path} has no reason");
        }
        bans.insert(path.to_owned());
    }
    Ok(bans)
}

/// The lines marked `// canary: LINT [PATH]`.
fn marks(source: &str) -> Result<BTreeSet<Catch>> {
    let mut marks = BTreeSet::new();
    for (number, line) in source.lines().enumerate() {
        let Some((code, mark)) = line.split_once("// canary: ") else { continue };
        let (lint, path) = mark.trim().split_once(' ').unwrap_or((mark.trim(), ""));
        if code.trim().is_empty() {
            bail!("{SOURCE}:{}: a mark without code", number + 1);
        }
        marks.insert(Catch { line: number + 1, lint: lint.to_owned(), path: path.to_owned() });
    }
    Ok(marks)
}

/// The errors with a lint's or the compiler's code in cargo's JSON messages about the canary.
fn reported(json_lines: &str) -> Result<BTreeSet<Catch>> {
    let mut catches = BTreeSet::new();
    for line in json_lines.lines() {
        let record: Value =
            serde_json::from_str(line).with_context(|| format!("cargo's message {line:?}"))?;
        let message = &record["message"];
        let of_canary = record["target"]["name"].as_str() == Some(&CRATE.replace('-', "_"));
        let (Some("error"), true, Some(code)) =
            (message["level"].as_str(), of_canary, message["code"]["code"].as_str())
        else {
            continue;
        };
        let spans = message["spans"].as_array().into_iter().flatten();
        let line =
            spans.filter(|span| span["is_primary"] == true).find_map(|span| span["line_start"].as_u64());
        let text = message["message"].as_str().unwrap_or_default();
        let path = if code == DISALLOWED { text.split('`').nth(1).unwrap_or_default() } else { "" };
        let line = usize::try_from(line.with_context(|| format!("an error without a place: {text}"))?)?;
        catches.insert(Catch { line, lint: code.to_owned(), path: path.to_owned() });
    }
    Ok(catches)
}

/// What is marked and not caught, caught and not marked, banned and not marked.
fn compare(marks: &BTreeSet<Catch>, reported: &BTreeSet<Catch>, bans: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for Catch { line, lint, path } in marks.difference(reported) {
        faults.push(format!("{line}: {lint} {path} was not caught"));
    }
    for Catch { line, lint, path } in reported.difference(marks) {
        faults.push(format!("{line}: {lint} {path} was caught without a mark"));
    }
    for ban in bans {
        if !marks.iter().any(|mark| mark.path == *ban) {
            faults.push(format!("0: the ban of {ban} has no canary"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catch(line: usize, lint: &str, path: &str) -> Catch {
        Catch { line, lint: lint.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn a_ban_that_is_silent_extra_or_without_canary_is_a_fault() {
        let marks = BTreeSet::from([catch(3, DISALLOWED, "a::b")]);
        let bans = BTreeSet::from(["a::b".to_owned()]);
        assert_eq!(compare(&marks, &marks, &bans), [""; 0]);
        assert!(compare(&marks, &BTreeSet::new(), &bans)[0].contains("not caught"));
        let elsewhere = BTreeSet::from([catch(3, DISALLOWED, "a::b"), catch(9, DISALLOWED, "a::b")]);
        assert!(compare(&marks, &elsewhere, &bans)[0].contains("without a mark"));
        let more = BTreeSet::from(["a::b".to_owned(), "a::c".to_owned()]);
        assert!(compare(&marks, &marks, &more)[0].contains("a::c has no canary"));
    }

    #[test]
    fn reads_marks_and_messages() {
        let source = "//! X\nfn f() {\n    g(); // canary: clippy::disallowed_methods a::g\n    h() // canary: clippy::todo\n}\n";
        let expected = BTreeSet::from([catch(3, DISALLOWED, "a::g"), catch(4, "clippy::todo", "")]);
        assert_eq!(marks(source).unwrap(), expected);
        let message = |level: &str, code: &str, text: &str, line: usize| {
            format!(
                r#"{{"reason":"compiler-message","target":{{"name":"zllm_canary"}},"message":{{"level":"{level}","code":{{"code":"{code}"}},"message":"{text}","spans":[{{"is_primary":true,"line_start":{line}}}]}}}}"#
            )
        };
        let lines = [
            message("error", DISALLOWED, "use of a disallowed method `a::g`", 3),
            message("error", "clippy::todo", "`todo` should not be present", 4),
            message("warning", "missing_docs", "missing documentation", 5),
            r#"{"reason":"build-finished","success":false}"#.to_owned(),
        ];
        assert_eq!(reported(&lines.join("\n")).unwrap(), expected);
        assert!(reported("not json").is_err());
    }

    #[test]
    fn a_ban_needs_a_reason() {
        assert!(bans("disallowed-methods = [{ path = \"a::b\", reason = \" \" }]").is_err());
        assert!(bans("disallowed-methods = [\"a::b\"]").is_err());
        assert_eq!(bans("disallowed-methods = [{ path = \"a::b\", reason = \"c\" }]").unwrap().len(), 1);
    }
}
