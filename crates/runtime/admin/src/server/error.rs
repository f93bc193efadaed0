//! Errors as JSON: a code for programs, and a message that names what was wrong.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use shunt_admin_model::{Failure, FailureKind};

#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    error: Body,
}

#[derive(Debug, Serialize)]
struct Body {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'static str>,
}

#[derive(Serialize)]
struct Envelope {
    error: Body,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            error: Body {
                code,
                message: message.into(),
                parameter: None,
            },
        }
    }

    /// A parameter of the query or the path cannot be used.
    pub(crate) fn parameter(name: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, "invalid-parameter", message);
        error.error.parameter = Some(name);
        error
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let (status, code) = match failure.kind {
            FailureKind::Invalid => (StatusCode::BAD_REQUEST, "invalid"),
            FailureKind::NotFound => (StatusCode::NOT_FOUND, "not-found"),
            FailureKind::Conflict => (StatusCode::CONFLICT, "conflict"),
            FailureKind::NotConfigured => (StatusCode::NOT_IMPLEMENTED, "not-configured"),
            FailureKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self::new(status, code, failure.message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(Envelope { error: self.error })).into_response()
    }
}
