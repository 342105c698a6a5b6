//! Answers cut in any way against a naive reader of the whole text, a table of cases, and the bounds.

use super::{
    CallStyle, MAX_HELD_CALL_BYTES, Piece, SpeechReader, SpeechStyle, is_in_reasoning, opens_reasoning,
};
use proptest::prelude::*;
use serde_json::{Map, Value};

const HERMES: SpeechStyle =
    SpeechStyle { reasoning: false, calls: CallStyle::Hermes, starts_in_reasoning: false };
const ALL: SpeechStyle = SpeechStyle { reasoning: true, ..HERMES };
const WITHIN: SpeechStyle = SpeechStyle { starts_in_reasoning: true, ..ALL };

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.to_owned())
}

fn call(index: u32, name: &str, arguments: &str) -> Vec<Piece> {
    let arguments = Piece::Arguments { index, json: arguments.to_owned() };
    vec![Piece::Call { index, name: name.to_owned() }, arguments, Piece::CallEnd { index }]
}

/// The pieces with neighbours of a kind joined; none may be empty.
fn joined(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        let (Piece::Text(said) | Piece::Reasoning(said) | Piece::Arguments { json: said, .. }) = &piece
        else {
            joined.push(piece);
            continue;
        };
        assert!(!said.is_empty(), "an empty piece");
        match (joined.last_mut(), &piece) {
            (Some(Piece::Text(last)), Piece::Text(_))
            | (Some(Piece::Reasoning(last)), Piece::Reasoning(_))
            | (Some(Piece::Arguments { json: last, .. }), Piece::Arguments { .. }) => last.push_str(said),
            _ => joined.push(piece),
        }
    }
    joined
}

fn stream<'a>(style: SpeechStyle, pushes: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut reader = SpeechReader::new(style);
    let mut pieces: Vec<Piece> = pushes.into_iter().flat_map(|push| reader.push(push)).collect();
    pieces.extend(reader.finish());
    assert!(reader.finish().is_empty());
    joined(pieces)
}

/// One character a push.
fn crumbs(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(place, c)| &text[place..place + c.len_utf8()])
}

// ---- The naive reader: the whole text at once, by searching, with serde_json for JSON. ----

#[derive(Clone, Copy, PartialEq)]
enum Json {
    Complete,
    /// The beginning of some value.
    Beginning,
    Wrong,
}

fn is_blank(c: char) -> bool {
    " \n\r\t".contains(c)
}

fn json(text: &str) -> Json {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => Json::Complete,
        // It waits for an escape's fourth digit before it looks at the first.
        Err(error) if error.is_eof() => {
            let cut_escape = &text[without_cut_escape(text).len()..];
            let halves: Vec<&str> = cut_escape.split('\\').skip(1).collect();
            let is_hex = |hex: &str| hex.chars().all(|c| c.is_ascii_hexdigit());
            let is_right = halves.iter().enumerate().all(|(place, half)| {
                (place + 1 == halves.len() || half.len() == 5)
                    && half.strip_prefix('u').map_or(half.is_empty(), is_hex)
            });
            if is_right { Json::Beginning } else { Json::Wrong }
        }
        Err(_) => Json::Wrong,
    }
}

/// `text`, the beginning of some JSON, without an escape that is cut at its end.
fn without_cut_escape(text: &str) -> &str {
    let mut from = 0;
    while let Some(place) = text[from..].find('\\').map(|place| from + place) {
        let rest = &text[place..];
        let is_high =
            ["\\ud8", "\\ud9", "\\uda", "\\udb"].iter().any(|high| rest.to_lowercase().starts_with(high));
        let bytes = if is_high {
            12
        } else if rest.starts_with("\\u") {
            6
        } else {
            2
        };
        if rest.len() < bytes {
            return &text[..place];
        }
        from = place + bytes;
    }
    text
}

