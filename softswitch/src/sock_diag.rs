//! Finds the user of a TCP connection on this host: the kernel knows the user of each socket (sock_diag(7)).

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Of `struct nlmsghdr`, `inet_diag_req_v2`, and of the parts of `inet_diag_msg` that are read.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const STATE_AT: usize = HEADER + 1;
const ID_AT: usize = HEADER + 4;
const UID_AT: usize = HEADER + 64;
const PATIENCE_S: i64 = 1;

/// The ports and addresses of `struct inet_diag_sockid`, from the peer's side.
fn id(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    let mut id = Vec::with_capacity(36);
    for end in [peer, local] {
        id.extend(end.port().to_be_bytes());
    }
    for end in [peer, local] {
        let mut words = [0; 16];
        match end.ip() {
            IpAddr::V4(addr) => words[..4].copy_from_slice(&addr.octets()),
            IpAddr::V6(addr) => words = addr.octets(),
        }
        id.extend(words);
    }
    id
}

fn request(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    let family = if peer.is_ipv4() { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]); // sequence number, and no port number
    bytes.extend([family as u8, IPPROTO_TCP, 0, 0]);
    bytes.extend((1_u32 << ESTABLISHED).to_ne_bytes());
    bytes.extend(id(peer, local));
    bytes.extend([0; 4]); // any interface
    bytes.extend(NO_COOKIE);
    bytes
}

/// Returns one end of a connection in an answer; IPv4 addresses of an IPv6 socket become IPv4.
fn end_of(answer: &[u8], port_at: usize, addr_at: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(answer.get(port_at..port_at + 2)?.try_into().ok()?);
    let words: [u8; 16] = answer.get(addr_at..addr_at + 16)?.try_into().ok()?;
    let [a, b, c, d, ..] = words;
    let addr = match i32::from(*answer.get(HEADER)?) {
        nix::libc::AF_INET => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(words).to_canonical(),
    };
    Some(SocketAddr::new(addr, port))
}

/// Returns the user in an answer, if it is about this connection and has a socket. The kernel reports a closed connection as root's.
fn user_of(answer: &[u8], peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let ends = (end_of(answer, ID_AT, ID_AT + 4)?, end_of(answer, ID_AT + 2, ID_AT + 20)?);
    if kind != SOCK_DIAG_BY_FAMILY || answer.get(STATE_AT) != Some(&ESTABLISHED) || ends != (peer, local) {
        return None;
    }
    Some(u32::from_ne_bytes(answer.get(UID_AT..UID_AT + 4)?.try_into().ok()?))
}

/// Returns the user of a connection; `None` if its other end is not an open socket of this network namespace.
///
/// # Errors
/// The kernel rejects the request.
pub fn user(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_S, 0))?;
    connect(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    send(netlink.as_raw_fd(), &request(peer, local), MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    Ok(user_of(&answer[..length], peer, local))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_open_connection_is_of_the_user_who_made_it() {
        for address in ["127.0.0.1:0", "127.8.7.6:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            assert_eq!(user(peer, local).unwrap(), Some(nix::unistd::geteuid().as_raw()), "{address}");
            drop(client);
            assert_eq!(user(peer, local).unwrap(), None, "it has been closed");
        }
    }

    #[test]
    fn an_answer_about_another_connection_tells_nothing() {
        let ends = |port| (SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], 2)));
        let (peer, local) = ends(1);
        let mut answer = vec![0; UID_AT + 8];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[HEADER] = nix::libc::AF_INET as u8;
        answer[STATE_AT] = ESTABLISHED;
        answer[ID_AT..ID_AT + 36].copy_from_slice(&id(peer, local));
        answer[UID_AT..UID_AT + 4].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(user_of(&answer, peer, local), Some(7));
        assert_eq!(user_of(&answer, ends(3).0, local), None);
        // As the kernel reports a client's IPv6 socket.
        let mut mapped = answer.clone();
        mapped[HEADER] = nix::libc::AF_INET6 as u8;
        for at in [ID_AT + 4, ID_AT + 20] {
            mapped[at..at + 16].copy_from_slice(&std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        }
        assert_eq!(user_of(&mapped, peer, local), Some(7));
        for state in (0..=12).filter(|state| *state != ESTABLISHED) {
            answer[STATE_AT] = state;
            assert_eq!(user_of(&answer, peer, local), None, "state {state}");
        }
        for length in 0..UID_AT + 4 {
            assert_eq!(user_of(&answer[..length], peer, local), None);
        }
    }
}
