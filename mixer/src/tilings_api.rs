//! The control API's part for tiled video (docs/reference/media-apis.md).

use crate::api::{Service, failure};
use crate::clocks::Clocks;
use crate::decoder::{Decoder, Outcome, Sample};
use crate::tilings::{MOST_TILES, Tiling};
use crate::video::{Engine, lock};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::json;
use shunt_net::Endpoint;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError};
use tokio::sync::mpsc;

/// The thread of video, which begins with the first tiling.
pub struct Pictures {
    address: Endpoint,
    clocks: Arc<Clocks>,
    engine: OnceLock<Engine>,
    starting: std::sync::Mutex<()>,
    samples: mpsc::Sender<Sample>,
    pub decoder: Arc<Decoder>,
}

impl Pictures {
    /// `samples`: pictures for the decoder.
    #[must_use]
    pub fn new(address: Endpoint, clocks: Arc<Clocks>, samples: mpsc::Sender<Sample>, decoder: Arc<Decoder>) -> Self {
        Self {
            address,
            clocks,
            engine: OnceLock::new(),
            starting: std::sync::Mutex::new(()),
            samples,
            decoder,
        }
    }

    #[must_use]
    pub fn address(&self) -> Endpoint {
        self.address
    }

    /// Tiles that are made here.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.engine.get().map_or(0, |engine| lock(&engine.video).sizes().2)
    }

    fn engine(&self) -> io::Result<&Engine> {
        let _one = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::start(self.address, Arc::clone(&self.clocks), self.samples.clone())?;
        Ok(self.engine.get_or_init(|| engine))
    }

    /// What the decoder says of a source's picture.
    pub fn tried(&self, sample: &Sample, outcome: &Outcome) {
        if let Some(engine) = self.engine.get() {
            lock(&engine.video).tried(sample, outcome);
        }
    }

    /// All tilings end.
    pub fn end_all(&self) {
        if let Some(engine) = self.engine.get() {
            lock(&engine.video).end_all();
        }
    }

    /// Whether the thread runs, or has not begun.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.engine.get().is_none_or(Engine::is_alive)
    }
}

pub fn routes() -> Router<Arc<Service>> {
    Router::new()
        .route("/v1/tilings", get(list))
        .route("/v1/tilings/{name}", put(describe).delete(end))
}

async fn list(State(service): State<Arc<Service>>) -> Response {
    let views = service
        .pictures
        .engine
        .get()
        .map_or(Vec::new(), |engine| lock(&engine.video).views());
    Json(json!({"epoch": service.epoch, "tilings": views})).into_response()
}

async fn describe(State(service): State<Arc<Service>>, Path(name): Path<String>, body: axum::body::Bytes) -> Response {
    let tiling: Tiling = match serde_json::from_slice(&body) {
        Ok(tiling) => tiling,
        Err(error) => return failure(StatusCode::BAD_REQUEST, "invalid-body", error.to_string()),
    };
    if let Err(error) = tiling.check() {
        return failure(StatusCode::BAD_REQUEST, "invalid", error.to_string());
    }
    let engine = match service.pictures.engine() {
        Ok(engine) => engine,
        Err(error) => {
            let text = format!("cannot bind {}: {error}", service.pictures.address);
            return failure(StatusCode::INTERNAL_SERVER_ERROR, "no-address", text);
        }
    };
    let mut video = lock(&engine.video);
    let (others, more) = (video.tiles_without(&name), tiling.tiles());
    if others + more > MOST_TILES {
        let text = format!("{others} tiles are made and {more} more wanted, {MOST_TILES} are the most");
        return failure(StatusCode::SERVICE_UNAVAILABLE, "full", text);
    }
    video.describe(&name, tiling);
    Json(json!({"epoch": service.epoch, "video": engine.address.to_string()})).into_response()
}

async fn end(State(service): State<Arc<Service>>, Path(name): Path<String>) -> Response {
    let ended = service.pictures.engine.get().is_some_and(|engine| lock(&engine.video).end(&name));
    if ended {
        StatusCode::NO_CONTENT.into_response()
    } else {
        failure(StatusCode::NOT_FOUND, "not-found", format!("there is no tiling {name:?}"))
    }
}

/// The thread's figures, for the registry.
pub struct Figures(pub Arc<Pictures>);

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (counts, sizes) = self.0.engine.get().map_or_else(Default::default, |engine| {
            let video = lock(&engine.video);
            (video.counts, video.sizes())
        });
        let trials = self.0.decoder.figures();
        let counters = [
            (
                "shunt_mixer_trial_decodes",
                "Pictures of sources that a decoder has decoded without a fault",
                trials.decoded,
            ),
            (
                "shunt_mixer_trial_decodes_undecodable",
                "Pictures of sources that a decoder could not decode",
                trials.undecodable,
            ),
            (
                "shunt_mixer_trial_decodes_unavailable",
                "Pictures of sources of which a decoder has said nothing",
                trials.unavailable,
            ),
            (
                "shunt_mixer_video_packets_received",
                "Packets of video and RTCP that came",
                counts.packets_in,
            ),
            ("shunt_mixer_video_packets_sent", "Packets of tiled streams", counts.packets_out),
            (
                "shunt_mixer_video_packets_refused",
                "Packets that were not from a tiling's address",
                counts.refused,
            ),
            (
                "shunt_mixer_video_send_failures",
                "Packets that the kernel did not take",
                counts.send_failures,
            ),
            (
                "shunt_mixer_video_key_frame_requests",
                "Key frames that sources were asked for",
                counts.requests,
            ),
            (
                "shunt_mixer_video_nacks",
                "Requests to sources for packets that have not come",
                counts.nacks,
            ),
            (
                "shunt_mixer_video_packets_retransmitted",
                "Packets of tiled streams that receivers have asked for again",
                counts.again,
            ),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let count = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let gauges = [
            ("shunt_mixer_tilings", "Tilings that are made here", count(sizes.0)),
            ("shunt_mixer_tiled_streams", "Their streams", count(sizes.1)),
            ("shunt_mixer_tiles", "Their tiles", count(sizes.2)),
        ];
        for (name, help, value) in gauges {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}