/// Where the value of the first of these keys begins, if the object `beginning` goes so far.
fn value_of<'a>(beginning: &'a str, keys: &[&str]) -> Option<&'a str> {
    let start = (0..=beginning.len()).filter(|end| beginning.is_char_boundary(*end)).find(|end| {
        let members = serde_json::from_str(&format!("{}\"a value\"}}", &beginning[..*end])).ok();
        let members: Option<Map<String, Value>> = members;
        members.is_some_and(|members| keys.iter().any(|key| members.contains_key(*key)))
    })?;
    Some(beginning[start..].trim_start_matches(is_blank))
}

/// What the beginning of a call's object says, or the whole.
struct Beginning {
    name: Option<String>,
    arguments: String,
    is_complete: bool,
}

/// `None` if no call begins so.
fn read_object(beginning: &str) -> Option<Beginning> {
    let trimmed = beginning.trim_start_matches(is_blank);
    let whole = json(trimmed);
    if whole == Json::Wrong || !(trimmed.is_empty() || trimmed.starts_with('{')) {
        return None;
    }
    let name = match value_of(trimmed, &["name"]).unwrap_or_default() {
        "" => None,
        value if !value.starts_with('"') => return None,
        value => match serde_json::Deserializer::from_str(value).into_iter::<String>().next()? {
            Ok(name) if name.is_empty() => return None,
            name => name.ok(),
        },
    };
    let arguments = value_of(trimmed, &["arguments", "parameters"]);
    let is_complete = whole == Json::Complete;
    let arguments =
        arguments.map_or(Some(String::from(if is_complete { "{}" } else { "" })), read_arguments)?;
    if is_complete && name.is_none() {
        return None;
    }
    Some(Beginning { name, arguments, is_complete })
}

fn read_arguments(value: &str) -> Option<String> {
    let mut values = serde_json::Deserializer::from_str(value).into_iter::<Value>();
    let is_complete = matches!(values.next(), Some(Ok(_)));
    let raw = without_cut_escape(if is_complete { &value[..values.byte_offset()] } else { value });
    if !raw.starts_with('"') {
        return Some(raw.to_owned());
    }
    let closed = if is_complete { raw.to_owned() } else { format!("{raw}\"") };
    let inner: String = serde_json::from_str(&closed).expect("a string");
    let inner = inner.trim_start_matches(is_blank);
    match json(inner) {
        _ if inner.is_empty() && !is_complete => Some(String::new()),
        _ if !inner.starts_with('{') => Some(raw.to_owned()),
        Json::Wrong => None,
        Json::Beginning if is_complete => None,
        Json::Beginning => Some(without_cut_escape(inner).to_owned()),
        Json::Complete => Some(inner.trim_end_matches(is_blank).to_owned()),
    }
}

/// A part of an answer: what stands between tags, or a tag that newlines may touch.
enum Part {
    Said(Piece),
    Tag,
}

struct Naive {
    parts: Vec<Part>,
    said: String,
    is_reasoning: bool,
    has_begun: bool,
    calls: u32,
}

impl Naive {
    fn end_said(&mut self) {
        let said = std::mem::take(&mut self.said);
        self.parts.push(Part::Said(if self.is_reasoning {
            Piece::Reasoning(said)
        } else {
            Piece::Text(said)
        }));
    }

    /// Reads a call after its tag and returns what follows it, or as far as it was none.
    fn call<'a>(&mut self, body: &'a str) -> &'a str {
        let mut read = (0, read_object("").expect("a beginning"));
        for end in (1..=body.len()).filter(|end| body.is_char_boundary(*end)) {
            match read_object(&body[..end]) {
                Some(object) if !read.1.is_complete => read = (end, object),
                _ => break,
            }
        }
        let (end, Beginning { name, arguments, .. }) = read;
        let rest = &body[end..];
        self.has_begun = true;
        let Some(name) = name else {
            self.said.push_str("<tool_call>");
            self.said.push_str(&body[..end]);
            return rest;
        };
        self.end_said();
        self.parts.push(Part::Tag);
        self.parts.extend(call(self.calls, &name, &arguments).into_iter().map(Part::Said));
        self.calls += 1;
        let after = rest.trim_start_matches(is_blank);
        if let Some(after) = after.strip_prefix("</tool_call>") {
            self.parts.push(Part::Tag);
            return after;
        }
        if "</tool_call>".starts_with(after) { "" } else { rest }
    }
}

