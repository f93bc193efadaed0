//! The built-in relay: the rtpproxy control protocol, and media forwarded in user space, until SIGTERM or SIGINT.
#![forbid(unsafe_code)]

mod config;
mod engine;
mod media;
mod ports;
mod privileges;
mod service;
mod session;
mod table;
mod timeouts;

use clap::Parser;
use config::{Config, Relay};
use engine::Settings;
use media::{MediaSettings, Shared, Sockets};
use ports::Ports;
use service::Service;
use shunt_control::{Listener, Options, Protocol, Rare};
use shunt_daemon::{Capability, Failure, Pulse, Signals, keep_capabilities, say_ready, say_stopping, set_up_log};
use shunt_latch::Learner;
use shunt_net::Endpoint;
use shunt_udp::Socket;
use std::io;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often sessions are looked at.
const SWEEP: Duration = Duration::from_millis(500);
/// So much later than that is worth a line in the log.
const LATE: Duration = Duration::from_millis(200);
/// An address may come a moment after the network is up (duplicate address detection).
const ADDRESS_WAIT: Duration = Duration::from_secs(3);

/// The built-in relay of Shunt: it speaks the rtpproxy control protocol and forwards media.
#[derive(Parser)]
#[command(version = shunt_daemon::VERSION)]
struct Arguments {
    #[command(flatten)]
    common: shunt_daemon::CommonArguments,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    shunt_daemon::run("relay", &arguments.common, Config::complete, |config| {
        set_up_log(&config.log);
        run(config)
    })
}

fn run(config: &Config) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Other(error.to_string());
    let relay = &config.builtin_relay;
    let notify = config.notify.permit().map_err(|error| Failure::Config(error.to_string()))?;
    let (first, last) = (relay.ports.first, relay.ports.last);
    let ports = Ports::new(first, last, relay.quarantine).ok_or_else(|| {
        Failure::Config(format!(
            "builtin_relay.ports: {first}-{last} has no pair of an even port and the next one"
        ))
    })?;
    for address in &relay.addresses {
        wait_for(*address)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let _entered = runtime.enter();
    let mut sockets = Vec::new();
    let mut addresses = Vec::new();
    for address in &relay.listen {
        let options = Options {
            group: relay.socket_group.clone(),
            allow: Some(relay.allow.clone()),
            ..Options::default()
        };
        let socket = Listener::bind(address, Protocol::Rtpproxy, options).map_err(|error| Failure::bind(&address.to_string(), &error))?;
        addresses.push(socket.address().to_string());
        sockets.push(socket);
    }
    keep_capabilities(&[Capability::CAP_NET_BIND_SERVICE]);
    privileges::allow_descriptors(relay);
    let settings = Settings {
        addresses: relay.addresses.clone(),
        advertised: relay.advertised.clone(),
        ttl: Duration::from_secs(relay.ttl),
        setup_ttl: Duration::from_secs(relay.setup_ttl.unwrap_or(relay.ttl)),
        asymmetric: false,
        notify,
    };
    let shared = Arc::new(Shared::new(Learner::new(config.learning.policy())));
    let media = MediaSettings {
        threads: relay.threads,
        packet_limit: relay.packet_limit,
        tos: relay.tos,
    };
    let media = Sockets::start(&shared, ports, media).map_err(failed)?;
    let service = Arc::new(Service::new(settings, media, shared));
    runtime.block_on(serve(&service, sockets, &ready_line(relay, &addresses)))
}

/// The daemon's address must be one of this host.
fn wait_for(address: IpAddr) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        match Socket::bind(Endpoint::new(address, 0), 0) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && started.elapsed() < ADDRESS_WAIT => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(Failure::bind(&address.to_string(), &error)),
        }
    }
}

/// Control sockets and media addresses, for people.
fn ready_line(relay: &Relay, control: &[String]) -> String {
    let media: Vec<String> = relay.addresses.iter().map(ToString::to_string).collect();
    let (control, media) = (control.join(", "), media.join(", "));
    format!(
        "relay ready: commands on {control}; media on {media}, ports {}-{}",
        relay.ports.first, relay.ports.last
    )
}

async fn serve(service: &Arc<Service>, sockets: Vec<Listener>, line: &str) -> Result<(), Failure> {
    let mut signals = Signals::take()?;
    let stop = watch::Sender::new(false);
    let mut listeners = JoinSet::new();
    for socket in sockets {
        let mut stopped = stop.subscribe();
        listeners.spawn(socket.serve(Arc::clone(service), async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
    }
    say_ready(line);
    let result = tokio::select! {
        () = signals.received() => Ok(()),
        _ = listeners.join_next() => Err(Failure::Other("a control socket has failed".into())),
        failure = tick(service) => Err(failure),
    };
    say_stopping();
    tracing::info!("the relay ends; {} sessions end with it", service.sessions());
    // The files of Unix sockets go with the listeners.
    stop.send_replace(true);
    while listeners.join_next().await.is_some() {}
    service.close().await;
    result
}

/// Time-outs, and signs of life for systemd; it returns when a thread has ended.
async fn tick(service: &Service) -> Failure {
    let mut pulse = Pulse::new(SWEEP);
    let (mut late, mut last) = (Rare::default(), Instant::now());
    loop {
        pulse.due().await;
        let behind = last.elapsed().saturating_sub(pulse.period());
        last = Instant::now();
        if behind > LATE
            && let Some(left_out) = late.write(service.now())
        {
            tracing::warn!(
                "commands wait: the loop is {} ms late; {left_out} more since the last such line",
                behind.as_millis()
            );
        }
        if !service.is_alive() {
            return Failure::Other("a media thread has ended".into());
        }
        service.sweep();
        pulse.show();
    }
}
