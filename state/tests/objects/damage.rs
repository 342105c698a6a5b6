//! Bytes change on disk: what is read is right or refused, never wrong, and no damage ends the process.

use std::fs;

use zllm_state::{ObjectStore, ObjectStoreError};

use crate::flaky::FlakyDisk;
use crate::random::Random;
use crate::samples::{FOREVER, bytes, object};
use crate::twin::Twin;

/// Objects of both kinds and tenants, each fifth with a content.
fn stored() -> (Vec<u8>, Twin) {
    let (disk, mut twin) = (FlakyDisk::default(), Twin::new(FOREVER));
    let at = disk.clone();
    let mut store = ObjectStore::open_with_backend(move || at.clone(), FOREVER, 0).unwrap();
    for number in 1..=40 {
        let mut object = object(number);
        if number % 5 == 0 {
            let mut content = store.begin_content();
            twin.loose.push((content, Vec::new()));
            for piece in 0..3 {
                let piece = bytes(number + piece, 6000);
                let after = store.append(content, &piece).unwrap();
                twin.append(content, after, &piece);
                content = after;
            }
            object.content = Some(content);
        }
        store.put(std::slice::from_ref(&object), 0).unwrap();
        twin.put(&[object], 0);
    }
    drop(store);
    (disk.durable(), twin)
}

/// Uses changed objects as a daemon would: whether something was refused. An error is a wrong answer.
fn use_changed(image: Vec<u8>, twin: &Twin) -> Result<bool, String> {
    let disk = FlakyDisk::of(image);
    let mut refused = false;
    let mut check = |error: ObjectStoreError| match error {
        ObjectStoreError::Unusable { .. } => {
            refused = true;
            Ok(())
        }
        other => Err(other.to_string()),
    };
    let mut store = match ObjectStore::open_with_backend(move || disk.clone(), FOREVER, 0) {
        Ok(store) => store,
        Err(error) => return check(error).map(|()| true),
    };
    for (object, pieces) in &twin.objects {
        match store.get(&object.name) {
            Ok(found) if found.as_ref() != Some(object) => return Err(format!("{:?} differs", object.name)),
            found => found.map(drop).or_else(&mut check)?,
        }
        for (at, piece) in (0..).zip(pieces) {
            match store.piece(object.content.expect("it has pieces"), at) {
                Ok(found) if found.as_ref() != Some(piece) => return Err(format!("piece {at} differs")),
                found => found.map(drop).or_else(&mut check)?,
            }
        }
    }
    store.put(&[object(7), object(99)], 0).or_else(&mut check)?;
    store.delete(&[object(8).name]).map(drop).or_else(&mut check)?;
    Ok(refused)
}

#[test]
fn objects_on_a_damaged_disk_are_right_or_refused() {
    let (image, twin) = stored();
    assert_eq!(use_changed(image.clone(), &twin), Ok(false));
    // Pages that hold something.
    let pages: Vec<_> = (0..image.len())
        .step_by(4096)
        .filter(|at| image[*at..*at + 4096].iter().any(|byte| *byte != 0))
        .collect();
    let (mut random, mut unharmed, mut refused) = (Random::new(5), 0, 0);
    for case in 0..400 {
        let at = match case % 3 {
            0 => random.below(image.len() as u64) as usize,
            1 => pages[random.below(pages.len() as u64) as usize] + random.below(4096) as usize,
            _ => random.below(8192) as usize,
        };
        let mut changed = image.clone();
        changed[at] ^= 1 << random.below(8);
        match use_changed(changed, &twin).unwrap_or_else(|wrong| panic!("byte {at}: {wrong}")) {
            false => unharmed += 1,
            true => refused += 1,
        }
    }
    println!("{unharmed} unharmed, {refused} refused");
    assert!(unharmed > 50 && refused > 50, "{unharmed} unharmed, {refused} refused");
}

/// A file that was cut off, as by a copy that did not end.
#[test]
fn a_truncated_file_is_refused_or_right() {
    let (image, twin) = stored();
    let mut refused = 0;
    for length in (4096..image.len()).step_by(image.len() / 40) {
        let used = use_changed(image[..length].to_vec(), &twin);
        refused += u32::from(used.unwrap_or_else(|wrong| panic!("{length} bytes: {wrong}")));
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects.redb");
    for content in [Vec::new(), b"what somebody put there".to_vec(), bytes(1, 20_000)] {
        fs::write(&file, &content).unwrap();
        let error = ObjectStore::open(dir.path(), FOREVER, 0).unwrap_err();
        assert!(matches!(error, ObjectStoreError::Unusable { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("objects.redb") && said.contains("left as it is"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), content);
    }
}
