//! A model file of any bytes: read, walked, and taken for a model as far as it is one.

use std::path::Path;

use zllm_engine::{
    Chat, Prompt, TextModel,
    detokenizer::Detokenizer,
    gguf::{GgufFile, Value},
    message::Message,
    spec::ModelSpec,
    tokenizer::Tokenizer,
};

/// What is accepted can be walked: every value, every tensor's bytes; its tokenizer gives ids that it has; its spec
/// names tensors that are there.
pub(crate) fn gguf_reader(data: &[u8]) {
    let Ok(file) = GgufFile::from_bytes(Path::new("fuzzed.gguf"), data.to_vec()) else { return };
    walk(&file);
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
        speak(&tokenizer);
    }
    let Ok(spec) = ModelSpec::read(&file, None) else { return };
    for name in spec.tensor_names() {
        assert!(file.tensor(name).is_some(), "the spec names `{name}`, which is not in the file");
    }
    let text = TextModel::read(&file, &spec, None);
    let messages = vec![Message::system("Be brief."), Message::user("Hello, world")];
    for prompt in [
        Prompt::Chat(Chat::new(messages)),
        Prompt::Text { text: "ab <|im_end|> é".to_owned(), parse_special: true },
    ] {
        if let Ok(tokens) = text.encode(&prompt) {
            assert!(!tokens.is_empty() && tokens.len() < text.context_length());
            assert!(tokens.iter().all(|&id| (id as usize) < text.vocab_size()));
        }
    }
}

fn walk(file: &GgufFile) {
    for (key, value) in file.metadata().iter() {
        assert!(file.metadata().contains(key));
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    assert_eq!(file.metadata().iter_raw().count(), file.metadata().len());
    let mut ranges = Vec::new();
    for tensor in file.tensors() {
        let same = file.tensor(tensor.name()).expect("found by its own name");
        assert_eq!((same.range(), same.bytes().len()), (tensor.range(), tensor.range().len()));
        if let Ok(format) = tensor.format() {
            let blocks = tensor.cols() / format.block_len() * tensor.rows();
            assert_eq!(tensor.bytes().len(), blocks * format.block_bytes());
        }
        ranges.push(tensor.range());
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "tensors overlap");
    assert!(ranges.last().is_none_or(|last| last.end as u64 <= file.total_bytes()));
}

fn speak(tokenizer: &Tokenizer) {
    for parse_special in [false, true] {
        let mut ids = Vec::new();
        tokenizer.encode_with_bos("ab  Hello<|im_end|></s> é\n123", parse_special, &mut ids);
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        let (mut detokenizer, mut text) = (Detokenizer::at_start(tokenizer), String::new());
        ids.iter().for_each(|&id| detokenizer.push(tokenizer, id, &mut text));
        detokenizer.finish(&mut text);
    }
}
