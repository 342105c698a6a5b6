//! A database that cannot be used goes out of the way, and counts for the budget as long as it lies there.

use std::fs;

use crate::database::{Place, allocated_bytes};

/// What an unusable database has behind its name.
const SET_ASIDE: &str = ".bad";

/// Bytes of the disk that an unusable database still has.
pub(super) fn set_aside_bytes(place: &Place) -> u64 {
    if place.is_nowhere() { 0 } else { allocated_bytes(&place.named(SET_ASIDE)) }
}

/// Takes the database's file out of the way and says what became of it. It is kept for whoever wants to look into it,
/// unless it would take more than a quarter of the budget.
pub(super) fn set_aside(place: &Place, budget_bytes: u64) -> String {
    if place.is_nowhere() {
        return "nothing was set aside".to_owned();
    }
    let kept = place.named(SET_ASIDE);
    let name = kept.file_name().unwrap_or_default().display();
    match fs::rename(place.file(), &kept) {
        Err(error) => format!("it could not be set aside as {name}: {error}"),
        Ok(()) if drop_large_set_aside(place, budget_bytes) => {
            "it was removed, for it has more than a quarter of the budget".to_owned()
        }
        Ok(()) => format!("it was set aside as {name}"),
    }
}

/// Removes an earlier unusable database that has more than a quarter of the budget; whether it did.
pub(super) fn drop_large_set_aside(place: &Place, budget_bytes: u64) -> bool {
    set_aside_bytes(place) > budget_bytes / 4 && fs::remove_file(place.named(SET_ASIDE)).is_ok()
}
