//! Running a program on a packet: BPF_PROG_TEST_RUN.

use crate::{Error, Result};
use libbpf_rs::libbpf_sys;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The outcome: return value, the packet afterwards, the mean time of one run.
#[derive(Clone, Debug)]
pub struct TestRun {
    pub verdict: u32,
    pub packet: Vec<u8>,
    pub duration: Duration,
}

fn options() -> libbpf_sys::bpf_test_run_opts {
    libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ..Default::default()
    }
}

/// Run an XDP program on a packet of at least 14 bytes.
///
/// ingress: the interface that it is received by; without one the kernel takes the loopback interface.
///
/// # Errors
/// When the kernel does not run it.
pub fn test_run(program: impl AsFd, packet: &[u8], ingress: Option<u32>, repeat: u32) -> Result<TestRun> {
    let mut after = vec![0u8; packet.len() + 256];
    let context = libbpf_sys::xdp_md {
        data_end: packet.len() as u32,
        ingress_ifindex: ingress.unwrap_or(0),
        ..Default::default()
    };
    let mut options = options();
    options.data_in = packet.as_ptr().cast();
    options.data_size_in = packet.len() as u32;
    options.data_out = after.as_mut_ptr().cast();
    options.data_size_out = after.len() as u32;
    options.repeat = i32::try_from(repeat).unwrap_or(i32::MAX);
    if ingress.is_some() {
        options.ctx_in = std::ptr::from_ref(&context).cast();
        options.ctx_size_in = size_of::<libbpf_sys::xdp_md>() as u32;
    }
    // SAFETY: all pointers are to buffers of the given sizes, which outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &raw mut options) };
    if result != 0 {
        return Err(Error::last("BPF_PROG_TEST_RUN"));
    }
    after.truncate(options.data_size_out as usize);
    Ok(TestRun {
        verdict: options.retval,
        packet: after,
        duration: Duration::from_nanos(u64::from(options.duration)),
    })
}

/// Run an XDP program `repeat` times on live frames that start as `packet`: what it redirects leaves, as from a driver.
///
/// batch: frames between two flushes, 1 to 4096. Redirects go by interface numbers of the calling thread's namespace.
/// Returns early on a signal.
///
/// # Errors
/// When the kernel does not run it.
pub fn run_live(program: impl AsFd, packet: &[u8], repeat: u32, batch: u32) -> Result<()> {
    let mut options = options();
    options.data_in = packet.as_ptr().cast();
    options.data_size_in = packet.len() as u32;
    options.repeat = i32::try_from(repeat).unwrap_or(i32::MAX);
    options.flags = libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES;
    options.batch_size = batch;
    // SAFETY: the packet outlives the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &raw mut options) };
    let error = std::io::Error::last_os_error();
    if result != 0 && error.raw_os_error() != Some(libc::EINTR) {
        return Err(Error::new("BPF_PROG_TEST_RUN with live frames", error));
    }
    Ok(())
}
