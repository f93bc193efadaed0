//! Mixes audio of conferences and tiles video, as the agent describes them over the control API, until SIGTERM or SIGINT.
#![forbid(unsafe_code)]

mod api;
mod audio;
mod clocks;
mod config;
mod decoder;
mod description;
mod listener;
mod reports;
mod sounds;
mod tilings;
mod tilings_api;
mod video;

use api::Service;
use audio::Engine;
use clap::Parser;
use clocks::Clocks;
use config::{Announcements, Config, Sounds};
use decoder::{Decoder, Sample, WAITING};
use shunt_daemon::{Capability, Failure, Pulse, Signals, keep_capabilities, say_ready, say_stopping, set_up_log};
use shunt_net::Endpoint;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilings_api::Pictures;
use tokio::sync::mpsc;

/// How far the port of video is above that of audio; the next one is that of video's RTCP.
pub const VIDEO: u16 = 2;
/// What the threads take to say that streams are over.
const FAREWELL: Duration = Duration::from_millis(60);
/// Between two trial decodes: times what the last one took, and at most.
const PAUSE: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often threads are looked after.
const LOOK: Duration = Duration::from_millis(500);
/// An address may come a moment after the network is up (duplicate address detection).
const ADDRESS_WAIT: Duration = Duration::from_secs(3);

/// The mixer of Shunt's conferences: one stream for each participant that plays one.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    #[command(flatten)]
    common: shunt_daemon::CommonArguments,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    shunt_daemon::run("mixer", &arguments.common, Config::complete, |config| {
        set_up_log(&config.log);
        run(config)
    })
}

fn run(config: &Config) -> Result<(), Failure> {
    let mixer = &config.mixer;
    let address = Endpoint::new(mixer.address, mixer.port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Other(error.to_string()))?;
    let _entered = runtime.enter();
    let listener = listener::bind(mixer).map_err(|error| Failure::Other(format!("cannot listen on {}: {error}", mixer.listen)))?;
    keep_capabilities(&[Capability::CAP_NET_BIND_SERVICE]);
    let clocks = Arc::new(Clocks::default());
    let sounds = mixer.announcements.as_ref().map(Announcements::load).transpose();
    let sounds = sounds.map_err(|error| Failure::Config(error.to_string()))?.unwrap_or_default();
    let engine = start(address, &clocks, &sounds)?;
    let decoder = Arc::new(Decoder::new(mixer.decoder.clone()));
    let (samples, waiting) = mpsc::channel(WAITING);
    let pictures = Pictures::new(Endpoint::new(mixer.address, mixer.port + VIDEO), clocks, samples, decoder);
    let service = Arc::new(Service::new(mixer.clone(), engine, pictures));
    let line = format!("mixer ready: commands on {}; audio on {address}", mixer.listen);
    runtime.spawn(try_sources(Arc::clone(&service.pictures), waiting));
    runtime.block_on(serve(service, listener, &line))
}

/// The daemon's address must be one of this host.
fn start(address: Endpoint, clocks: &Arc<Clocks>, sounds: &Sounds) -> Result<Engine, Failure> {
    let started = Instant::now();
    loop {
        match Engine::start(address, Arc::clone(clocks), sounds.clone()) {
            Ok(engine) => return Ok(engine),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && started.elapsed() < ADDRESS_WAIT => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(Failure::bind(&address.to_string(), &error)),
        }
    }
}

async fn serve(service: Arc<Service>, listener: listener::Bound, line: &str) -> Result<(), Failure> {
    let mut signals = Signals::take()?;
    say_ready(line);
    let path = listener.path();
    let result = tokio::select! {
        () = signals.received() => Ok(()),
        result = listener.serve(api::routes(Arc::clone(&service))) => Err(Failure::Other(format!("the control socket has failed: {result:?}"))),
        failure = look_after(&service) => Err(failure),
    };
    say_stopping();
    audio::lock(&service.engine.audio).end_all();
    service.pictures.end_all();
    tokio::time::sleep(FAREWELL).await;
    if let Some(path) = path {
        // It may be gone.
        let _ = std::fs::remove_file(path);
    }
    result
}

/// Decodes pictures of sources, one at a time, and with pauses: when an audience comes together, its tiles need the processors more.
async fn try_sources(pictures: Arc<Pictures>, mut waiting: mpsc::Receiver<Sample>) {
    while let Some(sample) = waiting.recv().await {
        let began = Instant::now();
        let outcome = pictures.decoder.tries(&sample).await;
        pictures.tried(&sample, &outcome);
        tokio::time::sleep((began.elapsed() * PAUSE).min(LONGEST_PAUSE)).await;
    }
}

/// Signs of life for systemd; it returns when a thread has ended.
async fn look_after(service: &Service) -> Failure {
    let mut pulse = Pulse::new(LOOK);
    loop {
        pulse.due().await;
        if !service.engine.is_alive() {
            return Failure::Other("the thread of audio has ended".into());
        }
        if !service.pictures.is_alive() {
            return Failure::Other("the thread of video has ended".into());
        }
        pulse.show();
    }
}
