//! Who may connect: the daemon's own user, root, and members of the configured group.

use anyhow::Context;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::ffi::CString;

/// The rule. The socket's mode says the same; this holds where a mode does not, such as for an inherited socket.
#[derive(Debug, Clone)]
pub(crate) struct PeerPolicy {
    own: Uid,
    group: Option<Gid>,
}

impl PeerPolicy {
    /// # Errors
    /// A group that does not exist.
    pub(crate) fn new(group: Option<&str>) -> anyhow::Result<Self> {
        let group = group.map(|name| {
            let found = Group::from_name(name).with_context(|| format!("socket_group {name:?}"))?;
            found.map(|group| group.gid).with_context(|| format!("socket_group {name:?} does not exist"))
        });
        Ok(Self { own: Uid::effective(), group: group.transpose()? })
    }

    /// The group that the socket file belongs to, if one is configured.
    pub(crate) fn group(&self) -> Option<Gid> {
        self.group
    }

    /// # Errors
    /// Why the peer may not connect.
    pub(super) fn judge(&self, uid: u32, gid: u32) -> Result<(), String> {
        let uid = Uid::from_raw(uid);
        if uid == self.own || uid.is_root() {
            return Ok(());
        }
        match self.group {
            Some(group) if group.as_raw() == gid || is_member(uid, group) => Ok(()),
            Some(group) => Err(format!("user {uid} is not in the group {group} that may use this daemon")),
            None => Err(format!(
                "user {uid} may not use the daemon of user {}; set socket_group to share it",
                self.own
            )),
        }
    }
}

/// Whether the user database has `uid` in `group`. A peer's credentials name its first group only.
fn is_member(uid: Uid, group: Gid) -> bool {
    let Ok(Some(user)) = User::from_uid(uid) else { return false };
    let Ok(name) = CString::new(user.name) else { return false };
    getgrouplist(&name, user.gid).is_ok_and(|groups| groups.contains(&group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_user_root_and_group_may_and_others_may_not() {
        let closed = PeerPolicy { own: Uid::from_raw(1000), group: None };
        assert!(closed.judge(1000, 1000).is_ok());
        assert!(closed.judge(0, 0).is_ok());
        let error = closed.judge(1001, 1000).expect_err("another user");
        assert!(error.contains("1001") && error.contains("socket_group"), "{error}");

        let shared = PeerPolicy { own: Uid::from_raw(1000), group: Some(Gid::from_raw(77)) };
        assert!(shared.judge(1001, 77).is_ok());
        assert!(shared.judge(4_000_000_001, 78).is_err());
    }

    #[test]
    fn an_unknown_group_is_an_error() {
        let error = PeerPolicy::new(Some("zllm-no-such-group")).expect_err("no such group").to_string();
        assert!(error.contains("zllm-no-such-group"), "{error}");
    }
}
