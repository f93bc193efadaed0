//! The Linux data plane: a relay table in the kernel, served over BF Runtime until SIGTERM or SIGINT.
//!
//! At the end programs and entries stay in the kernel and go on forwarding.
#![forbid(unsafe_code)]

mod capture;
mod config;
mod events;
mod failures;
mod limit;
mod listen;
mod options;
mod peer;
mod plane;
mod read;
mod ring;
mod schema;
mod server;
mod sessions;
mod slice;
mod sock_diag;
mod tables;
mod write;

use capture::{Captures, socket_beside};
use clap::Parser;
use config::{Config, Listen, Softswitch};
use listen::{Bound, accept};
use plane::{Plane, PlaneError};
use server::{Program, Service};
use sessions::Sessions;
use shunt_bfrt::pb::bf_runtime_server::BfRuntimeServer;
use shunt_daemon::{Capability, Failure, Pulse, Signals, keep_capabilities, say_ready, set_up_log};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Server;

/// Work goes on while one of them decodes a large request. Each message wakes threads that are idle: more of them cost more.
const THREADS: usize = 2;
/// How often it tells systemd that it lives, at least.
const LOOK: Duration = Duration::from_millis(500);
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1800);

/// The Linux data plane of Shunt, served over BF Runtime.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    #[command(flatten)]
    common: Option<shunt_daemon::CommonArguments>,
    /// Removes what a stopped softswitch with this `pin_dir` has left in the kernel, and exits. May be repeated.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    unload: Vec<PathBuf>,
}

impl From<PlaneError> for Failure {
    fn from(error: PlaneError) -> Self {
        match error {
            PlaneError::Config(text) => Self::Config(text),
            other => Self::Other(other.to_string()),
        }
    }
}

fn main() -> ExitCode {
    shunt_xdp::return_freed_memory();
    let arguments = Arguments::parse();
    if let Some(common) = &arguments.common {
        return shunt_daemon::run("softswitch", common, Config::complete, |config| {
            set_up_log(&config.log);
            run(&config.softswitch)
        });
    }
    set_up_log(&shunt_daemon::Log::default());
    // One that is in use does not keep the others.
    arguments
        .unload
        .iter()
        .map(|folder| unload(folder))
        .fold(ExitCode::SUCCESS, |worst, done| match done {
            Ok(()) => worst,
            Err(failure) => failure.report("softswitch"),
        })
}

fn unload(pin_dir: &Path) -> Result<(), Failure> {
    let shown = pin_dir.display();
    if plane::unload(pin_dir)? {
        tracing::info!("programs, entries and settings of interfaces of {shown} are out of the kernel");
    } else {
        tracing::info!("there is nothing in {shown}");
    }
    Ok(())
}

fn run(settings: &Softswitch) -> Result<(), Failure> {
    // What may fail comes before the programs are loaded and attached.
    let server = listen::server(settings.tls.as_ref()).map_err(Failure::Config)?;
    let mut sockets = Vec::new();
    for address in &settings.listen {
        let bound = Bound::bind(address, &settings.socket_group);
        sockets.push(bound.map_err(|error| Failure::Other(format!("cannot listen on {address}: {error}")))?);
    }
    let beside = settings.listen.iter().find_map(|address| match address {
        Listen::Unix(path) => Some(socket_beside(path)),
        Listen::Tcp(_) => None,
    });
    let for_captures = beside.map(|path| {
        let bound = Bound::bind(&Listen::Unix(path.clone()), &settings.socket_group);
        bound.map_err(|error| Failure::Other(format!("cannot listen on {}: {error}", path.display())))
    });
    let for_captures = for_captures.transpose()?;
    let mut plane = Plane::open(settings)?;
    // What routes and programs need.
    keep_capabilities(&[Capability::CAP_NET_ADMIN, Capability::CAP_PERFMON, Capability::CAP_BPF]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        // A task may take a slice each time, so sockets are looked at after each.
        .event_interval(1)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failure::Other(error.to_string()))?;
    let addresses: Vec<String> = sockets
        .iter()
        .zip(&settings.listen)
        .map(|(socket, asked)| socket.address(asked))
        .collect();
    let programs = Program::all(&settings.programs, &plane).map_err(|error| Failure::Other(error.to_string()))?;
    let owner_sign = plane.owner_sign();
    let pinned = settings.pin_dir.display().to_string();
    let line = ready_line(&plane, &addresses);
    for (socket, address) in sockets.iter().zip(&addresses) {
        let who = settings.who_may(matches!(socket, Bound::Unix(..)));
        tracing::info!("{address}: {who} may read and write the tables");
    }
    let ring = plane.take_captures();
    let plane = Arc::new(tokio::sync::Mutex::new(plane));
    let captures = for_captures.zip(ring).map(|(socket, ring)| {
        let captures = Captures::new(Arc::clone(&plane), settings.owners.clone().into(), ring);
        (Arc::new(captures), socket)
    });
    let service = Service {
        plane: Arc::clone(&plane),
        programs: programs.into(),
        sessions: Arc::new(Sessions::new(settings.programs.clone())),
        owners: settings.owners.clone().into(),
        owner_sign,
    };
    let result = runtime.block_on(serve(service, sockets, captures, server, settings.request_limit, line));
    // The tasks hold the plane until the runtime is gone.
    runtime.shutdown_timeout(Duration::from_secs(2));
    tracing::info!("programs and entries stay in the kernel, pinned in {pinned}");
    result
}

