//! The resources. `docs/admin-api.md` describes them.

use super::error::ApiError;
use super::extract::{Body, Names, Parameters};
use super::feed::Feed;
use super::peer::Peer;
use super::{API, Api, metrics};
use crate::admin::Admin;
use crate::log::LogStatus;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use shunt_admin_model::Failure;
use shunt_admin_model::Text;
use shunt_admin_model::{Announcements, Join, ParticipantUpdate, QualityChange, TargetChange, TilingWish};
use shunt_admin_model::{CallFilter, CaptureFilter, CountersOf, LogFilter, Status, StopOf};
use shunt_net::Endpoint;
use std::future::Future;
use std::sync::Arc;

type Shared<A> = State<Arc<Api<A>>>;
type Answer = Result<Response, ApiError>;

const MOST_CALLS: usize = 1_000;

pub(super) fn all<A: Admin>(api: Arc<Api<A>>) -> Router {
    let body = api.settings.body;
    Router::new()
        .route("/v1/status", get(status::<A>))
        .route("/v1/calls", get(calls::<A>))
        .route("/v1/calls/{call}", get(call::<A>))
        .route("/v1/calls/{call}/release", post(release::<A>))
        .route("/v1/trace", get(trace::<A>))
        .route("/v1/drain", get(drain_status::<A>).post(drain::<A>).delete(end_drain::<A>))
        .route("/v1/audit", post(audit::<A>))
        .route("/v1/log", get(log_filter::<A>).put(set_log_filter::<A>))
        .route("/v1/events", get(events::<A>))
        .route("/v1/estimates", get(estimates::<A>))
        .route("/v1/capture", get(capture::<A>))
        .merge(conferences())
        .route(
            "/metrics",
            get(async |State(api): Shared<A>| metrics::answer(&*api.admin, &api.registry).await),
        )
        .route("/healthz", get("ok\n"))
        .route("/readyz", get(async |State(api): Shared<A>| metrics::readiness(&*api.admin).await))
        .fallback(no_resource)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(body))
        .layer(from_fn(check_peer))
        .with_state(api)
}

fn conferences<A: Admin>() -> Router<Arc<Api<A>>> {
    Router::new()
        .route("/v1/conferences", get(list_conferences::<A>).post(create_conference::<A>))
        .route("/v1/conferences/{conference}", get(conference::<A>).delete(end_conference::<A>))
        .route("/v1/conferences/{conference}/participants", post(join::<A>))
        .route(
            "/v1/conferences/{conference}/participants/{participant}",
            patch(update_participant::<A>).merge(delete(leave::<A>)),
        )
        .route("/v1/conferences/{conference}/quality", post(set_quality::<A>))
        .route("/v1/conferences/{conference}/targets", post(set_targets::<A>))
        .route("/v1/conferences/{conference}/tiling", put(set_tiling::<A>).delete(end_tiling::<A>))
        .route("/v1/conferences/{conference}/announcements", put(set_announcements::<A>))
}

async fn check_peer(ConnectInfo(peer): ConnectInfo<Peer>, request: Request, next: Next) -> Response {
    if peer.is_allowed().await {
        return next.run(request).await;
    }
    tracing::warn!(
        "admin API: user {} (group {}, process {:?}) may not use it",
        peer.uid,
        peer.gid,
        peer.pid
    );
    let message = format!("user {} is neither root nor the agent's user nor of its group", peer.uid);
    ApiError::new(StatusCode::FORBIDDEN, "forbidden", message).into_response()
}

async fn no_resource(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no-resource", format!("there is no resource {}", uri.path()))
}

async fn no_method(uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "no-method",
        format!("{} does not have this method", uri.path()),
    )
}

/// Wait for the agent, but not for ever.
async fn ask<A, T>(api: &Api<A>, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, ApiError> {
    let limit = api.settings.timeout;
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(ApiError::from),
        Err(_) => Err(ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout",
            format!("the agent has not answered within {} s", limit.as_secs_f64()),
        )),
    }
}

async fn json<A, T: Serialize>(api: &Api<A>, answer: impl Future<Output = Result<T, Failure>>) -> Answer {
    Ok(Json(ask(api, answer).await?).into_response())
}

async fn done<A>(api: &Api<A>, answer: impl Future<Output = Result<(), Failure>>) -> Answer {
    ask(api, answer).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Serialize)]
struct FullStatus {
    api: u32,
    epoch: u64,
    #[serde(flatten)]
    status: Status,
    events: LogStatus,
    followers: usize,
}

async fn status<A: Admin>(State(api): Shared<A>, Parameters(Nothing {}): Parameters<Nothing>) -> Answer {
    let status = ask(&api, api.admin.status()).await?;
    let full = FullStatus {
        api: API,
        epoch: api.log.epoch(),
        status,
        events: api.log.status(),
        followers: api.settings.followers - api.followers.available_permits(),
    };
    Ok(Json(full).into_response())
}

