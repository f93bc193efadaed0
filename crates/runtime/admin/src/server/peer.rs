//! Who is at the other end of a connection, and whether it may command.

use super::connection::Connections;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use nix::unistd::{Group, Uid, User, getegid, geteuid};
use std::fmt;
use tokio::net::unix::UCred;

/// Credentials of the process that connected (SO_PEERCRED, unix(7)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: Option<i32>,
}

impl From<UCred> for Peer {
    fn from(credentials: UCred) -> Self {
        Self {
            uid: credentials.uid(),
            gid: credentials.gid(),
            pid: credentials.pid(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.uid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", process {pid}"))
    }
}

impl Connected<IncomingStream<'_, Connections>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        *stream.remote_addr()
    }
}

impl Peer {
    /// Whether it is root, this process's user, or of this process's group.
    pub(crate) async fn is_allowed(self) -> bool {
        if self.uid == 0 || self.uid == geteuid().as_raw() || self.gid == getegid().as_raw() {
            return true;
        }
        // The system's user data base may be on a network.
        tokio::task::spawn_blocking(move || self.is_member()).await.unwrap_or(false)
    }

    fn is_member(self) -> bool {
        let group = Group::from_gid(getegid()).ok().flatten();
        let user = User::from_uid(Uid::from_raw(self.uid)).ok().flatten();
        group
            .zip(user)
            .is_some_and(|(group, user)| user.gid == group.gid || group.mem.contains(&user.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(uid: u32, gid: u32) -> bool {
        let peer = Peer { uid, gid, pid: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.is_ok_and(|runtime| runtime.block_on(peer.is_allowed()))
    }

    #[test]
    fn root_the_own_user_and_the_own_group_may_command() {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        assert!(allowed(0, 4_000_000_001));
        assert!(allowed(user, 4_000_000_001));
        assert!(allowed(4_000_000_001, group));
        // No system has this user or group.
        assert!(!allowed(4_000_000_001, 4_000_000_001));
    }
}
