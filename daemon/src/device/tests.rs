//! KV blocks go out and come back through the devices, in the order of the commands, whether a model is on one of them or
//! cut over several.

use super::fake::{BROKEN_MODEL, FAKE_BLOCK_BYTES, FakeDevice, expected_text};
use super::port::Loaded;
use super::*;
use crate::catalog::tests::defaults;
use crate::config::{LoadWhen, ModelDefaults, PlaceSettings};
use crate::scheduler::plan::{JobNumber, PlanRow};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use zllm_wire::{GenerationParams, Prompt};

const SEQUENCE: SequenceId = SequenceId { job: JobNumber(1), choice: 0 };
const NAMES: [&str; 3] = ["a", "b", "c"];

fn devices(device: impl Fn() -> FakeDevice) -> Devices {
    let (pulses, _deaths) = Pulses::new(NAMES.len() as u16);
    let spawn = |(number, name): (u16, &str)| {
        let device = Box::new(device().named(name));
        let actor = DeviceActor::spawn(number, device, Clock::start(), pulses.clone()).expect("a thread");
        (name.to_owned(), actor)
    };
    Devices::new((0..).zip(NAMES).map(spawn))
}

fn settings(on: &[&str]) -> ModelSettings {
    let place = PlaceSettings { devices: on.iter().map(|name| (*name).into()).collect(), split: None };
    let defaults = ModelDefaults { place, ..defaults() };
    ModelSettings { path: "m".into(), load: LoadWhen::Demand, template: None, defaults }
}

async fn load(devices: &Devices, on: &[&str]) -> Loaded {
    devices.load("m".into(), settings(on), Box::new(|_| {})).await.expect("the fake loads")
}

fn step(
    devices: &Devices,
    tokens: &[u32],
    position: usize,
    blocks: &[u32],
    begin: Option<Box<dyn Generate>>,
) -> impl Future<Output = Result<StepDone, String>> + use<> {
    let samples = begin.is_some();
    let row = PlanRow {
        sequence: SEQUENCE,
        tokens: tokens.to_vec(),
        position,
        blocks: blocks.into(),
        samples,
        pool: None,
    };
    let begins = begin.map(|generation| (SEQUENCE, generation)).into_iter().collect();
    devices.run_step(StepPlan { model: "m".into(), rows: vec![row] }, begins, Vec::new())
}

/// What each device has of each model, by their names.
async fn held(devices: &Devices) -> Vec<(String, Vec<String>)> {
    let models = |snapshot: &DeviceSnapshot| snapshot.loaded.keys().map(|model| model.to_string()).collect();
    let snapshots = devices.snapshots().await.expect("alive");
    snapshots.iter().map(|snapshot| (snapshot.description.name.clone(), models(snapshot))).collect()
}

#[actix::test]
async fn blocks_are_copied_out_moved_and_brought_back_in_the_order_of_the_commands() {
    for on in [&["a"][..], &["b", "a"], &["c", "a", "b"]] {
        let devices = devices(|| FakeDevice::with_blocks(4, 4));
        let loaded = load(&devices, on).await;
        assert_eq!((loaded.device_blocks, loaded.ram_blocks), (4, 4));
        let block_bytes = on.len() * FAKE_BLOCK_BYTES;
        assert_eq!(loaded.kv_block_bytes, block_bytes as u64, "the parts of all stages");

        // 100 tokens in two blocks; then, without an answer from anybody, to other slots and on from there.
        let text: String = ('a'..='z').cycle().take(100).collect();
        let prompt = Prompt::Text { text: text.clone(), parse_special: false };
        let (tokens, _) = loaded.text.encode(&prompt, 0).expect("bytes");
        let model = ModelName::from("m");
        step(&devices, &tokens[..99], 0, &[0, 1], None).await.expect("a step");
        let moved = devices.copy(&model, 1, 6);
        let fetched = devices.fetch(&model, vec![0, 6]);
        moved.await.expect("both blocks exist");
        let fetched = fetched.await.expect("blocks that were written");
        assert_eq!(fetched.iter().map(Vec::len).collect::<Vec<_>>(), [block_bytes; 2]);

        let brought = devices.put(&model, [7, 3].into_iter().zip(fetched).collect());
        let params = GenerationParams { max_tokens: Some(1), ..GenerationParams::default() };
        let generation = loaded.text.generation(&tokens, &params, 0).expect("sound parameters");
        let sampled = step(&devices, &tokens[99..], 99, &[7, 3], Some(generation));
        brought.await.expect("whole blocks");
        let done = sampled.await.expect("a step");
        let accepted = done.outcome.rows[0].accepted.as_ref().expect("a sample").as_ref().expect("a token");
        assert_eq!(accepted.text, expected_text(&text, 1), "{on:?}");
    }
}

/// Each stage of the step takes its time, and meanwhile blocks of others are copied, put and fetched in all stages.
#[actix::test]
async fn what_comes_between_two_stages_of_a_step_is_harmless() {
    let devices = devices(|| FakeDevice::slow(Duration::from_millis(30)));
    let loaded = load(&devices, &["a", "b", "c"]).await;
    let model = ModelName::from("m");
    let text: String = ('a'..='z').cycle().take(70).collect();
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    step(&devices, &tokens[..69], 0, &[0, 1], None).await.expect("a step");
    let kept = devices.fetch(&model, vec![0, 1]).await.expect("blocks that were written");

    let running = step(&devices, &tokens[..64], 0, &[2], None);
    let put = devices.put(&model, vec![(4, kept[0].clone())]);
    let copied = devices.copy(&model, 1, 5);
    let fetched = devices.fetch(&model, vec![4, 5]);
    put.await.expect("whole blocks");
    copied.await.expect("both blocks exist");
    assert_eq!(fetched.await.expect("blocks that were written"), kept);
    running.await.expect("a step");

    let params = GenerationParams { max_tokens: Some(1), ..GenerationParams::default() };
    let generation = loaded.text.generation(&tokens, &params, 0).expect("sound parameters");
    let done = step(&devices, &tokens[69..], 69, &[4, 5], Some(generation)).await.expect("a step");
    let accepted = done.outcome.rows[0].accepted.as_ref().expect("a sample").as_ref().expect("a token");
    assert_eq!(accepted.text, expected_text(&text, 1));
    assert!(done.took >= Duration::from_millis(90), "all stages count: {:?}", done.took);
}

