//! A stream of JSON lines to one follower: the events, or estimates of conferences.

use super::{API, Api};
use crate::log::Follow;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use shunt_admin_model::{CaptureLine, Estimate};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio_stream::wrappers::ReceiverStream;

/// Chunks that wait for the connection.
const CHUNKS: usize = 4;

type Chunk = Result<Bytes, Infallible>;

/// Lines that are no events.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Mark<'a> {
    Hello { api: u32, epoch: u64, first: u64, next: u64 },
    Keepalive { next: u64 },
    End { reason: &'a str },
    Missed { estimates: u64 },
}

/// The sending end. A place for the last line is kept free from the beginning.
pub(crate) struct Feed {
    chunks: Sender<Chunk>,
    last: OwnedPermit<Chunk>,
    stall: Duration,
    keepalive: Duration,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

/// Why a feed ends.
enum End {
    /// The follower has gone.
    Gone,
    Said(&'static str),
}

impl Feed {
    /// A feed and its response.
    pub(crate) fn new<A>(api: &Api<A>, place: OwnedSemaphorePermit) -> Option<(Self, Response)> {
        let (chunks, receiver) = channel(CHUNKS + 1);
        let last = chunks.clone().try_reserve_owned().ok()?;
        let feed = Self {
            chunks,
            last,
            stall: api.settings.stall,
            keepalive: api.settings.keepalive,
            stopping: api.stopping.clone(),
            _place: place,
        };
        let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
        Some((feed, (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()))
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), End> {
        match tokio::time::timeout(self.stall, self.chunks.send(Ok(bytes.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Gone),
            Err(_) => {
                tracing::warn!(
                    "admin API: a follower took nothing for {} s and is cut off",
                    self.stall.as_secs_f64()
                );
                Err(End::Said("slow-reader"))
            }
        }
    }

    fn end(self, end: &End) {
        if let End::Said(reason) = end {
            self.last.send(Ok(mark(&Mark::End { reason }).into()));
        }
    }

    /// Send events; without `live` only those that are kept now.
    pub(crate) async fn events(mut self, follow: Follow, live: bool, hello: (u64, u64, u64)) {
        let (epoch, first, next) = hello;
        let hello = mark(&Mark::Hello {
            api: API,
            epoch,
            first,
            next,
        });
        let end = match self.send(hello).await {
            Ok(()) => self.events_until_end(follow, live).await,
            Err(end) => end,
        };
        self.end(&end);
    }

    async fn events_until_end(&mut self, mut follow: Follow, live: bool) -> End {
        loop {
            // Reading files may block.
            let read = tokio::task::spawn_blocking(move || {
                let mut lines = Vec::new();
                let result = follow.read(&mut lines);
                (follow, lines, result)
            });
            let Ok((given_back, lines, result)) = read.await else {
                return End::Said("failed");
            };
            follow = given_back;
            if let Err(error) = result {
                tracing::warn!("admin API: the event log cannot be read: {error}");
                return End::Said("log-unreadable");
            }
            if !lines.is_empty() {
                if let Err(end) = self.send(lines).await {
                    return end;
                }
                if !live || follow.is_behind() {
                    continue;
                }
            }
            if !live {
                return End::Said("caught-up");
            }
            if let Err(end) = self.wait(&mut follow).await {
                return end;
            }
        }
    }

    async fn wait(&mut self, follow: &mut Follow) -> Result<(), End> {
        let more = tokio::select! {
            () = follow.changed() => true,
            () = self.chunks.closed() => return Err(End::Gone),
            _ = self.stopping.wait_for(|stopping| *stopping) => return Err(End::Said("stopping")),
            () = tokio::time::sleep(self.keepalive) => false,
        };
        if more {
            return Ok(());
        }
        self.send(mark(&Mark::Keepalive { next: follow.next() })).await
    }

    /// Send estimates as they come; what the follower is too slow for is left out, and said.
    pub(crate) async fn estimates(mut self, mut estimates: broadcast::Receiver<Estimate>) {
        let end = loop {
            let line = tokio::select! {
                received = estimates.recv() => match received {
                    Ok(estimate) => line(&estimate),
                    Err(RecvError::Lagged(count)) => mark(&Mark::Missed { estimates: count }),
                    Err(RecvError::Closed) => break End::Said("stopping"),
                },
                () = self.chunks.closed() => break End::Gone,
                _ = self.stopping.wait_for(|stopping| *stopping) => break End::Said("stopping"),
                () = tokio::time::sleep(self.keepalive) => mark(&Mark::Keepalive { next: 0 }),
            };
            if let Err(end) = self.send(line).await {
                break end;
            }
        };
        self.end(&end);
    }

    /// Send the lines of a capture as they come. The agent drops what the follower is too slow for, and says so.
    pub(crate) async fn capture(mut self, mut lines: Receiver<CaptureLine>) {
        let end = loop {
            let line = tokio::select! {
                received = lines.recv() => match received {
                    Some(received) => line(&received),
                    None => break End::Said("stopping"),
                },
                () = self.chunks.closed() => break End::Gone,
                _ = self.stopping.wait_for(|stopping| *stopping) => break End::Said("stopping"),
                () = tokio::time::sleep(self.keepalive) => mark(&Mark::Keepalive { next: 0 }),
            };
            if let Err(end) = self.send(line).await {
                break end;
            }
        };
        self.end(&end);
    }
}

fn mark(mark: &Mark<'_>) -> Vec<u8> {
    line(mark)
}

/// Plain values always become JSON.
fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}
