//! Starts and stops the agent.

use crate::admin::AgentView;
use crate::clock::Clock;
use crate::commands::Commands;
use crate::conference::Conferences;
use crate::config::{Config, DataPlane, Tls};
use crate::core::{Core, Parts};
use crate::events::Events;
use crate::hep::{Hep, Listener as HepListener};
use crate::ng::NgCommands;
use crate::relays::Relays;
use crate::restore;
use crate::standby::{Front, Pair, hold_or_stand_by, host_name, this_process};
use crate::tasks::{keep_running, ticks, watch_lateness};
use crate::{data_plane, hashes, listings, metrics};
use prometheus_client::registry::Registry;
use shunt_admin::{EventLog, LogSettings, Server, ServerSettings};
use shunt_calls::{Book, Limits, Rate, RelayId, Settings};
use shunt_control::{Listener, Options, Protocol, Service};
use shunt_daemon::{Capability, Failure, Pulse, Signals, keep_capabilities, say_draining, say_ready, say_stopping};
use shunt_journal::{Grants, Journal};
use shunt_notify::Permit;
use shunt_plane::{Event, Plane, StoredHash, Target};
use shunt_standby::{Fence, Holder};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// An entry must be reported idle well before a relay's own time-out.
const LEAST_IDLE: Duration = Duration::from_secs(1);
/// Most concurrent commands.
const COMMANDS_AT_ONCE: u32 = 4096;
/// Time without an answer after which the data plane counts as gone.
const DATA_PLANE_PATIENCE: Duration = Duration::from_secs(2);
const ORPHANS_EVERY: Duration = Duration::from_secs(5);
/// Interval for reporting collected packets.
const GATHERED_EVERY: Duration = Duration::from_millis(250);
/// Pause before a HEP socket in use is tried again.
const HEP_RETRY: Duration = Duration::from_secs(1);
/// Longest interval between watchdog notifications to systemd.
const LOOK: Duration = Duration::from_millis(500);

/// How an agent has ended.
enum End {
    /// By a signal, with the lease that it held.
    Stopped(Option<Box<Lease>>),
    /// Because another agent of its group is active, with the reason.
    Lost(String),
}

/// A lease to return.
struct Lease {
    grants: Grants,
    text: String,
}

fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Serves until a signal. An agent of a pair that is no longer active discards everything and restarts as a standby.
///
/// # Errors
/// A configured resource is not available.
pub fn run(config: &Config) -> Result<(), Failure> {
    let mut said = String::new();
    loop {
        let permit = config.notify.permit().map_err(|error| Failure::Config(error.to_string()))?;
        let runtime = new_runtime()?;
        let result = runtime.block_on(serve(config, permit));
        // Tasks that wait for a dead peer are not awaited. The runtime closes all sockets.
        runtime.shutdown_background();
        match result? {
            End::Stopped(lease) => return lease.map_or(Ok(()), |lease| release(*lease)),
            End::Lost(why) => {
                // An agent that cannot bind the data plane tries again.
                if why != said {
                    tracing::error!("no longer in charge: {why}; standing by");
                }
                said = why;
            }
        }
    }
}

/// Returns the lease, so that the other agent may take over at once.
fn release(mut lease: Lease) -> Result<(), Failure> {
    if let Err(error) = new_runtime()?.block_on(lease.grants.release(&lease.text)) {
        tracing::warn!("the lease is left to expire: {error}");
    }
    Ok(())
}

/// Opens the event log for the admin API; without its folder there is no log and no admin API.
fn open_events(config: &Config, clock: Clock) -> Events {
    let log = EventLog::open(LogSettings::new(config.admin.events.clone()));
    if let Err(error) = &log {
        tracing::error!("admin.events {}: {error}: events are not kept", config.admin.events.display());
    }
    Events::new(log.ok(), clock)
}

fn admin_view(core: &Arc<Core>, config: &Config, sockets: &Sockets) -> AgentView {
    let control = sockets
        .control
        .iter()
        .chain(&sockets.ng)
        .map(|listener| (listener.address().to_string(), listener.statistics()));
    AgentView {
        core: Arc::clone(core),
        target: config.data_plane.as_ref().map(|plane| plane.target.clone()),
        control: control.collect(),
        has_hep: config.hep.is_some(),
        since: Mutex::default(),
    }
}

