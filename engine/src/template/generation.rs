//! The delimiters' whitespace rules, and `{% generation %}`, which minijinja does not know.
//!
//! Hugging Face's extension marks what the assistant said; in a prompt it is a scope and nothing more, which is what
//! `{% with %}` is. The tag's name is replaced where minijinja's own lexer finds it, so text, strings, comments and raw
//! blocks stay as they are.

use minijinja::Error;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// What Hugging Face sets: the newline after a block and the blanks before it go.
pub(super) fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the usual delimiters are valid")
}

/// The source with `generation` and `endgeneration` tags as `with` and `endwith`; lines stay where they are.
pub(super) fn replace_tags(source: &str) -> Result<String, Error> {
    if !source.contains("generation") {
        return Ok(source.to_string());
    }
    let mut replaced = String::with_capacity(source.len());
    let mut copied_to = 0;
    let mut is_tag_name = false;
    for token in tokenize(source, false, syntax()) {
        let (token, span) = token?;
        let name = match token {
            Token::Ident("generation") if is_tag_name => Some("with"),
            Token::Ident("endgeneration") if is_tag_name => Some("endwith"),
            _ => None,
        };
        if let Some(name) = name {
            replaced.push_str(&source[copied_to..span.start_offset as usize]);
            replaced.push_str(name);
            copied_to = span.end_offset as usize;
        }
        is_tag_name = matches!(token, Token::BlockStart);
    }
    replaced.push_str(&source[copied_to..]);
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::replace_tags;

    #[test]
    fn replaces_tags_alone() {
        let source = "generation {%- generation -%} {{ 'generation' }} {# {% generation %} #}\n{%endgeneration%}\
                      {% if generation %}{% raw %}{% generation %}{% endraw %}{% endif %} é";
        let expected = "generation {%- with -%} {{ 'generation' }} {# {% generation %} #}\n{%endwith%}\
                        {% if generation %}{% raw %}{% generation %}{% endraw %}{% endif %} é";
        assert_eq!(replace_tags(source).unwrap(), expected);
    }
}
