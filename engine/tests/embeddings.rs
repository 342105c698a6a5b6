//! Embeddings: the rows behind the last norm against the oracle's, pooled by a naive twin; and to the bit the same however
//! the text is cut into steps, whatever else is in them, and however the model is cut in stages.

mod common;

use zllm_engine::{
    LoadOptions, LoadedModel, Oracle, Pool, Pooling, Prompt, RequestError, Stage, StageOutput, StepRow,
    TextModel, Want, gguf::GgufFile, spec::ModelSpec,
};

const WAYS: [Pooling; 3] = [Pooling::Mean, Pooling::Cls, Pooling::Last];
/// Longer than a block.
const TOKENS: usize = 80;
const WIDTH: usize = 64;

fn load(path: &std::path::Path, stage: Stage) -> LoadedModel {
    let options = LoadOptions {
        stage,
        threads: 2,
        kv_budget_bytes: 8 << 20,
        prefill_chunk_tokens: TOKENS,
        max_batch_rows: 8,
        ..LoadOptions::default()
    };
    LoadedModel::load(path, &options, &mut |_| {}).expect("a model that loads")
}

fn tokens(sequence: usize) -> Vec<u32> {
    (0..TOKENS).map(|i| ((i * 37 + sequence * 11 + i * i) % 128) as u32).collect()
}

/// Logits and hidden rows of a step of all stages.
fn step(stages: &mut [LoadedModel], rows: &[StepRow<'_>]) -> (Vec<f32>, Vec<f32>) {
    let mut between: Option<Vec<f32>> = None;
    for stage in stages {
        match stage.step_stage(rows, between.as_deref()).expect("a step") {
            StageOutput::Hidden(rows) => between = Some(rows.to_vec()),
            StageOutput::Last { mut logits, hidden } => {
                let rows = 0..logits.rows();
                return (rows.flat_map(|i| logits.row_mut(i).to_vec()).collect(), hidden.to_vec());
            }
        }
    }
    panic!("the last stage gives what is wanted")
}

/// The embedding of `tokens`, computed in runs of these lengths.
fn embed(stages: &mut [LoadedModel], tokens: &[u32], width: usize, way: Pooling, run: usize) -> Vec<f32> {
    let mut pool = Pool::new(way);
    for (i, run_tokens) in tokens.chunks(run).enumerate() {
        let want = pool.want();
        let row = StepRow { tokens: run_tokens, position: i * run, blocks: &[1, 0, 2, 3], want };
        let (logits, hidden) = step(stages, &[row]);
        assert!(logits.is_empty(), "nobody asked for logits");
        assert_eq!(hidden.len(), if want == Want::Hidden { run_tokens.len() * width } else { 0 });
        pool.add(&hidden, width);
    }
    pool.finish(None).expect("a direction")
}

/// The definition: all rows at once, in f64.
fn twin(rows: &[Vec<f32>], way: Pooling) -> Vec<f64> {
    let row = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let pooled = match way {
        Pooling::Cls => row(&rows[0]),
        Pooling::Last => row(&rows[rows.len() - 1]),
        Pooling::Mean => (0..rows[0].len())
            .map(|at| rows.iter().map(|row| f64::from(row[at])).sum::<f64>() / rows.len() as f64)
            .collect(),
    };
    let length = pooled.iter().map(|x| x * x).sum::<f64>().sqrt();
    pooled.iter().map(|x| x / length).collect()
}

fn distance(found: &[f32], wanted: &[f64]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    found.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt()
}

fn oracle_rows(path: &std::path::Path, tokens: &[u32]) -> Vec<Vec<f32>> {
    let file = GgufFile::open(path).expect("a model file");
    let spec = ModelSpec::read(&file, None).expect("a supported family");
    Oracle::load(&file, spec, 2).expect("decodable").forward_hidden(tokens, &mut |_| {})
}

#[test]
fn every_family_gives_the_oracles_vector() {
    let mut seen = 0;
    for entry in std::fs::read_dir(common::testdata("archs")).expect("the folder of families") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "gguf") {
            continue;
        }
        seen += 1;
        let tokens = tokens(0);
        let rows = oracle_rows(&path, &tokens);
        let mut model = [load(&path, Stage::WHOLE)];
        for way in WAYS {
            let found = embed(&mut model, &tokens, WIDTH, way, TOKENS);
            let far = distance(&found, &twin(&rows, way));
            assert!(far < 3e-3, "{}, {way:?}: {far}", path.display());
            let length = found.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            assert!((length - 1.0).abs() < 1e-6, "{}: length {length}", path.display());
        }
    }
    assert!(seen >= 24, "{seen} families");
}

/// Q4_1 weights meet activations of 8 bits, so that this is not as near as the small models of f16.
#[test]
fn a_real_model_gives_the_oracles_vector() {
    let path = common::model("smollm2-135m");
    let mut model = [load(&path, Stage::WHOLE)];
    let text = model[0].text();
    let prompt = |text: &str| Prompt::Text { text: text.into(), parse_special: false };
    let tokens = text.encode_whole(&prompt("The quick brown fox jumps over the lazy dog."), false);
    let tokens = tokens.expect("a text");
    let rows = oracle_rows(&path, &tokens);
    for way in WAYS {
        let far = distance(&embed(&mut model, &tokens, text.width(), way, TOKENS), &twin(&rows, way));
        assert!(far < 0.1, "{way:?}: {far}");
    }
    let other = text.encode_whole(&prompt("An entirely different sentence"), false).expect("a text");
    let far =
        distance(&embed(&mut model, &other, text.width(), Pooling::Mean, 64), &twin(&rows, Pooling::Mean));
    assert!(far > 0.2, "another text is elsewhere: {far}");
}

