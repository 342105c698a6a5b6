//! A sound GGUF file is read, and none of its bytes can be changed in a way that makes the reader panic.

use std::{fs, path::Path};

use proptest::prelude::*;
use zllm_engine::gguf::{GgufFile, Value};

fn sound_file() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/archs/llama-dense.f16.gguf");
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Reads all that a file offers; nothing of it may panic once the file was accepted.
fn walk(file: &GgufFile) -> usize {
    let values = file.metadata().iter().map(|(_, value)| match value {
        Value::Array(array) => array.iter().count(),
        _ => 1,
    });
    let tensors = file.tensors().map(|t| {
        assert_eq!(file.tensor(t.name()).map(|same| same.range()), Some(t.range()));
        t.bytes().len() + t.dims().len() + t.format().map_or(0, |format| format.block_len())
    });
    values.sum::<usize>() + tensors.sum::<usize>() + file.architecture().len()
}

#[test]
fn a_sound_file_is_read() {
    let file = GgufFile::from_bytes(Path::new("sound.gguf"), sound_file()).expect("a sound file");
    assert_eq!((file.version(), file.architecture(), file.metadata().len()), (3, "llama", 27));
    let tensor = file.require_tensor("token_embd.weight").expect("llama has embeddings");
    assert_eq!((tensor.dims(), tensor.rows(), tensor.bytes().len()), (&[64, 128][..], 128, 64 * 128 * 2));
    assert_eq!(file.tensors().len(), 36);
    assert!(walk(&file) > 100_000);
    let missing = file.require_tensor("nothing.weight").expect_err("no such tensor").to_string();
    assert_eq!(missing, "sound.gguf: the tensor `nothing.weight` is missing");
    let metadata = file.metadata();
    assert_eq!(metadata.require_u32("llama.block_count").expect("it is there"), 2);
    let wrong = metadata.opt_f32("llama.block_count").expect_err("it is an integer").to_string();
    assert_eq!(wrong, "sound.gguf: `llama.block_count` should be a float, but is of type u32");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn damaged_files_never_panic(
        changes in prop::collection::vec((0usize..6000, any::<u8>()), 0..8),
        cut in prop::option::of(0usize..200_000),
    ) {
        let mut bytes = sound_file();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        if let Ok(file) = GgufFile::from_bytes(Path::new("damaged.gguf"), bytes) {
            walk(&file);
        }
    }

    #[test]
    fn interesting_numbers_anywhere_never_panic(
        at in 0usize..6000,
        number in prop::sample::select(vec![0u64, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 40, 1 << 61, u64::MAX / 2, u64::MAX - 31, u64::MAX]),
    ) {
        let mut bytes = sound_file();
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        if let Ok(file) = GgufFile::from_bytes(Path::new("damaged.gguf"), bytes) {
            walk(&file);
        }
    }
}
