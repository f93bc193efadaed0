//! Answers requests above the limit with RESOURCE_EXHAUSTED. tonic itself returns OUT_OF_RANGE, which no BF Runtime client expects.

use std::task::{Context, Poll};
use tonic::codegen::http;
use tonic::{Code, Status};
use tower::{Layer, Service};

const OUT_OF_RANGE: &str = "11";
const RESOURCE_EXHAUSTED: &str = "8";

/// Returns the status of a stream's unreadable request.
#[must_use]
pub fn refusal(status: Status) -> Status {
    if status.code() == Code::OutOfRange {
        return Status::resource_exhausted(status.message());
    }
    status
}

#[derive(Clone, Copy, Default)]
pub struct LimitStatus;

impl<S> Layer<S> for LimitStatus {
    type Service = WithLimitStatus<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WithLimitStatus { inner }
    }
}

#[derive(Clone)]
pub struct WithLimitStatus<S> {
    inner: S,
}

impl<S, B, R> Service<http::Request<B>> for WithLimitStatus<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            if let Some(status) = response.headers_mut().get_mut("grpc-status")
                && status == OUT_OF_RANGE
            {
                *status = http::HeaderValue::from_static(RESOURCE_EXHAUSTED);
            }
            Ok(response)
        })
    }
}
