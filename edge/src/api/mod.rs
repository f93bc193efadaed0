//! The control API: HTTP with JSON on a Unix socket. `docs/reference/media-apis.md` is its reference.

mod events;

use crate::media::{Command, Handle};
use crate::model::{Answered, Connect, Create, Event, Ice, Offer, Refusal, RestartIce, SessionId, SessionSummary, SessionView, Status};
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::{Semaphore, broadcast, watch};

/// The longest body: a description of 256 KiB as a JSON string.
const BODY: usize = 1024 * 1024;
/// Who follows events at a time.
const FOLLOWERS: usize = 16;

/// What handlers share.
#[derive(Clone)]
pub struct Api {
    pub media: Arc<Handle>,
    pub events: broadcast::Sender<Event>,
    pub followers: Arc<Semaphore>,
    pub stopping: watch::Receiver<bool>,
}

impl Api {
    #[must_use]
    pub fn new(media: Arc<Handle>, events: broadcast::Sender<Event>, stopping: watch::Receiver<bool>) -> Self {
        Self {
            media,
            events,
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            stopping,
        }
    }

    /// All requests.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/v1/sessions", get(list).post(create))
            .route("/v1/sessions/{id}", get(one).delete(delete))
            .route("/v1/sessions/{id}/offer", post(offer))
            .route("/v1/sessions/{id}/ice", post(restart_ice))
            .route("/v1/sessions/{id}/media", put(connect))
            .route("/v1/status", get(status))
            .route("/v1/events", get(events::follow))
            .fallback(nothing)
            .layer(DefaultBodyLimit::max(BODY))
            .with_state(self)
    }
}

#[derive(Serialize)]
struct ErrorBody {
    error: String,
}

/// An answer of a request that is not carried out.
pub struct ApiError(StatusCode, String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::NotFound(_) => StatusCode::NOT_FOUND,
            Refusal::Limit(_) => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, refusal.to_string())
    }
}

/// A body of JSON.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Json::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(JsonRejection::JsonDataError(error)) => Err(ApiError(StatusCode::BAD_REQUEST, error.body_text())),
            Err(error) => Err(ApiError(error.status(), error.body_text())),
        }
    }
}

fn parse(id: &str) -> Result<SessionId, ApiError> {
    id.parse().map_err(|()| Refusal::NotFound(id.escape_debug().to_string()).into())
}

async fn nothing() -> ApiError {
    ApiError(StatusCode::NOT_FOUND, "there is nothing of that name".into())
}

#[derive(Serialize)]
struct Sessions {
    sessions: Vec<SessionSummary>,
}

async fn list(State(api): State<Api>) -> Result<Json<Sessions>, ApiError> {
    let sessions = api.media.ask(Command::List).await?;
    Ok(Json(Sessions { sessions }))
}

async fn create(State(api): State<Api>, Body(create): Body<Create>) -> Result<(StatusCode, Json<Answered>), ApiError> {
    let answered = api.media.ask(|reply| Command::Create(create, reply)).await?;
    Ok((StatusCode::CREATED, Json(answered)))
}

async fn one(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<SessionView>, ApiError> {
    let id = parse(&id)?;
    Ok(Json(api.media.ask(|reply| Command::Get(id, reply)).await?))
}

async fn delete(State(api): State<Api>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let id = parse(&id)?;
    api.media.ask(|reply| Command::Delete(id, reply)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn offer(State(api): State<Api>, Path(id): Path<String>, Body(offer): Body<Offer>) -> Result<Json<Answered>, ApiError> {
    let id = parse(&id)?;
    Ok(Json(api.media.ask(|reply| Command::Offer(id, offer.offer, reply)).await?))
}

async fn restart_ice(State(api): State<Api>, Path(id): Path<String>, Body(restart): Body<RestartIce>) -> Result<Json<Ice>, ApiError> {
    let id = parse(&id)?;
    Ok(Json(api.media.ask(|reply| Command::RestartIce(id, restart, reply)).await?))
}

async fn connect(State(api): State<Api>, Path(id): Path<String>, Body(connect): Body<Connect>) -> Result<StatusCode, ApiError> {
    let id = parse(&id)?;
    api.media.ask(|reply| Command::Connect(id, connect, reply)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn status(State(api): State<Api>) -> Result<Json<Status>, ApiError> {
    Ok(Json(api.media.ask(Command::Status).await?))
}
