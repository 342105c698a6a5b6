//! Several devices: a model that is cut over two of them, and two models on two of them, answer as one device does, to the last
//! bit; and what was kept under one cut is found under another.

use crate::common::kv::{BLOCK_BYTES, Drawn, Reference, Rng, ids, request};
use crate::common::{Builder, Daemon, MODEL, get, models_dir, sample};
use crate::kv_tiers::Talk;
use zllm_wire::{Answer, Op, Status, Submit, Tier};

/// Another model, and what the tests call it.
const OTHER_FILE: &str = "gemma3-270m.gguf";
const OTHER: &str = "other";

/// Two devices of one thread each, with these models beside [`MODEL`], of which `place` says where it is.
fn two_devices(place: &str, others: &[(&str, &str, &str)]) -> String {
    let device = |name| format!("[[devices]]\nname = {name:?}\nkind = \"cpu\"\nthreads = 1\n");
    format!("{place}{}{}{}", others_of(others), device("a"), device("b"))
}

/// Models by name, file and further settings.
fn others_of(others: &[(&str, &str, &str)]) -> String {
    let other = |(name, file, place): &(&str, &str, &str)| {
        let path = models_dir().join(file);
        format!("[models.{name}]\npath = {path:?}\nkv_budget = \"64MiB\"\nram_budget = 0\n{place}")
    };
    others.iter().map(other).collect()
}

fn daemon(more: String) -> Daemon {
    Builder::new().with(|settings| settings.more = more).start()
}

/// Requests of different lengths, greedy ones and drawn ones, for a model.
fn requests(model: &str) -> Vec<Submit> {
    [(293, 6, 0.0), (40, 20, 0.9), (7, 24, 0.0), (150, 10, 0.7)]
        .into_iter()
        .map(|(tokens, generate, temperature)| {
            let mut request = request(ids(&Rng::new(tokens).tokens(tokens)), generate, None);
            request.model = model.into();
            request.params.sampling.temperature = Some(temperature);
            request.params.sampling.seed = Some(tokens);
            request
        })
        .collect()
}

/// The answers to all requests, asked at once.
fn at_once(daemon: &Daemon, requests: Vec<Submit>) -> Vec<Vec<Drawn>> {
    std::thread::scope(|scope| {
        let ask = |request| scope.spawn(move || daemon.connect().turn(request).drawn);
        let asked: Vec<_> = requests.into_iter().map(ask).collect();
        asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
    })
}

fn device_of(status: &Status, model: &str) -> Option<String> {
    status.models.iter().find(|info| info.name == model).expect("configured").device.clone()
}

#[test]
fn two_devices_answer_as_one_does_with_a_model_cut_and_with_a_model_each() {
    let one = daemon(others_of(&[(OTHER, OTHER_FILE, "")]));
    let both = || [requests(MODEL), requests(OTHER)].concat();
    let expected = at_once(&one, both());
    assert!(expected[..4] != expected[4..], "two models");
    drop(one);

    let smollm = format!("{MODEL}.gguf");
    let more = two_devices(
        "devices = [\"b\", \"a\"]\nsplit = [7, 23]\n",
        &[
            (OTHER, OTHER_FILE, "devices = [\"b\"]\n"),
            ("whole", &smollm, "devices = [\"a\"]\n"),
            ("wrong", &smollm, "devices = [\"a\", \"b\"]\nsplit = [12, 12]\n"),
        ],
    );
    let two = daemon(more);
    assert_eq!(at_once(&two, requests(MODEL)), expected[..4], "cut, and alone");
    let all = at_once(&two, [requests(OTHER), requests("whole"), requests(MODEL)].concat());
    assert_eq!(all[..4], expected[4..], "on device b, beside the others");
    assert_eq!(all[4..8], expected[..4], "on device a, beside the others");
    assert_eq!(all[8..], expected[..4], "cut, beside the others");

    let mut client = two.connect();
    let status = client.status();
    let on = |model| device_of(&status, model);
    assert_eq!([on(MODEL), on(OTHER), on("whole")], ["b+a", "b", "a"].map(|names| Some(names.to_owned())));
    let names: Vec<_> = status.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(status.devices.iter().all(|device| device.used_bytes > 100 << 20 && device.busy > 0.0));
    let page = get(&two.http_socket(), "/metrics").expect("a scrape").body;
    for device in ["a", "b"] {
        let weights = format!("zllm_device_memory_bytes{{device=\"{device}\",use=\"weights\"}}");
        assert!(sample(&page, &weights).is_some_and(|bytes| bytes > 0.0), "{page}");
    }

    let wrong = Submit { model: "wrong".into(), ..request(ids(&[1, 2]), 1, None) };
    match client.ask(Op::Submit(Box::new(wrong))) {
        Answer::Error(fault) => {
            assert!(
                fault.message.contains("device a: ") && fault.message.contains("split is [12, 12]"),
                "{fault:?}"
            );
        }
        other => panic!("24 layers of 30, but {other:?}"),
    }
    assert_eq!(at_once(&two, requests(MODEL)), expected[..4], "a load that failed leaves no trace");
}

/// Under each cut, a prompt is found whole in every tier; under the next one after a restart on SSD.
#[test]
fn what_one_cut_kept_another_finds() {
    let cuts = [
        two_devices("devices = [\"a\", \"b\"]\n", &[]),
        two_devices("devices = [\"b\", \"a\"]\nsplit = [29, 1]\n", &[]),
        String::new(),
        two_devices("devices = [\"b\"]\n", &[]),
    ];
    let mut reference = Reference::start();
    let talks = [Talk::new("tail", 293, 12), Talk::new("full", 230, 40)];
    let expected = talks.each_ref().map(|talk| reference.answer(&talk.prompt, talk.generate));
    let mut daemon = daemon(cuts[0].clone());
    for (at, cut) in cuts.iter().enumerate() {
        if at > 0 {
            // By a kill after a save and by an orderly end in turn.
            if at % 2 == 0 {
                assert_eq!(daemon.connect().save_all(), 2);
                daemon.kill();
            } else {
                daemon.terminate();
            }
            daemon.settings.more = cut.clone();
            daemon.start_again();
        }
        let mut client = daemon.connect();
        for (talk, expected) in talks.iter().zip(&expected) {
            if at == 0 {
                let cold = client.turn(talk.request());
                assert_eq!((cold.cached().total(), &cold.drawn), (0, expected), "{}", talk.id);
            } else {
                talk.comes_from(Tier::Ssd, &mut client, expected);
            }
            talk.comes_from(Tier::Device, &mut client, expected);
        }
        assert!(client.evict_all(Some(Tier::Device)) > 0);
        for (talk, expected) in talks.iter().zip(&expected) {
            talk.comes_from(Tier::Ram, &mut client, expected);
        }

        // A prompt that parts from the first inside a block gets a copy of it, in every stage.
        let mut parting = talks[0].prompt[..150].to_vec();
        parting.extend(Rng::new(at as u64 + 1).tokens(20));
        let turn = client.turn(request(ids(&parting), 8, None));
        assert!((150..=152).contains(&turn.cached().total()), "{:?}", turn.cached());
        assert_eq!(turn.drawn, reference.answer(&parting, 8));
        let report = client.check();
        assert_eq!((report.damaged, report.dangling), (vec![], vec![]));
        let blocks = client.status().blocks;
        assert!(blocks.iter().all(|row| row.block_bytes == BLOCK_BYTES), "a block is whole: {blocks:?}");
    }
}
