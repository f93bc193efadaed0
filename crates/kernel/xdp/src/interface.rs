//! Offloads of an interface that hide from XDP what a packet is, by their names as `ethtool -k` prints them.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::ffi::{CStr, c_char};
use std::os::fd::AsRawFd as _;

/// Large receive offload and VLAN stripping. [`disable_offloads`] switches them off; some drivers attach no program beside the first.
const DISABLED: [&str; 2] = ["rx-lro", "rx-vlan-hw-parse"];
/// Those, and what the kernel itself switches off when it attaches generic XDP, and does not switch on again.
const CHANGED: [&str; 3] = [DISABLED[0], DISABLED[1], "rx-gro-hw"];

// linux/ethtool.h
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GET_STRINGS: u32 = 0x1b;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
const FEATURE_NAMES: u32 = 4;
const NAME: usize = 32;
/// The kernel has 64 features; room for as many more.
const WORDS: usize = 4;

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; NAME]; 32 * WORDS],
}

/// `struct ethtool_gfeatures`: for each 32 features whether they are available, requested, active, and never changed.
#[repr(C)]
struct Features {
    command: u32,
    words: u32,
    of: [[u32; 4]; WORDS],
}

/// `struct ethtool_sfeatures`: for each 32 features which are set, and to what.
#[repr(C)]
struct Request {
    command: u32,
    words: u32,
    of: [[u32; 2]; WORDS],
}

/// Returns which of the offloads that attaching XDP changes are requested now, active or not; none when the kernel does not say.
#[must_use]
pub fn requested_offloads(name: &str) -> Vec<&'static str> {
    const REQUESTED: usize = 1;
    offloads(name, REQUESTED).unwrap_or_default()
}

/// Switches off large receive offload and VLAN stripping. Whether both are off afterwards; a driver may refuse.
#[must_use]
pub fn disable_offloads(name: &str) -> bool {
    const ACTIVE: usize = 2;
    let is_off = || offloads(name, ACTIVE).is_some_and(|on| !DISABLED.iter().any(|one| on.contains(one)));
    is_off() || (set_offloads(name, &DISABLED, false) && is_off())
}

/// Requests offloads that are named as `ethtool -k` prints them, or that they are off; whether the kernel took it. Unknown names are left out.
#[must_use]
pub fn set_offloads(name: &str, offloads: &[&str], on: bool) -> bool {
    let mut request = Request {
        command: SET_FEATURES,
        words: 0,
        of: [[0; 2]; WORDS],
    };
    for (bit, offload) in names(name).iter().enumerate() {
        if offloads.contains(&offload.as_str()) {
            let [valid, requested] = &mut request.of[bit / 32];
            *valid |= 1 << (bit % 32);
            *requested |= u32::from(on) << (bit % 32);
        }
    }
    // The kernel takes the number of words that it has itself.
    let mut found = Features::new();
    if !ask(name, &mut found) {
        return false;
    }
    request.words = found.words;
    ask(name, &mut request)
}

impl Features {
    fn new() -> Self {
        Self {
            command: GET_FEATURES,
            words: WORDS as u32,
            of: [[0; 4]; WORDS],
        }
    }
}

/// Which of [`CHANGED`] have their bit in a column of the features.
fn offloads(name: &str, column: usize) -> Option<Vec<&'static str>> {
    let mut found = Features::new();
    let is_set = |found: &Features, bit: usize| found.of[bit / 32][column] >> (bit % 32) & 1 != 0;
    ask(name, &mut found).then(|| {
        let names = names(name);
        let on = names.iter().enumerate().filter(|(bit, _)| is_set(&found, *bit));
        on.filter_map(|(_, name)| CHANGED.into_iter().find(|changed| changed == name))
            .collect()
    })
}

/// The names of all features, by their bits, which differ between kernels.
fn names(interface: &str) -> Vec<String> {
    let mut strings = Box::new(Strings {
        command: GET_STRINGS,
        set: FEATURE_NAMES,
        count: 0,
        names: [[0; NAME]; 32 * WORDS],
    });
    if !ask(interface, &mut *strings) {
        return Vec::new();
    }
    let count = (strings.count as usize).min(strings.names.len());
    let text = |name: &[u8; NAME]| CStr::from_bytes_until_nul(name).map_or(String::new(), |name| name.to_string_lossy().into_owned());
    strings.names[..count].iter().map(text).collect()
}

/// Has the kernel read or fill in a command's structure; whether it did.
fn ask<T>(name: &str, command: &mut T) -> bool {
    let Ok(control) = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None) else {
        return false;
    };
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return false;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    // SAFETY: each structure above has room for what the kernel writes: it has fewer than 32 * WORDS features, and no more words than it is given.
    unsafe { libc::ioctl(control.as_raw_fd(), SIOCETHTOOL, &raw mut request) >= 0 }
}
