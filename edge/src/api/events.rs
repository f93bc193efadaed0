//! The event stream: a line of JSON for each change of a session's state.

use super::{Api, ApiError};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;

/// Lines that wait for a follower; what it does not take in time ends its stream.
const LINES: usize = 64;
const STALL: Duration = Duration::from_secs(10);
/// An empty line so often shows that the stream lives.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A follower was too slow for so many events, and has to look at the list of sessions again.
#[derive(Serialize)]
struct Missed {
    missed: u64,
}

fn line(event: &impl Serialize) -> Option<Bytes> {
    let mut text = serde_json::to_vec(event).ok()?;
    text.push(b'\n');
    Some(text.into())
}

pub async fn follow(State(api): State<Api>) -> Result<Response, ApiError> {
    let place = api.followers.clone().try_acquire_owned();
    let place = place.map_err(|_| ApiError(StatusCode::SERVICE_UNAVAILABLE, "as many follow as may".into()))?;
    let mut events = api.events.subscribe();
    let mut stopping = api.stopping.clone();
    let (chunks, receiver) = channel::<Result<Bytes, Infallible>>(LINES);
    tokio::spawn(async move {
        let _place = place;
        loop {
            let next = tokio::select! {
                next = tokio::time::timeout(KEEPALIVE, events.recv()) => next,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            let text = match next {
                Ok(Ok(event)) => line(&event),
                Ok(Err(RecvError::Lagged(missed))) => line(&Missed { missed }),
                Ok(Err(RecvError::Closed)) => return,
                Err(_) => Some(Bytes::from_static(b"\n")),
            };
            let Some(text) = text else { continue };
            if !matches!(tokio::time::timeout(STALL, chunks.send(Ok(text))).await, Ok(Ok(()))) {
                return;
            }
        }
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}
