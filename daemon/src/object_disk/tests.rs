//! The object disk over real files.

use super::*;
use std::path::Path;
use std::time::Duration;
use zllm_state::PIECE_BYTES;

fn settings(dir: Option<&Path>) -> ObjectSettings {
    ObjectSettings {
        dir: dir.map(Path::to_owned),
        keep: None,
        keep_objects: 1000,
        keep_bytes: 1 << 30,
        tenant_objects: 500,
        tenant_bytes: 1 << 20,
    }
}

fn spawn(dir: Option<&Path>) -> ObjectDisk {
    let (pulses, _) = Pulses::new(1);
    ObjectDisk::spawn(&settings(dir), Clock::start(), &pulses).expect("a thread")
}

fn name(id: &str) -> ObjectName {
    ObjectName::new("file", "t", id)
}

fn object(id: &str) -> Object {
    Object { name: name(id), created_ms: 1, expires_ms: None, value: id.as_bytes().to_vec(), content: None }
}

/// The next daemon's store, once the last one's thread has let go of it.
async fn again(dir: &Path) -> ObjectDisk {
    for _ in 0..500 {
        let disk = spawn(Some(dir));
        match disk.get(name("a")).await {
            Err(fault) if fault.message.contains("another daemon uses it") => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            _ => return disk,
        }
    }
    panic!("the store stays in use");
}

#[tokio::test]
async fn objects_are_put_together_listed_and_deleted_and_outlive_the_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = spawn(Some(folder.path()));
    let puts = (0..100).map(|number| disk.put(vec![object(&format!("o{number:02}"))]));
    assert!(futures_util::future::join_all(puts).await.into_iter().all(|put| put.is_ok()));
    drop(disk);
    let disk = again(folder.path()).await;
    assert_eq!(disk.get(name("o42")).await, Ok(Some(object("o42"))));
    let listed = disk.list("file", "t".into(), Some("o97".into()), 9, ObjectOrder::OldestFirst).await;
    assert_eq!(listed, Ok(Some(vec![object("o98"), object("o99")])));
    assert_eq!(disk.list("file", "other".into(), None, 9, ObjectOrder::OldestFirst).await, Ok(Some(vec![])));
    assert_eq!(disk.delete(name("o42")).await, Ok(true));
    assert_eq!(disk.delete(name("o42")).await, Ok(false));
    assert_eq!(disk.get(name("o42")).await, Ok(None));
}

/// Who puts too much is told so by name, and those whose puts came at the same time are not concerned.
#[tokio::test]
async fn a_tenant_that_puts_too_much_is_refused_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = spawn(Some(folder.path()));
    let large = |id: &str, length| Object { value: vec![7; length], ..object(id) };
    let puts =
        ["a", "b", "c", "d"].map(|id| disk.put(vec![large(id, if id == "b" { 2 << 20 } else { 300_000 })]));
    let done = futures_util::future::join_all(puts).await;
    assert!(done[0].is_ok() && done[2].is_ok() && done[3].is_ok(), "{done:?}");
    let fault = done[1].clone().expect_err("over the bound");
    let why = "a tenant may have 1048576 bytes kept, and here are 2097152: objects.tenant_bytes is the bound";
    assert_eq!((fault.code, &*fault.message), (ErrorCode::Invalid, why));
    // Its own oldest goes for the next.
    disk.put(vec![large("e", 300_000)]).await.expect("room");
    let listed = disk.list("file", "t".into(), None, 9, ObjectOrder::OldestFirst).await.expect("read");
    let ids: Vec<_> = listed.expect("a list").into_iter().map(|object| object.name.id).collect();
    assert_eq!(ids, ["c", "d", "e"]);
    // So is an upload, of which nothing stays.
    let mut upload = disk.upload().expect("a place");
    upload.write(&vec![7; 2 << 20]).await.expect("room on the disk");
    let content = upload.content.expect("some of it is on disk");
    assert_eq!(
        upload.put(object("f")).await.expect_err("too much").message,
        why.replace("2097152", "2097153")
    );
    assert_eq!(disk.piece(content, 0).await, Ok(None));
}

