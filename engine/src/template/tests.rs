//! Renderings made by Python's Jinja2, byte for byte, and the bounds on a hostile template.

use super::{ChatTemplate, Conversation, MAX_SOURCE_BYTES, TemplateContext, TemplateError};
use crate::message::Message;
use serde_json::{Value, json};

pub(super) fn testdata(name: &str) -> Value {
    let path = format!("{}/../testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap()
}

fn context() -> TemplateContext {
    TemplateContext { bos_token: "<s>".to_string(), eos_token: "</s>".to_string() }
}

fn render(source: &str, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
    ChatTemplate::new(source, context())?.render(conversation)
}

pub(super) fn messages_of(json: &Value) -> Vec<Message> {
    serde_json::from_value(json.clone()).unwrap()
}

/// Renders all cases of a file, and returns how many there are. Errors must match to the letter if `exact_errors`.
fn check_cases(name: &str, exact_errors: bool) -> usize {
    let data = testdata(name);
    let cases = data["cases"].as_array().unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let (template, messages) = (case["template"].as_str().unwrap(), case["messages"].as_str().unwrap());
        let messages = messages_of(&data["messages"][messages]);
        let conversation = Conversation {
            tools: Some(&data["tools"]).filter(|_| case["tools"] != false),
            add_generation_prompt: case["add_generation_prompt"] != false,
            ..Conversation::new(&messages)
        };
        let got = render(data["templates"][template].as_str().unwrap(), &conversation);
        let is_right = match (&got, case["expect"].as_str(), case["error"].as_str()) {
            (Ok(text), Some(expected), None) => text == expected,
            (Err(TemplateError::Raised(message)), None, Some(expected)) => message == expected,
            (Err(TemplateError::Render { message, .. }), None, Some(expected)) => {
                !exact_errors || message == expected
            }
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{template}: {got:?}\n  expected {case}"));
        }
    }
    println!("{name}: {} of {} renderings as Python's", cases.len() - wrong.len(), cases.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    cases.len()
}

#[test]
fn renders_as_python_does() {
    assert_eq!(check_cases("templates.json", true), 175);
}

#[test]
fn renders_models_templates_and_corners_of_the_language_as_python_does() {
    assert_eq!(check_cases("template_twins.json", false), 107);
}

#[test]
fn extra_variables_and_tools_reach_the_template() {
    let messages = [Message::user("hi")];
    let extra = json!({"enable_thinking": false, "bos_token": "<b>"});
    let conversation = Conversation {
        extra: extra.as_object(),
        add_generation_prompt: false,
        now_unix_s: Some(1_720_137_662),
        ..Conversation::new(&messages)
    };
    let source = "{{ bos_token }}{{ eos_token }} {{ enable_thinking is false }} {{ tools is none }} \
                  {{ add_generation_prompt }} {{ strftime_now('%d %b %Y') }}";
    assert_eq!(render(source, &conversation).unwrap(), "<b></s> True True False 05 Jul 2024");
    let without_clock = Conversation::new(&messages);
    assert_eq!(render("{{ strftime_now is defined }}", &without_clock).unwrap(), "False");
}

#[test]
fn a_hostile_template_is_stopped() {
    let messages = [Message::user("hi")];
    let conversation = Conversation::new(&messages);
    let endless = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaaaaaaaaaaaaaa') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    ];
    for source in endless {
        let got = render(source, &conversation);
        assert!(matches!(got, Err(TemplateError::OutOfFuel { .. })), "{source}: {got:?}");
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    assert!(matches!(render(&nested, &conversation), Err(TemplateError::Syntax { .. })));
    let recursive = "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}";
    assert!(matches!(render(recursive, &conversation), Err(TemplateError::Render { .. })));
    let deep = "{% set ns = namespace(v=[]) %}{% for i in range(9999) %}{% set ns.v = [ns.v] %}{% endfor %}";
    for end in ["{{ ns.v }}", "{{ ns.v | tojson }}"] {
        let got = render(&format!("{deep}{end}"), &conversation);
        assert!(matches!(got, Err(TemplateError::Render { .. })), "{got:?}");
    }
    let large = "x".repeat(MAX_SOURCE_BYTES + 1);
    assert_eq!(render(&large, &conversation), Err(TemplateError::TooLarge { bytes: MAX_SOURCE_BYTES + 1 }));
}

#[test]
fn errors_name_the_line() {
    let messages = [Message::user("hi")];
    let conversation = Conversation::new(&messages);
    let error = render("a\n{{ messages[0].role.nothing.more }}", &conversation).unwrap_err();
    assert!(matches!(error, TemplateError::Render { line: 2, .. }), "{error:?}");
    let error = render("a\nb\n{% nothing %}", &conversation).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 3, .. }), "{error:?}");
}

#[test]
fn deep_values_and_syntax_do_not_overflow_the_stack() {
    let messages = [Message::user("x".repeat(300_000))];
    let conversation = Conversation::new(&messages);
    // Many levels for few instructions; the parser takes no more than this.
    let (open, close) = ("[".repeat(70), "]".repeat(70));
    let deepen = format!(
        "{{% set ns = namespace(v=[], w=[]) %}}{{% for i in range(3000) %}}{{% set ns.v = {open}ns.v{close} %}}\
         {{% set ns.w = {open}ns.w{close} %}}{{% endfor %}}"
    );
    for (end, expected) in [
        ("x", "x"),
        ("{{ ns.v == ns.w }}", "True"),
        ("{{ [ns.v, ns.w] | sort | length }}", "2"),
        ("{{ [ns.v, ns.w] | unique | list | length }}", "1"),
    ] {
        assert_eq!(render(&format!("{deepen}{end}"), &conversation).as_deref(), Ok(expected), "{end}");
    }
    for part in ["+1", "~1", "|abs", ".a", "[0]", "()", " and 1", " if 1 else 1", " is odd", " not in 1"] {
        let source = format!("{{{{ 1{} }}}}", part.repeat(990));
        let source = source.repeat(MAX_SOURCE_BYTES / source.len());
        // Whatever it is, it is an answer.
        drop(render(&source, &conversation));
    }
    let elif = format!("{{% if 0 %}}{}{{% endif %}}", "{%elif 0%}".repeat(12_000));
    assert_eq!(render(&elif, &conversation).as_deref(), Ok(""));
}
