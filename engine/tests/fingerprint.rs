//! A fingerprint names all that keys and values depend on, and nothing else: blocks that were computed under one must never
//! be found under another, and must be found again on every machine.

mod common;

use std::{fs, path::Path};

use zllm_engine::{
    FingerprintPart, Isa, LoadOptions, LoadedModel, TemplateChoice, gguf::GgufFile, spec::ModelSpec,
};

/// Dense; fused products and two ropes; experts.
const FILES: [&str; 4] = [
    "archs/llama-dense.f16.gguf",
    "archs/phi3-dense.f16.gguf",
    "archs/gpt-oss-moe.f16.gguf",
    "quants/qwen3moe-moe.q4_k_m.gguf",
];

fn options() -> LoadOptions {
    LoadOptions { threads: 1, kv_budget_bytes: 4 << 20, ..LoadOptions::default() }
}

fn fingerprint(path: &Path, options: &LoadOptions) -> [u8; 32] {
    let model = LoadedModel::load(path, options, &mut |_| {}).expect("a sound model");
    FingerprintPart::join([model.fingerprint()]).expect("a whole model")
}

/// One bit of one byte of each tensor, each time in another place.
#[test]
fn every_tensor_counts_wherever_it_is_changed() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("model.gguf");
    for name in FILES {
        let source = common::testdata(name);
        let before = fingerprint(&source, &options());
        let sound = fs::read(&source).expect("a reference file");
        let file = GgufFile::open(&source).expect("a reference file");
        let spec = ModelSpec::read(&file, None).expect("a supported family");
        for (index, tensor) in spec.tensor_names().into_iter().enumerate() {
            let range = file.tensor(tensor).expect("named by the spec").range();
            let mut changed = sound.clone();
            changed[range.start + index * 7919 % range.len()] ^= 1 << (index % 8);
            fs::write(&path, &changed).expect("the scratch folder can be written");
            assert_ne!(fingerprint(&path, &options()), before, "{name}: {tensor}");
        }
        fs::write(&path, &sound).expect("the scratch folder can be written");
        assert_eq!(
            fingerprint(&path, &options()),
            before,
            "{name}: the name and place of a file do not count"
        );
    }
}

#[test]
fn threads_instruction_sets_budgets_and_templates_do_not_count() {
    for name in FILES {
        let path = common::testdata(name);
        let before = fingerprint(&path, &options());
        for isa in Isa::available() {
            for threads in [1, 3] {
                let found = fingerprint(&path, &LoadOptions { isa: Some(isa), threads, ..options() });
                assert_eq!(found, before, "{name}: {isa:?} on {threads} threads");
            }
        }
        let other = LoadOptions {
            kv_budget_bytes: 2 << 20,
            ram_budget_bytes: 1 << 20,
            max_batch_rows: 2,
            context_limit: Some(64),
            name: Some("other".into()),
            template: Some(TemplateChoice::Named("chatml".into())),
            ..options()
        };
        assert_eq!(fingerprint(&path, &other), before, "{name}");
    }
}

#[test]
fn metadata_and_the_pre_tokenizer_count() {
    let source = common::testdata(FILES[0]);
    let before = fingerprint(&source, &options());
    let mut bytes = fs::read(&source).expect("a reference file");
    let key = b"llama.rope.freq_base";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("a rope") + key.len() + 4;
    bytes[at] ^= 1;
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, &bytes).expect("the scratch folder can be written");
    assert_ne!(fingerprint(&path, &options()), before);

    let path = common::model("smollm2-135m");
    let before = fingerprint(&path, &options());
    let other = LoadOptions { tokenizer_pre: Some("gpt-2".into()), ..options() };
    assert_ne!(fingerprint(&path, &other), before);
}

/// The same on every machine of this byte order. A change here makes what is stored useless: raise the version of what
/// changed, and say so in the changelog.
#[test]
#[cfg(target_endian = "little")]
fn fingerprints_are_the_same_on_every_machine() {
    let found = FILES.map(|name| {
        let bytes = fingerprint(&common::testdata(name), &options());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    let expected = [
        "ea52c7f73e0a45b33a892a91314563a322584cfd557ab289d9158ca2ff3ec0f2",
        "2b4ef8458cb44f6b23d7bfb2429a1326875efdbec2b175ac09dbd0b4afbe974f",
        "ff4e377b463abe385e8b52fde58603290e4642db7373e06922764658aff59848",
        "31a0a88df037d41457c24db54d2e1526cef769d2da3ad82501f86d6937cb4b0a",
    ];
    assert_eq!(found, expected);
}
