//! What a client gets of chat templates over the real socket: theirs or the model's, and every refusal as an error that
//! says what the template said.

use crate::common::{Builder, Client, greedy};
use zllm_wire::{Answer, ErrorCode, Op, Prompt, Submit, Template};

/// A model of the tests' folder without a template.
const BARE: &str = "gemma3-270m";

fn chat(model: &str, messages: &str, tools: Option<&str>, template: Option<Template>) -> Submit {
    let (messages_json, tools_json) = (messages.to_owned(), tools.map(str::to_owned));
    Submit {
        model: model.into(),
        prompt: Prompt::Chat { messages_json, tools_json, template, continue_last: false },
        ..greedy("", 4)
    }
}

/// Submits what must be refused as senseless, and gives the message.
fn refused(client: &mut Client, request: Submit) -> String {
    match client.ask(Op::Submit(Box::new(request))) {
        Answer::Error(fault) if fault.code == ErrorCode::Invalid => fault.message,
        other => panic!("not refused but {other:?}"),
    }
}

const HELLO: &str = r#"[{"role":"user","content":"hello"}]"#;

#[test]
fn templates_are_obeyed_and_their_refusals_are_told() {
    let builder = Builder::new();
    let folder = builder.folder().to_owned();
    std::fs::write(
        folder.join("own.jinja"),
        "{{ bos_token }}hello{{ '' if messages | length == 1 else raise_exception('just one') }}",
    )
    .expect("scratch file");
    let model = crate::common::models_dir().join(format!("{BARE}.gguf"));
    let more =
        format!("[models.configured]\npath = {model:?}\ntemplate = \"own.jinja\"\nkv_budget = \"32MiB\"\n");
    let daemon = builder.with(|settings| settings.more = more).start();
    let mut client = daemon.connect();
    let model = crate::common::MODEL;
    let source = |text: &str| Some(Template::Source(text.to_owned()));
    let named = |name: &str| Some(Template::Named(name.to_owned()));

    // A template that gives the same text gives the same answer.
    let own = client.run(chat(model, HELLO, None, None));
    assert_eq!(client.run(chat(model, HELLO, None, named("smollm2"))).text, own.text);
    let other = client.run(chat(model, HELLO, None, source("{{ messages[0].content }}")));
    assert_eq!(other.usage.expect("it finished").prompt_tokens, 1);

    let exactly = "I take no questions: hello";
    let raising = source("{{ raise_exception('I take no questions: ' + messages[0].content) }}");
    assert_eq!(refused(&mut client, chat(model, HELLO, None, raising)), exactly);
    let undefined = source("one\ntwo {{ messages[0].nothing.more }}");
    let message = refused(&mut client, chat(model, HELLO, None, undefined));
    assert!(message.starts_with("chat template line 2: "), "{message}");
    let message = refused(&mut client, chat(model, HELLO, None, source("{{ 1 + 'one' }}")));
    assert!(message.starts_with("chat template line 1: "), "{message}");
    let message = refused(&mut client, chat(model, HELLO, None, source("\n\n{% if %}")));
    assert!(message.starts_with("chat template line 3: "), "{message}");
    let message = refused(&mut client, chat(model, HELLO, None, source(&"x".repeat(200_000))));
    assert!(message.contains("has 200000 bytes, must have at most 131072"), "{message}");
    let message = refused(&mut client, chat(model, HELLO, None, named("nonsense")));
    assert!(message.contains("\"nonsense\"") && message.contains("chatml, command-r"), "{message}");

    let tools = Some(r#"[{"type":"function","function":{"name":"f"}}]"#);
    let message = refused(&mut client, chat(model, HELLO, tools, named("chatml")));
    assert!(message.contains("takes no tools"), "{message}");
    assert_eq!(client.run(chat(model, HELLO, Some("[]"), named("smollm2"))).text, own.text);
    let called = r#"[{"role":"user","content":"hello"},{"role":"tool","content":"21"}]"#;
    let message = refused(&mut client, chat(model, called, None, named("chatml")));
    assert!(message.contains("message 2 is from \"tool\"; the built-in template chatml"), "{message}");

    // No template is never replaced by one in silence; the configuration's stands in for the file's.
    let message = refused(&mut client, chat(BARE, HELLO, None, None));
    let begins = format!("model {BARE} has no chat template; name one");
    assert!(message.starts_with(&begins) && message.contains("chatml, "), "{message}");
    let gemma = client.run(chat(BARE, HELLO, None, named("gemma")));
    // <bos>, six of the turn, three of the header that asks for the answer: no second <bos>.
    assert_eq!(gemma.usage.expect("it finished").prompt_tokens, 10);
    let configured = client.run(chat("configured", HELLO, None, None));
    assert_eq!(configured.usage.expect("it finished").prompt_tokens, 2, "<bos> and hello");
    let two = r#"[{"role":"user","content":"a"},{"role":"user","content":"b"}]"#;
    assert_eq!(refused(&mut client, chat("configured", two, None, None)), "just one");
    assert_eq!(client.run(chat("configured", HELLO, None, named("gemma"))).text, gemma.text);
}