fn serve_admin(
    core: &Arc<Core>,
    config: &Config,
    view: AgentView,
    stopping: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) -> Result<(), Failure> {
    let Some(log) = core.events().log().cloned() else { return Ok(()) };
    let mut registry = Registry::default();
    metrics::register(core, view.has_hep, &mut registry);
    registry.register_collector(Box::new(log.clone()));
    let mut settings = ServerSettings::new(config.admin.socket.clone());
    settings.group = Some(config.admin.socket_group.clone());
    let server =
        Server::bind(settings, Arc::new(view), log, Arc::new(registry)).map_err(|error| Failure::Other(format!("admin: {error}")))?;
    let mut stopping = stopping.clone();
    serving.spawn(async move {
        let stop = async move {
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        if let Err(error) = server.run(stop).await {
            tracing::error!("admin API: {error}");
        }
    });
    Ok(())
}

/// The sockets that are bound at the start.
struct Sockets {
    control: Vec<Listener>,
    ng: Vec<Listener>,
    /// `None`: none is configured, or the active agent of a pair binds it.
    hep: Option<HepListener>,
}

async fn serve(config: &Config, permit: Permit) -> Result<End, Failure> {
    let shared = config.journal.as_ref().map(crate::config::Journal::shared).transpose();
    let shared = shared.map_err(|error| Failure::Config(error.to_string()))?.flatten();
    let sockets = bind(config, shared.is_none()).await?;
    let cpu_interface = config.data_plane.as_ref().and_then(|settings| settings.cpu_interface.as_deref());
    // Capabilities for low ports, and for packet sockets if they are configured.
    let mut wanted = vec![Capability::CAP_NET_BIND_SERVICE];
    wanted.extend(cpu_interface.map(|_| Capability::CAP_NET_RAW));
    keep_capabilities(&wanted);
    let clock = Clock::start();
    let pair = shared.as_ref().map(|_| make_pair(config, &sockets, clock)).transpose()?;
    let (mut book, relay_ids) = make_book(config);
    let relays = Relays::new(&config.relays, &relay_ids).map_err(|error| Failure::Config(error.to_string()))?;
    let relays = Arc::new(relays);
    let fence = pair.as_ref().map_or_else(Fence::alone, |(pair, _)| pair.fence.clone());
    let (plane, events) = match &config.data_plane {
        Some(settings) => Some(start_plane(config, settings, fence)?).unzip(),
        None => (None, None),
    };
    for listener in sockets.control.iter().chain(&sockets.ng) {
        declare_own(&mut book, listener);
    }
    let (journal, restoring) = match &config.journal {
        Some(settings) => Some(match &shared {
            None => Journal::start(settings.path.clone())?,
            Some(shared) => Journal::start_shared(shared.clone())?,
        })
        .unzip(),
        None => (None, None),
    };
    let clock = Clock::start();
    let kept = open_events(config, clock);
    let documents = pair.as_ref().and(journal.as_ref()).map(Journal::documents);
    let conferences = config.conference.as_ref().zip(plane.clone()).map(|(settings, plane)| {
        raise_open_files();
        Conferences::start(
            settings,
            cpu_interface,
            config.learning.policy(),
            clock,
            plane,
            kept.log().cloned(),
            documents,
        )
    });
    let parts = Parts {
        plane,
        conferences,
        relays,
        journal,
        pair: pair.as_ref().map(|(pair, _)| Arc::clone(pair)),
        permit,
        events: kept,
        drain_file: config.admin.socket.with_extension("drain"),
    };
    let core = Core::new(clock, book, parts);
    if pair.is_none() {
        core.restore_own_drain();
    }
    match restoring {
        Some(restoring) => start_journal(&core, restoring),
        None => core.set_restored(),
    }
    start_tasks(&core, relay_ids, events);
    let mut signals = Signals::take()?;
    let (stop, stopping) = watch::channel(false);
    let line = ready_line(config, &sockets);
    let view = admin_view(&core, config, &sockets);
    let mut serving = start_listeners(&core, config, sockets, &stopping);
    serve_admin(&core, config, view, &stopping, &mut serving)?;
    let pair = pair.zip(shared).map(|((pair, me), shared)| {
        let grants = || Grants::new(shared.clone(), me.clone(), lease_length(config));
        tokio::spawn(hold_or_stand_by(Arc::clone(&pair), grants(), Arc::clone(&core)));
        start_hep(&core, &pair, config);
        (pair, grants())
    });
    say_ready(&line);
    let lost = async {
        match &pair {
            Some((pair, _)) => pair.lost().await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        () = told_to_stop(&core, &mut signals, config.control.drain_on_stop_s) => Ok(()),
        _ = serving.join_next() => Err(Failure::Other("a socket has failed".into())),
        why = lost => {
            core.abandon(&why);
            return Ok(End::Lost(why));
        }
        () = signs_of_life() => Ok(()),
    };
    say_stopping();
    stop.send_replace(true);
    while serving.join_next().await.is_some() {}
    core.close().await;
    let lease = pair.and_then(|(pair, grants)| {
        Some(Box::new(Lease {
            grants,
            text: pair.text()?,
        }))
    });
    result.map(|()| End::Stopped(lease))
}

/// Returns when the agent must stop: after a signal, and once no entry is left, `drain_s` seconds have passed, or a second signal has come.
async fn told_to_stop(core: &Arc<Core>, signals: &mut Signals, drain_s: u64) {
    signals.received().await;
    if drain_s == 0 {
        return;
    }
    core.drain_to_stop();
    let until = Instant::now() + Duration::from_secs(drain_s);
    tracing::info!("told to stop: new calls stay on the relay; the agent stops when no entry is left, after {drain_s} s at most");
    loop {
        let (calls, entries) = core.read(|book| (book.call_count(), book.planned_count()));
        if entries == 0 {
            return;
        }
        if Instant::now() >= until {
            tracing::warn!("control.drain_on_stop_s: {drain_s} s are over; {calls} calls go on without this agent, with {entries} entries");
            return;
        }
        say_draining(&format!("{entries} entries have to go before it stops"), 10 * LOOK);
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = signals.received() => {
                tracing::warn!("told to stop again; {calls} calls go on without this agent");
                return;
            }
        }
    }
}

fn lease_length(config: &Config) -> Duration {
    Duration::from_millis(config.standby.lease_ms)
}

/// Returns this agent's role in its pair, and its name in a lease.
fn make_pair(config: &Config, sockets: &Sockets, clock: Clock) -> Result<(Arc<Pair>, Holder), Failure> {
    let random = getrandom::u64().map_err(|error| Failure::Other(format!("no random number: {error}")))?;
    let name = config.standby.name.clone().or_else(host_name).unwrap_or_default();
    let first = |listeners: &[Listener]| listeners.first().map(|listener| listener.address().to_string());
    let control = config
        .standby
        .control
        .clone()
        .or_else(|| first(&sockets.control))
        .unwrap_or_default();
    let ng = config.standby.ng.clone().or_else(|| first(&sockets.ng)).unwrap_or_default();
    let me = this_process(name, control, ng, format!("{random:016x}"));
    Ok((Pair::new(clock, lease_length(config), me.clone()), me))
}

/// Receives copies of SIP once this agent is active, because only one of two agents on a host can bind the socket.
fn start_hep(core: &Arc<Core>, pair: &Arc<Pair>, config: &Config) {
    let Some(settings) = config.hep.clone() else { return };
    let (core, pair) = (Arc::clone(core), Arc::clone(pair));
    tokio::spawn(async move {
        pair.active().await;
        loop {
            match bind_hep(&settings).await {
                Ok(listener) => {
                    pair.set_hep_error(None);
                    let hep = make_hep(&core, &settings);
                    let ended = hep.serve(&listener).await;
                    tracing::error!(
                        "hep: {}",
                        ended.err().map_or_else(|| "it has ended".into(), |error| error.to_string())
                    );
                }
                Err(Failure::Config(error) | Failure::Other(error)) => {
                    if pair.hep_error().is_none() {
                        tracing::error!("{error}; calls are served without copies of SIP until it can be had");
                    }
                    pair.set_hep_error(Some(error));
                }
            }
            tokio::time::sleep(HEP_RETRY).await;
        }
    });
}

async fn bind_hep(hep: &crate::config::Hep) -> Result<HepListener, Failure> {
    let (tcp, address) = hep.address().map_err(|error| Failure::Config(error.to_string()))?;
    let failed = |error| cannot_bind(&hep.listen, &error);
    Ok(if tcp {
        HepListener::Tcp(TcpListener::bind(address).await.map_err(failed)?)
    } else {
        let socket = UdpSocket::bind(address).await.map_err(failed)?;
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBuf, &(4 << 20));
        HepListener::Udp(socket)
    })
}

