//! Waits for the records of a ring, without relying on every wake-up.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

/// Longest wait after a lost wake-up. The kernel wakes a reader only after it has emptied the ring. A reader that misses a wake-up, or
/// leaves records in the ring, would never be woken again.
pub const LOOK: Duration = Duration::from_millis(50);

/// Deprecated because a type may return a descriptor that it does not own; this one owns it.
#[allow(deprecated)]
pub fn watch<T: AsRawFd>(fd: T) -> std::io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Waits for a ring's reader.
pub struct Wakeups<T: AsRawFd = OwnedFd> {
    fd: AsyncFd<T>,
    /// The last read has left records in the ring.
    more: bool,
}

impl<T: AsRawFd> Wakeups<T> {
    /// Watches a ring.
    ///
    /// # Errors
    /// The runtime does not accept the descriptor.
    pub fn new(fd: T) -> std::io::Result<Self> {
        Ok(Self {
            fd: watch(fd)?,
            more: true,
        })
    }

    /// Waits until the ring may have records: at a wake-up, at once if the last read was full, and after [`LOOK`] in any case.
    ///
    /// Readiness is cleared before the caller reads, so a wake-up during the read ends the next wait.
    ///
    /// # Errors
    /// The descriptor cannot be watched any more.
    pub async fn wait(&mut self) -> std::io::Result<()> {
        if std::mem::take(&mut self.more) {
            tokio::task::yield_now().await;
        } else if let Ok(ready) = timeout(LOOK, self.fd.readable()).await {
            ready?.clear_ready();
        }
        Ok(())
    }

    /// Records whether a read returned as many records as it was allowed to, used or not.
    pub fn was_full(&mut self, is_full: bool) {
        self.more = is_full;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    /// Ends when a reader that reads `batch` bytes at a time has read `count` bytes, or never.
    async fn read(wakeups: &mut Wakeups<UnixStream>, batch: usize, count: usize) {
        let (mut buffer, mut taken) = (vec![0; batch], 0);
        while taken < count {
            wakeups.wait().await.unwrap();
            let read = wakeups.fd.get_ref().read(&mut buffer).unwrap_or(0);
            wakeups.was_full(read == batch);
            taken += read;
        }
    }

    fn ring() -> (UnixStream, Wakeups<UnixStream>) {
        let (writer, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        (writer, Wakeups::new(reader).unwrap())
    }

    #[tokio::test]
    async fn records_whose_wake_up_was_lost_are_read() {
        let (mut writer, mut wakeups) = ring();
        for batch in [1, 3, 64] {
            writer.write_all(&[0; 10]).unwrap();
            // No reader gets this wake-up: it came before the reader began to wait.
            wakeups.fd.readable().await.unwrap().clear_ready();
            wakeups.was_full(false);
            timeout(Duration::from_secs(60), read(&mut wakeups, batch, 10)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_full_read_is_followed_by_another_whatever_became_of_its_records() {
        let (mut writer, mut wakeups) = ring();
        for length in 1..40 {
            writer.write_all(&vec![0; length]).unwrap();
            timeout(Duration::from_secs(60), read(&mut wakeups, 4, length)).await.unwrap();
        }
    }

    #[test]
    fn a_stall_heals_within_a_tenth_of_a_second() {
        assert!(LOOK < Duration::from_millis(100));
    }
}
