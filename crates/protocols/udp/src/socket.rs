//! A bound UDP socket.

use crate::address::Address;
use crate::batch::{Batch, MOST};
use nix::sys::socket::{self as sys, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use shunt_net::Endpoint;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A UDP socket that does not block.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    v6: bool,
    /// Whether the kernel puts packets that follow each other into one buffer.
    joins: bool,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Bind a socket, of IPv6 alone if the address is one. `receive_buffer`: bytes that are asked for.
    ///
    /// # Errors
    /// As socket(2) and bind(2).
    pub fn bind(endpoint: Endpoint, receive_buffer: usize) -> io::Result<Self> {
        let v6 = endpoint.addr.is_ipv6();
        let family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let fd = sys::socket(family, SockType::Datagram, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
        if v6 {
            sys::setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
        }
        sys::setsockopt(&fd, sockopt::RcvBuf, &receive_buffer)?;
        sys::bind(
            fd.as_raw_fd(),
            &SockaddrStorage::from(SocketAddr::new(endpoint.addr, endpoint.port)),
        )?;
        Ok(Self { fd, v6, joins: false })
    }

    /// The local address from which the kernel would send to another one.
    ///
    /// # Errors
    /// As connect(2): there is no route.
    pub fn local_address_towards(remote: IpAddr) -> io::Result<IpAddr> {
        let family = if remote.is_ipv6() {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        };
        let fd = sys::socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        // Nothing is sent: the discard port is as good as any.
        sys::connect(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(remote, 9)))?;
        let name: SockaddrStorage = sys::getsockname(fd.as_raw_fd())?;
        let v4 = name.as_sockaddr_in().map(|name| IpAddr::V4(name.ip()));
        v4.or_else(|| name.as_sockaddr_in6().map(|name| IpAddr::V6(name.ip())))
            .ok_or(io::ErrorKind::AddrNotAvailable.into())
    }

    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// Mark what is sent: the whole octet of type of service or traffic class.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        let tos = i32::from(tos);
        if self.v6 {
            sys::setsockopt(&self.fd, sockopt::Ipv6TClass, &tos)?;
        } else {
            sys::setsockopt(&self.fd, sockopt::Ipv4Tos, &tos)?;
        }
        Ok(())
    }

    /// Take packets of one length that one sender sent one after the other as one, as they pass the kernel (UDP_GRO, udp(7)): [`Batch::run`]
    /// tells them apart.
    ///
    /// # Errors
    /// As setsockopt(2): the kernel does not know it.
    pub fn join_runs(&mut self) -> io::Result<()> {
        sys::setsockopt(&self.fd, sockopt::UdpGroSegment, &true)?;
        self.joins = true;
        Ok(())
    }

    /// Receive up to `most` packets into a batch; how many there were, 0 if none is waiting.
    ///
    /// # Errors
    /// As recvmmsg(2).
    pub fn receive(&self, batch: &mut Batch, most: usize) -> io::Result<usize> {
        let result = if most <= 1 && !self.joins {
            self.receive_one(batch)
        } else {
            // The fewer headers there are, the less is made ready for nothing.
            match most.clamp(1, MOST) {
                few @ ..=FEW => self.receive_many::<FEW>(batch, few),
                many => self.receive_many::<MOST>(batch, many),
            }
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    fn receive_one(&self, batch: &mut Batch) -> io::Result<usize> {
        let Some((buffer, sender)) = batch.buffers(1).next() else {
            return Ok(0);
        };
        let mut length = address_size();
        // SAFETY: the buffer and the address are valid for as many bytes as the call is told, and live until it returns.
        let got = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                sender.bytes.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        sender.length = length;
        batch.set_length(0, got);
        Ok(1)
    }

    /// With room for `N` headers; `most` is no more.
    fn receive_many<const N: usize>(&self, batch: &mut Batch, most: usize) -> io::Result<usize> {
        let mut parts = [NO_PART; N];
        let mut headers = [NO_HEADER; N];
        let mut runs = [const { RunLength::none() }; N];
        if self.joins {
            for (header, run) in headers.iter_mut().zip(&mut runs) {
                run.attach(&mut header.msg_hdr);
            }
        }
        for ((buffer, sender), (part, header)) in batch.buffers(most).zip(parts.iter_mut().zip(&mut headers)) {
            *part = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            header.msg_hdr.msg_name = sender.bytes.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = address_size();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `most` headers point to one part each, to a buffer and an address of the batch, which is borrowed mutably, and to a
        // control message in `runs` or to none; all of them live until the call returns.
        let got = unsafe { libc::recvmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count(most), 0, std::ptr::null_mut()) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        for (at, header) in headers.iter().enumerate().take(got) {
            batch.set_length(at, header.msg_len as usize);
            if let Some(length) = runs[at].length(&header.msg_hdr) {
                batch.set_run(at, length);
            }
        }
        for ((_, sender), header) in batch.buffers(got).zip(&headers) {
            sender.length = header.msg_hdr.msg_namelen;
        }
        Ok(got)
    }

    /// Send packets of a batch to one destination; how many the kernel took.
    ///
    /// # Errors
    /// As sendmmsg(2) for the first of them.
    pub fn send(&self, batch: &Batch, range: Range<usize>, to: &Address) -> io::Result<usize> {
        if range.len() == 1 {
            return self.send_one(batch.packet(range.start), to).map(|()| 1);
        }
        let mut parts = [NO_PART; MOST];
        let mut headers = [NO_HEADER; MOST];
        let most = range.len().min(MOST);
        for (packet, (part, header)) in batch.packets(range).zip(parts.iter_mut().zip(&mut headers)) {
            *part = libc::iovec {
                iov_base: packet.as_ptr().cast_mut().cast(),
                iov_len: packet.len(),
            };
            header.msg_hdr.msg_name = to.bytes.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = to.length;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `most` headers point to one part each, a packet of the batch and the address; sendmmsg only reads these, and all
        // of them live until the call returns.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count(most), 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Send up to [`MOST`] packets, each to its own destination; how many the kernel took. Packets of one length that follow each other to one
    /// destination, and a shorter one after them, pass the kernel as one (UDP_SEGMENT, udp(7)).
    ///
    /// # Errors
    /// As sendmmsg(2) for the first of them.
    pub fn send_each<'a>(&self, packets: impl Iterator<Item = (&'a [u8], &'a Address)>) -> io::Result<usize> {
        let mut parts = [NO_PART; MOST];
        let mut headers = [NO_HEADER; MOST];
        let mut segments = [const { SegmentSize::none() }; MOST];
        // Packets of each message.
        let mut counts = [0; MOST];
        let mut messages = 0;
        let mut before: Option<(&Address, usize, usize)> = None;
        for ((packet, to), part) in packets.zip(&mut parts) {
            *part = libc::iovec {
                iov_base: packet.as_ptr().cast_mut().cast(),
                iov_len: packet.len(),
            };
            let joined = before.filter(|(address, size, total)| {
                *address == to && packet.len() <= *size && !packet.is_empty() && total % size == 0 && total + packet.len() <= LONGEST_RUN
            });
            if let Some((_, size, total)) = joined {
                let header = &mut headers[messages - 1].msg_hdr;
                header.msg_iovlen += 1;
                counts[messages - 1] += 1;
                // Less than LONGEST_RUN.
                #[allow(clippy::cast_possible_truncation)]
                segments[messages - 1].attach(header, size as u16);
                before = Some((to, size, total + packet.len()));
                continue;
            }
            let header = &mut headers[messages].msg_hdr;
            header.msg_name = to.bytes.as_ptr().cast_mut().cast();
            header.msg_namelen = to.length;
            header.msg_iov = part;
            header.msg_iovlen = 1;
            counts[messages] = 1;
            messages += 1;
            before = Some((to, packet.len(), packet.len()));
        }
        // SAFETY: the first `messages` headers point to parts that follow each other in `parts`, to addresses and packets that are borrowed for
        // longer than the call, and to control messages in `segments`; sendmmsg only reads these.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr(), count(messages), 0) };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(counts[..sent.min(messages)].iter().sum())
    }

    /// Send one packet.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send_one(&self, packet: &[u8], to: &Address) -> io::Result<()> {
        // SAFETY: packet and address are valid for as many bytes as the call is told, and live until it returns; it only reads them.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                to.bytes.as_ptr().cast(),
                to.length,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What is received at a time where not much is waiting.
const FEW: usize = 8;
/// Octets that pass the kernel as one at most.
const LONGEST_RUN: usize = 60_000;

/// The control message that says how long each packet of a message is: a `cmsghdr`, and 16 bits in a word of its own.
#[repr(C, align(8))]
struct SegmentSize {
    header: libc::cmsghdr,
    size: u16,
    padding: [u8; 6],
}

impl SegmentSize {
    /// `sizeof(cmsghdr)` and two octets, as CMSG_LEN(3) counts them.
    const LENGTH: usize = size_of::<libc::cmsghdr>() + 2;

    const fn none() -> Self {
        Self {
            header: libc::cmsghdr {
                cmsg_len: Self::LENGTH,
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            size: 0,
            padding: [0; 6],
        }
    }

    fn attach(&mut self, message: &mut libc::msghdr, size: u16) {
        self.size = size;
        message.msg_control = std::ptr::from_mut(self).cast();
        message.msg_controllen = size_of::<Self>();
    }
}

/// The control message that says how long each packet of a run is that was received: a `cmsghdr`, and an `int` in a word of its own.
#[repr(C, align(8))]
struct RunLength {
    header: libc::cmsghdr,
    size: libc::c_int,
    padding: [u8; 4],
}

impl RunLength {
    /// `sizeof(cmsghdr)` and four octets, as CMSG_LEN(3) counts them.
    const LENGTH: usize = size_of::<libc::cmsghdr>() + size_of::<libc::c_int>();

    const fn none() -> Self {
        Self {
            header: libc::cmsghdr {
                cmsg_len: 0,
                cmsg_level: 0,
                cmsg_type: 0,
            },
            size: 0,
            padding: [0; 4],
        }
    }

    fn attach(&mut self, message: &mut libc::msghdr) {
        message.msg_control = std::ptr::from_mut(self).cast();
        message.msg_controllen = size_of::<Self>();
    }

    /// What the kernel has said of a message; `None`: it is one packet.
    fn length(&self, message: &libc::msghdr) -> Option<usize> {
        let said =
            message.msg_controllen >= Self::LENGTH && self.header.cmsg_level == libc::SOL_UDP && self.header.cmsg_type == libc::UDP_GRO;
        usize::try_from(self.size).ok().filter(|_| said)
    }
}

const NO_PART: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};
const NO_HEADER: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: std::ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};

/// Bytes of [`Address`] that the kernel may write.
fn address_size() -> libc::socklen_t {
    // 28
    #[allow(clippy::cast_possible_truncation)]
    let size = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    size
}

/// At most [`MOST`].
fn count(packets: usize) -> libc::c_uint {
    #[allow(clippy::cast_possible_truncation)]
    let count = packets as libc::c_uint;
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn pair(address: &str) -> (Socket, UdpSocket) {
        let peer = UdpSocket::bind((address, 0)).unwrap();
        let ip: IpAddr = address.parse().unwrap();
        let socket = (20_000..30_000)
            .find_map(|port| Socket::bind(Endpoint::new(ip, port), 100_000).ok())
            .unwrap();
        (socket, peer)
    }

    fn local(socket: &Socket) -> SocketAddr {
        let name: SockaddrStorage = sys::getsockname(socket.fd.as_raw_fd()).unwrap();
        let v4 = name.as_sockaddr_in().map(|name| SocketAddr::from((name.ip(), name.port())));
        v4.unwrap_or_else(|| SocketAddr::from((name.as_sockaddr_in6().unwrap().ip(), name.as_sockaddr_in6().unwrap().port())))
    }

    #[test]
    fn batches_come_and_go_in_order() {
        for address in ["127.0.0.1", "::1"] {
            let (socket, peer) = pair(address);
            let mut batch = Batch::default();
            assert_eq!(socket.receive(&mut batch, 8).unwrap(), 0);
            for n in 0..10u8 {
                peer.send_to(&vec![n; usize::from(n) * 700], local(&socket)).unwrap();
            }
            let got = socket.receive(&mut batch, 8).unwrap();
            assert_eq!(got, 8);
            let to = *batch.sender(3);
            assert_eq!(to.endpoint().map(|endpoint| endpoint.port), Some(peer.local_addr().unwrap().port()));
            assert_eq!(socket.send(&batch, 0..got, &to).unwrap(), 8);
            for n in 0..8u8 {
                let mut buffer = [0; 8000];
                let (size, from) = peer.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..size], from), (&vec![n; usize::from(n) * 700][..], local(&socket)));
            }
            assert_eq!(socket.receive(&mut batch, 1).unwrap(), 1);
            assert_eq!(batch.packet(0), vec![8; 5600]);
            assert_eq!(batch.sender(0), &to);
        }
    }

    #[test]
    fn packets_go_each_to_its_own_destination() {
        let (socket, first) = pair("127.0.0.1");
        let second = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let to = [&first, &second].map(|peer| Address::from(Endpoint::new([127, 0, 0, 1], peer.local_addr().unwrap().port())));
        let packets: Vec<(Vec<u8>, Address)> = (0..6).map(|n: u8| (vec![n; 9], to[usize::from(n % 2)])).collect();
        let borrowed = packets.iter().map(|(packet, to)| (packet.as_slice(), to));
        assert_eq!(socket.send_each(borrowed).unwrap(), 6);
        for n in 0..6u8 {
            let mut buffer = [0; 100];
            let peer = if n % 2 == 0 { &first } else { &second };
            let (size, _) = peer.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..size], [n; 9]);
        }
    }

    #[test]
    fn packets_of_one_length_arrive_as_those_that_they_were() {
        let (socket, first) = pair("127.0.0.1");
        let second = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let to = [&first, &second].map(|peer| Address::from(Endpoint::new([127, 0, 0, 1], peer.local_addr().unwrap().port())));
        let lengths = [
            (0, 1200),
            (0, 1200),
            (0, 1200),
            (0, 300),
            (0, 1200),
            (1, 1200),
            (1, 1200),
            (0, 80),
            (0, 81),
            (1, 0),
            (1, 5),
        ];
        let packets: Vec<(Vec<u8>, Address)> = (1u8..)
            .zip(lengths)
            .map(|(n, (peer, length))| (vec![n; length], to[peer]))
            .collect();
        let sent = socket
            .send_each(packets.iter().map(|(packet, to)| (packet.as_slice(), to)))
            .unwrap();
        assert_eq!(sent, packets.len());
        for (packet, address) in &packets {
            let mut buffer = [0; 2000];
            let peer = if *address == to[0] { &first } else { &second };
            let (size, _) = peer.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..size], packet.as_slice());
        }
    }

    #[test]
    fn packets_that_passed_the_kernel_as_one_are_told_apart() {
        let (mut socket, peer) = pair("127.0.0.1");
        socket.join_runs().unwrap();
        let (sender, _) = pair("127.0.0.1");
        let to = Address::from(Endpoint::new([127, 0, 0, 1], local(&socket).port()));
        let lengths = [1200, 1200, 1200, 300, 80, 1200, 1200, 0];
        let packets: Vec<Vec<u8>> = (1u8..).zip(lengths).map(|(n, length)| vec![n; length]).collect();
        let sent = sender.send_each(packets.iter().map(|packet| (packet.as_slice(), &to))).unwrap();
        assert_eq!(sent, packets.len());
        peer.send_to(b"alone", local(&socket)).unwrap();
        let mut batch = Batch::default();
        let got = socket.receive(&mut batch, MOST).unwrap();
        assert!(got < packets.len(), "{got} at a time");
        let found: Vec<Vec<u8>> = (0..got)
            .flat_map(|at| batch.run(at).map(<[u8]>::to_vec).collect::<Vec<_>>())
            .collect();
        let whole: Vec<Vec<u8>> = packets
            .into_iter()
            .filter(|packet| !packet.is_empty())
            .chain([b"alone".to_vec()])
            .collect();
        assert_eq!(found, whole);
        assert_eq!(batch.sender(got - 1).endpoint().unwrap().port, peer.local_addr().unwrap().port());
    }

    #[test]
    fn an_address_in_use_and_one_that_cannot_be_sent_to_are_errors() {
        let (socket, _peer) = pair("127.0.0.1");
        let local = local(&socket);
        let again = Socket::bind(Endpoint::new(local.ip(), local.port()), 1000);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(
            socket
                .send_one(b"x", &Address::from(Endpoint::new([255, 255, 255, 255], 9)))
                .is_err()
        );
        assert_eq!(
            Socket::local_address_towards([127, 0, 0, 9].into()).unwrap(),
            IpAddr::from([127, 0, 0, 1])
        );
    }
}
