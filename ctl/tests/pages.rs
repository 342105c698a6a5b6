//! What people and programs read of models, jobs, sessions and the daemon.

mod common;

use common::*;
use zllm_wire::*;

fn job_info() -> JobInfo {
    JobInfo {
        id: job(),
        label: Some("two\nlines".into()),
        model: "m".into(),
        tenant: None,
        session: Some(SessionId::new("s-1").unwrap()),
        state: JobState::Queued,
        class: Class::Normal,
        held: false,
        batch: None,
        detached: true,
        queue_position: 2,
        prompt_tokens: 23,
        cached_tokens: 16,
        cached_by_tier: TokenTiers { device: 10, ram: 0, ssd: 6 },
        generated_tokens: 0,
        bytes: TierBytes { device: 3 << 20, ram: 0, ssd: 0 },
        age_ms: 65_000,
        idle_ms: 5_000,
    }
}

fn session_info() -> SessionInfo {
    SessionInfo {
        id: SessionId::new("s-1").unwrap(),
        tenant: None,
        model: "m".into(),
        state: SessionState::Idle,
        tokens: 1234,
        bytes: TierBytes { device: 0, ram: 5 << 30, ssd: 700 },
        idle_ms: 7_620_000,
        pinned: false,
        ttl_ms: None,
        saved: true,
        turns: 4,
        hit_tokens: 900,
    }
}

fn session_ref() -> SessionRef {
    SessionRef { tenant: None, id: SessionId::new("s-1").unwrap() }
}

fn session_detail() -> SessionDetail {
    SessionDetail {
        info: session_info(),
        blocks: TierBlocks { device: 0, ram: 20, ssd: 19 },
        shared_blocks: 0,
        shared_with: vec![],
        unsaved_blocks: 1,
        generation: 4,
        saved_generation: Some(4),
        created_ms_ago: 90_000_000,
        hits: 3,
        jobs: vec![job_info()],
    }
}

