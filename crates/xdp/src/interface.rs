//! Offloads of an interface that hide from XDP what a packet is.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd as _;

const LRO: u32 = 1 << 15;
const RXVLAN: u32 = 1 << 8;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Switch off large receive offload and VLAN stripping. Whether both are off afterwards; a driver may refuse.
#[must_use]
pub fn disable_offloads(name: &str) -> bool {
    let Some(now) = flags(name, GET_FLAGS, 0) else { return false };
    if now & (LRO | RXVLAN) == 0 {
        return true;
    }
    flags(name, SET_FLAGS, now & !(LRO | RXVLAN));
    flags(name, GET_FLAGS, 0).is_some_and(|now| now & (LRO | RXVLAN) == 0)
}

fn flags(name: &str, command: u32, data: u32) -> Option<u32> {
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    let mut value = Value { command, data };
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the request names a buffer of the size that these two commands use.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    (result == 0).then_some(value.data)
}
