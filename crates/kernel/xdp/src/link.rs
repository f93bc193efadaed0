//! Attaching XDP programs by links, which stay attached once pinned.

use crate::{Error, Result};
use libbpf_rs::libbpf_sys;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// In which mode the driver or the kernel runs an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Native,
    Generic,
}

impl Mode {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An attached program.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// # Errors
    /// EBUSY when the interface has another program.
    pub fn attach(program: impl AsFd, ifindex: u32, mode: Mode) -> Result<Self> {
        let flags = match mode {
            Mode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Mode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        };
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            flags,
            ..Default::default()
        };
        let target = i32::try_from(ifindex).unwrap_or(-1);
        // SAFETY: the options outlive the call, which copies them.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                program.as_fd().as_raw_fd(),
                target,
                libbpf_sys::BPF_XDP,
                std::ptr::from_ref(&options),
            )
        };
        if fd < 0 {
            return Err(Error::last(format!("cannot attach {mode} XDP to interface {ifindex}")));
        }
        // SAFETY: the kernel has just made this file descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// A link that was pinned.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Exchange the program in one step: no packet meets the interface without one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn replace(&self, program: impl AsFd) -> Result<()> {
        // SAFETY: no options; the file descriptors are open.
        let result = unsafe { libbpf_sys::bpf_link_update(self.fd.as_raw_fd(), program.as_fd().as_raw_fd(), std::ptr::null()) };
        if result == 0 {
            Ok(())
        } else {
            Err(Error::last("cannot replace the attached program"))
        }
    }

    /// The interface; 0 once it is gone.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn ifindex(&self) -> Result<u32> {
        let mut info = libbpf_sys::bpf_link_info::default();
        let mut length = size_of::<libbpf_sys::bpf_link_info>() as u32;
        // SAFETY: the kernel writes at most `length` bytes into info.
        let result =
            unsafe { libbpf_sys::bpf_obj_get_info_by_fd(self.fd.as_raw_fd(), std::ptr::from_mut(&mut info).cast(), &raw mut length) };
        if result != 0 {
            return Err(Error::last("cannot read a link"));
        }
        // SAFETY: links of XDP programs have this variant, and all of its bits are valid.
        Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex })
    }

    /// Detach for good; not an error when the interface is gone.
    pub fn detach(&self) {
        // SAFETY: the file descriptor is open.
        unsafe { libbpf_sys::bpf_link_detach(self.fd.as_raw_fd()) };
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