fn says(op: Op, answer: Answer, args: &[&str]) -> String {
    let ran = Daemon::answering(op, answer).run(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    ran.stdout
}

#[test]
fn listing() {
    let answer = Answer::Listing { sessions: vec![session_info()], jobs: vec![job_info()] };
    let table = "\
SESSION  MODEL  STATE  TOKENS  DEVICE      RAM    SSD  LAST USE       KEPT
s-1      m      idle     1234       -  5.0 GiB  700 B  2 h 7 min ago  saved

JOB   MODEL  CLASS   STATE                PROMPT  CACHED  GENERATED   DEVICE  RAM  SSD  LAST USE  LABEL
j-01  m      normal  queued, 2 before it      23      16          0  3.0 MiB    -    -  5 s ago   two lines
";
    assert_eq!(says(Op::List, answer.clone(), &["list"]), table);
    let json: serde_json::Value = serde_json::from_str(&says(Op::List, answer, &["list", "--json"])).unwrap();
    assert_eq!(json["jobs"][0]["state"], "queued");
    assert_eq!(json["sessions"][0]["bytes"]["ram"], 5u64 << 30);
    let held = Answer::Listing {
        sessions: vec![],
        jobs: vec![JobInfo { class: Class::Batch, held: true, ..job_info() }],
    };
    assert!(says(Op::List, held, &["list"]).contains("\nj-01  m      batch  held       23 "));
    let empty = Answer::Listing { sessions: vec![], jobs: vec![] };
    let ran = Daemon::answering(Op::List, empty).run(&["list"]);
    assert_eq!(ran, Ran { code: Some(0), stdout: String::new(), stderr: "no sessions and no jobs\n".into() });
}

#[test]
fn one_job_and_one_session() {
    let detail = JobDetail {
        info: JobInfo { state: JobState::Failed, ..job_info() },
        params: GenerationParams::default(),
        choices: vec![ChoiceDetail { text: "so far".into(), end: None }],
        events: 4,
        finish: None,
        usage: None,
        error: Some("out of blocks".into()),
        attempts: 1,
        deadline_ms: None,
        max_wait_ms: None,
        key: None,
        timeline: vec![],
    };
    let page = "\
job           j-01
label         two lines
model         m
session       s-1
class         normal
state         failed
error         out of blocks
submitted     1 min 5 s ago
last use      5 s ago
KV on device  3.0 MiB
KV in RAM     0 B
KV on SSD     0 B
events        4
tokens        prompt 23 (16 cached: 10 on device, 6 on SSD), generated 0

so far
";
    let op = || Op::Show(ShowTarget::Job(job()));
    assert_eq!(says(op(), Answer::Job(Box::new(detail.clone())), &["show", "j-01"]), page);
    let json = says(op(), Answer::Job(Box::new(detail)), &["show", "j-01", "--json"]);
    assert!(json.starts_with(r#"{"info":{"id":"j-01","#), "{json}");
    let op = Op::Show(ShowTarget::Session(session_ref()));
    let page = says(op, Answer::Session(Box::new(session_detail())), &["show", "s-1"]);
    let wanted = "\
session       s-1
model         m
state         idle
tokens        1234
turns         4, 3 of which found 900 tokens in the cache
created       1 d 1 h ago
last use      2 h 7 min ago
kept          until the room is needed, or the configuration's time is over
saved         yes
KV on device  -
KV in RAM     5.0 GiB, 20 blocks
KV on SSD     700 B, 19 blocks

JOB ";
    assert!(page.starts_with(wanted), "{page}");

    let mut detail = session_detail();
    (detail.info.saved, detail.hits) = (false, 0);
    let op = Op::Show(ShowTarget::Session(session_ref()));
    let page = says(op, Answer::Session(Box::new(detail)), &["show", "s-1"]);
    assert!(page.contains("\nturns         4\n"), "{page}");
    assert!(page.contains("\nsaved         its tokens and 19 blocks, 1 block not on SSD\n"), "{page}");
}

#[test]
fn status_page() {
    let status = status();
    let page = "\
zllmd      0.1.0, process 4711, up 1 h 1 min, draining
jobs       2 running, 1 of at most 64 queued
ended      5 done, 6 failed, 7 cancelled, 8 refused
tokens     9 computed from prompts, 10 found in cache, 11 generated
clients    4 connections, 1 session
KV in RAM  512 MiB of 2.0 GiB
KV on SSD  1.2 GiB of 16.0 GiB, 300 blocks, 1.0 MiB to be written, in /kv
KV rates   954 MiB/s read from SSD, 1024 tokens/s computed
evicted    blocks 1 on device, 3 on SSD
lost       1 block, evicted unsaved

NAME  STATE   FAMILY      SIZE  CONTEXT  DEVICE
m     loaded  llama   93.8 MiB     8192  cpu

DEVICE     USED   MEMORY  BUSY  WHAT
cpu     300 MiB  8.0 GiB  50 %  AVX2

KV BLOCKS OF  TIER      BLOCK  TOTAL  USED  CACHED
m             device  1.0 MiB    100    10      20
";
    assert_eq!(says(Op::Status, Answer::Status(Box::new(status.clone())), &["status"]), page);
    let json: serde_json::Value = serde_json::from_str(&says(
        Op::Status,
        Answer::Status(Box::new(status.clone())),
        &["status", "--json"],
    ))
    .unwrap();
    assert_eq!(json["blocks"][0]["tier"], "device");
    assert_eq!(json["kv"]["ssd"], "ready");

    let quiet = KvStatus {
        ssd: SsdState::Down { reason: "no space left".into() },
        read_bytes_per_s: None,
        compute_tokens_per_s: None,
        evicted_blocks: TierBlocks::default(),
        lost_unsaved_blocks: 0,
        ..status.kv.clone()
    };
    let busy = Status { kv: quiet, ..status };
    let page = says(Op::Status, Answer::Status(Box::new(busy.clone())), &["status"]);
    assert!(page.contains("\nKV on SSD  down: no space left\n\nNAME"), "{page}");

    let times = Percentiles { p50_ms: 12.34, p90_ms: 20.0, p99_ms: 24.96, count: 7 };
    let speed = Speed {
        prefill_tokens_per_s: 512.0,
        decode_tokens_per_s: 64.25,
        batch_rows: 3.5,
        first_token: Percentiles::default(),
        inter_token: times,
    };
    let fault = Some("jobs.redb is damaged".into());
    let busy = Status { held_jobs: 1, parked_jobs: 2, jobs_durable: false, jobs_fault: fault, speed, ..busy };
    let page = says(Op::Status, Answer::Status(Box::new(busy)), &["status"]);
    for line in [
        "jobs        2 running, 1 of at most 64 queued, 1 held, 2 parked",
        "speed       64.2 tokens/s generated, 3.5 a step, 512 of prompts",
        "next token  after 12.3 ms, p90 20.0 ms, p99 25.0 ms",
        "durable     no, a restart loses all jobs: jobs.redb is damaged",
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line:?} is not in:\n{page}");
    }
    assert!(!page.contains("first token"), "{page}");
}

#[test]
fn short_answers() {
    let evicted = || Answer::Evicted { sessions: 1, blocks: 2, bytes: 2 << 20 };
    let all = || Op::Evict { target: EvictTarget::All, tier: None };
    assert_eq!(says(all(), evicted(), &["evict", "--all"]), "1 session, 2 blocks, 2.0 MiB freed\n");
    let one = Op::Evict { target: EvictTarget::Session(session_ref()), tier: None };
    let json = "{\"sessions\":1,\"blocks\":2,\"bytes\":2097152}\n";
    assert_eq!(says(one, evicted(), &["evict", "s-1", "--json"]), json);
    let unload = Op::Unload { model: "m".into() };
    assert_eq!(says(unload, Answer::Done, &["unload", "m"]), "m unloaded\n");
    let models = || Answer::Models(vec![model("m", true)]);
    assert!(says(Op::Models, models(), &["models"]).starts_with("NAME  STATE"));
    let json: serde_json::Value =
        serde_json::from_str(&says(Op::Models, models(), &["models", "--json"])).unwrap();
    assert_eq!(json[0]["state"], "loaded");
    let broken = ModelInfo { state: ModelState::Failed { message: "cut short".into() }, ..model("m", true) };
    let page = says(Op::Models, Answer::Models(vec![broken, model("ok", true)]), &["models"]);
    let wanted = "\
NAME  STATE   FAMILY      SIZE  CONTEXT  DEVICE
m     failed  llama   93.8 MiB     8192  cpu
ok    loaded  llama   93.8 MiB     8192  cpu
m failed: cut short
";
    assert_eq!(page, wanted);
}

#[test]
fn stop_waits_for_the_end() {
    let stops = |drain| {
        Daemon::once(move |mut peer| {
            peer.welcome();
            let id = peer.expect(Op::Stop { drain });
            peer.reply(id, Answer::Done);
            std::thread::sleep(std::time::Duration::from_millis(50));
        })
    };
    assert_eq!(stops(true).run(&["stop"]).stdout, "stopped\n");
    assert_eq!(
        stops(false).run(&["stop", "--now", "--no-wait", "--json"]).stdout,
        "{\"daemon\":\"stopping\"}\n"
    );
}

#[test]
fn tokens_of_every_text() {
    let tokenizes = || {
        Daemon::once(|mut peer| {
            peer.welcome();
            for (text, ids) in [("a\n", vec![1, 2]), ("", vec![]), ("é", vec![70_000])] {
                let (model, text) = ("m".to_owned(), text.to_owned());
                let id = peer.expect(Op::Tokenize { model, text, parse_special: true, add_bos: true });
                peer.reply(id, Answer::Tokens(TokenIds(ids)));
            }
        })
    };
    for (json, wanted) in [(false, "1 2\n\n70000\n"), (true, "[1,2]\n[]\n[70000]\n")] {
        let daemon = tokenizes();
        let file = daemon.dir.path().join("texts");
        std::fs::write(&file, "a\n\0\0é").unwrap();
        let mut args = vec!["tokenize", "--model", "m", "--special", "--text-file", file.to_str().unwrap()];
        args.extend(json.then_some("--json"));
        assert_eq!(daemon.run(&args).stdout, wanted);
    }
    let (model, text) = ("m".to_owned(), "x".to_owned());
    let op = Op::Tokenize { model, text, parse_special: false, add_bos: false };
    assert_eq!(says(op, Answer::Tokens(TokenIds(vec![3])), &["tokenize", "--model", "m", "x"]), "3\n");
}

#[test]
fn help_begins_with_what_is_special_to_the_command() {
    let home = tempfile::tempdir().unwrap();
    let help = Ran::new(zllmctl(home.path(), &["submit", "--help"]).output().unwrap()).stdout;
    let order = [
        "Options:",
        "--wait",
        "--label",
        "--raw",
        "Sampling:",
        "Penalties:",
        "The answer:",
        "--stop",
        "every command:",
        "--socket",
    ];
    let found = order.map(|word| help.find(word).unwrap_or_else(|| panic!("{word} is missing: {help}")));
    assert!(found.is_sorted(), "{help}");
}

#[test]
fn shells_and_man() {
    let home = tempfile::tempdir().unwrap();
    let prints = |args: &[&str]| {
        let ran = Ran::new(zllmctl(home.path(), args).output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
        ran.stdout
    };
    assert!(prints(&["completions", "bash"]).contains("complete -F _zllmctl"));
    assert!(prints(&["completions", "zsh"]).starts_with("#compdef zllmctl"));
    assert!(prints(&["completions", "fish"]).contains("complete -c zllmctl"));
    let page = prints(&["man"]);
    for word in [".TH zllmctl 1", "tokenize", "EXTRA"] {
        assert!(page.contains(word), "{word} is not in the man page");
    }
    let dir = home.path().join("man");
    prints(&["man", "--dir", dir.to_str().unwrap()]);
    let run = std::fs::read_to_string(dir.join("zllmctl-run.1")).unwrap();
    assert!(run.contains("min\\-p"), "{run}");
}

#[test]
fn an_inspection() {
    let json = r#"{"name":"Small","architecture":"llama","files":["/m/a.gguf"],"file_bytes":1048576,
        "parameters":134515008,"weight_bytes":1000000,"bits_per_weight":5.9,"context_tokens":8192,
        "shape":{"layers":30,"width":576,"ffn_width":1536,"heads":9,"kv_heads":3,"key_dim":64,"value_dim":64,
            "window_tokens":null,"windowed_layers":0,"experts":null,"experts_used":null},
        "tensors":[
            {"kind":"embedding","tensors":1,"parameters":28311552,"bytes":30081024,
                "formats":[{"format":"Q8_0","tensors":1,"bytes":30081024}]},
            {"kind":"feed_forward","tensors":90,"parameters":79626240,"bytes":49766400,
                "formats":[{"format":"Q4_1","tensors":80,"bytes":40000000},{"format":"Q8_0","tensors":10,"bytes":9766400}]}],
        "tokenizer":{"model":"gpt2","pre":"smollm","tokens":49152,"bos":{"id":1,"text":"<|im_start|>"},
            "eos":{"id":2,"text":"<|im_end|>"},"eot":null,"adds_bos":false,"problem":null},
        "template":{"present":true,"bytes":368,"first_line":"{% for message in messages %}","problem":null},
        "kv":[{"format":"i16","bytes_per_token":23760.0}],"problems":["a reason"],"runs":false,"more":"later",
        "settings":{"kv_format":"i16/q8g64","context_tokens":8192,"tokenizer_pre":"gpt-2","template":"chatml"},
        "fit":{"memory":{"total_bytes":2147483648,"available_bytes":1073741824,"kv_budget_bytes":104857600},
            "weights_fit":true,"left_bytes":1072741824,
            "kv":[{"format":"i16","budget_tokens":4352,"memory_tokens":45120,"longest_sequence_tokens":8192}]}}"#;
    let op = || Op::Inspect(InspectTarget::File("/m/a.gguf".into()));
    let answer = || Answer::Inspection { json: json.into() };
    let page = "\
name       Small
family     llama
file       /m/a.gguf, 1.0 MiB
weights    134.5 M parameters, 977 KiB, 5.90 bits each
shape      30 layers, width 576, feed-forward 1536, 9 heads of 64 (3 for keys and values)
context    8192 tokens
tokenizer  gpt2 (smollm), 49152 tokens, begins <|im_start|> (1), ends <|im_end|> (2)
template   368 B: {% for message in messages %}
settings   keys and values as i16/q8g64, context of 8192 tokens, tokenizer_pre gpt-2, template chatml
memory     1.0 GiB available of 2.0 GiB: the weights fit and leave 1.0 GiB

TENSORS       COUNT  PARAMETERS      SIZE  FORMATS
embedding         1      28.3 M  28.7 MiB  Q8_0
feed forward     90      79.6 M  47.5 MiB  80 Q4_1, 10 Q8_0

KV FORMAT   A TOKEN  IN 100 MiB  IN MEMORY  LONGEST
i16        23.2 KiB        4352      45120     8192

does not run: a reason
";
    assert_eq!(says(op(), answer(), &["inspect", "/m/a.gguf"]), page);
    let printed = says(op(), answer(), &["inspect", "/m/a.gguf", "--json"]);
    let (printed, sent): (serde_json::Value, serde_json::Value) =
        (serde_json::from_str(&printed).unwrap(), serde_json::from_str(json).unwrap());
    assert_eq!(printed, sent);
    assert_eq!(printed["more"], "later", "keys that this client does not know go through");

    let fault = Fault { code: ErrorCode::Failed, message: "/m/a.gguf: not a GGUF file".into() };
    let ran = Daemon::answering(op(), Answer::Error(fault)).run(&["inspect", "/m/a.gguf"]);
    let stderr = "zllmctl: /m/a.gguf: not a GGUF file\n".into();
    assert_eq!(ran, Ran { code: Some(2), stdout: String::new(), stderr });
}
