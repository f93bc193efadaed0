//! Prometheus text, on the Unix socket and, if configured, on a loopback address for scrapers that know only TCP.

use super::ServerError;
use crate::admin::Admin;
use crate::log::EventLog;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn answer<A: Admin>(admin: &A, registry: &Registry) -> Response {
    admin.refresh_metrics().await;
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// 200 if the agent is ready, else 503 with what it lacks.
pub(super) async fn readiness<A: Admin>(admin: &A) -> Response {
    match admin.status().await {
        Ok(status) if status.ready => "ready\n".into_response(),
        Ok(status) => {
            let problems: String = status.problems.iter().map(|problem| format!("{}\n", problem.message)).collect();
            (StatusCode::SERVICE_UNAVAILABLE, problems).into_response()
        }
        Err(failure) => (StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n")).into_response(),
    }
}

/// Serve `/metrics`, `/healthz` and `/readyz` on a TCP socket until `stop` is ready. Needs a tokio runtime.
///
/// # Errors
/// The address is no loopback address, or the socket fails.
pub async fn serve_metrics<A: Admin>(
    listener: TcpListener,
    admin: Arc<A>,
    registry: Arc<Registry>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    let unknown = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let address = listener.local_addr().map_err(|error| ServerError::Metrics(unknown, error))?;
    if !address.ip().is_loopback() {
        return Err(ServerError::NotLoopback(address));
    }
    let failed = |error| ServerError::Metrics(address, error);
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let ready = admin.clone();
    let app = Router::new()
        .route("/metrics", get(async move || answer(&*admin, &registry).await))
        .route("/healthz", get("ok\n"))
        .route("/readyz", get(async move || readiness(&*ready).await));
    axum::serve(listener, app).with_graceful_shutdown(stop).await.map_err(failed)
}

/// Figures of the log, for a registry.
impl Collector for EventLog {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.status();
        let counters = [
            ("shunt_events_written", "Events written to the event log", status.written),
            ("shunt_events_dropped", "Events that the event log could not take", status.dropped),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let up = ConstGauge::new(i64::from(status.error.is_none()));
        up.encode(encoder.encode_descriptor("shunt_events_up", "Whether the event log can be written", None, up.metric_type())?)?;
        let bytes = ConstGauge::new(i64::try_from(status.bytes).unwrap_or(i64::MAX));
        bytes.encode(encoder.encode_descriptor("shunt_events_bytes", "Size of the event log", None, bytes.metric_type())?)
    }
}
