//! The edge: it terminates browsers (ICE, DTLS, SRTP), and gives each of their media plain RTP towards the data plane, until SIGTERM or SIGINT.
#![forbid(unsafe_code)]

mod api;
mod config;
mod media;
mod model;
mod session;

use api::Api;
use clap::Parser;
use config::Config;
use media::Handle;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use shunt_admin::bind_unix;
use shunt_daemon::{Capability, Failure, Log, Pulse, Signals, keep_capabilities, say_ready, say_stopping, set_up_log};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, watch};

/// How often it is seen whether the media thread lives.
const LOOK: Duration = Duration::from_millis(500);
/// Events that a follower may be behind.
const EVENTS: usize = 1024;
/// Requests that are under way at the end may take so long.
const LAST: Duration = Duration::from_secs(2);
/// Libraries write what they read at lower levels, keys among it.
const LIBRARIES: &str = "str0m=error,is=error,sctp_proto=error,dimpl=error,h2=info,hyper=info,hyper_util=info,tower=info";

/// The edge of Shunt: browsers on one side, plain RTP on the other.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    #[command(flatten)]
    common: shunt_daemon::CommonArguments,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    shunt_daemon::run("edge", &arguments.common, Config::check, |config| {
        set_up_log(&log_of(&config.log));
        run(config)
    })
}

/// The log of the edge's own words.
fn log_of(log: &Log) -> Log {
    let level = if log.level == "warning" { "warn" } else { &log.level };
    Log {
        level: format!("{level},{LIBRARIES}"),
        format: log.format.clone(),
    }
}

fn run(config: &Config) -> Result<(), Failure> {
    let edge = &config.edge;
    keep_capabilities(&[Capability::CAP_NET_BIND_SERVICE]);
    // Keys of browsers are in its memory: none of it goes into core files.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!("core files may be written: {error}");
    }
    allow_descriptors();
    let (events, _) = broadcast::channel(EVENTS);
    let media = media::start(edge, events.clone()).map_err(|(what, error)| Failure::bind(&what, &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (listener, _) = bind_unix(&edge.control, 0o660, Some(&edge.socket_group)).map_err(|error| Failure::Other(error.to_string()))?;
    let listener = {
        let _entered = runtime.enter();
        UnixListener::from_std(listener)?
    };
    let addresses: Vec<String> = edge.listen.iter().map(ToString::to_string).collect();
    let line = format!(
        "edge ready: browsers at {}; plain RTP at {}, ports {}-{}; commands on {}",
        addresses.join(", "),
        edge.address,
        edge.ports.first,
        edge.ports.last,
        edge.control.display()
    );
    let media = Arc::new(media);
    let result = runtime.block_on(serve(&media, listener, events, &line));
    // The API's tasks end with the runtime, and their share of the thread with them.
    drop(runtime);
    if let Ok(mut media) = Arc::try_unwrap(media).map_err(|_| tracing::error!("requests were under way at the end")) {
        media.stop();
    }
    let _ = std::fs::remove_file(&edge.control);
    result
}

/// Raise the limit of open files as far as it goes: a socket for each medium of each browser.
fn allow_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("the limit of open files stays at {soft}: {error}");
    }
}

async fn serve(media: &Arc<Handle>, listener: UnixListener, events: broadcast::Sender<model::Event>, line: &str) -> Result<(), Failure> {
    let mut signals = Signals::take()?;
    let (stop, stopping) = watch::channel(false);
    let routes = Api::new(Arc::clone(media), events, stopping.clone()).routes();
    let mut ended = stopping.clone();
    let serving = axum::serve(listener, routes).with_graceful_shutdown(async move {
        let _ = ended.wait_for(|stop| *stop).await;
    });
    let mut serving = tokio::spawn(async move { serving.await });
    say_ready(line);
    let result = tokio::select! {
        () = signals.received() => Ok(()),
        _ = &mut serving => Err(Failure::Other("the control socket has failed".into())),
        failure = watch_media(media) => Err(failure),
    };
    say_stopping();
    stop.send_replace(true);
    if tokio::time::timeout(LAST, &mut serving).await.is_err() {
        serving.abort();
    }
    result
}

/// Signs of life for systemd; it returns when the media thread has ended.
async fn watch_media(media: &Handle) -> Failure {
    let mut pulse = Pulse::new(LOOK);
    loop {
        pulse.due().await;
        if !media.is_alive() {
            return Failure::Other("the media thread has ended".into());
        }
        pulse.show();
    }
}