fn make_hep(core: &Arc<Core>, settings: &crate::config::Hep) -> Arc<Hep> {
    let allow = settings.allow.clone();
    Hep::new(Arc::clone(core), move |addr| allow.iter().any(|network| network.contains(addr)))
}

async fn bind(config: &Config, with_hep: bool) -> Result<Sockets, Failure> {
    let listeners = |addresses: &[shunt_rtpproxy::framing::ControlAddress], protocol| {
        let bound = addresses.iter().map(|address| {
            let options = Options {
                group: config.control.socket_group.clone(),
                allow: Some(config.control.allow.clone()),
                in_flight: COMMANDS_AT_ONCE,
                patience: Some(config.control.patience()),
                ..Options::default()
            };
            Listener::bind(address, protocol, options).map_err(|error| cannot_bind(address, &error))
        });
        bound.collect::<Result<Vec<_>, _>>()
    };
    let control = listeners(&config.control.listen, Protocol::Rtpproxy)?;
    let ng = listeners(&config.control.ng, Protocol::Ng)?;
    let hep = match &config.hep {
        Some(hep) if with_hep => Some(bind_hep(hep).await?),
        _ => None,
    };
    Ok(Sockets { control, ng, hep })
}

fn cannot_bind(what: &dyn std::fmt::Display, error: &std::io::Error) -> Failure {
    let text = format!("cannot bind {what}: {error}");
    if error.kind() == std::io::ErrorKind::AddrNotAvailable {
        Failure::Config(text)
    } else {
        Failure::Other(text)
    }
}

