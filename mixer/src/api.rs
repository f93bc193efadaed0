//! The control API: HTTP/1.1 with JSON (docs/reference/media-apis.md). What is described is all there is to a conference, so that a request may come again.

use crate::audio::{Audio, Engine, lock};
use crate::config::Mixer;
use crate::decoder;
use crate::description::{ConferenceView, Description};
use crate::tilings::MOST_TILES;
use crate::tilings_api::{self, Pictures};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The version of the API.
const API: u32 = 1;
/// Octets of a description: a participant is some 300.
const BODY: usize = 4 << 20;
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What handlers share.
pub struct Service {
    settings: Mixer,
    pub engine: Engine,
    pub pictures: Arc<Pictures>,
    /// This run of the mixer: higher for each.
    pub epoch: u64,
    started: Instant,
    registry: Registry,
}

#[derive(Serialize)]
struct Status {
    api: u32,
    epoch: u64,
    version: &'static str,
    pid: u32,
    uptime_s: f64,
    /// Where audio is to go.
    audio: String,
    conferences: usize,
    participants: usize,
    receivers: usize,
    most_receivers: usize,
    /// The share of a core that mixing takes, and from which on no conference is taken.
    load: f64,
    most_load: f64,
    /// Where video is to go.
    video: String,
    tiles: usize,
    most_tiles: usize,
    /// How trial decodes of sources have gone.
    trial_decode: decoder::Figures,
    /// Why no conference is taken; `null`: one is.
    full: Option<String>,
}

impl Service {
    #[must_use]
    pub fn new(settings: Mixer, engine: Engine, pictures: Pictures) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Figures(Arc::clone(&engine.audio))));
        let pictures = Arc::new(pictures);
        registry.register_collector(Box::new(tilings_api::Figures(Arc::clone(&pictures))));
        Self {
            settings,
            engine,
            pictures,
            epoch: u64::try_from(epoch).unwrap_or(u64::MAX),
            started: Instant::now(),
            registry,
        }
    }

    fn address(&self) -> String {
        shunt_net::Endpoint::new(self.settings.address, self.settings.port).to_string()
    }

    /// Why so many more receivers cannot be taken, of a conference that is not there yet.
    fn full(&self, audio: &Audio, more: usize) -> Option<String> {
        let (.., receivers) = audio.sizes();
        if receivers + more > self.settings.receivers {
            return Some(format!(
                "{receivers} receivers are served and {more} more wanted, {} are the most (mixer.receivers)",
                self.settings.receivers
            ));
        }
        (audio.load > self.settings.load).then(|| {
            let (load, most) = (100.0 * audio.load, 100.0 * self.settings.load);
            format!("mixing takes {load:.0} % of a core, from {most:.0} % on no conference is taken (mixer.load)")
        })
    }

    fn status(&self) -> Status {
        let audio = lock(&self.engine.audio);
        let (conferences, participants, receivers) = audio.sizes();
        Status {
            api: API,
            epoch: self.epoch,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            audio: self.address(),
            conferences,
            participants,
            receivers,
            most_receivers: self.settings.receivers,
            load: audio.load,
            most_load: self.settings.load,
            video: self.pictures.address().to_string(),
            tiles: self.pictures.tiles(),
            most_tiles: MOST_TILES,
            trial_decode: self.pictures.decoder.figures(),
            full: self.full(&audio, 1),
        }
    }
}

pub fn failure(status: StatusCode, code: &str, message: impl Into<String>) -> Response {
    (status, Json(json!({"error": {"code": code, "message": message.into()}}))).into_response()
}

/// The resources.
pub fn routes(service: Arc<Service>) -> Router {
    Router::new()
        .route(
            "/v1/status",
            get(async |State(service): State<Arc<Service>>| Json(service.status())),
        )
        .route("/v1/conferences", get(list))
        .route("/v1/conferences/{name}", put(describe).delete(end))
        .merge(tilings_api::routes())
        .route("/metrics", get(metrics))
        .route("/healthz", get("ok\n"))
        .fallback(async || failure(StatusCode::NOT_FOUND, "no-resource", "there is no such resource"))
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(service)
}

