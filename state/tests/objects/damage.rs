//! Bytes change on disk: what is read is right or refused, never wrong, and no damage ends the process.

use zllm_state::{DatabaseError, ObjectError, ObjectStore};

use crate::damage_rig::{Used, change_bits, cut_off};
use crate::flaky::FlakyDisk;
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

/// Uses changed objects as a daemon would.
fn use_changed(image: Vec<u8>, twin: &Twin) -> Used {
    let disk = FlakyDisk::of(image);
    let mut refused = false;
    let mut check = |error: DatabaseError| match error {
        DatabaseError::Unusable { .. } => {
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
    match store.put(&[object(7), object(99)], 0) {
        Err(ObjectError::Database(error)) => check(error)?,
        done => done.map_err(|error| error.to_string())?,
    }
    store.delete(&[object(8).name]).map(drop).or_else(&mut check)?;
    Ok(refused)
}

#[test]
fn objects_on_a_damaged_disk_are_right_or_refused() {
    let (image, twin) = stored();
    change_bits(&image, 400, |changed| use_changed(changed, &twin));
}

#[test]
fn a_truncated_file_is_refused_or_right() {
    let (image, twin) = stored();
    cut_off(&image, |cut| use_changed(cut, &twin));
}