fn make_book(config: &Config) -> (Book, Vec<RelayId>) {
    let control = &config.control;
    let rate = control.sessions_per_source;
    let settings = Settings {
        enabled: config.data_plane.is_some(),
        media: config.media(),
        one_way_after: config.learning.one_way_after_s,
        entry_idle: entry_idle(config),
        limits: Limits {
            legs_per_call: control.legs_per_call,
            sessions_per_source: (rate > 0).then_some(Rate {
                burst: rate,
                per_second: rate,
            }),
        },
        ..Settings::default()
    };
    let mut book = Book::new(settings, config.learning.policy());
    let anybody = config.learning.first_packets == "any";
    let ids = config.relays.iter().map(|relay| {
        let mut relay = relay.relay();
        relay.verifies_sources |= anybody;
        book.add_relay(relay)
    });
    let ids = ids.collect();
    (book, ids)
}

fn entry_idle(config: &Config) -> Duration {
    let shortest = config.relays.iter().map(|relay| Duration::from_millis(relay.ttl * 500)).min();
    let configured = config.data_plane.as_ref().map(|plane| Duration::from_millis(plane.idle_ms));
    shortest.into_iter().chain(configured).min().unwrap_or(LEAST_IDLE).max(LEAST_IDLE)
}

/// Addresses of the SIP server's side belong to no party.
fn declare_own(book: &mut Book, listener: &Listener) {
    use shunt_rtpproxy::framing::ControlAddress;
    if let ControlAddress::Udp(address) | ControlAddress::Tcp(address) = listener.address()
        && !address.ip().is_unspecified()
    {
        book.declare_own(address.ip().to_canonical());
    }
}

