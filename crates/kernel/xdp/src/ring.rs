//! The reading end of a BPF ring buffer.

use crate::{Error, Result, error::from_libbpf};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Records taken from a ring.
pub struct Batch {
    pub records: Vec<Vec<u8>>,
    /// The ring may hold more: as many were taken as the caller allowed.
    pub is_full: bool,
}

/// A ring buffer with one reader.
pub struct Ring {
    buffer: RingBuffer<'static>,
    records: Arc<Mutex<Vec<Vec<u8>>>>,
    _map: MapHandle,
}

impl Ring {
    /// # Errors
    /// When the map is no ring buffer.
    pub fn new(map: impl AsFd) -> Result<Self> {
        let failed = |error: libbpf_rs::Error| from_libbpf("cannot read a ring buffer", &error);
        let info = libbpf_rs::MapInfo::new(map.as_fd()).map_err(failed)?;
        let map = MapHandle::from_map_id(info.info.id).map_err(failed)?;
        let records = Arc::new(Mutex::new(Vec::new()));
        let target = Arc::clone(&records);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&map, move |record| {
                target.lock().unwrap_or_else(PoisonError::into_inner).push(record.to_vec());
                0
            })
            .map_err(failed)?;
        let buffer = builder.build().map_err(failed)?;
        Ok(Self {
            buffer,
            records,
            _map: map,
        })
    }

    /// Take up to `limit` records.
    #[must_use]
    pub fn take(&self, limit: usize) -> Batch {
        let taken = self.buffer.consume_raw_n(limit);
        if taken < 0 {
            tracing::error!("a ring buffer cannot be read: {}", std::io::Error::from_raw_os_error(-taken));
        }
        let records = std::mem::take(&mut *self.records.lock().unwrap_or_else(PoisonError::into_inner));
        let is_full = records.len() >= limit;
        Batch { records, is_full }
    }

    /// A file descriptor that is readable when there are records.
    ///
    /// The kernel wakes a reader only when it writes to a ring that the reader has emptied, and libbpf has no barrier between storing the reader's
    /// position and loading the writer's. So a wake-up can be missing: the reader also has to look from time to time.
    ///
    /// # Errors
    /// When there are no more file descriptors to be had.
    pub fn poll_fd(&self) -> Result<OwnedFd> {
        // SAFETY: the buffer's file descriptor is open as long as self.
        let fd = unsafe { BorrowedFd::borrow_raw(self.buffer.epoll_fd()) };
        fd.try_clone_to_owned()
            .map_err(|error| Error::new("cannot duplicate a file descriptor", error))
    }
}
