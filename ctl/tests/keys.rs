//! API keys as `zllmctl` makes, lists and revokes them.

mod common;

use common::*;
use zllm_wire::*;

fn settings() -> KeySettings {
    KeySettings {
        name: KeyName::new("laptop").unwrap(),
        tenant: Tenant::new("ada").unwrap(),
        class: Class::Normal,
        admin: true,
        max_requests: Some(4),
    }
}

fn plain() -> KeySettings {
    let tenant = Tenant::new("laptop").unwrap();
    KeySettings { tenant, class: Class::Interactive, admin: false, max_requests: None, ..settings() }
}

#[test]
fn a_new_key_is_printed_alone_and_is_a_tenant_of_its_own_unless_it_is_told() {
    let made = || Answer::NewKey { key: "zllm-0123".into() };
    let ran = Daemon::answering(Op::AddKey(plain()), made()).run(&["keys", "add", "laptop"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "zllm-0123\n"));
    assert!(ran.stderr.contains("the only time") && ran.stderr.contains("laptop's"), "{}", ran.stderr);
    let args =
        ["keys", "add", "laptop", "--tenant", "ada", "--class", "normal", "--admin", "--max-requests", "4"];
    let ran = Daemon::answering(Op::AddKey(settings()), made()).run(&[&args[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["key"], &json["settings"]["max_requests"]), (&"zllm-0123".into(), &4.into()));
    assert_eq!(ran.stderr, "");
}

#[test]
fn keys_are_listed_and_revoked_by_name() {
    let keys = || {
        let of = |settings| KeyInfo { settings, created_unix_s: u64::MAX };
        Answer::Keys(vec![of(settings()), of(plain())])
    };
    let ran = Daemon::answering(Op::Keys, keys()).run(&["keys", "list"]);
    let wanted = "\
NAME    TENANT  CLASS        ADMIN  AT ONCE  MADE
laptop  ada     normal       yes          4   now
laptop  laptop  interactive  no         any   now
";
    assert_eq!(ran, Ran { code: Some(0), stdout: wanted.into(), stderr: String::new() });
    let json = Daemon::answering(Op::Keys, keys()).run(&["keys", "list", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[1]["settings"]["tenant"], "laptop");
    let none = Daemon::answering(Op::Keys, Answer::Keys(vec![])).run(&["keys", "list"]);
    assert_eq!((none.stdout.as_str(), none.stderr.contains("no keys")), ("", true));

    let revoke = || Op::RevokeKey { name: settings().name };
    let revoking = |left: Answer| {
        Daemon::once(move |mut peer| {
            peer.welcome();
            for (op, answer) in [(revoke(), Answer::Done), (Op::Keys, left)] {
                let id = peer.expect(op);
                peer.reply(id, answer);
            }
            assert!(peer.client_leaves());
        })
    };
    let ran = revoking(keys()).run(&["keys", "revoke", "laptop"]);
    assert_eq!(
        ran,
        Ran { code: Some(0), stdout: "laptop revoked\n".into(), stderr: String::new() },
        "others are left"
    );
    let last = revoking(Answer::Keys(vec![])).run(&["keys", "revoke", "laptop", "--json"]);
    assert_eq!(last.stdout, "{\"revoked\":\"laptop\"}\n");
    assert!(last.stderr.contains("last one") && last.stderr.contains("without one"), "{}", last.stderr);
    let gone = Answer::Error(Fault { code: ErrorCode::NotFound, message: "there is no key laptop".into() });
    let ran = Daemon::answering(revoke(), gone).run(&["keys", "revoke", "laptop"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "zllmctl: there is no key laptop\n"));
}

#[test]
fn what_cannot_be_a_key_is_a_wrong_command_line() {
    let home = tempfile::tempdir().unwrap();
    for args in [
        &["keys"][..],
        &["keys", "add"],
        &["keys", "add", "a b"],
        &["keys", "add", "a", "--max-requests", "0"],
    ] {
        let output = zllmctl(home.path(), args).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}");
    }
}
