//! Who is at the other end of a connection, and whether it may command.

use super::connection::Connections;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use nix::unistd::{Group, Uid, User, getegid, geteuid};
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
