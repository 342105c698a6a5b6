//! KV blocks go out and come back through the actor, in the order of the commands.

use super::fake::{FAKE_BLOCK_BYTES, FakeDevice, expected_text};
use super::*;
use crate::catalog::tests::defaults;
use crate::config::LoadWhen;
use crate::scheduler::plan::{JobNumber, PlanRow};
use zllm_wire::{GenerationParams, Prompt};

const SEQUENCE: SequenceId = SequenceId { job: JobNumber(1), choice: 0 };

async fn load(device: &Addr<DeviceActor>) -> Loaded {
    let (path, load) = ("m".into(), LoadWhen::Demand);
    let settings = ModelSettings { path, load, template: None, defaults: defaults() };
    let load = LoadModel { model: "m".into(), settings, progress: Box::new(|_| {}) };
    device.send(load).await.expect("alive").expect("the fake loads")
}

fn step(tokens: &[u32], position: usize, blocks: &[u32], begin: Option<Box<dyn Generate>>) -> RunStep {
    let samples = begin.is_some();
    let row =
        PlanRow { sequence: SEQUENCE, tokens: tokens.to_vec(), position, blocks: blocks.into(), samples };
    let begins = begin.map(|generation| (SEQUENCE, generation)).into_iter().collect();
    RunStep { plan: StepPlan { model: "m".into(), rows: vec![row] }, begins, forgets: Vec::new() }
}

#[actix::test]
async fn blocks_are_copied_out_moved_and_brought_back_in_the_order_of_the_commands() {
    let (pulses, _deaths) = Pulses::new();
    let device = FakeDevice::with_blocks(4, 4);
    let device = DeviceActor::spawn(Box::new(device), Clock::start(), pulses).expect("a thread");
    let loaded = load(&device).await;
    assert_eq!((loaded.device_blocks, loaded.ram_blocks), (4, 4));

    // 100 tokens in two blocks; then, without an answer from anybody, to other slots and on from there.
    let text: String = ('a'..='z').cycle().take(100).collect();
    let prompt = Prompt::Text { text: text.clone(), parse_special: false };
    let tokens = loaded.text.encode(&prompt, 0).expect("bytes");
    let model = || ModelName::from("m");
    let computed = device.send(step(&tokens[..99], 0, &[0, 1], None));
    let moved = device.send(CopyBlock { model: model(), from: 1, to: 6 });
    let fetched = device.send(FetchBlocks { model: model(), slots: vec![0, 6] });
    computed.await.expect("alive").expect("a step");
    moved.await.expect("alive").expect("both blocks exist");
    let fetched = fetched.await.expect("alive").expect("blocks that were written");
    assert_eq!(fetched.iter().map(Vec::len).collect::<Vec<_>>(), [FAKE_BLOCK_BYTES; 2]);

    let blocks = [7, 3].into_iter().zip(fetched).collect();
    let brought = device.send(PutBlocks { model: model(), blocks });
    let params = GenerationParams { max_tokens: Some(1), ..GenerationParams::default() };
    let generation = loaded.text.generation(&tokens, &params, 0).expect("sound parameters");
    let sampled = device.send(step(&tokens[99..], 99, &[7, 3], Some(generation)));
    brought.await.expect("alive").expect("whole blocks");
    let done = sampled.await.expect("alive").expect("a step");
    let accepted = done.outcome.rows[0].accepted.as_ref().expect("a sample").as_ref().expect("a token");
    assert_eq!(accepted.text, expected_text(&text, 1));
}

#[actix::test]
async fn a_model_that_is_gone_and_a_block_that_is_none_are_errors() {
    let (pulses, _deaths) = Pulses::new();
    let device = FakeDevice::with_blocks(2, 0);
    let device = DeviceActor::spawn(Box::new(device), Clock::start(), pulses).expect("a thread");
    load(&device).await;
    let all = async |model: &str, slot: u32, bytes: usize| {
        let model = || ModelName::from(model);
        let fetched = device.send(FetchBlocks { model: model(), slots: vec![slot] }).await.expect("alive");
        let blocks = vec![(slot, vec![0; bytes])];
        let put = device.send(PutBlocks { model: model(), blocks }).await.expect("alive");
        let copied = device.send(CopyBlock { model: model(), from: slot, to: 0 }).await.expect("alive");
        [fetched.map(|_| ()), put, copied].map(|result| result.err().unwrap_or_default())
    };
    assert_eq!(all("other", 0, FAKE_BLOCK_BYTES).await, ["model other is not loaded"; 3]);
    assert_eq!(all("m", 2, FAKE_BLOCK_BYTES).await, ["KV block 2 does not exist; the arena has 2 blocks"; 3]);
    assert_eq!(all("m", 0, 3).await[1], "3 bytes are no block");
    device.send(UnloadModel("m".into())).await.expect("alive").expect("unloaded");
    assert_eq!(all("m", 0, FAKE_BLOCK_BYTES).await, ["model m is not loaded"; 3]);
}
