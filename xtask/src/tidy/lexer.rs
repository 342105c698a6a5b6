//! Just enough of Rust's lexical grammar to tell code from comments and literals.

/// The source with the inside of every comment, string and character literal replaced by spaces; line breaks stay, so
/// line numbers and (for ASCII) columns do too.
pub(crate) fn mask(source: &str) -> String {
    let mut masked = String::with_capacity(source.len());
    let mut rest = source;
    while !rest.is_empty() {
        let (kept, hidden) = token(rest, masked.chars().next_back());
        masked.push_str(&rest[..kept]);
        masked.extend(rest[kept..kept + hidden].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[kept + hidden..];
    }
    masked
}

/// Does `word` stand in the text as a whole identifier? Returns the line of each place, counted from 1.
pub(crate) fn lines_with_word(masked: &str, word: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for (number, line) in masked.lines().enumerate() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let found = line
            .match_indices(word)
            .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word));
        if found {
            lines.push(number + 1);
        }
    }
    lines
}

/// A function with a body.
#[derive(Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of the `fn`, counted from 1.
    pub(crate) line: usize,
    /// From the `fn` to the closing brace.
    pub(crate) lines: usize,
}

/// Every function with a body in masked source.
pub(crate) fn functions(masked: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in masked.match_indices("fn ") {
        if masked[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let name: String =
            masked[at + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(end) = body_end(&masked[at..]) else { continue };
        if !name.is_empty() {
            let line = 1 + masked[..at].matches('\n').count();
            let lines = 1 + masked[at..at + end].matches('\n').count();
            found.push(Function { name, line, lines });
        }
    }
    found
}

/// Where the body of the function that begins `code` closes; `None` for a declaration without a body.
fn body_end(code: &str) -> Option<usize> {
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' if braces == 0 => brackets += 1,
            ')' | ']' if braces == 0 => brackets = brackets.checked_sub(1)?,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' if brackets == 0 => braces += 1,
            '}' if brackets == 0 => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The next token of `rest`: how many bytes of it are code, and how many after them are to be hidden.
fn token(rest: &str, before: Option<char>) -> (usize, usize) {
    let first = rest.chars().next().expect("rest is not empty");
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return (0, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (0, block_comment(rest));
    }
    if first == '"' {
        return (0, quoted(rest, '"'));
    }
    if first == '\'' {
        return character(rest);
    }
    if !in_word && let Some(prefix) = string_prefix(rest) {
        let hashes = rest[prefix..].bytes().take_while(|byte| *byte == b'#').count();
        let is_raw = rest[..prefix].contains('r');
        if is_raw && rest[prefix + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = prefix + hashes + 1;
            let end = rest[body..].find(&close).map_or(rest.len(), |at| body + at + close.len());
            return (0, end);
        }
    }
    (first.len_utf8(), 0)
}

/// Length of `r`, `br` or `cr` when one begins `rest`; other prefixes need no care, their quote comes next.
fn string_prefix(rest: &str) -> Option<usize> {
    ["r", "br", "cr"]
        .into_iter()
        .find(|prefix| rest.strip_prefix(prefix).is_some_and(|after| after.starts_with(['"', '#'])))
        .map(str::len)
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Length of the literal that begins `rest`, with both quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// A character literal is hidden, a lifetime is kept.
fn character(rest: &str) -> (usize, usize) {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => (0, quoted(rest, '\'')),
        (Some(c), Some('\'')) => (0, 2 + c.len_utf8()),
        _ => (1, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_comments_and_literals_and_nothing_else() {
        let cases = [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ unsafe */ b", "a                        b"),
            (r#"f("unsafe \" {", 1)"#, r#"f(             , 1)"#),
            (r##"f(r#"un"safe"#, 1)"##, "f(            , 1)"),
            ("f(br\"x\\\", y)", "f(      , y)"),
            ("let c = '{';", "let c =    ;"),
            ("let c = '\\'';", "let c =     ;"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("for r in r#type {}", "for r in r#type {}"),
        ];
        for (source, expected) in cases {
            assert_eq!(mask(source), expected, "{source}");
        }
    }

    #[test]
    fn finds_whole_words() {
        assert_eq!(lines_with_word("unsafe_code\nunsafe {\nnot_unsafe\n  unsafe", "unsafe"), [2, 4]);
    }

    #[test]
    fn measures_functions() {
        let source = "trait T { fn no_body(x: [u8; 3]); }\npub fn a(x: [u8; 3]) -> u8 {\n  if b { c() }\n  1\n}\nfn b() {}\n";
        let expected = [
            Function { name: "a".to_owned(), line: 2, lines: 4 },
            Function { name: "b".to_owned(), line: 6, lines: 1 },
        ];
        assert_eq!(functions(source), expected);
    }
}
