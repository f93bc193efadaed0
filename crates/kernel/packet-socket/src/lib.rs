//! A packet socket (packet(7)) for an address that is not the host's own: the CPU port of a switch is an interface, the address is the switch's.

mod filter;

use filter::only_to;
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const RECEIVE_BUFFER: libc::c_int = 1 << 20;

/// Frames with IP packets to one address that come in by an interface, whosever MAC address they have. It does not block.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl PacketSocket {
    /// Takes `CAP_NET_RAW`.
    ///
    /// # Errors
    /// There is no such interface, it is down, or it must not be opened.
    pub fn open(interface: &str, address: IpAddr) -> io::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: the string ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is handed over. Of no protocol: nothing comes before the filter is there.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made just now and is nobody else's.
        let made = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        made.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER)?;
        let mut program = only_to(address);
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len()).unwrap_or(u16::MAX),
            filter: program.as_mut_ptr(),
        };
        // The kernel copies the program.
        made.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        let number = i32::try_from(index).map_err(io::Error::other)?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: number,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        made.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        let protocol = if address.is_ipv6() { libc::ETH_P_IPV6 } else { libc::ETH_P_IP };
        // SAFETY: all zeros are a valid sockaddr_ll.
        let mut place: libc::sockaddr_ll = unsafe { zeroed() };
        place.sll_family = libc::AF_PACKET as libc::c_ushort;
        place.sll_protocol = (protocol as u16).to_be();
        place.sll_ifindex = number;
        // SAFETY: the address is a sockaddr_ll, and its size is given.
        let bound = unsafe { libc::bind(fd, (&raw const place).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        // An interface that is down is not an error of bind(2).
        match made.get::<libc::c_int>(libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => Ok(made),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let size = size_of::<T>() as libc::socklen_t;
        // SAFETY: the option reads as many bytes as `value` has.
        match unsafe { libc::setsockopt(self.as_raw_fd(), level, name, (&raw const *value).cast(), size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// An option whose value is made of integers.
    fn get<T: Copy + Default>(&self, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
        let (mut value, mut size) = (T::default(), size_of::<T>() as libc::socklen_t);
        // SAFETY: the option writes as many bytes as `value` has at most.
        match unsafe { libc::getsockopt(self.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut size) } {
            0 => Ok(value),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The size of the next frame, of which as much as fits is in the buffer; `None` for one that went out.
    ///
    /// # Errors
    /// As recvfrom(2): `WouldBlock` when there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: all zeros are a valid sockaddr_ll.
        let mut from: libc::sockaddr_ll = unsafe { zeroed() };
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: buffer and address are as large as is said.
        let got = unsafe {
            libc::recvfrom(
                self.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut from).cast(),
                &raw mut size,
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        Ok((from.sll_pkttype != libc::PACKET_OUTGOING).then_some(got))
    }

    /// Send a frame, from the Ethernet header on.
    ///
    /// # Errors
    /// As send(2).
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the frame is as large as is said.
        match unsafe { libc::send(self.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) } {
            sent if sent < 0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Frames for which there was no room since this was last asked.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn dropped(&self) -> io::Result<u32> {
        let [_packets, drops] = self.get::<[u32; 2]>(libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(drops)
    }
}
