//! Device maps: the interfaces that copies of one packet leave by.

use crate::{Error, Result};
use libbpf_rs::libbpf_sys;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A device map with one row for each copy of a packet.
pub struct DeviceMap {
    fd: OwnedFd,
}

/// A row, as the kernel lays it out (struct bpf_devmap_val).
#[repr(C)]
struct Row {
    ifindex: u32,
    program: i32,
}

impl DeviceMap {
    /// Make a device map with these interfaces, any number of times each, and an egress program.
    ///
    /// Interface numbers are those of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel makes none, or does not take an interface.
    pub fn new(interfaces: &[u32], program: impl AsFd) -> Result<Self> {
        let map = Self::with_room(u32::try_from(interfaces.len()).unwrap_or(u32::MAX))?;
        for (position, ifindex) in (0u32..).zip(interfaces) {
            map.set(position, *ifindex, program.as_fd())?;
        }
        Ok(map)
    }

    /// Make an empty device map with this many rows, at least one.
    ///
    /// # Errors
    /// When the kernel makes none.
    pub fn with_room(rows: u32) -> Result<Self> {
        // SAFETY: the name is a C string, and there are no options.
        let fd = unsafe {
            libbpf_sys::bpf_map_create(
                libbpf_sys::BPF_MAP_TYPE_DEVMAP,
                c"c_copies_out".as_ptr(),
                4,
                8,
                rows.max(1),
                std::ptr::null(),
            )
        };
        if fd < 0 {
            return Err(Error::last("cannot make a device map"));
        }
        // SAFETY: the kernel has just made this file descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Set one row. Programs see the former row or this one; the call waits for nothing.
    ///
    /// # Errors
    /// When the kernel does not take the interface.
    pub fn set(&self, position: u32, ifindex: u32, program: impl AsFd) -> Result<()> {
        put(self.fd.as_fd(), position, ifindex, program.as_fd())
    }

    /// Put an interface into a device map with hashed keys, under its own number.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn add(devices: impl AsFd, ifindex: u32, program: impl AsFd) -> Result<()> {
        put(devices.as_fd(), ifindex, ifindex, program.as_fd())
    }
}

fn put(map: BorrowedFd<'_>, key: u32, ifindex: u32, program: BorrowedFd<'_>) -> Result<()> {
    let row = Row {
        ifindex,
        program: program.as_raw_fd(),
    };
    // SAFETY: key and row have the sizes of the map's, and outlive the call.
    let result =
        unsafe { libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), std::ptr::from_ref(&key).cast(), std::ptr::from_ref(&row).cast(), 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(Error::last(format!("cannot put interface {ifindex} into a device map")))
    }
}

impl AsFd for DeviceMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