fn naive(style: SpeechStyle, text: &str) -> Vec<Piece> {
    let is_reasoning = style.reasoning && style.starts_in_reasoning;
    let mut naive =
        Naive { parts: Vec::new(), said: String::new(), is_reasoning, has_begun: false, calls: 0 };
    if is_reasoning {
        naive.parts.push(Part::Tag);
    }
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let think = if naive.is_reasoning { "</think>" } else { "<think>" };
        let may_think = naive.is_reasoning || style.reasoning && !naive.has_begun;
        let may_call = !naive.is_reasoning && style.calls == CallStyle::Hermes;
        if let Some(after) = rest.strip_prefix(think).filter(|_| may_think) {
            naive.end_said();
            naive.parts.push(Part::Tag);
            naive.is_reasoning = !naive.is_reasoning;
            rest = after;
        } else if let Some(body) = rest.strip_prefix("<tool_call>").filter(|_| may_call) {
            rest = naive.call(body);
        } else {
            naive.has_begun |= !naive.is_reasoning && c != '\n';
            naive.said.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    naive.end_said();
    without_formatting(&naive.parts)
}

/// The pieces without the newlines that touch tags.
fn without_formatting(parts: &[Part]) -> Vec<Piece> {
    let is_tag = |place: Option<usize>| matches!(place.and_then(|p| parts.get(p)), Some(Part::Tag));
    let mut pieces = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let Part::Said(piece) = part else { continue };
        let mut piece = piece.clone();
        if let Piece::Text(said) | Piece::Reasoning(said) = &mut piece {
            let mut trimmed = said.as_str();
            if is_tag(place.checked_sub(1)) {
                trimmed = trimmed.trim_start_matches('\n');
            }
            if is_tag(Some(place + 1)) {
                trimmed = trimmed.trim_end_matches('\n');
            }
            *said = trimmed.to_owned();
        }
        pieces.push(piece);
    }
    joined(pieces.into_iter().filter(|piece| !is_empty(piece)))
}

fn is_empty(piece: &Piece) -> bool {
    matches!(piece, Piece::Text(said) | Piece::Reasoning(said) | Piece::Arguments { json: said, .. } if said.is_empty())
}

// ---- Answers ----

/// What answers are made of, and what breaks them.
const FRAGMENTS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n{",
    "}\n</tool_call>",
    "<tool_",
    "</th",
    "<",
    "\n",
    "\n\n",
    " ",
    "\t",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\\"",
    "\\n",
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\\\u00e9",
    "é",
    "😀",
    "a",
    "e",
    "0",
    "1",
    "-",
    ".5",
    "2e-3",
    "true",
    "null",
    "```json\n",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"</tool_call>\"}}\n</tool_call>",
    "<tool_call>{\"arguments\": {\"é\": null}, \"name\": \"g\"}</tool_call>",
];

/// Members of a call's object, some cut short.
const MEMBERS: &[&str] = &[
    r#""name": "f""#,
    r#""n\u0061me":"gé""#,
    r#""name": """#,
    r#""name": 5"#,
    r#""arguments": "#,
    r#""arguments": {"a": "b"}"#,
    r#""parameters":{"a":[1,{}]}"#,
    r#""arguments": "{\"a\": 1}""#,
    r#""arguments": " {\"a\": \"\\u00e9\\n\"} ""#,
    r#""arguments": " {\"a\": \"\\u00"#,
    r#""arguments": "{\"a\": 1""#,
    r#""arguments": "{\"a\": \"#,
    r#""arguments": "x\""#,
    r#""id": 7"#,
    r#""x":{"name":"no"}"#,
];

