//! What people and programs do with kept sessions, and what they read of them.

mod common;

use common::*;
use zllm_wire::*;

fn named(tenant: Option<&str>, id: &str) -> SessionRef {
    SessionRef { tenant: tenant.map(|name| Tenant::new(name).unwrap()), id: SessionId::new(id).unwrap() }
}

fn says(op: Op, answer: Answer, args: &[&str]) -> String {
    let ran = Daemon::answering(op, answer).run(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
    ran.stdout
}

#[test]
fn sessions_are_pinned_unpinned_and_forgotten() {
    let session = || named(None, "s-1");
    assert_eq!(says(Op::Pin { session: session() }, Answer::Done, &["pin", "s-1"]), "s-1 pinned\n");
    let json = r#"{"pinned":{"tenant":"acme","id":"s-1"}}"#.to_owned() + "\n";
    let tenanted = || named(Some("acme"), "s-1");
    for args in [
        &["pin", "s-1", "--tenant", "acme", "--json"][..],
        &["pin", "acme/s-1", "--json"],
        &["pin", "acme/s-1", "--tenant", "acme", "--json"],
    ] {
        assert_eq!(says(Op::Pin { session: tenanted() }, Answer::Done, args), json);
    }
    let unpinned = says(Op::Unpin { session: tenanted() }, Answer::Done, &["unpin", "acme/s-1"]);
    assert_eq!(unpinned, "acme/s-1 unpinned\n");

    let ttl = |ttl_ms| Op::Ttl { session: session(), ttl_ms };
    let page = says(ttl(Some(43_200_000)), Answer::Done, &["ttl", "s-1", "12h"]);
    assert_eq!(page, "s-1 is forgotten 12 h 0 min after its last use\n");
    assert_eq!(
        says(ttl(None), Answer::Done, &["ttl", "s-1", "off"]),
        "s-1 is forgotten when the configuration says\n"
    );
    let json = says(ttl(Some(30_000)), Answer::Done, &["ttl", "s-1", "30s", "--json"]);
    assert_eq!(json, "{\"session\":{\"tenant\":null,\"id\":\"s-1\"},\"ttl_ms\":30000}\n");
}

#[test]
fn durations_are_told_apart_from_nonsense() {
    let home = tempfile::tempdir().unwrap();
    for (args, message) in [
        (["ttl", "s", "12"], "\"12\" is no duration, such as 30s, 15m, 12h or 7d; or \"off\""),
        (["evict", "--older-than", "0s"], "\"0s\" is no time at all; at least 1s"),
    ] {
        let ran = Ran::new(zllmctl(home.path(), &args).output().unwrap());
        assert_eq!(ran.code, Some(64));
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn eviction_says_what_and_from_where() {
    let evicted = || Answer::Evicted { sessions: 1, blocks: 2, bytes: 2 << 20 };
    let evict = |target, tier| Op::Evict { target, tier };
    let one = || EvictTarget::Session(named(Some("acme"), "s-1"));
    let page = says(evict(one(), Some(Tier::Ssd)), evicted(), &["evict", "acme/s-1", "--tier", "ssd"]);
    assert_eq!(page, "1 session, 2 blocks, 2.0 MiB freed on SSD\n");
    let page =
        says(evict(EvictTarget::All, Some(Tier::Ram)), evicted(), &["evict", "--all", "--tier", "ram"]);
    assert_eq!(page, "1 session, 2 blocks, 2.0 MiB freed in RAM\n");
    let moved = Answer::Evicted { sessions: 1, blocks: 2, bytes: 0 };
    let page =
        says(evict(EvictTarget::All, Some(Tier::Device)), moved, &["evict", "--all", "--tier", "device"]);
    assert_eq!(page, "1 session, 2 blocks, moved to RAM\n");
    let old = EvictTarget::OlderThan { idle_ms: 7_200_000 };
    let json = says(evict(old, None), evicted(), &["evict", "--older-than", "2h", "--json"]);
    assert_eq!(json, "{\"sessions\":1,\"blocks\":2,\"bytes\":2097152}\n");
}

#[test]
fn saving_and_checking() {
    let saved = || Answer::Saved { sessions: 2, blocks: 31, bytes: 12 << 20 };
    let page = says(Op::Save { session: None }, saved(), &["save"]);
    assert_eq!(page, "2 sessions saved, 31 blocks, 12.0 MiB written\n");
    let one = Op::Save { session: Some(named(None, "s-1")) };
    let json = says(one, saved(), &["save", "s-1", "--json"]);
    assert_eq!(json, "{\"sessions\":2,\"blocks\":31,\"bytes\":12582912}\n");

    let report = CheckReport {
        blocks: 300,
        bytes: 1 << 30,
        sessions: 3,
        complete_sessions: 2,
        damaged: vec![],
        dangling: vec![],
        took_ms: 1500,
    };
    let page = says(Op::Check, Answer::Checked(Box::new(report.clone())), &["check"]);
    let sound = "\
blocks    300, 1.0 GiB read in 1.50 s
sessions  3, 2 with every block
damaged   0
dangling  0
";
    assert_eq!(page, sound);
    let broken =
        CheckReport { damaged: vec!["block 1".into()], dangling: vec!["session 2".into()], ..report };
    let checked = || Answer::Checked(Box::new(broken.clone()));
    let ran = Daemon::answering(Op::Check, checked()).run(&["check"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stdout.ends_with("dangling  1\n\ndamaged: block 1\ndangling: session 2\n"), "{}", ran.stdout);
    assert!(
        ran.stderr.starts_with("zllmctl: the KV store is not sound: 1 damaged, 1 dangling; "),
        "{}",
        ran.stderr
    );
    let ran = Daemon::answering(Op::Check, checked()).run(&["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &json["damaged"][0]), (Some(2), &"block 1".into()));
}

fn detail(tenant: Option<&str>, id: &str) -> SessionDetail {
    let SessionRef { tenant, id } = named(tenant, id);
    SessionDetail {
        info: SessionInfo {
            id,
            tenant,
            model: "m".into(),
            state: SessionState::Active,
            tokens: 1000,
            bytes: TierBytes { device: 3 << 20, ram: 0, ssd: 2 << 20 },
            idle_ms: 5000,
            pinned: true,
            ttl_ms: Some(43_200_000),
            saved: false,
            turns: 1,
            hit_tokens: 1,
        },
        blocks: TierBlocks { device: 3, ram: 0, ssd: 2 },
        shared_blocks: 2,
        shared_with: vec![named(Some("acme"), "s-1"), named(None, "s-3")],
        unsaved_blocks: 1,
        generation: 4,
        saved_generation: Some(3),
        created_ms_ago: 65_000,
        hits: 1,
        jobs: vec![],
    }
}

#[test]
fn forks_and_pages() {
    let fork = |tokens| Op::Fork { from: named(None, "s-1"), to: SessionId::new("s-2").unwrap(), tokens };
    let answer = || Answer::Session(Box::new(detail(None, "s-2")));
    let page = says(fork(Some(1000)), answer(), &["fork", "s-1", "s-2", "--at", "1000"]);
    assert_eq!(page, "s-2 begins with 1000 tokens of s-1\n");
    let json = says(fork(None), answer(), &["fork", "s-1", "s-2", "--json"]);
    assert!(json.starts_with(r#"{"info":{"id":"s-2","#), "{json}");

    let show = Op::Show(ShowTarget::Session(named(Some("acme"), "s-2")));
    let answer = Answer::Session(Box::new(detail(Some("acme"), "s-2")));
    let wanted = "\
session       s-2
tenant        acme
model         m
state         active
tokens        1000
turns         1, 1 of which found 1 token in the cache
created       1 min 5 s ago
last use      5 s ago
kept          until it is unpinned, and then at most 12 h 0 min after its last use
saved         as it was at change 3 of 4, 1 block not on SSD
KV on device  3.0 MiB, 3 blocks
KV in RAM     -
KV on SSD     2.0 MiB, 2 blocks
shared        2 blocks with acme/s-1, s-3
";
    assert_eq!(says(show, answer, &["show", "s-2", "--tenant", "acme"]), wanted);
}

#[test]
fn lists_of_one_kind_and_one_tenant() {
    let sessions = || vec![detail(Some("acme"), "s-2").info, detail(None, "s-3").info];
    let listing = || Answer::Listing { sessions: sessions(), jobs: vec![] };
    let table = "\
SESSION   MODEL  STATE   TOKENS   DEVICE  RAM      SSD  LAST USE  KEPT
acme/s-2  m      active    1000  3.0 MiB    -  2.0 MiB  5 s ago   pinned, for 12 h 0 min
";
    assert_eq!(says(Op::List, listing(), &["list", "sessions", "--tenant", "acme"]), table);
    let json: serde_json::Value =
        serde_json::from_str(&says(Op::List, listing(), &["list", "sessions", "--json"])).unwrap();
    assert_eq!((json["sessions"].as_array().unwrap().len(), json.get("jobs")), (2, None));
    let none = Daemon::answering(Op::List, listing()).run(&["list", "jobs"]);
    assert_eq!(none, Ran { code: Some(0), stdout: String::new(), stderr: "no jobs\n".into() });
}

#[test]
fn why_in_words() {
    let op = || Op::Why { job: job() };
    let story = |cached, outcome| {
        Answer::Why(Box::new(CacheStory { job: job(), prompt_tokens: 2000, cached, outcome }))
    };
    let tiers = TokenTiers { device: 1024, ram: 0, ssd: 210 };
    let diverged = CacheOutcome::Diverged {
        at: 1234,
        before: "the quick\n".into(),
        kept: "brown \"fox\"".into(),
        asked: "réd fox".into(),
    };
    let wanted = r#"job       j-01
prompt    2000 tokens
found     1234 tokens: 1024 on device, 210 on SSD
computed  766 tokens

The kept timeline that is most like it goes on otherwise after 1234 tokens:

  both have      "the quick\n"
  then was kept  "brown \"fox\""
  but was asked  "réd fox"
"#;
    assert_eq!(says(op(), story(tiers, diverged.clone()), &["why", "j-01"]), wanted);
    let json: serde_json::Value =
        serde_json::from_str(&says(op(), story(tiers, diverged), &["why", "j-01", "--json"])).unwrap();
    assert_eq!((&json["outcome"]["diverged"]["at"], &json["cached"]["ssd"]), (&1234.into(), &210.into()));
    let nothing = TokenTiers::default();
    for (cached, outcome, reason) in [
        (
            TokenTiers { device: 1999, ram: 0, ssd: 0 },
            CacheOutcome::Whole,
            "\ncomputed  1 token\n\nThere was no more to find: the last token",
        ),
        (
            tiers,
            CacheOutcome::Ended { kept_tokens: 1234 },
            "\n\nIt begins with 1234 tokens that are kept; nothing that is kept goes on like it",
        ),
        (
            nothing,
            CacheOutcome::Nothing,
            "\nfound     nothing\ncomputed  2000 tokens\n\nNothing that is kept begins like it",
        ),
        (
            tiers,
            CacheOutcome::Computed { ssd_tokens: 64, read_ms: 90, compute_ms: 40 },
            "\n\n64 tokens more lay on SSD, but computing them was the faster way: 0.04 s instead of 0.09 s by the",
        ),
        (
            tiers,
            CacheOutcome::Unreadable { reason: "a checksum is wrong".into() },
            "could not be read: a checksum is wrong.",
        ),
        (
            nothing,
            CacheOutcome::Waiting,
            "\nfound   nothing\n\nIt has not begun, so nothing was looked up yet.\n",
        ),
    ] {
        let page = says(op(), story(cached, outcome), &["why", "j-01"]);
        assert!(page.contains(reason), "{reason:?} is not in:\n{page}");
    }
}

/// A tier of each kind: used, coarse, none, empty, off.
fn five_tiers() -> Residency {
    use BlockState::*;
    let run = |blocks, state, sessions: &[u32], age_ms| BlockRun {
        blocks,
        state,
        sessions: sessions.to_vec(),
        age_ms,
    };
    let device = TierMap {
        tier: Tier::Device,
        model: Some("m".into()),
        block_bytes: 1 << 20,
        capacity_blocks: 80,
        capacity_bytes: 80 << 20,
        used_bytes: 31 << 20,
        runs: vec![
            run(10, Leased, &[0], 0),
            run(8, Cached, &[0, 1], 5_000),
            run(6, Pinned, &[1], 100),
            run(7, Cached, &[], 90_000_000),
            run(49, Free, &[], 0),
        ],
    };
    let ssd = TierMap {
        tier: Tier::Ssd,
        model: None,
        capacity_blocks: 1000,
        capacity_bytes: 1000 << 20,
        used_bytes: 450 << 20,
        runs: vec![run(450, Cached, &[1], 120_000)],
        ..device.clone()
    };
    let none = TierMap {
        tier: Tier::Ram,
        capacity_blocks: 0,
        capacity_bytes: 0,
        used_bytes: 0,
        runs: vec![],
        ..device.clone()
    };
    let empty = TierMap { tier: Tier::Ssd, model: None, capacity_bytes: 1 << 20, ..none.clone() };
    let off = TierMap { capacity_bytes: 0, ..empty.clone() };
    Residency {
        tiers: vec![device, ssd, none, empty, off],
        sessions: vec![named(None, "s-1"), named(Some("acme"), "s-2")],
        read_bytes_per_s: Some(1e9),
        compute_tokens_per_s: vec![ModelRate { model: "m".into(), tokens_per_s: 1024.4 }],
        unsaved_bytes: 1 << 20,
    }
}

#[test]
fn a_map_of_each_tier() {
    let answer = || Answer::Residency(Box::new(five_tiers()));
    let wanted = "\
m on device: 31 of 80 blocks, 31.0 MiB of 80.0 MiB
use  @@@@@@@@@@████████^^^^^^░░░░░░░.........................................
who  bbbbbbbbbb********aaaaaa
use  ........

SSD, all models: 450 of 1000 blocks, 450 MiB of 1.0 GiB, 3 in a cell
use  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
who  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
";
    let page = says(Op::Residency, answer(), &["residency"]);
    assert!(page.starts_with(wanted), "{page}");
    let end = "
m in RAM: none

SSD, all models: nothing yet, of 1.0 MiB

SSD, all models: none; `zllmctl status` says why

use  kept, last used █ within a minute, ▓ an hour, ▒ a day, ░ before that;
     ^ pinned, @ in use by a job, . free
who  a acme/s-2, b s-1, * several

read from SSD  954 MiB/s
to be written  1.0 MiB
computed       1024 tokens/s by m
";
    assert!(page.ends_with(end), "{page}");
    let json: serde_json::Value =
        serde_json::from_str(&says(Op::Residency, answer(), &["residency", "--json"])).unwrap();
    assert_eq!(
        (&json["tiers"][0]["runs"][2]["state"], &json["tiers"][1]["model"]),
        (&"pinned".into(), &serde_json::Value::Null)
    );
}
