//! Sockets of the SIP server, and of the phones in their network namespaces.

use crate::Failure;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    self, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrStorage, recvmsg, setsockopt,
    sockopt,
};
use nix::sys::time::TimeSpec;
use std::fs::File;
use std::io::IoSliceMut;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Bytes that a socket keeps for a reader that is late.
const BUFFER: usize = 32 << 20;

fn failed(what: &str) -> impl FnOnce(Errno) -> Failure {
    let what = what.to_owned();
    move |error| Failure::System { what, error }
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::Io {
        what: path.display().to_string(),
        error,
    })
}

/// All phones of a namespace.
pub struct Phones {
    out: OwnedFd,
    arrivals: OwnedFd,
}

impl Phones {
    /// # Errors
    /// Not permitted, or no such namespace.
    pub fn new(namespace: &Path) -> Result<Self, Failure> {
        let own = open(Path::new("/proc/thread-self/ns/net"))?;
        setns(open(namespace)?, CloneFlags::CLONE_NEWNET).map_err(failed("enter the phones' namespace"))?;
        let made = Self::make();
        setns(own, CloneFlags::CLONE_NEWNET).map_err(failed("leave the phones' namespace"))?;
        made
    }

    fn make() -> Result<Self, Failure> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let out = socket::socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Raw).map_err(failed("raw socket"))?;
        // By the protocol, so that packets that leave do not come here (packet(7)).
        let arrivals =
            socket::socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthIp).map_err(failed("packet socket"))?;
        setsockopt(&out, sockopt::SndBufForce, &BUFFER).map_err(failed("SO_SNDBUFFORCE"))?;
        setsockopt(&arrivals, sockopt::RcvBufForce, &BUFFER).map_err(failed("SO_RCVBUFFORCE"))?;
        Ok(Self { out, arrivals })
    }

    /// Send an IPv4 packet. Returns whether it is on its way.
    pub fn send(&self, packet: &[u8], destination: SocketAddrV4) -> bool {
        // Of the address only the host is looked at.
        let to = SockaddrIn::from(SocketAddrV4::new(*destination.ip(), 0));
        socket::sendto(self.out.as_raw_fd(), packet, &to, MsgFlags::empty()).is_ok()
    }

    /// The next packet that arrived.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let length = socket::recv(self.arrivals.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC).ok()?;
        buffer.get(..length.min(buffer.len()))
    }
}

/// A connected UDP socket with the kernel's time stamps.
pub struct Control {
    socket: UdpSocket,
}

/// A reply, and its arrival.
pub struct Reply<'a> {
    pub text: &'a [u8],
    /// Unix time.
    pub at: Duration,
}

impl Control {
    /// # Errors
    /// There is no such socket.
    pub fn new(to: SocketAddrV4) -> Result<Self, Failure> {
        let io = |error| Failure::Io {
            what: format!("control socket {to}"),
            error,
        };
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
        socket.connect(to).map_err(io)?;
        socket.set_nonblocking(true).map_err(io)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).map_err(failed("SO_TIMESTAMPNS"))?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).map_err(failed("SO_RCVBUFFORCE"))?;
        Ok(Self { socket })
    }

    /// Send a command; what cannot be sent is lost.
    pub fn send(&self, command: &[u8]) {
        let _ = self.socket.send(command);
    }

    /// The next reply.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Option<Reply<'a>> {
        let mut stamps = cmsg_space!(TimeSpec);
        let mut into = [IoSliceMut::new(buffer)];
        let found = recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut into, Some(&mut stamps), MsgFlags::empty()).ok()?;
        let length = found.bytes;
        let at = found.cmsgs().ok()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
            _ => None,
        })?;
        Some(Reply {
            text: buffer.get(..length)?,
            at,
        })
    }
}

/// Wait until a reply or a packet is there, or the time is over.
pub fn wait(control: &Control, phones: &[Phones; 2], time: Duration) {
    let fds = [control.socket.as_fd(), phones[0].arrivals.as_fd(), phones[1].arrivals.as_fd()];
    let mut polled = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // An interrupted wait is only a shorter one.
    let _ = ppoll(&mut polled, Some(TimeSpec::from(time)), None);
}