#[tokio::test]
async fn an_upload_is_there_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = spawn(Some(folder.path()));
    let bytes: Vec<u8> = (0..PIECE_BYTES * 2 + 1000).map(|at| (at % 251) as u8).collect();
    let mut upload = disk.upload().expect("a place");
    for chunk in bytes.chunks(100_000) {
        upload.write(chunk).await.expect("room");
    }
    assert_eq!(upload.bytes(), bytes.len() as u64);
    upload.put(object("whole")).await.expect("room");
    let content = disk.get(name("whole")).await.expect("read").expect("kept").content.expect("its content");
    assert_eq!((content.pieces(), content.bytes()), (3, bytes.len() as u64));
    let mut read = Vec::new();
    for piece in 0..content.pieces() {
        read.extend(disk.piece(content, piece).await.expect("read").expect("kept"));
    }
    assert!(read == bytes);

    // One that breaks off leaves nothing, and an empty one is one as well.
    let mut broken = disk.upload().expect("a place");
    broken.write(&bytes).await.expect("room");
    let content = broken.content.expect("some of it is on disk");
    assert!(disk.piece(content, 0).await.expect("read").is_some());
    drop(broken);
    assert_eq!(disk.piece(content, 0).await, Ok(None));
    disk.upload().expect("a place").put(object("empty")).await.expect("room");
    let empty = disk.get(name("empty")).await.expect("read").expect("kept").content.expect("its content");
    assert_eq!((empty.pieces(), empty.bytes()), (0, 0));

    let places: Vec<Upload> = (0..MAX_UPLOADS).map(|_| disk.upload().expect("a place")).collect();
    assert!(matches!(disk.upload().expect_err("no place").code, ErrorCode::Refused { .. }));
    drop(places);
    disk.upload().expect("a place again");
}

#[tokio::test]
async fn a_store_that_cannot_be_used_refuses_and_is_tried_again() {
    let disk = spawn(None);
    let why = disk.put(vec![object("a")]).await.expect_err("no folder").message;
    assert!(why.contains("objects.dir"), "{why}");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("objects.redb");
    std::fs::write(&file, b"no database").expect("written");
    let disk = spawn(Some(folder.path()));
    for refused in [disk.put(vec![object("a")]).await, disk.get(name("a")).await.map(drop)] {
        let fault = refused.expect_err("damaged");
        assert!(
            fault.message.contains("objects.redb") && fault.message.contains("left as it is"),
            "{fault:?}"
        );
    }
    assert_eq!(std::fs::read(&file).expect("still there"), b"no database");
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(disk.put(vec![object("a")]).await, Ok(()));
    assert_eq!(disk.get(name("a")).await, Ok(Some(object("a"))));
}

#[tokio::test]
async fn what_panics_is_a_death_and_the_end_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let (pulses, mut deaths) = Pulses::new(1);
    let settings = settings(Some(folder.path()));
    drop(ObjectDisk::spawn(&settings, Clock::start(), &pulses).expect("a thread"));
    let disk = ObjectDisk::spawn(&settings, Clock::start(), &pulses).expect("a thread");
    let answer = disk.with::<()>(|_, _| panic!("on purpose")).await;
    // While the first one's thread still has the file, it is refused instead.
    if answer.expect_err("no answer").message.contains("another daemon") {
        tokio::time::sleep(Duration::from_secs(1)).await;
        disk.with::<()>(|_, _| panic!("on purpose")).await.expect_err("no answer");
    }
    assert_eq!(deaths.recv().await, Some(Organ::ObjectDiskThread));
    assert!(disk.get(name("a")).await.expect_err("dead").message.contains("has ended"));
}

#[tokio::test]
async fn uploads_and_what_names_them_are_put_together_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = spawn(Some(folder.path()));
    let mut uploads = Vec::new();
    for id in ["one", "two"] {
        let mut upload = disk.upload_of_ours();
        upload.write(id.as_bytes()).await.expect("room");
        uploads.push((upload, object(id)));
    }
    disk.put_uploads(uploads, vec![object("record")]).await.expect("room");
    for id in ["one", "two"] {
        let kept = disk.get(name(id)).await.expect("read").expect("kept");
        let piece = disk.piece(kept.content.expect("its content"), 0).await.expect("read");
        assert_eq!(piece.as_deref(), Some(id.as_bytes()));
    }
    assert_eq!(disk.get(name("record")).await, Ok(Some(object("record"))));
    // One of them fails: nobody finds the other.
    let (bad, nowhere) = (disk.upload_of_ours(), spawn(None));
    let mut lost = nowhere.upload_of_ours();
    lost.write(b"x").await.expect("in memory");
    let put = disk.put_uploads(vec![(bad, object("three")), (lost, object("four"))], vec![object("five")]);
    put.await.expect_err("there is no folder");
    for id in ["three", "four", "five"] {
        assert_eq!(disk.get(name(id)).await, Ok(None));
    }
}
