//! Tokenizers of made-up vocabularies: against a naive twin, with a space prefix, damaged, and refused.

mod gguf_writer;

use std::path::Path;

use gguf_writer::*;
use proptest::prelude::*;
use zllm_engine::{
    detokenizer::Detokenizer,
    gguf::GgufFile,
    tokenizer::{Tokenizer, TokenizerError},
};

/// The entries of a vocabulary.
#[derive(Clone)]
struct Entries(Vec<(String, u32, Vec<u8>)>);

impl Entries {
    fn new(model: &str) -> Self {
        Self(vec![]).text("general.architecture", "llama").text("tokenizer.ggml.model", model)
    }

    /// Adds an entry, or puts it in another one's place.
    fn with(mut self, key: &str, value_type: u32, payload: Vec<u8>) -> Self {
        self.0.retain(|(other, ..)| other != key);
        self.0.push((key.to_owned(), value_type, payload));
        self
    }

    fn without(mut self, key: &str) -> Self {
        self.0.retain(|(other, ..)| other != key);
        self
    }

    fn text(self, key: &str, value: &str) -> Self {
        self.with(key, STRING, File(vec![]).string(value.as_bytes()).0)
    }

    fn number(self, key: &str, value: u32) -> Self {
        self.with(key, U32, value.to_le_bytes().to_vec())
    }

    fn flag(self, key: &str, value: bool) -> Self {
        self.with(key, BOOL, vec![value.into()])
    }

    fn strings<T: AsRef<[u8]>>(self, key: &str, values: &[T]) -> Self {
        let array = File(vec![]).u32(STRING).u64(values.len() as u64);
        self.with(key, ARRAY, values.iter().fold(array, |file, value| file.string(value.as_ref())).0)
    }

    fn numbers(self, key: &str, values: &[u32]) -> Self {
        let array = File(vec![]).u32(U32).u64(values.len() as u64);
        self.with(key, ARRAY, values.iter().fold(array, |file, &value| file.u32(value)).0)
    }

    fn floats(self, key: &str, values: &[f32]) -> Self {
        let array = File(vec![]).u32(F32).u64(values.len() as u64);
        self.with(key, ARRAY, values.iter().fold(array, |file, value| file.u32(value.to_bits())).0)
    }

    fn bytes(&self) -> Vec<u8> {
        let file = File::new(0, self.0.len() as u64);
        self.0.iter().fold(file, |file, (key, value_type, payload)| file.entry(key, *value_type, payload)).0
    }

    fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        let file = GgufFile::from_bytes(Path::new("small.gguf"), self.bytes()).expect("a sound file");
        Tokenizer::from_gguf(&file)
    }
}

/// A SentencePiece vocabulary: unknown, BOS, EOS, all bytes, then `pieces`.
fn sentence_pieces(pieces: &[(String, f32)]) -> Entries {
    let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6));
    let special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(text, kind)| (text.to_owned(), 0.0, kind));
    let pieces = pieces.iter().map(|(text, score)| (text.clone(), *score, 1));
    let tokens: Vec<(String, f32, u32)> = special.into_iter().chain(bytes).chain(pieces).collect();
    Entries::new("llama")
        .strings("tokenizer.ggml.tokens", &tokens.iter().map(|t| &t.0).collect::<Vec<_>>())
        .floats("tokenizer.ggml.scores", &tokens.iter().map(|t| t.1).collect::<Vec<_>>())
        .numbers("tokenizer.ggml.token_type", &tokens.iter().map(|t| t.2).collect::<Vec<_>>())
}

fn pieces(pieces: &[(&str, f32)]) -> Entries {
    sentence_pieces(&pieces.iter().map(|(text, score)| ((*text).to_owned(), *score)).collect::<Vec<_>>())
}

/// A byte-level vocabulary of printable ASCII, a few merges and one control token.
fn byte_pairs() -> Entries {
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    tokens.extend(["Ġ", "Ġa", "ab", "Ġab", "<|im_end|>"].map(String::from));
    Entries::new("gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", &["Ġ a", "a b", "Ġa b"])
        .number("tokenizer.ggml.eos_token_id", 98)
}

