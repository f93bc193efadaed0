//! Commands over UDP: `<cookie> <command>`, answered by `<cookie> <reply>` to where the datagram came from.

use super::packet_info::PacketInfo;
use super::{Guard, bind};
use crate::engine::Sender;
use crate::service::Service;
use nix::sys::socket::{self as sys, MsgFlags, SockProtocol, SockType, SockaddrStorage, sockopt};
use shunt_rtpproxy::{ErrorCode, error_reply, split_datagram};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Bytes asked for: the commands of a few thousand calls that are set up at once.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The largest UDP packet: a command that is too long is answered too.
const LARGEST: usize = 65_536;
/// Datagrams that are taken before others get their turn.
const BURST: usize = 32;

/// A UDP control socket.
pub struct Datagrams {
    socket: UdpSocket,
}

struct Received {
    size: usize,
    from: SocketAddr,
    info: Option<PacketInfo>,
}

impl Datagrams {
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let fd = bind::inet(address, SockType::Datagram, SockProtocol::Udp)?;
        sys::setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        if address.ip().is_unspecified() {
            if address.is_ipv6() {
                sys::setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true)?;
            } else {
                sys::setsockopt(&fd, sockopt::Ipv4PacketInfo, &true)?;
            }
        }
        sys::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        let socket = UdpSocket::from_std(fd.into())?;
        Ok(Self { socket })
    }

    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    pub async fn serve(&self, service: &Service, guard: &Guard) {
        let mut buffer = vec![0; LARGEST];
        loop {
            if let Err(error) = self.socket.readable().await {
                tracing::error!("control socket: {error}");
                return;
            }
            for _ in 0..BURST {
                match self.socket.try_io(Interest::READABLE, || self.receive(&mut buffer)) {
                    Ok(Some(got)) => self.answer(service, guard, &buffer[..got.size], &got),
                    Ok(None) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // A reply that nobody took, for instance.
                    Err(error) => guard.warn(service, || format!("receive: {error}")),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// A datagram; `None` for one without an address to answer to.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut space = nix::cmsg_space!(nix::libc::in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let got = sys::recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())?;
        let info = got.cmsgs().ok().and_then(|mut messages| messages.find_map(PacketInfo::read));
        let from = got.address.as_ref().and_then(endpoint);
        Ok(from.map(|from| Received {
            size: got.bytes,
            from,
            info,
        }))
    }

    fn answer(&self, service: &Service, guard: &Guard, data: &[u8], got: &Received) {
        let peer = got.from.ip().to_canonical();
        if !guard.allows(service, peer) {
            return;
        }
        let reply = match split_datagram(data) {
            Ok((cookie, body)) => {
                let sender = Sender {
                    peer: Some(peer),
                    cookie: Some(cookie),
                };
                [cookie, b" ", &service.execute(body, sender), b"\n"].concat()
            }
            // Without a cookie the answer is bare, as rtpproxy's is.
            Err(_) => [&error_reply(ErrorCode::SYNTAX)[..], b"\n"].concat(),
        };
        let messages: Vec<_> = got.info.iter().map(PacketInfo::message).collect();
        let parts = [IoSlice::new(&reply)];
        let to = SockaddrStorage::from(got.from);
        if let Err(error) = sys::sendmsg(self.socket.as_raw_fd(), &parts, &messages, MsgFlags::empty(), Some(&to)) {
            // The SIP server repeats the command and gets the reply that was kept.
            guard.warn(service, || format!("reply to {} is not sent: {error}", got.from));
        }
    }
}

fn endpoint(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}