async fn list(State(service): State<Arc<Service>>) -> Response {
    let conferences = ConferenceView::all(&lock(&service.engine.audio));
    Json(json!({"epoch": service.epoch, "conferences": conferences})).into_response()
}

async fn describe(State(service): State<Arc<Service>>, Path(name): Path<String>, body: axum::body::Bytes) -> Response {
    let description: Description = match serde_json::from_slice(&body) {
        Ok(description) => description,
        Err(error) => return failure(StatusCode::BAD_REQUEST, "invalid-body", error.to_string()),
    };
    let checked = match description.audio.check() {
        Ok(checked) => checked,
        Err(error) => return failure(StatusCode::BAD_REQUEST, "invalid", error.to_string()),
    };
    let mut audio = lock(&service.engine.audio);
    // One that is here stays here as long as there is room: moving it would be a gap for all.
    let more = description.audio.receivers().saturating_sub(audio.receivers(&name));
    let full = if audio.has(&name) && audio.sizes().2 + more <= service.settings.receivers {
        None
    } else {
        service.full(&audio, more)
    };
    if let Some(reason) = full {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "full", reason);
    }
    audio.describe(&name, checked);
    Json(json!({"epoch": service.epoch, "audio": service.address()})).into_response()
}

async fn end(State(service): State<Arc<Service>>, Path(name): Path<String>) -> Response {
    if lock(&service.engine.audio).end(&name) {
        StatusCode::NO_CONTENT.into_response()
    } else {
        failure(StatusCode::NOT_FOUND, "not-found", format!("there is no conference {name:?}"))
    }
}

async fn metrics(State(service): State<Arc<Service>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &service.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The thread's figures, for the registry.
#[derive(Debug)]
struct Figures(Arc<Mutex<Audio>>);

impl fmt::Debug for Audio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audio")
            .field("counts", &self.counts)
            .field("load", &self.load)
            .finish_non_exhaustive()
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (counts, sizes, load) = {
            let audio = lock(&self.0);
            (audio.counts, audio.sizes(), audio.load)
        };
        let counters = [
            ("shunt_mixer_packets_received", "Packets that came", counts.packets_in),
            ("shunt_mixer_packets_sent", "Packets of mixes", counts.packets_out),
            (
                "shunt_mixer_packets_refused",
                "Packets that were no RTP, or not from a conference's address",
                counts.refused,
            ),
            (
                "shunt_mixer_send_failures",
                "Packets that the kernel did not take",
                counts.send_failures,
            ),
            (
                "shunt_mixer_codec_failures",
                "Ticks of a conference in which a codec failed",
                counts.codec_failures,
            ),
            ("shunt_mixer_frames_decoded", "Frames of 20 ms that were mixed", counts.decoded),
            ("shunt_mixer_frames_encoded", "Frames of 20 ms that were encoded", counts.encoded),
            ("shunt_mixer_ticks", "Ticks of 20 ms", counts.ticks),
            (
                "shunt_mixer_ticks_skipped",
                "Ticks that were left out because the thread was late",
                counts.skipped,
            ),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let count = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let gauges = [
            ("shunt_mixer_conferences", "Conferences that are mixed here", count(sizes.0)),
            ("shunt_mixer_participants", "Their participants", count(sizes.1)),
            ("shunt_mixer_receivers", "Participants that get a mix", count(sizes.2)),
        ];
        for (name, help, value) in gauges {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let metric = ConstGauge::new(load);
        metric.encode(encoder.encode_descriptor(
            "shunt_mixer_load",
            "The share of a core that mixing takes",
            None,
            metric.metric_type(),
        )?)
    }
}