fn texts<'t>(tokenizer: &'t Tokenizer, text: &str, parse_special: bool) -> Vec<&'t str> {
    let mut ids = vec![];
    tokenizer.encode(text, parse_special, &mut ids);
    ids.iter().map(|&id| tokenizer.token_text(id)).collect()
}

/// Joins the neighbours with the best score, the leftmost of equals, until none are left to join.
fn naive(vocabulary: &[(String, f32)], text: &str) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let joined = |w: &[String]| vocabulary.iter().rfind(|(piece, _)| *piece == w.concat());
        let mut best: Option<(usize, &(String, f32))> = None;
        for (i, w) in symbols.windows(2).enumerate() {
            if let Some(found) = joined(w)
                && best.is_none_or(|(_, (_, score))| found.1 > *score)
            {
                best = Some((i, found));
            }
        }
        let Some((i, (piece, _))) = best else { break };
        symbols.splice(i..i + 2, [piece.clone()]);
    }
    let known = |symbol: &String| vocabulary.iter().any(|(piece, _)| piece == symbol);
    let bytes = |symbol: String| symbol.bytes().map(|byte| format!("<0x{byte:02X}>")).collect();
    symbols.into_iter().flat_map(|s| if known(&s) { vec![s] } else { bytes(s) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn sentence_pieces_are_as_the_naive_twin_has_them(
        vocabulary in prop::collection::vec(("[abé▁]{1,4}", (-3i8..3).prop_map(f32::from)), 1..30),
        text in "[abé ]{0,30}",
    ) {
        let entries = sentence_pieces(&vocabulary).flag("tokenizer.ggml.add_space_prefix", false);
        let tokenizer = entries.tokenizer().expect("a sound vocabulary");
        prop_assert_eq!(texts(&tokenizer, &text, false), naive(&vocabulary, &text.replace(' ', "▁")));
    }

    #[test]
    fn damaged_vocabularies_never_panic(
        kind in 0..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        text in "[ab<|im_end>é ]{0,20}",
    ) {
        let spm = || pieces(&[("a", -1.0), ("▁a", -2.0)]);
        let entries = match kind {
            0 => byte_pairs(),
            1 => spm(),
            // A table of replacements with an index of one unit.
            _ => spm()
                .text("tokenizer.ggml.model", "t5")
                .numbers("tokenizer.ggml.precompiled_charsmap", &[4, 0, 0, 0, 0, 1, 0, 0, b'b'.into(), 0]),
        };
        let mut bytes = entries.bytes();
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        let Ok(file) = GgufFile::from_bytes(Path::new("damaged.gguf"), bytes) else { return Ok(()) };
        if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
            let mut ids = vec![];
            tokenizer.encode_with_bos(&text, true, &mut ids);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            let mut detokenizer = Detokenizer::at_start(&tokenizer);
            ids.iter().for_each(|&id| detokenizer.push(&tokenizer, id, &mut String::new()));
        }
    }
}

#[test]
fn a_space_is_put_before_a_text_and_taken_away_from_it() {
    let vocabulary = pieces(&[("▁", -9.0), ("a", -9.0), ("▁a", -1.0)]);
    let tokenizer = vocabulary.tokenizer().expect("a sound vocabulary");
    assert_eq!(texts(&tokenizer, "a a", false), ["▁a", "▁a"]);
    assert_eq!(texts(&tokenizer, "", false), [""; 0]);
    assert_eq!(texts(&tokenizer, "a</s>a<s>", true), ["▁a", "</s>", "▁a", "<s>"]);
    let mut ids = vec![];
    tokenizer.encode_with_bos("a a", false, &mut ids);
    assert_eq!(ids[0], 1, "BOS, where the file does not say");
    let show = |mut detokenizer: Detokenizer| {
        let mut text = String::new();
        ids.iter().for_each(|&id| detokenizer.push(&tokenizer, id, &mut text));
        text
    };
    assert_eq!(show(Detokenizer::at_start(&tokenizer)), "a a");
    assert_eq!(show(Detokenizer::new()), " a a");
}

