//! What each KV format costs on activations of real models: the layers whose keys have the channels that stand out most.
//!
//! `testdata/kv/` holds queries, keys and values of 64 tokens after rope, from the f32 oracle
//! (`cargo run --example kv_error -- MODEL --dump FILE`). The bounds are about twice what was measured.

use zllm_kernels::{
    backend::{KvCodec, KvFormat},
    cpu::pool::Pool,
};

#[path = "kv_error/measure.rs"]
mod measure;
use measure::{Dump, Errors};

fn dump(model: &str) -> Dump {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kv").join(model);
    let path = path.with_added_extension("bin");
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Dump::from_bytes(&bytes)
}

fn errors(dump: &Dump, format: KvFormat) -> Errors {
    dump.errors(&dump.exact(), &dump.outputs(format, &Pool::new(1)))
}

/// Model, format, and the largest error of a head, relative to the head's outputs.
const BOUNDS: [(&str, KvFormat, f64); 12] = [
    ("smollm2-135m", KvFormat::I16, 1e-3),
    ("smollm2-135m", KvFormat::F16, 2e-3),
    ("smollm2-135m", KvFormat::Q8G64, 0.1),
    ("smollm2-135m", I16_KEYS, 0.03),
    ("gemma3-270m", KvFormat::I16, 2e-3),
    ("gemma3-270m", KvFormat::F16, 2e-3),
    ("gemma3-270m", KvFormat::Q8G64, 0.3),
    ("gemma3-270m", I16_KEYS, 0.02),
    ("qwen2.5-coder-0.5b", KvFormat::I16, 0.02),
    ("qwen2.5-coder-0.5b", KvFormat::F16, 0.05),
    ("qwen2.5-coder-0.5b", KvFormat::Q8G64, 3.0),
    ("qwen2.5-coder-0.5b", I16_KEYS, 0.03),
];
/// Values of 8 bits beside keys of 16.
const I16_KEYS: KvFormat = KvFormat { keys: KvCodec::I16, values: KvCodec::Q8G64 };
const Q8_KEYS: KvFormat = KvFormat { keys: KvCodec::Q8G64, values: KvCodec::I16 };

#[test]
fn errors_on_real_activations_stay_within_their_bounds() {
    for (model, format, bound) in BOUNDS {
        let dump = dump(model);
        let Errors { median, most, worst_head } = errors(&dump, format);
        println!("{model} {format}: median head {median:.1e}, head {worst_head} {most:.1e}");
        assert!(
            most < bound,
            "{model} {format}: head {worst_head} is off by {most:.1e}, more than {bound:.1e}"
        );
    }
}

/// Why I16 is the default and Q8G64 first of all a format for values.
#[test]
fn outlier_channels_hurt_keys_of_8_bits_most() {
    let qwen = dump("qwen2.5-coder-0.5b");
    let (ratio, head, dim) = qwen.outlier();
    println!("KV head {head}, dimension {dim}: {ratio:.0} times the middling channel");
    assert!(ratio > 20.0, "the dump has a channel that stands out: {ratio}");
    let most = |format| errors(&qwen, format).most;
    assert!(most(KvFormat::I16) < most(KvFormat::F16));
    assert!(most(Q8_KEYS) > 20.0 * most(I16_KEYS));
}

/// The canary: a dump whose keys were changed is not within its bounds.
#[test]
fn a_changed_key_is_noticed() {
    let mut dump = dump("smollm2-135m");
    let exact = dump.exact();
    dump.keys.iter_mut().step_by(7).for_each(|x| *x *= 1.1);
    let found = dump.outputs(KvFormat::I16, &Pool::new(1));
    assert!(dump.errors(&exact, &found).most > 5e-3);
}