/// The interfaces with their XDP modes, the addresses and the entries, for people.
fn ready_line(plane: &Plane, addresses: &[String]) -> String {
    let mut modes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for interface in plane.interfaces() {
        if interface.rx_queues == 1 {
            tracing::warn!(
                "{} has one receive queue: one CPU core takes all of its packets (ethtool -L)",
                interface.name
            );
        }
        modes
            .entry(interface.mode.map_or("none", shunt_xdp::Mode::name))
            .or_default()
            .push(interface.name);
    }
    let modes: Vec<String> = modes
        .into_iter()
        .map(|(mode, names)| format!("{mode} XDP on {}", names.join(", ")))
        .collect();
    let modes = if modes.is_empty() {
        "no interface".to_owned()
    } else {
        modes.join("; ")
    };
    let (entries, capacity) = (plane.relay.len(), plane.relay.capacity());
    format!(
        "softswitch ready: {modes}; BF Runtime on {}; {entries} of {capacity} entries in use",
        addresses.join(", ")
    )
}

async fn serve(
    service: Service,
    sockets: Vec<Bound>,
    captures: Option<(Arc<Captures>, Bound)>,
    server: Server,
    request_limit: usize,
    line: String,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Other(error.to_string());
    let connections = accept(sockets).map_err(|error| failed(&error))?;
    events::start(&service);
    let ending = captures.as_ref().map(|(captures, _)| Arc::clone(captures));
    if let Some((captures, socket)) = captures {
        let reader = Arc::clone(&captures);
        events::keep("captured packets", move || Arc::clone(&reader).read());
        tokio::spawn(captures.serve(socket));
    }
    let plane = Arc::clone(&service.plane);
    let runtime = BfRuntimeServer::new(service)
        .max_decoding_message_size(request_limit)
        .max_encoding_message_size(usize::MAX);
    let serving = server
        // A client that hangs or whose host died loses its binding after 2.8 s, so that its standby can take over.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .tcp_nodelay(true)
        .layer(limit::LimitStatus)
        .add_service(runtime)
        .serve_with_incoming(connections);
    let mut signals = Signals::take()?;
    say_ready(&line);
    let result = tokio::select! {
        result = serving => result.map_err(|error| failed(&error)),
        () = signals.received() => Ok(()),
        () = signs_of_life(plane) => Ok(()),
    };
    // The entries stay in the kernel, and nobody would read the ring.
    if let Some(captures) = ending {
        captures.end().await;
    }
    result
}

/// Tell systemd that this process lives, as long as the data plane can be had.
async fn signs_of_life(plane: Arc<tokio::sync::Mutex<Plane>>) {
    let mut pulse = Pulse::new(LOOK);
    loop {
        pulse.due().await;
        drop(plane.lock().await);
        pulse.show();
    }
}
