//! `[objects]`: where what clients put down is kept, and how long.

use super::bytes::ByteSize;
use super::times::Age;
use crate::limits;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// The table of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectsTable {
    dir: Option<PathBuf>,
    keep: Option<Age>,
    keep_objects: Option<u64>,
    keep_bytes: Option<ByteSize>,
    tenant_objects: Option<u64>,
    tenant_bytes: Option<ByteSize>,
}

/// Where answers, conversations and files are kept, and how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectSettings {
    /// `None`: there is no place for them, so none is kept.
    pub(crate) dir: Option<PathBuf>,
    /// `None`: as long as there is room.
    pub(crate) keep: Option<Duration>,
    pub(crate) keep_objects: u64,
    pub(crate) keep_bytes: u64,
    /// What one tenant may have of them.
    pub(crate) tenant_objects: u64,
    pub(crate) tenant_bytes: u64,
}

impl ObjectSettings {
    /// `state` is the folder of what is kept over a restart.
    pub(super) fn merge(
        file: ObjectsTable,
        state: Option<PathBuf>,
        beside: impl Fn(PathBuf) -> PathBuf,
    ) -> Self {
        let keep_objects = file.keep_objects.unwrap_or(limits::DEFAULT_OBJECTS);
        let keep_bytes = file.keep_bytes.map_or(limits::DEFAULT_OBJECT_BYTES, |bytes| bytes.0);
        Self {
            dir: file.dir.map(beside).or_else(|| Some(state?.join("objects"))),
            keep: file.keep.unwrap_or(Age(Some(limits::DEFAULT_OBJECT_AGE))).0,
            keep_objects,
            keep_bytes,
            tenant_objects: file.tenant_objects.unwrap_or(limits::tenant_share(keep_objects)),
            tenant_bytes: file.tenant_bytes.map_or(limits::tenant_share(keep_bytes), |bytes| bytes.0),
        }
    }

    /// One line for `--check-config`.
    pub(super) fn summary(&self) -> String {
        match &self.dir {
            Some(dir) => {
                let (all, tenant) = (self.keep_objects, self.tenant_objects);
                format!("kept for clients: in {}, {all} objects at most, {tenant} of a tenant", dir.display())
            }
            None => "kept for clients: nothing, there is no folder for it".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::ConfigFile;
    use super::*;

    #[test]
    fn objects_are_kept_beside_the_keys_and_values_unless_they_have_a_folder() {
        let of = |text: &str, state: Option<&str>| {
            let file = ConfigFile::parse(text).expect("valid");
            ObjectSettings::merge(file.objects, state.map(PathBuf::from), |path| {
                PathBuf::from("/etc/zllm").join(path)
            })
        };
        assert_eq!(of("", Some("/state")).dir, Some("/state/objects".into()));
        assert_eq!(of("[objects]\ndir = \"own\"\n", Some("/state")).dir, Some("/etc/zllm/own".into()));
        assert_eq!(of("", None).dir, None);
        assert_eq!(of("", None).keep, Some(Duration::from_secs(30 * 24 * 60 * 60)));
        let settings = of("[objects]\nkeep = \"off\"\nkeep_objects = 5\nkeep_bytes = \"1MiB\"\n", None);
        assert_eq!((settings.keep, settings.keep_objects, settings.keep_bytes), (None, 5, 1 << 20));
        // A tenant has half of each unless it is said.
        assert_eq!((settings.tenant_objects, settings.tenant_bytes), (3, 1 << 19));
        let settings = of("[objects]\ntenant_objects = 7\ntenant_bytes = \"2MiB\"\n", None);
        assert_eq!((settings.tenant_objects, settings.tenant_bytes), (7, 2 << 20));
    }
}
