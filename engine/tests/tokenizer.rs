//! The tokenizers of three real models give the ids of an independent engine, on every line of its reference files.

mod models;

use std::{fs, path::Path, time::Duration};

use proptest::{prelude::*, test_runner::TestRunner};
use zllm_engine::{detokenizer::Detokenizer, gguf::GgufFile, tokenizer::Tokenizer};

fn tokenizer(name: &str) -> Tokenizer {
    let file = GgufFile::open(&models::path(name)).expect("a sound model");
    Tokenizer::from_gguf(&file).expect("a sound vocabulary")
}

/// The texts and ids of `kind` in the reference file of `name`.
fn reference(name: &str, kind: &str) -> Vec<(String, Vec<u32>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models").join(name);
    let path = path.with_added_extension("json");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let id = |id: &serde_json::Value| u32::try_from(id.as_u64().expect("a number")).expect("an id");
    let line = |line: &serde_json::Value| {
        let ids = line["ids"].as_array().expect("ids").iter().map(id).collect();
        (line["text"].as_str().expect("a text").to_owned(), ids)
    };
    json[kind].as_array().expect("an array of lines").iter().map(line).collect()
}

fn compare(name: &str, kind: &str, encode: impl Fn(&str, &mut Vec<u32>)) {
    let lines = reference(name, kind);
    let mut equal = 0;
    for (text, expected) in &lines {
        let mut ids = vec![];
        encode(text, &mut ids);
        match ids == *expected {
            true => equal += 1,
            false => println!("{name} {kind}: {text:?}\n  is {ids:?}\n  not {expected:?}"),
        }
    }
    println!("{name} {kind}: {equal} of {} lines are equal", lines.len());
    assert_eq!(lines.len(), 83);
    assert_eq!(equal, lines.len());
}

fn compare_all(name: &str) -> Tokenizer {
    let tokenizer = tokenizer(name);
    compare(name, "tokenize", |text, out| tokenizer.encode(text, false, out));
    compare(name, "tokenize_special", |text, out| tokenizer.encode_with_bos(text, true, out));
    tokenizer
}

#[test]
fn smollm2_is_as_the_reference() {
    let tokenizer = compare_all("smollm2-135m");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.eot()), (Some(1), Some(2), Some(2)));
    assert_eq!((tokenizer.vocab_size(), tokenizer.add_bos()), (49152, false));
    assert!(
        [0, 2].map(|id| tokenizer.is_end_of_generation(id)) == [true; 2]
            && !tokenizer.is_end_of_generation(1)
    );
    assert!(tokenizer.is_control(2) && !tokenizer.is_control(100));
    assert_eq!((tokenizer.token_bytes(253), tokenizer.token_text(253)), (&b" a"[..], "Ġa"));
}

#[test]
fn gemma3_is_as_the_reference() {
    let tokenizer = compare_all("gemma3-270m");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.eot()), (Some(2), Some(1), Some(106)));
    assert_eq!((tokenizer.vocab_size(), tokenizer.add_bos()), (262144, true));
    assert!([1, 106].map(|id| tokenizer.is_end_of_generation(id)) == [true; 2]);
    assert!(!tokenizer.is_end_of_generation(tokenizer.find("</s>").expect("gemma has the HTML tag")));
    assert_eq!((tokenizer.token_bytes(496), tokenizer.token_text(496)), (&b" a"[..], "▁a"));
    assert_eq!(tokenizer.token_bytes(tokenizer.find("<0xE2>").expect("gemma has byte tokens")), b"\xe2");
}

#[test]
fn qwen2_is_as_the_reference() {
    let tokenizer = compare_all("qwen2.5-coder-0.5b");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.eot()),
        (Some(151643), Some(151645), Some(151645))
    );
    assert_eq!((tokenizer.vocab_size(), tokenizer.add_bos()), (151936, false));
    assert!([151643, 151645].map(|id| tokenizer.is_end_of_generation(id)) == [true; 2]);
}