#[test]
fn runs_stages_and_neighbours_change_no_bit() {
    for file in ["archs/gemma3-dense.f16.gguf", "archs/qwen3moe-moe.f16.gguf"] {
        let path = common::testdata(file);
        let (own, other) = (tokens(0), tokens(1));
        for way in WAYS {
            let mut whole = [load(&path, Stage::WHOLE)];
            let wanted = embed(&mut whole, &own, WIDTH, way, TOKENS);
            for run in [1, 7, 63, 64, 79] {
                assert_eq!(embed(&mut whole, &own, WIDTH, way, run), wanted, "{file} {way:?} by {run}");
            }
            let stage = |index| load(&path, Stage { index, of: 2, split: None });
            let mut cut = [stage(0), stage(1)];
            assert_eq!(embed(&mut cut, &own, WIDTH, way, 33), wanted, "{file} {way:?} in stages");

            let alone = step(&mut whole, &[row(&other[..9], 0, &[4, 5], Want::Last)]).0;
            let mut pool = Pool::new(way);
            let first = pool.want();
            let both = [row(&other[..9], 0, &[6, 7], Want::Last), row(&own[..50], 0, &[0, 1], first)];
            let (logits, hidden) = step(&mut whole, &both);
            assert_eq!(logits, alone, "{file}: logits beside a text that is embedded");
            pool.add(&hidden, WIDTH);
            let (_, hidden) = step(
                &mut whole,
                &[row(&own[50..], 50, &[0, 1], pool.want()), row(&other[9..10], 9, &[6, 7], Want::Last)],
            );
            pool.add(&hidden, WIDTH);
            assert_eq!(pool.finish(None).expect("a direction"), wanted, "{file} {way:?} beside another");
        }
    }
}

fn row<'a>(tokens: &'a [u32], position: usize, blocks: &'a [u32], want: Want) -> StepRow<'a> {
    StepRow { tokens, position, blocks, want }
}

#[test]
fn two_texts_of_one_step_keep_their_rows_apart() {
    let mut model = [load(&common::testdata("archs/llama-dense.f16.gguf"), Stage::WHOLE)];
    let (one, other) = (tokens(0), tokens(1));
    let mut alone = |tokens: &[u32]| step(&mut model, &[row(tokens, 0, &[0], Want::Hidden)]).1;
    let wanted = [alone(&one[..20]), alone(&other[..31])].concat();
    let rows = [row(&one[..20], 0, &[1], Want::Hidden), row(&other[..31], 0, &[2], Want::Hidden)];
    assert_eq!(step(&mut model, &rows).1, wanted);
}

/// A text side with this vocabulary, which has EOS round a text or not, and a context of five tokens.
fn text_model(vocabulary: &str) -> TextModel {
    let file = |name: &str| GgufFile::open(&common::testdata(name)).expect("a sound file");
    let mut spec = ModelSpec::read(&file("archs/llama-dense.f16.gguf"), None).expect("a sound model");
    (spec.vocab_size, spec.context_length) = (1 << 20, 5);
    TextModel::read(&file(vocabulary), &spec, None)
}

#[test]
fn a_text_ends_with_the_end_token_that_the_model_wants_and_a_prompt_does_not() {
    let text = |text: &str| Prompt::Text { text: text.into(), parse_special: true };
    let unigram = text_model("tokenizers/unigram-spaces.gguf");
    let tokenizer = unigram.tokenizer().expect("a tokenizer");
    let eos = tokenizer.eos().expect("it has one");
    let encode = |prompt: &Prompt, cut| unigram.encode_whole(prompt, cut);

    let mut own = Vec::new();
    tokenizer.encode("ab", false, &mut own);
    assert_eq!(unigram.encode(&text("ab")).expect("a prompt"), own);
    own.push(eos);
    assert_eq!(encode(&text("ab"), false).expect("a text"), own);
    let written = format!("ab{}", tokenizer.token_text(eos));
    assert_eq!(encode(&text(&written), false).expect("a text"), own, "once");

    let long = text("a b a b a b a b");
    assert!(matches!(encode(&long, false), Err(RequestError::InputTooLong { context: 5, tokens: 6.. })));
    let cut = encode(&long, true).expect("what fits");
    assert_eq!((cut.len(), cut[4]), (5, eos), "the end token stays");
    let ids = Prompt::Tokens(vec![3, 4, 3, 4, 3]);
    assert_eq!(encode(&ids, false).expect("a context full"), [3, 4, 3, 4, 3], "ids as they are");
    for empty in [text(""), Prompt::Tokens(vec![])] {
        assert!(matches!(encode(&empty, true), Err(RequestError::EmptyPrompt)), "{empty:?}");
    }
    let pairs = text_model("tokenizers/byte-pairs.gguf");
    let prompt = text("ab");
    assert_eq!(pairs.encode_whole(&prompt, false).ok(), pairs.encode(&prompt).ok(), "no end token");
}
