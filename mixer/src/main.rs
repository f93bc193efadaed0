//! Mixes audio of conferences and tiles video, as the agent describes them over the control API, until SIGTERM or SIGINT.
#![forbid(unsafe_code)]

mod api;
mod audio;
mod config;
mod description;
mod listener;
mod tilings;
mod tilings_api;
mod video;

use api::Service;
use audio::Engine;
use clap::Parser;
use config::Config;
use sd_notify::NotifyState;
use shunt_daemon::{Failure, keep_capabilities, read_document, set_up_log};
use shunt_net::Endpoint;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilings_api::Pictures;
use tokio::signal::unix::{SignalKind, signal};

/// How far the port of video is above that of audio; the next one is that of video's RTCP.
pub const VIDEO: u16 = 2;
/// How often threads are looked after.
const LOOK: Duration = Duration::from_millis(500);
/// An address may come a moment after the network is up (duplicate address detection).
const ADDRESS_WAIT: Duration = Duration::from_secs(3);

/// The mixer of Shunt's conferences: one stream for each participant that plays one.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    /// The checked configuration: JSON as `shunt check-config --json` writes it; `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    config: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = read_config(&arguments.config).and_then(|config| {
        set_up_log(&config.log);
        run(&config)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("mixer"),
    }
}

fn read_config(path: &str) -> Result<Config, Failure> {
    let config: Config = read_document(path).map_err(|error| Failure::document(path, &error))?;
    config.complete().map_err(|error| Failure::Config(format!("{path}: {error}")))
}

fn run(config: &Config) -> Result<(), Failure> {
    let mixer = &config.mixer;
    let address = Endpoint::new(mixer.address, mixer.port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Other(error.to_string()))?;
    let _entered = runtime.enter();
    let listener = listener::bind(mixer).map_err(|error| Failure::Other(format!("cannot listen on {}: {error}", mixer.listen)))?;
    keep_capabilities(false);
    let engine = start(address)?;
    let pictures = Pictures::new(Endpoint::new(mixer.address, mixer.port + VIDEO));
    let service = Arc::new(Service::new(mixer.clone(), engine, pictures));
    let line = format!("mixer ready: commands on {}; audio on {address}", mixer.listen);
    runtime.block_on(serve(service, listener, &line))
}

/// The daemon's address must be one of this host.
fn start(address: Endpoint) -> Result<Engine, Failure> {
    let started = Instant::now();
    loop {
        match Engine::start(address) {
            Ok(engine) => return Ok(engine),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && started.elapsed() < ADDRESS_WAIT => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => {
                let text = format!("cannot bind {address}: {error}");
                return Err(if error.kind() == io::ErrorKind::AddrNotAvailable {
                    Failure::Config(text)
                } else {
                    Failure::Other(text)
                });
            }
        }
    }
}

async fn serve(service: Arc<Service>, listener: listener::Bound, line: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Other(error.to_string());
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    // Nobody has to read it.
    let _ = writeln!(io::stdout(), "READY {line}");
    let _ = sd_notify::notify(false, &[NotifyState::Ready, NotifyState::Status(line)]);
    let path = listener.path();
    let result = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        result = listener.serve(api::routes(Arc::clone(&service))) => Err(Failure::Other(format!("the control socket has failed: {result:?}"))),
        failure = look_after(&service) => Err(failure),
    };
    let _ = sd_notify::notify(false, &[NotifyState::Stopping]);
    if let Some(path) = path {
        // It may be gone.
        let _ = std::fs::remove_file(path);
    }
    result
}

/// Signs of life for systemd; it returns when a thread has ended.
async fn look_after(service: &Service) -> Failure {
    let mut watchdog = 0;
    let watched = sd_notify::watchdog_enabled(false, &mut watchdog);
    let period = if watched {
        LOOK.min(Duration::from_micros(watchdog / 3))
    } else {
        LOOK
    };
    let mut interval = tokio::time::interval(period.max(Duration::from_millis(1)));
    loop {
        interval.tick().await;
        if !service.engine.is_alive() {
            return Failure::Other("the thread of audio has ended".into());
        }
        if !service.pictures.is_alive() {
            return Failure::Other("the thread of video has ended".into());
        }
        if watched {
            let _ = sd_notify::notify(false, &[NotifyState::Watchdog]);
        }
    }
}