fn start_plane(config: &Config, settings: &DataPlane, fence: Fence) -> Result<(Plane, mpsc::Receiver<Event>), Failure> {
    let target = Target {
        address: settings.target.clone(),
        tls: settings.tls.as_ref().map(read_tls).transpose()?,
        device_id: settings.device_id,
        program: settings.program.clone(),
        client_id: client_id()?,
        patience: DATA_PLANE_PATIENCE,
    };
    let anybody = config.learning.first_packets == "any";
    let verified = config.relays.iter().filter(|relay| relay.verifies_sources || anybody);
    let conference = config.conference.as_ref().map(crate::config::Conference::range);
    let plane = shunt_plane::Settings {
        stored_hash: if settings.hash == "none" {
            StoredHash::None
        } else {
            StoredHash::Auto
        },
        media: config.media().into_iter().chain(conference).collect(),
        // A conference's address has no relay behind it that unknown sources could reach.
        verified: verified
            .flat_map(|relay| relay.media.iter().map(crate::config::Media::range))
            .chain(conference)
            .collect(),
        marks: config
            .relays
            .iter()
            .flat_map(|relay| relay.media.iter().map(|media| (media.range(), relay.mark())))
            .collect(),
        entry_idle: entry_idle(config),
        fence,
        ..shunt_plane::Settings::new(target)
    };
    Ok(Plane::start(plane))
}

/// Returns a client id that differs from that of every other agent, also in another container or before this one. It is even, because the
/// client for large reads uses the next number. bf_switchd keeps 24 bits.
fn client_id() -> Result<u32, Failure> {
    let random = getrandom::u32().map_err(|error| Failure::Other(format!("no random number: {error}")))?;
    Ok((random & 0x00ff_fffe).max(2))
}

fn read_tls(tls: &Tls) -> Result<shunt_plane::Tls, Failure> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path).map_err(|error| Failure::Config(format!("data_plane.tls: {}: {error}", path.display())))
    };
    let identity = match (&tls.certificate_file, &tls.key_file) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    Ok(shunt_plane::Tls {
        authority: tls.ca_file.as_ref().map(read).transpose()?,
        identity,
    })
}

fn start_tasks(core: &Arc<Core>, relays: Vec<RelayId>, events: Option<mpsc::Receiver<Event>>) {
    let each = |core: &Arc<Core>| Arc::clone(core);
    let timers = each(core);
    keep_running(core, "timers".into(), move || {
        let core = Arc::clone(&timers);
        async move { core.keep_time().await }
    });
    let gathered = each(core);
    keep_running(core, "gathered events".into(), move || {
        let core = Arc::clone(&gathered);
        async move {
            let mut due = ticks(&core, GATHERED_EVERY);
            loop {
                due.tick().await;
                core.events().tell_gathered();
            }
        }
    });
    let lateness = each(core);
    keep_running(core, "lateness".into(), move || watch_lateness(Arc::clone(&lateness)));
    for id in relays {
        let polled = each(core);
        keep_running(core, format!("polls of relay {id:?}"), move || {
            let core = Arc::clone(&polled);
            async move { Relays::watch(&core, id).await }
        });
        let listed = each(core);
        keep_running(core, format!("sessions of relay {id:?}"), move || {
            listings::watch(Arc::clone(&listed), id)
        });
    }
    if let Some(conferences) = core.conferences() {
        start_conferences(core, conferences);
    }
    let Some(events) = events else { return };
    let taken = Arc::new(tokio::sync::Mutex::new(events));
    let told = each(core);
    keep_running(core, "data plane".into(), move || {
        let (core, events) = (Arc::clone(&told), Arc::clone(&taken));
        async move { data_plane::serve(&core, &mut *events.lock().await).await }
    });
    let hashed = each(core);
    keep_running(core, "5-tuples without entries".into(), move || hashes::watch(Arc::clone(&hashed)));
    let counted = each(core);
    keep_running(core, "totals".into(), move || data_plane::watch_totals(Arc::clone(&counted)));
    let orphans = each(core);
    keep_running(core, "orphan entries".into(), move || {
        let core = Arc::clone(&orphans);
        async move {
            let mut due = ticks(&core, ORPHANS_EVERY);
            loop {
                due.tick().await;
                core.look_at_orphans();
            }
        }
    });
}

