//! API keys, which HTTP asks for: what is said of one. The key itself travels once, in the answer that makes it.

use crate::id::{KeyName, Tenant};
use crate::queue::Class;
use serde::{Deserialize, Serialize};

/// What a key's holder is and may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySettings {
    /// What it is called in lists and logs; no two keys have the same.
    pub name: KeyName,
    /// Whose requests they are.
    pub tenant: Tenant,
    /// The most urgent class that its requests may have.
    pub class: Class,
    /// Whether it may see and steer what is of all tenants.
    pub admin: bool,
    /// Requests that it may have under way at one time, at least 1; `None`: any number.
    pub max_requests: Option<u32>,
}

/// A key that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInfo {
    /// What was said of it.
    pub settings: KeySettings,
    /// When it was made, in seconds since the Unix epoch.
    pub created_unix_s: u64,
}