/// No parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn calls<A: Admin>(State(api): Shared<A>, Parameters(filter): Parameters<CallFilter>) -> Answer {
    if !(1..=MOST_CALLS).contains(&filter.limit) {
        return Err(ApiError::parameter(
            "limit",
            format!("limit: {} is not in 1..{MOST_CALLS}", filter.limit),
        ));
    }
    json(&api, api.admin.calls(filter)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallQuery {
    #[serde(default = "fresh")]
    counters: CountersOf,
}

fn fresh() -> CountersOf {
    CountersOf::Fresh
}

async fn call<A: Admin>(State(api): Shared<A>, Names(call): Names<Text>, Parameters(query): Parameters<CallQuery>) -> Answer {
    json(&api, api.admin.call(call, query.counters == CountersOf::Fresh)).await
}

async fn release<A: Admin>(State(api): Shared<A>, Names(call): Names<Text>) -> Answer {
    done(&api, api.admin.release(call)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceQuery {
    source: Endpoint,
    destination: Endpoint,
}

async fn trace<A: Admin>(State(api): Shared<A>, Parameters(query): Parameters<TraceQuery>) -> Answer {
    json(&api, api.admin.trace(query.source, query.destination)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    stop: StopOf,
    #[serde(default)]
    group: bool,
}

async fn drain_status<A: Admin>(State(api): Shared<A>) -> Answer {
    json(&api, api.admin.drain_status()).await
}

async fn drain<A: Admin>(State(api): Shared<A>, Body(body): Body<DrainBody>) -> Answer {
    json(&api, api.admin.drain(Some(body.stop), body.group)).await
}

async fn end_drain<A: Admin>(State(api): Shared<A>) -> Answer {
    json(&api, api.admin.drain(None, false)).await
}

async fn audit<A: Admin>(State(api): Shared<A>) -> Answer {
    json(&api, api.admin.audit()).await
}

async fn log_filter<A: Admin>(State(api): Shared<A>) -> Answer {
    json(&api, api.admin.log_filter()).await
}

async fn set_log_filter<A: Admin>(State(api): Shared<A>, Body(filter): Body<LogFilter>) -> Answer {
    json(&api, api.admin.set_log_filter(filter)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// A sequence number, or `next`; missing: all that are kept.
    from: Option<String>,
    #[serde(default = "yes")]
    follow: bool,
}

fn yes() -> bool {
    true
}

fn begin_feed<A>(api: &Api<A>) -> Result<(Feed, Response), ApiError> {
    let most = api.settings.followers;
    let busy = || {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            format!("{most} followers are connected already"),
        )
    };
    let place = api.followers.clone().try_acquire_owned().map_err(|_| busy())?;
    Feed::new(api, place).ok_or_else(busy)
}

async fn events<A: Admin>(State(api): Shared<A>, Parameters(query): Parameters<EventsQuery>) -> Answer {
    let status = api.log.status();
    let from = match query.from.as_deref() {
        None => None,
        Some("next") => Some(status.next),
        Some(text) => Some(
            text.parse()
                .map_err(|_| ApiError::parameter("from", format!("from: {text:?} is neither a sequence number nor \"next\"")))?,
        ),
    };
    let (feed, response) = begin_feed(&api)?;
    tokio::spawn(feed.events(api.log.follow(from), query.follow, (api.log.epoch(), status.first, status.next)));
    Ok(response)
}

async fn estimates<A: Admin>(State(api): Shared<A>) -> Answer {
    let estimates = ask(&api, api.admin.estimates()).await?;
    let (feed, response) = begin_feed(&api)?;
    tokio::spawn(feed.estimates(estimates));
    Ok(response)
}

async fn capture<A: Admin>(
    State(api): Shared<A>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Parameters(filter): Parameters<CaptureFilter>,
) -> Answer {
    if filter.port.is_some() && filter.address.is_none() {
        return Err(ApiError::parameter("port", "port: it needs an address".to_owned()));
    }
    // A capture begins only with a place for its stream.
    let (feed, response) = begin_feed(&api)?;
    let lines = ask(&api, api.admin.capture(filter, peer.to_string())).await?;
    tokio::spawn(feed.capture(lines));
    Ok(response)
}

#[derive(Serialize)]
struct List<T> {
    conferences: T,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateBody {
    conference: Text,
}

async fn list_conferences<A: Admin>(State(api): Shared<A>) -> Answer {
    let conferences = ask(&api, api.admin.conferences()).await?;
    Ok(Json(List { conferences }).into_response())
}

async fn create_conference<A: Admin>(State(api): Shared<A>, Body(body): Body<CreateBody>) -> Answer {
    json(&api, api.admin.create_conference(body.conference)).await
}

async fn conference<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>) -> Answer {
    json(&api, api.admin.conference(name)).await
}

async fn end_conference<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>) -> Answer {
    done(&api, api.admin.end_conference(name)).await
}

async fn join<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>, Body(body): Body<Join>) -> Answer {
    json(&api, api.admin.join(name, body)).await
}

async fn update_participant<A: Admin>(
    State(api): Shared<A>,
    Names((name, participant)): Names<(Text, Text)>,
    Body(body): Body<ParticipantUpdate>,
) -> Answer {
    json(&api, api.admin.update_participant(name, participant, body)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaveQuery {
    #[serde(default = "removed")]
    reason: String,
}

fn removed() -> String {
    "removed".to_owned()
}

async fn leave<A: Admin>(
    State(api): Shared<A>,
    Names((name, participant)): Names<(Text, Text)>,
    Parameters(query): Parameters<LeaveQuery>,
) -> Answer {
    done(&api, api.admin.leave(name, participant, query.reason)).await
}

async fn set_quality<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>, Body(body): Body<QualityChange>) -> Answer {
    done(&api, api.admin.set_quality(name, body)).await
}

async fn set_targets<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>, Body(body): Body<TargetChange>) -> Answer {
    done(&api, api.admin.set_targets(name, body)).await
}

async fn set_tiling<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>, Body(body): Body<TilingWish>) -> Answer {
    json(&api, api.admin.set_tiling(name, body)).await
}

async fn set_announcements<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>, Body(body): Body<Announcements>) -> Answer {
    done(&api, api.admin.set_announcements(name, body)).await
}

async fn end_tiling<A: Admin>(State(api): Shared<A>, Names(name): Names<Text>) -> Answer {
    done(&api, api.admin.end_tiling(name)).await
}
