//! How often a decode step hands work to the other threads. Each time costs a fraction of a microsecond, and the wait for the
//! last thread; so products of one input are one job, and what is small stays on one thread.

mod common;

use zllm_engine::{LoadOptions, LoadedModel, StepRow, Want};

/// Jobs of a layer: queries with keys and values, attention, its output, gate with up, down; and the rounding of down's
/// input where that is long.
const JOBS_OF_A_LAYER: usize = 6;
/// Keys up to which attention is one job; beyond, its ranges are merged in another.
const ONE_RANGE: usize = 256;

#[test]
fn a_decode_step_has_a_job_for_each_input_of_products_and_one_for_attention() {
    let options = LoadOptions { threads: 2, kv_budget_bytes: 64 << 20, ..LoadOptions::default() };
    for name in common::MODELS {
        let mut model = LoadedModel::load(&common::model(name), &options, &mut |_| {}).expect("a model");
        let layers = model.layers().len();
        let blocks: Vec<u32> = (0..8).collect();
        for position in [0, 1, 300] {
            let before = model.jobs();
            let row = StepRow { tokens: &[5], position, blocks: &blocks, want: Want::Last };
            model.step(&[row]).expect("a step");
            let jobs = model.jobs() - before;
            let of_a_layer = JOBS_OF_A_LAYER + usize::from(position >= ONE_RANGE);
            let most = (of_a_layer * layers + 1) as u64;
            println!("{name}: {jobs} jobs at position {position}, {layers} layers");
            assert!(jobs <= most, "{name}, position {position}: {jobs} jobs, at most {most}");
            assert!(jobs > layers as u64, "{name}: the count counts");
        }
    }
}
