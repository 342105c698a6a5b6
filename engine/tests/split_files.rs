//! A model cut into parts is the same model, to the last bit; and parts that are missing, damaged or of different models
//! are refused, each with the part's path and what is wrong with it.

mod common;
mod gguf_writer;

use std::{
    fs,
    path::{Path, PathBuf},
};

use gguf_writer::{File, U16, U32};
use zllm_engine::{
    LoadOptions, LoadedModel, StepRow, Want,
    gguf::{GgufFile, Tensor, part_paths},
};

const SOURCE: &str = "quants/llama-dense.q4_k_m.gguf";
const PARTS: usize = 3;

/// A metadata entry: its key, the number of its type, and the value's bytes.
type Entry = (String, u32, Vec<u8>);

/// One part before it is written.
struct Part<'a> {
    entries: Vec<Entry>,
    tensors: Vec<Tensor<'a>>,
}

impl Part<'_> {
    /// Gives an entry another value, or adds it.
    fn set(&mut self, key: &str, value_type: u32, value: &[u8]) {
        self.remove(key);
        self.entries.push((key.to_owned(), value_type, value.to_vec()));
    }

    fn remove(&mut self, key: &str) {
        self.entries.retain(|(known, ..)| known != key);
    }

    fn bytes(&self) -> Vec<u8> {
        const ALIGNMENT: usize = 32;
        let mut file = File::new(self.tensors.len() as u64, self.entries.len() as u64);
        for (key, value_type, value) in &self.entries {
            file = file.entry(key, *value_type, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            let dims: Vec<u64> = tensor.dims().iter().map(|&dim| dim as u64).collect();
            file = file.tensor(tensor.name(), &dims, tensor.ggml_type().number, offset);
            offset += tensor.bytes().len().next_multiple_of(ALIGNMENT) as u64;
        }
        for tensor in &self.tensors {
            let padding = file.0.len().next_multiple_of(ALIGNMENT) - file.0.len();
            file = file.zeros(padding).raw(tensor.bytes());
        }
        let padding = file.0.len().next_multiple_of(ALIGNMENT) - file.0.len();
        file.zeros(padding).0
    }
}

/// Cuts a model as `gguf-split` of llama.cpp does: the metadata goes into the first part.
fn cut(file: &GgufFile) -> Vec<Part<'_>> {
    let tensors: Vec<_> = file.tensors().collect();
    let each = tensors.len().div_ceil(PARTS);
    let mut parts: Vec<_> =
        tensors.chunks(each).map(|tensors| Part { entries: Vec::new(), tensors: tensors.to_vec() }).collect();
    assert_eq!(parts.len(), PARTS);
    let metadata = file.metadata().iter_raw();
    parts[0].entries = metadata.map(|(key, ty, value)| (key.to_owned(), ty as u32, value.to_vec())).collect();
    for (number, part) in (0u16..).zip(&mut parts) {
        part.set("split.no", U16, &number.to_le_bytes());
        part.set("split.count", U16, &(PARTS as u16).to_le_bytes());
        part.set("split.tensors.count", U32, &(tensors.len() as u32).to_le_bytes());
    }
    parts
}

/// Writes the parts and gives the path of the first.
fn write(folder: &Path, parts: &[Part<'_>]) -> PathBuf {
    let first = folder.join(format!("model-00001-of-{PARTS:05}.gguf"));
    for (part, path) in parts.iter().zip(part_paths(&first)) {
        fs::write(path, part.bytes()).expect("the scratch folder can be written");
    }
    first
}

fn source() -> GgufFile {
    GgufFile::open(&common::testdata(SOURCE)).expect("a reference file")
}

/// The bits of the logits after each of some tokens.
fn logits(path: &Path) -> Vec<u32> {
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 128).collect();
    let options = LoadOptions {
        threads: 2,
        kv_budget_bytes: 1 << 20,
        prefill_chunk_tokens: tokens.len(),
        max_batch_rows: tokens.len(),
        ..LoadOptions::default()
    };
    let mut model = LoadedModel::load(path, &options, &mut |_| {}).expect("a sound model");
    let row = StepRow { tokens: &tokens, position: 0, blocks: &[0], want: Want::All };
    let mut logits = model.step(&[row]).expect("a step");
    (0..tokens.len())
        .flat_map(|i| logits.row_mut(i).iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        .collect()
}

#[test]
fn a_model_in_parts_is_the_same_model() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let whole = source();
    let first = write(folder.path(), &cut(&whole));
    let split = GgufFile::open(&first).expect("three sound parts");
    assert_eq!((split.path(), split.part_paths().len()), (first.as_path(), PARTS));
    assert_eq!(split.tensors().len(), whole.tensors().len());
    for (a, b) in split.tensors().zip(whole.tensors()) {
        assert_eq!((a.name(), a.dims(), a.ggml_type()), (b.name(), b.dims(), b.ggml_type()));
        assert!(a.bytes() == b.bytes(), "{}", a.name());
    }
    let sizes = part_paths(&first).iter().map(|path| fs::metadata(path).expect("written").len()).sum::<u64>();
    assert_eq!(split.total_bytes(), sizes);
    assert!(logits(&first) == logits(&common::testdata(SOURCE)), "other bits");
}