fn answer() -> impl Strategy<Value = String> {
    let any = || prop::collection::vec(prop::sample::select(FRAGMENTS), 0..10).prop_map(|all| all.concat());
    let members = prop::sample::subsequence(MEMBERS, 0..4).prop_shuffle();
    // A fault in one place, or in none.
    let call = (members, any(), 0..5u8).prop_map(|(members, fault, place)| {
        let fault = |at: u8| if place == at { fault.as_str() } else { "" };
        format!("<tool_call>{}{{{}{}}}{}</tool_call>", fault(0), members.join(", "), fault(1), fault(2))
    });
    prop::collection::vec(prop_oneof![any(), call], 0..4).prop_map(|parts| parts.concat())
}

fn style() -> impl Strategy<Value = SpeechStyle> {
    let calls = prop_oneof![1 => Just(CallStyle::None), 4 => Just(CallStyle::Hermes)];
    (any::<bool>(), calls, any::<bool>()).prop_map(|(reasoning, calls, starts_in_reasoning)| SpeechStyle {
        reasoning,
        calls,
        starts_in_reasoning,
    })
}

/// Cuts after so many characters, again and again.
fn cut<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let (mut rest, mut pushes) = (text, Vec::new());
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let end = rest.char_indices().nth(*size).map_or(rest.len(), |(place, _)| place);
        let (push, after) = rest.split_at(end);
        pushes.push(push);
        rest = after;
    }
    pushes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_cut_gives_what_the_naive_reader_finds(
        style in style(),
        text in answer(),
        sizes in prop::collection::vec(1usize..9, 1..9),
    ) {
        let expected = naive(style, &text);
        prop_assert_eq!(&stream(style, [text.as_str()]), &expected, "whole");
        prop_assert_eq!(&stream(style, crumbs(&text)), &expected, "characters");
        prop_assert_eq!(&stream(style, cut(&text, &sizes)), &expected, "{:?}", sizes);
    }

    #[test]
    fn what_is_no_call_comes_out_as_it_was(
        text in "(<tool_call>|</tool_call>|</?think>|\\PC|\n|[{}:\\\\,\"]){0,40}",
    ) {
        let pieces = stream(HERMES, crumbs(&text));
        let expected = if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] };
        prop_assert_eq!(pieces, expected);
    }
}

