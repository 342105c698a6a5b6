//! Nothing in the repository may name the machine it was written on, or the mirror it fetched from.

use super::{TextFile, Violation};

/// Texts that belong to one machine. Cut in two, or this file would find itself.
const FORBIDDEN: [(&str, &str); 10] = [
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine: say `~` or `$HOME`"),
    (concat!("bash_", "jobs"), "a path of one machine"),
    (concat!("index.cra", "tes.io"), "a registry's host: that is the user's setting"),
    (concat!("static.cra", "tes.io"), "a registry's host: that is the user's setting"),
    (concat!("pypi", ".org"), "a registry's host: that is the user's pip's setting"),
    (concat!("python", "hosted.org"), "a registry's host: that is the user's pip's setting"),
    (concat!("registry.npm", "js"), "a registry's host: that is the user's npm's setting"),
    (concat!("index-", "url"), "a registry's host: that is the user's pip's setting"),
];

/// Checks every line of a text file.
pub(crate) fn check(file: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        for (text, why) in FORBIDDEN {
            if line.contains(text) {
                violations.push(Violation::new(&file.path, number + 1, format!("`{text}` is {why}")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_and_registry_hosts_are_caught() {
        for (text, _) in FORBIDDEN {
            let file = TextFile { path: "x.md".to_owned(), text: format!("one\nsee {text}models\n") };
            assert_eq!(
                check(&file).iter().map(|violation| violation.line).collect::<Vec<_>>(),
                [2],
                "{text}"
            );
        }
        let file =
            TextFile { path: "x.md".to_owned(), text: "~/.cache/zllm /etc/zllm crates.io\n".to_owned() };
        assert_eq!(check(&file), []);
    }
}
