//! Models are inspected without being loaded: over the socket by name and by file, and with no daemon at all.

use crate::common::{Client, Daemon, MODEL, models_dir};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use zllm_wire::{Answer, ErrorCode, Fault, InspectTarget, ModelState, Op};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata").join(name).canonicalize().expect("test data")
}

fn ask(client: &mut Client, target: InspectTarget) -> Result<Value, Fault> {
    match client.ask(Op::Inspect(target)) {
        Answer::Inspection { json } => Ok(serde_json::from_str(&json).expect("JSON")),
        Answer::Error(fault) => Err(fault),
        other => panic!("no inspection but {other:?}"),
    }
}

fn file(path: &Path) -> InspectTarget {
    InspectTarget::File(path.display().to_string())
}

#[test]
fn a_file_and_a_model_are_told_without_loading_them() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let small = ask(&mut client, file(&testdata("archs/qwen2-dense.f16.gguf"))).expect("a model");
    assert_eq!((&small["architecture"], &small["runs"]), (&"qwen2".into(), &true.into()));

    let other = "gemma3-270m";
    let gemma = ask(&mut client, InspectTarget::Model(other.into())).expect("a model of the folder");
    assert_eq!(gemma["architecture"], "gemma3");
    assert_eq!(gemma["files"][0], models_dir().join(format!("{other}.gguf")).display().to_string());
    assert_eq!((&gemma["context_tokens"], &gemma["shape"]["layers"]), (&32768.into(), &18.into()));
    assert_eq!(
        (&gemma["shape"]["windowed_layers"], &gemma["template"]["present"]),
        (&15.into(), &false.into())
    );
    assert_eq!(gemma["problems"], Value::Array(vec![]));
    assert!(gemma["fit"]["left_bytes"].as_u64() > Some(0));
    let Answer::Models(models) = client.ask(Op::Models) else { panic!("no models") };
    let state = |name: &str| models.iter().find(|info| info.name == name).expect("known").state.clone();
    assert_eq!((state(other), state(MODEL)), (ModelState::Available, ModelState::Loaded));

    // A token costs what the loaded model's blocks say, and the budget is the configured one.
    let loaded = ask(&mut client, InspectTarget::Model(MODEL.into())).expect("a loaded model");
    let Answer::Status(status) = client.ask(Op::Status) else { panic!("no status") };
    let blocks = status.blocks.iter().find(|blocks| blocks.model == MODEL).expect("it is loaded");
    let default = &loaded["kv"][0];
    assert_eq!(default["bytes_per_token"].as_f64(), Some(blocks.block_bytes as f64 / 64.0), "{default}");
    assert_eq!(loaded["fit"]["kv"][0]["budget_tokens"].as_u64(), Some(blocks.total * 64));
}

#[test]
fn what_is_no_model_is_refused_with_the_reason() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let mut refused = |target| ask(&mut client, target).expect_err("no model");
    let fault = refused(file(Path::new("/no/such/file.gguf")));
    assert_eq!((fault.code, &*fault.message), (ErrorCode::NotFound, "there is no file /no/such/file.gguf"));
    let fault = refused(file(&testdata("README.md")));
    assert_eq!(fault.code, ErrorCode::Failed);
    assert!(fault.message.contains("README.md: not a GGUF file"), "{}", fault.message);
    let fault = refused(file(&testdata("models").join("..")));
    assert!(fault.message.contains("not a regular file"), "{}", fault.message);
    let fault = refused(InspectTarget::File("relative.gguf".into()));
    assert_eq!(fault.code, ErrorCode::Invalid);
    assert!(fault.message.contains("absolute"), "{}", fault.message);
    assert_eq!(refused(InspectTarget::Model("nobody".into())).code, ErrorCode::NotFound);
}

#[test]
fn a_file_is_inspected_with_no_daemon() {
    let zllmd = |path: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zllmd"));
        command.arg("--inspect").arg(path).env_remove("ZLLM_CONFIG").output().expect("zllmd runs")
    };
    let output = zllmd(&testdata("quants/llama-dense.q4_k_m.gguf"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["architecture"], &json["runs"]), (&"llama".into(), &true.into()));
    let output = zllmd(&testdata("README.md"));
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.starts_with("zllmd: ") && message.contains("not a GGUF file"), "{message}");
}