#[test]
fn byte_pairs_are_merged_and_special_tokens_found() {
    let tokenizer = byte_pairs().tokenizer().expect("a sound vocabulary");
    assert_eq!(texts(&tokenizer, "ab ab", false), ["ab", "Ġab"]);
    assert_eq!(texts(&tokenizer, "b<|im_end|>", true), ["b", "<|im_end|>"]);
    assert_eq!(texts(&tokenizer, "<|im_end|>", false).concat(), "<|im_end|>");
    assert!(texts(&tokenizer, "<|im_end|>", false).len() > 1);
    assert_eq!(texts(&tokenizer, "aéb", false), ["a", "b"], "bytes without a token give nothing");
    assert!(tokenizer.is_control(98) && tokenizer.is_end_of_generation(98) && !tokenizer.add_bos());
}

#[test]
fn speech_tags_are_shown_though_they_are_control_tokens() {
    let mut kinds = [1; 99];
    kinds[..5].fill(3);
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    tokens.splice(..5, ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|user|>"].map(String::from));
    tokens.extend(["Ġ", "Ġa", "ab", "Ġab", "<|im_end|>"].map(String::from));
    let vocabulary = byte_pairs().strings("tokenizer.ggml.tokens", &tokens);
    let tokenizer =
        vocabulary.numbers("tokenizer.ggml.token_type", &kinds).tokenizer().expect("a sound vocabulary");
    let (mut detokenizer, mut text) = (Detokenizer::new(), String::new());
    [2, 97, 3, 4, 0, 96, 1, 98].iter().for_each(|&id| detokenizer.push(&tokenizer, id, &mut text));
    assert_eq!(text, "<think> ab</think><tool_call>ab</tool_call>");
    assert!(tokenizer.is_control(0) && !tokenizer.is_hidden(0) && tokenizer.is_hidden(4));
}

#[test]
fn llama3_takes_whole_words_that_are_tokens_and_begins_with_bos() {
    let tokenizer =
        byte_pairs().strings("tokenizer.ggml.merges", &["Ġ a"]).text("tokenizer.ggml.pre", "llama-bpe");
    let tokenizer =
        tokenizer.number("tokenizer.ggml.bos_token_id", 0).tokenizer().expect("a sound vocabulary");
    assert_eq!(texts(&tokenizer, "ab abb", false), ["ab", "Ġa", "b", "b"]);
    assert!(tokenizer.add_bos());
}

/// Checks that none of `cases` is a vocabulary, and that the error names the file and says what it should.
fn refused(cases: Vec<(Entries, &str)>) {
    for (entries, message) in cases {
        let error = entries.tokenizer().expect_err(message).to_string();
        assert!(
            error.starts_with("small.gguf: ") && error.contains(message),
            "{error}\n  does not say: {message}"
        );
    }
}

#[test]
fn kinds_that_are_not_supported_are_refused_with_those_that_are() {
    let model = |name: &str| byte_pairs().text("tokenizer.ggml.model", name);
    let pre = |name: &str| byte_pairs().text("tokenizer.ggml.pre", name);
    refused(vec![
        (model("test"), "`tokenizer.ggml.model` is `test`; supported are: gpt2, llama, t5"),
        (model("bert"), "`tokenizer.ggml.model` is `bert`; supported are: gpt2, llama, t5"),
        (model("rwkv"), "`tokenizer.ggml.model` is `rwkv`; supported are: gpt2, llama, t5"),
        (model("plamo2"), "`tokenizer.ggml.model` is `plamo2`; supported are: gpt2, llama, t5"),
        (pre("zebra"), "`tokenizer.ggml.pre` is `zebra`, which is not known; if the model's words are split"),
        (pre("zebra"), "set `tokenizer_pre` for this model to it: a.x-4.0, afmoe"),
        (pre("zebra"), ", llama-bpe, llama-v3, "),
        (pre("gemma4"), "`tokenizer.ggml.pre` is `gemma4`, which is no byte-level BPE and not supported"),
    ]);
}

#[test]
fn vocabularies_that_make_no_sense_are_refused_by_name() {
    const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
    let (bpe, spm) = (byte_pairs, || pieces(&[("a", -1.0)]));
    let t5 = || spm().text("tokenizer.ggml.model", "t5");
    let long = Entries::new("llama").strings("tokenizer.ggml.tokens", &["x".repeat(1 << 21)]);
    let long = long.floats("tokenizer.ggml.scores", &[0.0]).numbers("tokenizer.ggml.token_type", &[3]);
    let cases = vec![
        (bpe().without("tokenizer.ggml.model"), "`tokenizer.ggml.model` is missing"),
        (bpe().number("tokenizer.ggml.pre", 1), "`tokenizer.ggml.pre` should be a string"),
        (bpe().without("tokenizer.ggml.tokens"), "`tokenizer.ggml.tokens` is missing"),
        (
            bpe().numbers("tokenizer.ggml.tokens", &[1]),
            "`tokenizer.ggml.tokens` should be an array of strings",
        ),
        (bpe().strings::<&str>("tokenizer.ggml.tokens", &[]), "has 0 tokens"),
        (bpe().strings("tokenizer.ggml.tokens", &[b"\xff"]), "token 0 is not UTF-8"),
        (bpe().without("tokenizer.ggml.merges"), "`tokenizer.ggml.merges` is missing"),
        (bpe().strings("tokenizer.ggml.merges", &["a a"]), "merge 0 (`a a`) names `aa`, which is no token"),
        (bpe().strings("tokenizer.ggml.merges", &["ab"]), "merge 0 (`ab`) is not two parts"),
        (
            bpe().number("tokenizer.ggml.eos_token_id", 99),
            "`tokenizer.ggml.eos_token_id` is 99, but there are 99 tokens",
        ),
        (
            bpe().numbers("tokenizer.ggml.token_type", &[1, 1]),
            "`tokenizer.ggml.token_type` has 2 elements for 99 tokens",
        ),
        (bpe().numbers("tokenizer.ggml.token_type", &[9; 99]), "token 0 has the type 9"),
        (bpe().numbers("tokenizer.ggml.token_type", &[6; 99]), "token 0 (`!`) is marked as a byte"),
        (spm().without("tokenizer.ggml.scores"), "`tokenizer.ggml.scores` is missing"),
        (
            spm().floats("tokenizer.ggml.scores", &[1.0]),
            "`tokenizer.ggml.scores` has 1 elements for 260 tokens",
        ),
        (spm().floats("tokenizer.ggml.scores", &[f32::NAN; 260]), "token 0 has a score that is not a number"),
        (t5().without("tokenizer.ggml.scores"), "`tokenizer.ggml.scores` is missing"),
        (t5().floats("tokenizer.ggml.scores", &[f32::NAN; 260]), "token 0 has a score that is not a number"),
        (t5().number(CHARSMAP, 1), "`tokenizer.ggml.precompiled_charsmap` should be an array"),
        (
            t5().numbers(CHARSMAP, &[1000]),
            "`tokenizer.ggml.precompiled_charsmap` cannot be used: it is not an",
        ),
        (t5().numbers(CHARSMAP, &[1, 0, 0, 0]), "cannot be used: its index goes past its end"),
        (long, "the special tokens hold 2097152 bytes"),
    ];
    refused(cases);
}

#[test]
fn without_byte_tokens_a_strange_character_is_the_unknown_token() {
    let entries = Entries::new("llama").strings("tokenizer.ggml.tokens", &["<unk>", "a"]);
    let entries =
        entries.floats("tokenizer.ggml.scores", &[0.0; 2]).flag("tokenizer.ggml.add_space_prefix", false);
    let tokenizer = entries.tokenizer().expect("a sound vocabulary");
    assert_eq!(texts(&tokenizer, "aéa", false), ["a", "<unk>", "a"]);
}

#[test]
fn a_fingerprint_names_what_tokens_come_out() {
    let fingerprint = |entries: Entries| entries.tokenizer().expect("a sound vocabulary").fingerprint();
    let same = fingerprint(byte_pairs());
    let mut reordered = byte_pairs();
    reordered.0.reverse();
    assert_eq!(same, fingerprint(reordered));
    assert_eq!(same, fingerprint(byte_pairs().text("general.name", "another")));
    assert_ne!(same, fingerprint(byte_pairs().text("tokenizer.ggml.pre", "gpt-2")));
    assert_ne!(same, fingerprint(byte_pairs().strings("tokenizer.ggml.merges", &["a b", "Ġ a", "Ġa b"])));
}