#[test]
fn every_prefix_of_an_answer_is_read_as_the_naive_reader_reads_it() {
    let first = r#"{"name": "a.b", "arguments": {"x": [1.5e-1, "\u00e9\ud83d\ude00\\"], "y": {}}}"#;
    let second = r#"{"id": [0], "parameters": " {\"q\": \"\\u00e9 \\\"\"} ", "name": "g"}"#;
    let answer = format!(
        "<think>\nI \"think\"\n</think>\n\nLet me see.\n{}\n{}\n\nSo.\n",
        tagged(first),
        tagged(second)
    );
    for end in (0..=answer.len()).filter(|end| answer.is_char_boundary(*end)) {
        let prefix = &answer[..end];
        assert_eq!(stream(ALL, crumbs(prefix)), naive(ALL, prefix), "{prefix}");
    }
    let mut expected = vec![reasoning("I \"think\""), text("Let me see.")];
    expected.extend(call(0, "a.b", r#"{"x": [1.5e-1, "\u00e9\ud83d\ude00\\"], "y": {}}"#));
    expected.extend(call(1, "g", r#"{"q": "\u00e9 \""}"#));
    expected.push(text("So.\n"));
    assert_eq!(stream(ALL, [answer.as_str()]), expected);
}

/// A call in its tags.
fn tagged(object: &str) -> String {
    format!("<tool_call>\n{object}\n</tool_call>")
}

#[test]
fn calls_in_every_shape() {
    for (object, name, arguments) in [
        (r#"{"name": "f", "arguments": {"a": 1}}"#, "f", r#"{"a": 1}"#),
        (r#"{"arguments":{"a":{"b":"}"}},"name":"f"}"#, "f", r#"{"a":{"b":"}"}}"#),
        (r#"{"name": "f", "parameters": {}}"#, "f", "{}"),
        (r#"{"name": "f"}"#, "f", "{}"),
        (r#"{"id": "1", "type": {"x": [1]}, "name": "f", "arguments": {}, "more": "\"}"}"#, "f", "{}"),
        (r#"{"name": "f", "arguments": {}, "parameters": {"a": 1}, "name": 5}"#, "f", "{}"),
        (r#"{"name": "f", "arguments": "{\"a\": \"\\\"b\\\"\"}"}"#, "f", r#"{"a": "\"b\""}"#),
        (r#"{"name": "f", "arguments": "\n{\"a\":\n1}\n"}"#, "f", "{\"a\":\n1}"),
        (r#"{"name": "f", "arguments": "Paris \"}"}"#, "f", r#""Paris \"}""#),
        (r#"{"name": "f", "arguments": ""}"#, "f", r#""""#),
        (r#"{"name": "f", "arguments": null }"#, "f", "null"),
        (r#"{"name": "f", "arguments": -12.5e+3}"#, "f", "-12.5e+3"),
        (
            r#"{"name": "f", "arguments": ["</tool_call>", "<tool_call>"]}"#,
            "f",
            r#"["</tool_call>", "<tool_call>"]"#,
        ),
        ("\t{ \"name\"\n:\r\"f\" , \"arguments\" : { } } ", "f", "{ }"),
        (r#"{"n\u0061me": "\u00e9\ud83d\ude00\"", "arguments": {}}"#, "é😀\"", "{}"),
        // The object's own brace is missing.
        (r#"{"name": "f", "arguments": {"a": 1}"#, "f", r#"{"a": 1}"#),
    ] {
        let answer = tagged(object);
        assert_eq!(stream(ALL, crumbs(&answer)), call(0, name, arguments), "{object}");
        assert_eq!(stream(ALL, [answer.as_str()]), call(0, name, arguments), "{object}");
    }
}

#[test]
fn what_is_not_a_call_is_text_with_its_tags() {
    for object in [
        "",
        "hello",
        r#"{"arguments": {"a": 1}}"#,
        r#"{"name": 5, "arguments": {}}"#,
        r#"{"name": "", "arguments": {}}"#,
        r#"{"type": "function", "function": {"name": "f", "arguments": {}}}"#,
        r#"[{"name": "f", "arguments": {}}]"#,
        r#"{name: "f"}"#,
        r#"{"arguments": {"a": 1,}, "name": "f"}"#,
        r#"{"arguments": {"a": "\u0g00"}, "name": "f"}"#,
        r#"{"arguments": {"a": "\udc00"}, "name": "f"}"#,
        r#"{"arguments": "{\"a\": tru}", "name": "f"}"#,
        "{\"arguments\": {\"a\": \"\n\"}, \"name\": \"f\"}",
        "```json\n{\"name\": \"f\"}\n```",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
    ] {
        let answer = format!("Well.\n\n{}\n\n", tagged(object));
        assert_eq!(stream(ALL, crumbs(&answer)), [text(&answer)], "{object}");
    }
    let fenced = "```json\n{\"name\": \"f\", \"arguments\": {}}\n```\n";
    assert_eq!(stream(ALL, crumbs(fenced)), [text(fenced)]);
    // Ended where a call might have followed.
    for answer in ["a\n<tool_ca", "<tool_call>", "a\n<tool_call>\n{\"name\": \"f", "a\n\n", "<thin"] {
        assert_eq!(stream(ALL, crumbs(answer)), [text(answer)]);
    }
}

#[test]
fn a_call_that_breaks_off_ends_and_the_rest_is_text() {
    for (answer, arguments, rest) in [
        ("", "", ""),
        (r#", "arguments": {"a": [1, "#, r#"{"a": [1, "#, ""),
        (r#", "arguments": {"a": "x\u00"#, r#"{"a": "x"#, ""),
        (r#", "arguments": {"a": "x\ud83d\ude"#, r#"{"a": "x"#, ""),
        (r#", "arguments": "{\"a\": \"#, r#"{"a": "#, ""),
        (r#", "arguments": {}}"#, "{}", ""),
        (", \"arguments\": {}}\n</tool_", "{}", ""),
        (r#", "arguments": {"a": tru}}</tool_call>"#, r#"{"a": tru"#, "}}</tool_call>"),
        (", \"arguments\": {}}\n more </tool_call>", "{}", "\n more </tool_call>"),
        (" \n oops", "", "oops"),
        (r#", "arguments": "{}x"}"#, "{}", r#"x"}"#),
        (r#", "arguments": "{\"a\": 1"}"#, r#"{"a": 1"#, r#""}"#),
    ] {
        let answer = format!("<tool_call>\n{{\"name\": \"f\"{answer}");
        let mut expected = call(0, "f", arguments);
        expected.push(text(rest));
        expected.retain(|piece| !is_empty(piece));
        assert_eq!(stream(ALL, crumbs(&answer)), expected, "{answer}");
    }
}

#[test]
fn calls_and_text_alternate_and_their_newlines_go() {
    let one = tagged(r#"{"name": "a", "arguments": {}}"#);
    let two = tagged(r#"{"name": "b", "arguments": {}}"#);
    let both = [call(0, "a", "{}"), call(1, "b", "{}")].concat();
    assert_eq!(stream(HERMES, crumbs(&format!("\n{one}\n\n{two}\n"))), both);
    let mut expected = vec![text("First:")];
    expected.extend(call(0, "a", "{}"));
    expected.push(text(" then\n "));
    expected.extend(call(1, "b", "{}"));
    expected.push(text("done.\n"));
    assert_eq!(stream(HERMES, crumbs(&format!("First:\n\n{one}\n then\n {two}\n\ndone.\n"))), expected);
    // Neither a missing end tag nor a call that was none hides the next.
    let unclosed = "<tool_call>{\"name\": \"a\", \"arguments\": {}}\n";
    assert_eq!(stream(HERMES, crumbs(&format!("{unclosed}{two}"))), both);
    let after_none = [vec![text("<tool_call>")], call(0, "b", "{}")].concat();
    assert_eq!(stream(HERMES, crumbs(&format!("<tool_call>\n{two}"))), after_none);
    // Without a style there is nothing to find.
    assert_eq!(stream(SpeechStyle::default(), crumbs(&one)), [text(&one)]);
}

#[test]
fn reasoning_comes_before_the_answer() {
    for (style, answer, expected) in [
        (ALL, "<think>\nhm\n\n</think>\n\nyes", vec![reasoning("hm"), text("yes")]),
        (ALL, "\n<think>a<b\nc</thin</think>", vec![reasoning("a<b\nc</thin")]),
        (ALL, "<think>\n\n</think>\n\nyes", vec![text("yes")]),
        (ALL, "<think>a</think>\n<think>b</think>c", vec![reasoning("ab"), text("c")]),
        (ALL, "<think>never ends\n", vec![reasoning("never ends\n")]),
        (ALL, "The <think> tag</think>", vec![text("The <think> tag</think>")]),
        (ALL, "</think>yes", vec![text("</think>yes")]),
        (ALL, "<think><tool_call>{</think>", vec![reasoning("<tool_call>{")]),
        (WITHIN, "\nhm</think>yes", vec![reasoning("hm"), text("yes")]),
        (WITHIN, "</think>\n\nyes", vec![text("yes")]),
        (SpeechStyle { reasoning: false, ..WITHIN }, "\nhm</think>", vec![text("\nhm</think>")]),
    ] {
        assert_eq!(stream(style, crumbs(answer)), expected, "{answer}");
        assert_eq!(stream(style, [answer]), expected, "{answer}");
    }
}

#[test]
fn pieces_come_as_soon_as_they_are_certain() {
    let arguments = |json: &str| vec![Piece::Arguments { index: 0, json: json.to_owned() }];
    let named = Piece::Call { index: 0, name: "f".to_owned() };
    let mut reader = SpeechReader::new(ALL);
    for (push, expected) in [
        ("Hello ", vec![text("Hello ")]),
        ("<b> a\n", vec![text("<b> a")]),
        ("b<tool_", vec![text("\nb")]),
        ("box>", vec![text("<tool_box>")]),
        ("\n<tool_call>\n{\"name\": \"", vec![]),
        ("f\"", vec![named]),
        (", \"arguments\": ", vec![]),
        ("{\"a\": 1", arguments("{\"a\": 1")),
        ("2, \"é\\", arguments("2, \"é")),
        ("u00", vec![]),
        ("e9\\ud83d", arguments("\\u00e9")),
        ("\\ude00", arguments("\\ud83d\\ude00")),
        ("\": 0}", arguments("\": 0}")),
        ("}\n", vec![Piece::CallEnd { index: 0 }]),
        ("</tool_call>\n", vec![]),
        ("\nDone", vec![text("Done")]),
    ] {
        assert_eq!(reader.push(push), expected, "{push}");
    }
    assert_eq!(reader.finish(), []);
}

#[test]
fn what_is_held_is_bounded() {
    // A call without a name is text once it is too long, and its end is no tag any more.
    let end = "\", \"name\": \"f\"}</tool_call>";
    let long = format!("<tool_call>{{\"arguments\": \"{}", "x".repeat(MAX_HELD_CALL_BYTES));
    let mut reader = SpeechReader::new(HERMES);
    assert_eq!(reader.push(&long[..MAX_HELD_CALL_BYTES]), []);
    assert_eq!(joined(reader.push(&long[MAX_HELD_CALL_BYTES..])), [text(&long)]);
    assert_eq!(reader.push(end), [text(end)]);
    // One whose name comes in time is a call, and one with a name may go on.
    let fits = format!("<tool_call>{{\"arguments\": \"{}{end}", "x".repeat(MAX_HELD_CALL_BYTES - 100));
    assert_eq!(stream(HERMES, [fits.as_str()]).len(), 3);
    let letters = "x".repeat(2 * MAX_HELD_CALL_BYTES);
    let named = format!("<tool_call>{{\"name\": \"f\", \"arguments\": \"{letters}\"}}");
    assert_eq!(stream(HERMES, [named.as_str()]), call(0, "f", &format!("\"{letters}\"")));
}

/// Were anything looked at again and again, this would take minutes.
#[test]
fn work_is_linear() {
    for again in
        ["\n", " ", "<", "[", "<tool_call>", "<tool_call>\n\n", "<tool_call>{\"a\": \"<tool_call>{\"", "\\\\"]
    {
        for begin in ["", "<tool_call>{\"x\":", "<tool_call>{\"x\": \"", "<tool_call>{\"name\":\"f\"}"] {
            let answer = begin.to_owned() + &again.repeat((1 << 20) / again.len());
            assert!(!stream(HERMES, cut(&answer, &[3])).is_empty());
        }
    }
}

#[test]
fn templates_and_prompts_tell_the_style() {
    for (source, expected) in [
        ("{{ m.content }}", SpeechStyle::default()),
        ("<tool_call>{{ c }}</tool_call>", HERMES),
        ("{{ m.content.split('</think>')[-1] }}", SpeechStyle { reasoning: true, ..SpeechStyle::default() }),
        ("<think>\n\n</think> <tool_call>", ALL),
    ] {
        assert_eq!(SpeechStyle::of_template(source), expected, "{source}");
    }
    assert!(opens_reasoning("<|im_start|>assistant\n<think>\n") && opens_reasoning("<think>"));
    assert!(!opens_reasoning("<think>\n\n</think>\n\n") && !opens_reasoning("what is <think>?"));
    assert!(is_in_reasoning("<think>\nhm") && is_in_reasoning("\n<think>"));
    assert!(!is_in_reasoning("<think>hm</think>") && !is_in_reasoning("a <think>") && !is_in_reasoning(""));
}
