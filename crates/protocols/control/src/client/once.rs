//! Commands over unix: a connection for each command, which the relay closes after the reply.

use super::state::State;
use super::{Plan, RelayError, one_line, without_line_end};
use shunt_rtpproxy::framing::{MAX_REPLY, reply_length};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

/// Most concurrent connections: rtpproxy serves them one after the other and queues few.
const CONNECTIONS: usize = 16;
/// Poll interval, because no event reports free space in a queue of connections.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

pub struct Once {
    state: Arc<State>,
    path: PathBuf,
    places: Semaphore,
}

impl Once {
    pub fn new(state: Arc<State>, path: PathBuf) -> Self {
        Self {
            state,
            path,
            places: Semaphore::new(CONNECTIONS),
        }
    }

    pub async fn exchange(&self, command: &[u8], plan: Plan) -> Result<Vec<u8>, RelayError> {
        let line = one_line(command);
        let timing = &self.state.timing;
        self.state.sent.fetch_add(1, Relaxed);
        let mut attempt = 1;
        loop {
            let place = self.places.acquire().await.map_err(|error| self.state.unreachable(error))?;
            // The time for the reply does not include the wait for a place.
            let begun = Instant::now();
            let result = timeout(timing.timeout, self.once(&line)).await;
            drop(place);
            let (error, pause) = match result {
                Ok(Ok(reply)) => {
                    self.state.answered();
                    return Ok(reply);
                }
                Ok(Err(error)) if plan.patient => (self.state.unreachable(error), timing.timeout.saturating_sub(begun.elapsed())),
                Ok(Err(error)) => (self.state.unreachable(error), timing.refused_retry),
                Err(_) => (self.state.timed_out(command, attempt), Duration::ZERO),
            };
            if attempt >= plan.tries {
                return Err(error);
            }
            sleep(pause).await;
            attempt += 1;
            self.state.repeated.fetch_add(1, Relaxed);
        }
    }

    async fn once(&self, line: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = loop {
            match UnixStream::connect(&self.path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_PAUSE).await,
                result => break result?,
            }
        };
        stream.write_all(line).await?;
        let mut reply = Vec::new();
        while reply_length(line, &reply).is_none() && stream.read_buf(&mut reply).await? > 0 {
            if reply.len() > MAX_REPLY {
                return Err(io::Error::other("a reply is too long"));
            }
        }
        if reply.is_empty() {
            return Err(io::Error::other("connection closed without a reply"));
        }
        Ok(without_line_end(&reply))
    }
}
