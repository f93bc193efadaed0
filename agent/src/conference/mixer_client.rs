//! The client of a mixer's control API (docs/mixing.md, docs/tiling.md).

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use shunt_conference::jobs::Job;
use shunt_conference::mixer::{Accepted, Description, Listing, MixerError, Status, Tilings};
use shunt_rtpproxy::framing::ControlAddress;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A mixer that does not answer within this is not there.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Octets of an answer.
const MOST: usize = 8 << 20;

#[derive(Deserialize)]
struct Envelope {
    error: ErrorBody,
}

#[derive(Deserialize)]
struct ErrorBody {
    code: String,
    message: String,
}

/// # Errors
/// It does not answer, or not with what it should.
pub async fn status(control: &ControlAddress) -> Result<Status, MixerError> {
    read(&ask(control, Method::GET, "/v1/status", Vec::new()).await?)
}

/// # Errors
/// As of [`status`].
pub async fn listing(control: &ControlAddress) -> Result<Listing, MixerError> {
    read(&ask(control, Method::GET, "/v1/conferences", Vec::new()).await?)
}

/// # Errors
/// As of [`status`].
pub async fn tilings(control: &ControlAddress) -> Result<Tilings, MixerError> {
    read(&ask(control, Method::GET, "/v1/tilings", Vec::new()).await?)
}

/// # Errors
/// As of [`status`]; or it has no room.
pub async fn describe(control: &ControlAddress, job: Job, conference: &str, description: &Description) -> Result<Accepted, MixerError> {
    let body = serde_json::to_vec(description).map_err(|error| MixerError::Refused(error.to_string()))?;
    read(&ask(control, Method::PUT, &path(job, conference), body).await?)
}

/// # Errors
/// As of [`status`].
pub async fn end(control: &ControlAddress, job: Job, conference: &str) -> Result<(), MixerError> {
    ask(control, Method::DELETE, &path(job, conference), Vec::new()).await.map(|_| ())
}

/// Names of conferences have no character that would have to be encoded but `+`, which is itself in a path, as a colon is.
fn path(job: Job, conference: &str) -> String {
    let kind = if job == Job::Mixes { "conferences" } else { "tilings" };
    format!("/v1/{kind}/{}", job.resource(conference))
}

fn read<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, MixerError> {
    serde_json::from_slice(body).map_err(|error| MixerError::Refused(format!("its answer cannot be read: {error}")))
}

async fn ask(control: &ControlAddress, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, MixerError> {
    let asked = async {
        match control {
            ControlAddress::Unix(socket) | ControlAddress::Cunix(socket) => {
                exchange(UnixStream::connect(socket).await.map_err(unreachable)?, method, path, body).await
            }
            ControlAddress::Tcp(address) | ControlAddress::Udp(address) => {
                exchange(TcpStream::connect(address).await.map_err(unreachable)?, method, path, body).await
            }
        }
    };
    tokio::time::timeout(TIMEOUT, asked)
        .await
        .map_err(|_| MixerError::Timeout(TIMEOUT))?
}

fn unreachable(error: impl std::fmt::Display) -> MixerError {
    MixerError::Unreachable(error.to_string())
}

async fn exchange<S>(stream: S, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, MixerError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(unreachable)?;
    let driver = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "mixer")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| MixerError::Refused(error.to_string()))?;
    let answer = sender.send_request(request).await.map_err(unreachable)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST)
        .collect()
        .await
        .map_err(unreachable)?
        .to_bytes();
    driver.abort();
    if status.is_success() || status == StatusCode::NOT_FOUND {
        return Ok(body);
    }
    let said = serde_json::from_slice::<Envelope>(&body).ok();
    let full = said.as_ref().is_some_and(|said| said.error.code == "full");
    let message = said.map_or_else(|| status.to_string(), |said| said.error.message);
    Err(if full {
        MixerError::Full(message)
    } else {
        MixerError::Refused(message)
    })
}