const MODELS: [&str; 3] = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"];

/// The text of `ids`, one token after the other.
fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new();
    let mut text = String::new();
    ids.iter().for_each(|&id| detokenizer.push(tokenizer, id, &mut text));
    detokenizer.finish(&mut text);
    text
}

#[test]
fn texts_come_back() {
    for name in MODELS {
        let tokenizer = tokenizer(name);
        let (mut equal, lines) = (0, reference(name, "tokenize"));
        for (text, ids) in &lines {
            match stream(&tokenizer, ids) == *text {
                true => equal += 1,
                // To gemma this sign is another way to write a space.
                false => assert!(name == "gemma3-270m" && text.contains('▁'), "{name}: {text:?}"),
            }
        }
        println!("{name}: {equal} of {} texts come back", lines.len());
        assert!(equal >= 81, "{name}: {equal}");
    }
}

#[test]
fn any_tokens_streamed_are_their_bytes_as_a_whole() {
    for name in MODELS {
        let tokenizer = tokenizer(name);
        let ids = prop::collection::vec(0..tokenizer.vocab_size() as u32, 0..40);
        let checked = TestRunner::new(ProptestConfig { failure_persistence: None, ..Default::default() })
            .run(&ids, |ids| {
                let text_ids = ids.iter().filter(|&&id| !tokenizer.is_control(id));
                let bytes: Vec<u8> = text_ids.flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
                prop_assert_eq!(stream(&tokenizer, &ids), String::from_utf8_lossy(&bytes));
                Ok(())
            });
        checked.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn an_emoji_of_byte_tokens_comes_in_one_piece() {
    let tokenizer = tokenizer("gemma3-270m");
    let mut detokenizer = Detokenizer::new();
    let shown = "🙂".bytes().map(|byte| {
        let id = tokenizer.find(&format!("<0x{byte:02X}>")).expect("gemma has byte tokens");
        let mut out = String::new();
        detokenizer.push(&tokenizer, id, &mut out);
        out
    });
    assert_eq!(shown.collect::<Vec<_>>(), ["", "", "", "🙂"]);
}

#[test]
fn control_tokens_are_shown_only_when_asked_for() {
    let tokenizer = tokenizer("smollm2-135m");
    let ids = [1, 81, 2];
    assert_eq!(stream(&tokenizer, &ids), "a");
    let mut detokenizer = Detokenizer::new().show_control(true);
    let mut text = String::new();
    ids.iter().for_each(|&id| detokenizer.push(&tokenizer, id, &mut text));
    assert_eq!(text, "<|im_start|>a<|im_end|>");
}

/// How long this thread has run on a CPU: what else the machine does does not count.
fn cpu_time() -> Duration {
    let stat =
        fs::read_to_string("/proc/thread-self/schedstat").expect("Linux keeps the schedule statistics");
    let nanoseconds = stat.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the first field is a number"))
}

/// A quadratic way would take minutes to hours.
#[test]
fn hostile_texts_take_no_longer_than_others() {
    let length = 300_000;
    let texts = [
        "a".repeat(length),
        " ".repeat(length) + "x",
        "\n ".repeat(length / 2) + "x",
        "1".repeat(length),
        "字".repeat(length / 3),
        "<|im_start".repeat(length / 10),
        "'".repeat(length),
    ];
    for name in MODELS {
        let tokenizer = tokenizer(name);
        for text in &texts {
            let start = cpu_time();
            let mut ids = vec![];
            tokenizer.encode(text, true, &mut ids);
            let (beginning, took) = (text.chars().take(3).collect::<String>(), cpu_time() - start);
            assert!(took < Duration::from_secs(5), "{name}: {beginning:?} took {took:?}");
            assert_eq!(stream(&tokenizer, &ids).len(), text.len(), "{name}: {beginning:?}");
        }
    }
}