fn start_journal(core: &Arc<Core>, events: mpsc::UnboundedReceiver<shunt_journal::Event>) {
    let taken = Arc::new(tokio::sync::Mutex::new(events));
    let restoring = Arc::clone(core);
    keep_running(core, "restoring".into(), move || {
        let (core, events) = (Arc::clone(&restoring), Arc::clone(&taken));
        async move { restore::follow(core, &mut *events.lock().await).await }
    });
    let writing = Arc::clone(core);
    keep_running(core, "journal".into(), move || {
        let core = Arc::clone(&writing);
        async move { core.write_journal().await }
    });
    let watched = Arc::clone(core);
    keep_running(core, "journal's state".into(), move || {
        let core = Arc::clone(&watched);
        async move { core.watch_journal().await }
    });
}

/// A participant has two sockets for each medium, limited by the number of open files.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!("the limit of open files cannot be raised: {error}");
    }
}

fn start_conferences(core: &Arc<Core>, conferences: &Arc<Conferences>) {
    let of = |conferences: &Arc<Conferences>| Arc::clone(conferences);
    let (writer, timers, counters) = (of(conferences), of(conferences), of(conferences));
    keep_running(core, "rows of conferences".into(), move || {
        let conferences = of(&writer);
        async move { conferences.write().await }
    });
    keep_running(core, "timers of conferences".into(), move || {
        let conferences = Arc::clone(&timers);
        async move { conferences.keep_time().await }
    });
    if conferences.has_mixers() {
        let mixers = Arc::clone(conferences);
        keep_running(core, "mixers of conferences".into(), move || {
            let conferences = Arc::clone(&mixers);
            async move { conferences.mix().await }
        });
    }
    if conferences.cpu_port_counts().is_some() {
        let cpu_port = Arc::clone(conferences);
        keep_running(core, "CPU port of the switch".into(), move || {
            let conferences = Arc::clone(&cpu_port);
            async move { conferences.serve_cpu_port().await }
        });
    }
    keep_running(core, "counters of conferences".into(), move || {
        let conferences = Arc::clone(&counters);
        async move { conferences.look_at_counters().await }
    });
}

fn start_listeners(core: &Arc<Core>, config: &Config, sockets: Sockets, stopping: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut serving = JoinSet::new();
    let commands = Arc::new(Commands::new(Arc::clone(core), config.control.patience()));
    serve_commands(core, sockets.control, Protocol::Rtpproxy, &commands, stopping, &mut serving);
    let commands = Arc::new(NgCommands::new(Arc::clone(core), config.control.patience()));
    serve_commands(core, sockets.ng, Protocol::Ng, &commands, stopping, &mut serving);
    if let (Some(listener), Some(settings)) = (sockets.hep, &config.hep) {
        let hep = make_hep(core, settings);
        let mut stopping = stopping.clone();
        serving.spawn(async move {
            tokio::select! {
                result = hep.serve(&listener) => {
                    if let Err(error) = result {
                        tracing::error!("hep: {error}");
                    }
                }
                _ = stopping.wait_for(|stop| *stop) => {}
            }
        });
    }
    serving
}

fn serve_commands<S: Service>(
    core: &Arc<Core>,
    listeners: Vec<Listener>,
    protocol: Protocol,
    commands: &Arc<S>,
    stopping: &watch::Receiver<bool>,
    serving: &mut JoinSet<()>,
) {
    for listener in listeners {
        let mut stopping = stopping.clone();
        let stop = async move {
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        match core.pair() {
            None => serving.spawn(listener.serve(Arc::clone(commands), stop)),
            Some(pair) => {
                let front = Arc::new(Front::new(Arc::clone(pair), protocol, Arc::clone(commands)));
                serving.spawn(listener.serve(front, stop))
            }
        };
    }
}

/// Returns control sockets and the data plane, for the log.
fn ready_line(config: &Config, sockets: &Sockets) -> String {
    let control = sockets.control.iter().chain(&sockets.ng);
    let control: Vec<String> = control.map(|listener| listener.address().to_string()).collect();
    let plane = config.data_plane.as_ref().map_or("none", |plane| plane.target.as_str());
    format!("agent ready: commands on {}; data plane {plane}", control.join(", "))
}

/// Notifies systemd that the loop runs.
async fn signs_of_life() {
    let mut pulse = Pulse::new(LOOK);
    loop {
        pulse.due().await;
        pulse.show();
    }
}
