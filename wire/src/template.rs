//! What both ends must agree on about chat templates: the names of those that the daemon has built in, and how a word
//! on a command line or in a configuration is read.

/// Names of the templates that every model can be used with, in order.
pub const BUILTIN_TEMPLATES: [&str; 27] = [
    "chatml",
    "command-r",
    "deepseek",
    "deepseek2",
    "deepseek3",
    "exaone3",
    "falcon3",
    "gemma",
    "glm4",
    "gpt-oss",
    "granite",
    "llama2",
    "llama3",
    "llama4",
    "minicpm",
    "mistral-v1",
    "mistral-v3",
    "mistral-v3-tekken",
    "mistral-v7",
    "mistral-v7-tekken",
    "olmo2",
    "openchat",
    "phi3",
    "phi4",
    "smollm2",
    "vicuna",
    "zephyr",
];

/// Whether a user who writes `word` where a template is wanted means a file: one with a `/` or a `.` in it does,
/// all others are names.
pub fn is_template_file(word: &str) -> bool {
    word.contains(['/', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_taken_for_a_file() {
        assert!(
            BUILTIN_TEMPLATES.is_sorted() && !BUILTIN_TEMPLATES.iter().any(|name| is_template_file(name))
        );
        assert!(["./chatml", "chat.jinja", "/etc/zllm/t"].into_iter().all(is_template_file));
    }
}
