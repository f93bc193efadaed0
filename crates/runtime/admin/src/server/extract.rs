//! Parameters and bodies of requests; what cannot be used is an error as JSON.

use super::error::ApiError;
use axum::extract::{FromRequest, FromRequestParts, Json, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// Parameters of the query.
pub(crate) struct Parameters<T>(pub(crate) T);

/// Parts of the path, percent-decoded (RFC 3986 section 2.1).
pub(crate) struct Names<T>(pub(crate) T);

/// A body of JSON.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "invalid-parameter",
                without_prefix(&rejection.body_text()),
            )),
        }
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Names<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid-path", rejection.body_text())),
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match Json::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(
                rejection.status(),
                "invalid-body",
                without_prefix(&rejection.body_text()),
            )),
        }
    }
}

/// The message without the words that its library puts before it.
fn without_prefix(message: &str) -> &str {
    let prefixes = [
        "Failed to deserialize query string: ",
        "Failed to deserialize the JSON body into the target type: ",
    ];
    prefixes.iter().find_map(|prefix| message.strip_prefix(prefix)).unwrap_or(message)
}
