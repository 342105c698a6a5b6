//! The source before it is compiled: the delimiters' whitespace rules, a bound on each tag's length, and
//! `{% generation %}`, which minijinja does not know.
//!
//! Hugging Face's extension marks what the assistant said; in a prompt it is a scope and nothing more, which is what
//! `{% with %}` is. The tag's name is replaced where minijinja's own lexer finds it, so text, strings, comments and raw
//! blocks stay as they are.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// What Hugging Face sets: the newline after a block and the blanks before it go.
pub(super) fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the usual delimiters are valid")
}

/// Longest tag, in tokens; a text in quotes is one. minijinja folds constants in time cubic in an expression's length.
const MAX_TAG_TOKENS: usize = 2000;

/// A source that can be compiled.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) source: String,
    /// Whether the word `tools` stands in any tag outside of quotes.
    pub(super) names_tools: bool,
}

/// The source with `\n` for every line's end, as Jinja2 reads it, and with `generation` and `endgeneration` tags as
/// `with` and `endwith`; lines stay where they are.
pub(super) fn prepare(source: &str) -> Result<Prepared, Error> {
    let source = &source.replace("\r\n", "\n").replace('\r', "\n");
    let mut prepared = String::with_capacity(source.len());
    let mut copied_to = 0;
    let mut tag_tokens = 0;
    let mut is_tag_name = false;
    let mut names_tools = false;
    for token in tokenize(source, false, syntax()) {
        let (token, span) = token?;
        tag_tokens += 1;
        match token {
            Token::TemplateData(_) | Token::BlockStart | Token::VariableStart => tag_tokens = 0,
            _ if tag_tokens > MAX_TAG_TOKENS => {
                let message = format!("the tag that ends at line {} or later is too long", span.start_line);
                return Err(Error::new(ErrorKind::SyntaxError, message));
            }
            Token::Ident(name @ ("generation" | "endgeneration")) if is_tag_name => {
                prepared.push_str(&source[copied_to..span.start_offset as usize]);
                prepared.push_str(if name == "generation" { "with" } else { "endwith" });
                copied_to = span.end_offset as usize;
            }
            Token::Ident("tools") => names_tools = true,
            _ => {}
        }
        is_tag_name = matches!(token, Token::BlockStart);
    }
    prepared.push_str(&source[copied_to..]);
    Ok(Prepared { source: prepared, names_tools })
}

#[cfg(test)]
mod tests {
    use super::{MAX_TAG_TOKENS, prepare};

    #[test]
    fn replaces_tags_alone() {
        let source = "generation {%- generation -%} {{ 'generation' }} {# {% generation %} #}\n{%endgeneration%}\
                      {% if generation %}{% raw %}{% generation %}{% endraw %}{% endif %} é";
        let expected = "generation {%- with -%} {{ 'generation' }} {# {% generation %} #}\n{%endwith%}\
                        {% if generation %}{% raw %}{% generation %}{% endraw %}{% endif %} é";
        assert_eq!(prepare(source).unwrap().source, expected);
    }

    #[test]
    fn finds_the_word_tools_in_tags_alone() {
        for (source, expected) in [
            ("{% for tool in tools %}x{% endfor %}", true),
            ("{{ tools | tojson }}", true),
            ("{% if not tools is defined %}{% endif %}", true),
            ("tools {{ 'tools' }} {# {{ tools }} #} {% raw %}{{ tools }}{% endraw %} {{ tool }}", false),
        ] {
            assert_eq!(prepare(source).unwrap().names_tools, expected, "{source}");
        }
    }

    #[test]
    fn refuses_a_long_tag() {
        let chain = |tokens: usize| format!("a{{{{ 1{} }}}}", " + 1".repeat(tokens / 2));
        assert!(prepare(&chain(MAX_TAG_TOKENS - 2)).is_ok());
        assert!(prepare(&chain(MAX_TAG_TOKENS + 2)).unwrap_err().to_string().contains("too long"));
        assert!(prepare(&"{{ 1 + 1 }}".repeat(MAX_TAG_TOKENS)).is_ok());
    }
}
