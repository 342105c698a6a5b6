//! Who may depend on whom: the table of ARCHITECTURE's "Folders and arrows".

use anyhow::{Context, Result};

use super::{TextFile, Violation};

/// A folder, its package, and what the package may name in any of its dependency tables.
struct Member {
    folder: &'static str,
    package: &'static str,
    /// Our own packages.
    may_use: &'static [&'static str],
    /// Packages that would break what the table says the folder never does.
    never_uses: &'static [&'static str],
}

/// What makes code async; the daemon alone is.
const ASYNC: [&str; 5] = ["actix", "actix-rt", "actix-web", "futures", "tokio"];

const MEMBERS: [Member; 8] = [
    Member {
        folder: "kernels",
        package: "zllm-kernels",
        may_use: &[],
        never_uses: &["serde_json", "minijinja"],
    },
    Member {
        folder: "engine",
        package: "zllm-engine",
        may_use: &["zllm-kernels"],
        never_uses: &["cudarc", "nix"],
    },
    Member { folder: "state", package: "zllm-state", may_use: &[], never_uses: &["serde_json"] },
    Member { folder: "wire", package: "zllm-wire", may_use: &[], never_uses: &["serde_json"] },
    Member {
        folder: "daemon",
        package: "zllmd",
        may_use: &["zllm-engine", "zllm-state", "zllm-wire"],
        never_uses: &["half", "memmap2"],
    },
    Member { folder: "ctl", package: "zllmctl", may_use: &["zllm-wire"], never_uses: &[] },
    Member { folder: "xtask", package: "xtask", may_use: &[], never_uses: &[] },
    Member { folder: "fuzz", package: "zllm-fuzz", may_use: &["zllm-engine"], never_uses: &[] },
];

/// Checks each member's `Cargo.toml`; a member that the table lacks is a violation too.
pub(crate) fn check(files: &[TextFile]) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        let manifest: toml::Table = file.text.parse().with_context(|| file.path.clone())?;
        violations.extend(check_manifest(&file.path, &manifest));
    }
    Ok(violations)
}

fn check_manifest(path: &str, manifest: &toml::Table) -> Vec<Violation> {
    let folder = path.trim_end_matches("/Cargo.toml");
    let Some(member) = MEMBERS.iter().find(|member| member.folder == folder) else {
        return vec![Violation::new(path, 0, "a crate that xtask/src/tidy/arrows.rs does not know")];
    };
    let mut violations = Vec::new();
    let mut complain = |what: String| violations.push(Violation::new(path, 0, what));

    let package =
        manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    if package != Some(member.package) {
        complain(format!("the package is {package:?}, not {:?}", member.package));
    }
    for (name, value) in dependencies(manifest) {
        let is_ours = MEMBERS.iter().any(|other| other.package == name);
        if is_ours && !member.may_use.contains(&name.as_str()) {
            complain(format!(
                "{} may not depend on {name}: see the arrows in docs/ARCHITECTURE.md",
                member.package
            ));
        }
        if member.package != "zllmd" && ASYNC.contains(&name.as_str()) {
            complain(format!("{} may not depend on {name}: only the daemon is async", member.package));
        }
        if member.never_uses.contains(&name.as_str()) {
            complain(format!(
                "{} may not depend on {name}: see the table in docs/ARCHITECTURE.md",
                member.package
            ));
        }
        // A workspace of its own has no versions in common with ours.
        if !manifest.contains_key("workspace")
            && value.get("workspace").and_then(toml::Value::as_bool) != Some(true)
        {
            complain(format!("{name} must say `workspace = true`: versions and reasons stand in one place"));
        }
    }
    violations
}

/// All (package name, value) pairs of a manifest's dependency tables, those of targets included.
pub(crate) fn dependencies(manifest: &toml::Table) -> Vec<(String, toml::Value)> {
    let targets =
        manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(|all| all.values());
    let places = std::iter::once(manifest).chain(targets.filter_map(toml::Value::as_table));
    let mut found = Vec::new();
    for place in places {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = place.get(kind).and_then(toml::Value::as_table) else { continue };
            for (key, value) in table {
                let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                found.push((name.to_owned(), value.clone()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(folder: &str, package: &str, rest: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{package}\"\n{rest}");
        let path = format!("{folder}/Cargo.toml");
        let files = [TextFile { path, text }];
        check(&files).unwrap().into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn allowed_arrows_pass() {
        let rest = "[dependencies]\nzllm-engine.workspace = true\ntokio.workspace = true\n";
        assert_eq!(complaints("daemon", "zllmd", rest), [""; 0]);
    }

    #[test]
    fn each_forbidden_arrow_is_caught() {
        let bad = [
            ("ctl", "zllmctl", "[dependencies]\nzllm-state.workspace = true\n", "zllm-state"),
            ("kernels", "zllm-kernels", "[dev-dependencies]\nzllm-engine.workspace = true\n", "zllm-engine"),
            ("engine", "zllm-engine", "[build-dependencies]\nzllmd.workspace = true\n", "zllmd"),
            (
                "state",
                "zllm-state",
                "[target.'cfg(unix)'.dependencies]\nzllm-wire.workspace = true\n",
                "zllm-wire",
            ),
            (
                "wire",
                "zllm-wire",
                "[dependencies]\nx = { package = \"zllm-state\", workspace = true }\n",
                "zllm-state",
            ),
            ("engine", "zllm-engine", "[dependencies]\ntokio.workspace = true\n", "async"),
            ("xtask", "xtask", "[dependencies]\nzllm-wire.workspace = true\n", "zllm-wire"),
            ("kernels", "zllm-kernels", "[dependencies]\nhalf = \"2\"\n", "workspace = true"),
            ("state", "other-name", "", "other-name"),
            ("newcomer", "newcomer", "", "does not know"),
        ];
        for (folder, package, rest, expected) in bad {
            let found = complaints(folder, package, rest);
            assert!(found.len() == 1 && found[0].contains(expected), "{folder}: {rest:?} gave {found:?}");
        }
    }
}