#[actix::test]
async fn what_can_wait_is_done_while_nothing_is_asked_and_lets_others_go_first() {
    // Weeks of it: only a thread that interrupts it answers.
    for (pieces, ends) in [(u32::MAX, false), (20, true)] {
        let left = Arc::new(AtomicU32::new(pieces));
        let devices = devices(|| FakeDevice::unsettled(left.clone()));
        load(&devices, &["a"]).await;
        while left.load(Ordering::Relaxed) == pieces {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        step(&devices, &[1, 2, 3], 0, &[0], None).await.expect("a step");
        while ends && left.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[actix::test]
async fn a_device_that_is_never_idle_settles_a_tenth_of_its_time() {
    let pieces = 60;
    let left = Arc::new(AtomicU32::new(pieces));
    // The others are idle, and have nothing to settle.
    let first = Cell::new(Some(left.clone()));
    let devices = devices(|| first.take().map_or_else(FakeDevice::default, FakeDevice::unsettled));
    load(&devices, &["a"]).await;
    let clock = Clock::start();
    while left.load(Ordering::Relaxed) > 0 {
        step(&devices, &[1, 2, 3], 0, &[0], None).await.expect("a step");
    }
    let took = clock.now();
    // Beats alone, five a second and one piece each, would take twelve seconds.
    assert!((Duration::from_millis(500)..Duration::from_secs(6)).contains(&took), "{pieces} took {took:?}");
}

#[actix::test]
async fn a_model_that_is_gone_and_a_block_that_is_none_are_errors() {
    let devices = devices(|| FakeDevice::with_blocks(2, 0));
    let all = async |model: &str, slot: u32, bytes: usize| {
        let model = ModelName::from(model);
        let fetched = devices.fetch(&model, vec![slot]).await;
        let put = devices.put(&model, vec![(slot, vec![0; bytes])]).await;
        let copied = devices.copy(&model, slot, 0).await;
        [fetched.map(|_| ()), put, copied].map(|result| result.err().unwrap_or_default())
    };
    load(&devices, &["b"]).await;
    assert_eq!(all("other", 0, FAKE_BLOCK_BYTES).await, ["model other is not loaded"; 3]);
    let no_block = "device b: KV block 2 does not exist; the arena has 2 blocks";
    assert_eq!(all("m", 2, FAKE_BLOCK_BYTES).await, [no_block; 3]);
    assert_eq!(all("m", 0, 3).await[1], "device b: 3 bytes are no block");
    devices.unload(&"m".into()).await.expect("unloaded");
    assert_eq!(all("m", 0, FAKE_BLOCK_BYTES).await, ["model m is not loaded"; 3]);

    load(&devices, &["a", "c"]).await;
    let wrong = all("m", 0, FAKE_BLOCK_BYTES).await;
    assert_eq!(wrong[1], "256 bytes are no KV block; one of this model has 512 bytes");
    assert!(all("m", 2, 2 * FAKE_BLOCK_BYTES).await[1].starts_with("device a: KV block 2 does not exist"));
}

#[actix::test]
async fn a_stage_that_does_not_load_takes_the_others_with_it() {
    let devices = devices(FakeDevice::default);
    let broken = devices.load(BROKEN_MODEL.into(), settings(&["c", "a"]), Box::new(|_| {}));
    assert_eq!(broken.await.err().as_deref(), Some("device a: this model is broken on purpose"));
    assert!(held(&devices).await.iter().all(|(_, models)| models.is_empty()), "nothing is left of it");
    assert_eq!(devices.names(BROKEN_MODEL), None);
    let nowhere = devices.load("m".into(), settings(&["a", "d"]), Box::new(|_| {}));
    assert_eq!(nowhere.await.err().as_deref(), Some("there is no device d"));
}

#[actix::test]
async fn a_model_is_where_its_settings_say_and_told_of_by_all_its_devices() {
    let devices = devices(FakeDevice::default);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = seen.clone();
    let progress = Box::new(move |at: LoadProgress| heard.lock().expect("sound").push(at));
    let loaded = devices.load("m".into(), settings(&["c", "a"]), progress).await.expect("the fake loads");
    assert_eq!((loaded.devices, loaded.weight_bytes), (vec![2, 0], 2 * 4096));
    assert_eq!(seen.lock().expect("sound").len(), 2, "both stages tell how far they are");
    assert_eq!(devices.names("m").as_deref(), Some("c+a"));
    let here = |models: &[&str]| models.iter().map(|model| (*model).to_owned()).collect::<Vec<_>>();
    let expected = [("a", here(&["m"])), ("b", here(&[])), ("c", here(&["m"]))];
    assert_eq!(held(&devices).await, expected.map(|(name, models)| (name.to_owned(), models)));

    let first = devices.load("first".into(), settings(&[]), Box::new(|_| {})).await.expect("the fake loads");
    assert_eq!((first.devices, devices.names("first")), (vec![0], Some("a".to_owned())));
    devices.unload(&"m".into()).await.expect("unloaded");
    assert_eq!(devices.names("m"), None);
    assert_eq!(held(&devices).await[0].1, ["first"]);
}