#[test]
fn a_fingerprint_covers_every_part() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let whole = source();
    let first = write(folder.path(), &cut(&whole));
    let fingerprint = || {
        let options = LoadOptions { threads: 2, kv_budget_bytes: 1 << 20, ..LoadOptions::default() };
        let model = LoadedModel::load(&first, &options, &mut |_| {}).expect("a sound model");
        model.fingerprint().clone()
    };
    let before = fingerprint();
    assert_eq!(fingerprint(), before);
    for path in part_paths(&first) {
        let sound = fs::read(&path).expect("written");
        let file = GgufFile::open(&first).expect("sound parts");
        let at = file.tensors().filter(|t| t.range().end <= sound.len()).map(|t| t.range().start);
        let at = at.max().expect("tensors in every part");
        let mut changed = sound.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).expect("the scratch folder can be written");
        assert_ne!(fingerprint(), before, "{}", path.display());
        fs::write(&path, &sound).expect("the scratch folder can be written");
    }
}

/// Cuts the model, lets `damage` loose on the parts and `disturb` on the folder, and gives the refusal.
fn refusal(damage: impl FnOnce(&mut Vec<Part<'_>>), disturb: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let whole = source();
    let mut parts = cut(&whole);
    damage(&mut parts);
    let first = write(folder.path(), &parts);
    disturb(folder.path());
    let message = GgufFile::open(&first).expect_err("a damaged model").to_string();
    message.strip_prefix(&format!("{}/", folder.path().display())).expect("names the file").to_owned()
}

const SECOND: &str = "model-00002-of-00003.gguf";

#[test]
fn a_missing_part_is_named_with_its_path() {
    let message = refusal(|_| {}, |folder| fs::remove_file(folder.join(SECOND)).expect("it was written"));
    let expected = "part 2 of 3 of a split model is missing; it should lie beside the first";
    assert_eq!(message, format!("{SECOND}: {expected}"));
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let as_is = |_: &Path| {};
    let message = refusal(|parts| parts[1].set("split.count", U16, &[4, 0]), as_is);
    assert!(message.starts_with(SECOND) && message.contains("4 parts"), "{message}");
    let message = refusal(|parts| parts[1].remove("split.count"), as_is);
    assert!(message.starts_with(SECOND) && message.contains("1 parts"), "{message}");
    let message = refusal(|parts| parts.swap(1, 2), as_is);
    assert!(message.starts_with(SECOND) && message.contains("this is part 3"), "{message}");
    let other = [&5u64.to_le_bytes()[..], b"qwen2"].concat();
    let message = refusal(|parts| parts[1].set("general.architecture", gguf_writer::STRING, &other), as_is);
    assert!(message.starts_with(SECOND) && message.contains("`general.architecture` differs"), "{message}");
    let message = refusal(|parts| parts[2].set("split.tensors.count", U32, &[9, 0, 0, 0]), as_is);
    assert!(message.contains("00003-of-00003.gguf: not a part of the same model"), "{message}");
}

#[test]
fn what_a_later_part_repeats_of_the_first_may_be_written_with_another_integer_type() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let whole = source();
    let mut parts = cut(&whole);
    let tensors = whole.tensors().len() as u64;
    parts[2].set("split.tensors.count", gguf_writer::U64, &tensors.to_le_bytes());
    parts[2].set("general.alignment", U32, &32u32.to_le_bytes());
    GgufFile::open(&write(folder.path(), &parts)).expect("the same number");
}

#[test]
fn tensors_are_counted_and_apart_over_all_parts() {
    let as_is = |_: &Path| {};
    let message = refusal(|parts| parts[2].tensors.truncate(1), as_is);
    assert!(message.contains("the parts have") && message.contains("`split.tensors.count`"), "{message}");
    let message = refusal(|parts| parts[0].remove("split.tensors.count"), as_is);
    assert!(message.contains("`split.tensors.count` is missing"), "{message}");
    let message = refusal(|parts| parts[1].tensors[0] = parts[0].tensors[0], as_is);
    assert!(message.starts_with(SECOND) && message.contains("second time"), "{message}");
    assert!(message.contains("model-00001-of-00003.gguf has it too"), "{message}");
    let cut_short = |folder: &Path| {
        let bytes = fs::read(folder.join(SECOND)).expect("written");
        fs::write(folder.join(SECOND), &bytes[..bytes.len() / 2]).expect("the scratch folder can be written");
    };
    let message = refusal(|_| {}, cut_short);
    assert!(message.starts_with(SECOND) && message.contains("cut short"), "{message}");
}

#[test]
fn only_the_first_part_under_its_own_name_opens_a_model() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let whole = source();
    let first = write(folder.path(), &cut(&whole));
    let open = |name: &str| {
        GgufFile::open(&folder.path().join(name)).map(drop).expect_err("not the first part").to_string()
    };
    let message = open(SECOND);
    assert!(
        message.contains("part 2 of 3") && message.contains("open model-00001-of-00003.gguf"),
        "{message}"
    );
    fs::copy(&first, folder.path().join("model.gguf")).expect("the scratch folder can be written");
    let message = open("model.gguf");
    assert!(message.contains("does not end in -00001-of-00003.gguf"), "{message}");
    fs::copy(&first, folder.path().join("model-00001-of-00002.gguf")).expect("as above");
    assert!(open("model-00001-of-00002.gguf").contains("does not end in -00001-of-00003.gguf"));
    let bytes = fs::read(&first).expect("written");
    let message = GgufFile::from_bytes(&first, bytes).map(drop).expect_err("no files").to_string();
    assert!(
        message.contains("part 1 of 3") && message.contains("only be opened from its files"),
        "{message}"
    );
}

#[test]
fn a_count_of_parts_has_a_bound() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let whole = source();
    let mut parts = cut(&whole);
    parts[0].set("split.count", U32, &5000u32.to_le_bytes());
    let first = folder.path().join("model-00001-of-05000.gguf");
    fs::write(&first, parts[0].bytes()).expect("the scratch folder can be written");
    let message = GgufFile::open(&first).map(drop).expect_err("too many").to_string();
    assert!(message.contains("5000 parts") && message.contains("1024"), "{message}");
}
