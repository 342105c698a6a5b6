//! Every pre-tokenizer and every kind of vocabulary gives the ids of an independent engine, on the texts of
//! `testdata/tokenizers`; and its texts come back.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use serde_json::Value;
use zllm_engine::{
    detokenizer::Detokenizer,
    gguf::GgufFile,
    tokenizer::{PreTokenizer, PreTokenizerOrigin, Tokenizer},
};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testdata/tokenizers").join(name)
}

fn tokenizer(name: &str, pre: Option<&str>) -> Tokenizer {
    let file = GgufFile::open(&path(name).with_added_extension("gguf")).expect("a sound file");
    Tokenizer::with_pre_tokenizer(&file, pre).expect("a sound vocabulary")
}

/// The lines of the file beside the vocabulary `name`: a text, and what is said of its ids.
fn lines(name: &str) -> Vec<(String, Value)> {
    let path = path(name).with_added_extension("json");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines: Vec<Value> = serde_json::from_str(&text).expect("an array of lines");
    let line = |line: Value| (line["text"].as_str().expect("a text").to_owned(), line["ids"].clone());
    lines.into_iter().map(line).collect()
}

fn encode(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<u32> {
    let mut ids = vec![];
    tokenizer.encode(text, parse_special, &mut ids);
    ids
}

/// The text of `ids`, which are those of a whole text.
fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::at_start(tokenizer);
    let mut text = String::new();
    ids.iter().for_each(|&id| detokenizer.push(tokenizer, id, &mut text));
    detokenizer.finish(&mut text);
    text
}

fn ids_of(ids: &Value) -> Vec<u32> {
    serde_json::from_value(ids.clone()).expect("an array of ids")
}

#[test]
fn every_pre_tokenizer_is_as_the_reference() {
    // Of each kind, its texts and the ids that they have.
    let mut kinds: BTreeMap<String, Vec<(String, Vec<u32>)>> = BTreeMap::new();
    for (text, groups) in lines("byte-pairs") {
        for group in groups.as_array().expect("an array of groups") {
            for kind in group[0].as_str().expect("names").split(' ') {
                kinds.entry(kind.to_owned()).or_default().push((text.clone(), ids_of(&group[1])));
            }
        }
    }
    let mut different = 0;
    for (kind, texts) in &kinds {
        let tokenizer = tokenizer("byte-pairs", Some(kind));
        for (text, expected) in texts {
            let ids = encode(&tokenizer, text, false);
            if ids != *expected {
                println!("{kind}: {text:?}\n  is {ids:?}\n  not {expected:?}");
                different += 1;
            }
            assert_eq!(decode(&tokenizer, &ids), *text, "{kind}");
        }
        assert_eq!(texts.len(), 160);
    }
    println!("{} pre-tokenizers, {different} texts differ", kinds.len());
    assert_eq!((kinds.len(), different), (30, 0));
}

