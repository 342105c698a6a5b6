//! Every file of the fuzzers' kept corpus (`fuzz/corpus`) through what is fuzzed: what was found once stays mended.

#[path = "../../fuzz/bodies/mod.rs"]
mod bodies;

use std::{fs, path::Path};

/// Feeds all of a target's corpus, in the files' order, and says which file it was that failed.
fn feed(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file of the corpus").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in &files {
        let bytes = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        if let Err(panic) = std::panic::catch_unwind(|| body(&bytes)) {
            eprintln!("the file is {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
    println!("{target}: {} files", files.len());
}

#[test]
fn gguf_files() {
    feed("gguf_reader", bodies::gguf_reader);
}

#[test]
fn texts() {
    feed("tokenizer", bodies::tokenizer);
}

#[test]
fn conversations() {
    feed("template_contexts", bodies::template_contexts);
}
