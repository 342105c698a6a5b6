//! Any text through a tokenizer of each kind. Its vocabulary is made up, but has every byte, so no text may be lost.

use std::{path::Path, sync::OnceLock};

use zllm_engine::{detokenizer::Detokenizer, gguf::GgufFile, tokenizer::Tokenizer};

use super::{
    Bytes,
    gguf_writer::{ARRAY, BOOL, F32, File, STRING, U32},
};

/// Ways to cut a text before byte pairs are merged, by their names in `tokenizer.ggml.pre`.
const SCHEMES: [&str; 20] = [
    "afmoe",
    "bloom",
    "command-r",
    "dbrx",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
    "default",
    "falcon",
    "glm4",
    "gpt-2",
    "gpt-4o",
    "kimi-k2",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "smollm",
    "starcoder",
    "superbpe",
    "tekken",
];
/// The second byte of an input whose text is to be repeated. One value only: such inputs are slow.
const LONG: u8 = 0xff;
/// What it is repeated up to: work that grows with the square takes too long.
const LONG_TEXT_BYTES: usize = 1 << 14;
/// The one control token of each vocabulary.
const END: &str = "<|im_end|>";

/// A text comes back from its tokens as it was, for every kind; ids are ids of the vocabulary; and the
/// time is linear, which the fuzzer's own timeout judges on long texts.
pub(crate) fn tokenizer(data: &[u8]) {
    static KINDS: OnceLock<Vec<(Tokenizer, bool)>> = OnceLock::new();
    let kinds = KINDS.get_or_init(kinds);
    let mut input = Bytes(data);
    let (kind, shape) = (input.next(), input.next());
    let (tokenizer, replaces_spaces) = &kinds[usize::from(kind) % kinds.len()];
    let mut text = String::from_utf8_lossy(input.0).into_owned();
    if shape == LONG && !text.is_empty() {
        text = text.repeat(LONG_TEXT_BYTES.div_ceil(text.len()));
    }
    let mut ids = vec![7];
    tokenizer.encode(&text, false, &mut ids);
    assert_eq!(ids[0], 7, "appends");
    let ids = &ids[1..];
    assert!(ids.len() <= text.len() + 1, "{} tokens of {} bytes", ids.len(), text.len());
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "a control token from text that must not steer");
    // U+2581 is how these vocabularies write a space, so it comes back as one.
    let expected = if *replaces_spaces { text.replace('\u{2581}', " ") } else { text.clone() };
    assert_eq!(decode(tokenizer, ids), expected);

    let mut special = Vec::new();
    tokenizer.encode_with_bos(&text, true, &mut special);
    let ends = special.iter().filter(|&&id| tokenizer.token_text(id) == END).count();
    assert_eq!(ends, text.matches(END).count(), "written-out control tokens");
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let (mut detokenizer, mut text) = (Detokenizer::at_start(tokenizer), String::new());
    for &id in ids {
        detokenizer.push(tokenizer, id, &mut text);
        assert!(detokenizer.held_bytes() <= 3);
    }
    detokenizer.finish(&mut text);
    text
}

/// One tokenizer of each kind, and whether it shows U+2581 as a space.
fn kinds() -> Vec<(Tokenizer, bool)> {
    let build = |file: Vec<u8>| {
        let file = GgufFile::from_bytes(Path::new("made_up.gguf"), file).expect("a sound file");
        Tokenizer::from_gguf(&file).expect("a sound vocabulary")
    };
    let mut kinds: Vec<_> = SCHEMES.map(|scheme| (build(byte_pairs(scheme)), false)).into();
    kinds.extend([true, false].map(|prefix| (build(sentence_pieces("llama", prefix)), true)));
    kinds.push((build(sentence_pieces("t5", true)), true));
    kinds
}

fn strings<T: AsRef<str>>(values: &[T]) -> Vec<u8> {
    let array = File(vec![]).u32(STRING).u64(values.len() as u64);
    values.iter().fold(array, |file, value| file.string(value.as_ref().as_bytes())).0
}

fn numbers(element_type: u32, values: &[u32]) -> Vec<u8> {
    values.iter().fold(File(vec![]).u32(element_type).u64(values.len() as u64), |file, &v| file.u32(v)).0
}

/// GPT-2's alphabet: every byte has a printable character, those that are none come from U+0100 on.
fn alphabet() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    (0..=0xff)
        .map(|byte| if printable(byte) { byte } else { others.next().expect("without end") })
        .map(|code| char::from_u32(code).expect("a character"))
        .collect()
}

fn byte_pairs(scheme: &str) -> Vec<u8> {
    let merges = [
        "Ġ t",
        "h e",
        "i n",
        "Ġ a",
        "Ġt he",
        "o n",
        "e r",
        "Ġ Ġ",
        "ĠĠ ĠĠ",
        "Ċ Ċ",
        "1 2",
        "12 3",
        "' s",
        "a a",
        "aa aa",
        "aaaa aaaa",
        "Ã ©",
        "ä ½",
        "ä½ ł",
        "ðŁ ĺ",
        "ð Ł",
    ];
    let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    tokens.extend([END.to_owned()]);
    let mut types = vec![1; tokens.len() - 1];
    types.push(3);
    File::new(0, 6)
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", scheme)
        .entry("tokenizer.ggml.tokens", ARRAY, &strings(&tokens))
        .entry("tokenizer.ggml.token_type", ARRAY, &numbers(U32, &types))
        .entry("tokenizer.ggml.merges", ARRAY, &strings(&merges))
        .0
}

fn sentence_pieces(model: &str, add_space_prefix: bool) -> Vec<u8> {
    let mut tokens: Vec<(String, f32, u32)> = vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3)];
    tokens.push((END.into(), 0.0, 3));
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    let pieces = [
        "▁",
        "a",
        "b",
        "e",
        "h",
        "n",
        "t",
        "▁t",
        "he",
        "▁the",
        "▁a",
        "in",
        "▁▁",
        "▁▁▁▁",
        "aa",
        "aaaa",
        "é",
        "你",
        "好",
        "你好",
        "1",
        "2",
        "12",
        "\n",
        "\n\n",
    ];
    tokens.extend(pieces.iter().zip(0u8..).map(|(piece, i)| ((*piece).to_owned(), -f32::from(i), 1)));
    let texts: Vec<&str> = tokens.iter().map(|token| &*token.0).collect();
    let scores: Vec<u32> = tokens.iter().map(|token| token.1.to_bits()).collect();
    let types: Vec<u32> = tokens.iter().map(|token| token.2).collect();
    File::new(0, 6)
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", model)
        .entry("tokenizer.ggml.add_space_prefix", BOOL, &[add_space_prefix.into()])
        .entry("tokenizer.ggml.tokens", ARRAY, &strings(&texts))
        .entry("tokenizer.ggml.scores", ARRAY, &numbers(F32, &scores))
        .entry("tokenizer.ggml.token_type", ARRAY, &numbers(U32, &types))
        .0
}