#[test]
fn pre_tokenizers_of_one_family_split_alike() {
    let text = "I'LL don't parseXML 12345 ½ ÉtéÉté 漢字かな ก็ \r\n\n   x/y\u{3000}";
    let ids = |pre: &str| encode(&tokenizer("byte-pairs", Some(pre)), text, false);
    for (name, others) in [
        ("gpt-2", &["mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling", "roberta-bpe"][..]),
        ("smollm", &["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"]),
        ("llama-bpe", &["llama3", "llama-v3", "falcon3", "pixtral", "lfm2"]),
        ("dbrx", &["smaug-bpe", "chatglm-bpe"]),
        ("qwen2", &["deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "solar-open"]),
        ("gpt-4o", &["llama4", "kanana2", "minimax-m2"]),
        ("deepseek-v3", &["hunyuan-dense", "joyai-llm"]),
        ("bloom", &["poro-chat", "gpt3-finnish"]),
    ] {
        let expected = ids(name);
        others.iter().for_each(|other| assert_eq!(ids(other), expected, "{other} is as {name}"));
    }
    assert_ne!(ids("gpt-2"), ids("smollm"));
}

#[test]
fn a_file_that_names_none_is_split_by_default_and_says_so() {
    let assumed = tokenizer("byte-pairs", None);
    let pre = |name: &str, origin| Some(PreTokenizer { name: name.to_owned(), origin });
    assert_eq!(assumed.pre_tokenizer().cloned(), pre("default", PreTokenizerOrigin::Assumed));
    let asked = tokenizer("byte-pairs", Some("tekken"));
    assert_eq!(asked.pre_tokenizer().cloned(), pre("tekken", PreTokenizerOrigin::Override));
    assert!(asked.add_bos() && !assumed.add_bos());
    assert_ne!(asked.fingerprint(), assumed.fingerprint());
    assert_eq!((asked.model(), tokenizer("sentence-pieces", None).pre_tokenizer()), ("gpt2", None));
}

#[test]
fn a_pre_tokenizer_for_a_vocabulary_without_one_is_refused() {
    for name in ["sentence-pieces", "unigram-nfkc"] {
        let file = GgufFile::open(&path(name).with_added_extension("gguf")).expect("a sound file");
        let error = Tokenizer::with_pre_tokenizer(&file, Some("gpt-2")).expect_err(name).to_string();
        assert!(error.contains("`tokenizer_pre` is set, but `tokenizer.ggml.model` is"), "{error}");
    }
}

#[test]
fn sentence_pieces_are_as_the_reference() {
    let tokenizer = tokenizer("sentence-pieces", None);
    let lines = lines("sentence-pieces");
    for (text, expected) in &lines {
        let ids = encode(&tokenizer, text, true);
        assert_eq!(ids, ids_of(expected), "{text:?}");
        // Behind a special token a space is put that is no part of the text.
        if !["<x>", "<s>", "</s>"].iter().any(|special| text.contains(special)) {
            assert_eq!(decode(&tokenizer, &ids), *text);
        }
    }
    assert_eq!(lines.len(), 120);
}

#[test]
fn unigrams_are_as_the_reference() {
    for name in ["unigram-nfkc", "unigram-bytes", "unigram-no-prefix", "unigram-spaces"] {
        let tokenizer = tokenizer(name, None);
        let lines = lines(name);
        for (text, expected) in &lines {
            assert_eq!(encode(&tokenizer, text, false), ids_of(expected), "{name}: {text:?}");
        }
        assert_eq!((lines.len(), tokenizer.model(), tokenizer.eos()), (120, "t5", Some(1)));
    }
}

/// What is lost is what normalising took away, and what has no token.
#[test]
fn unigram_texts_come_back_as_they_were_normalised() {
    let tokenizer = tokenizer("unigram-bytes", None);
    for (text, _) in lines("unigram-bytes") {
        let normalised = text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        // A space is as good as this sign, and becomes it.
        let normalised = normalised.replace('\u{2581}', " ");
        assert_eq!(decode(&tokenizer, &encode(&tokenizer, &text, false)), normalised);
    }
}

/// How long this thread has run on a CPU: what else the machine does does not count.
fn cpu_time() -> Duration {
    let stat =
        fs::read_to_string("/proc/thread-self/schedstat").expect("Linux keeps the schedule statistics");
    let nanoseconds = stat.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the first field is a number"))
}

/// A quadratic way would take minutes; `examples/tokenizer_times.rs` measures texts of 10 MB.
#[test]
fn hostile_texts_take_linear_time_in_every_kind() {
    let bytes = 100_000;
    let texts =
        ["a", " ", "1", "字", "A", "É\u{301}", "\t ", "'", "\u{3000}", " \n", "aB", "<sentinel:1", "ก้"];
    let texts = texts.map(|unit| unit.repeat(bytes / unit.len()) + "x");
    let check = |tokenizer: &Tokenizer, name: &str| {
        let start = cpu_time();
        for text in &texts {
            encode(tokenizer, text, true);
        }
        let took = cpu_time() - start;
        assert!(took < Duration::from_secs(6), "{name}: {took:?} for {} texts", texts.len());
    };
    for pre in
        ["default", "gpt-2", "llama-bpe", "gpt-4o", "kimi-k2", "deepseek-llm", "chameleon", "exaone-moe"]
    {
        check(&tokenizer("byte-pairs", Some(pre)), pre);
    }
    for name in ["sentence-pieces", "unigram-nfkc", "unigram-bytes", "unigram-spaces"] {
        check(&tokenizer(name, None), name);
    }
}
