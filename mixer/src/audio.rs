//! The thread that mixes audio: a socket for RTP and one for RTCP, a tick of 20 ms, and the rooms of all conferences.

use crate::clocks::Clocks;
use crate::config::Sounds;
use crate::description::Checked;
use crate::reports::{Made, Reported, Reports};
use crate::video::send;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use shunt_mix::keys::Command;
use shunt_mix::room::{Done, Name, Room};
use shunt_net::Endpoint;
use shunt_rtp::{Packet, demux};
use shunt_udp::{Address, Batch, MOST, Socket};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const TICK: Duration = Duration::from_millis(20);
/// Ticks that are not made up for.
const SKIP: Duration = Duration::from_millis(200);
/// Ticks between two readings of the thread's processor time.
const READ_EVERY: u64 = 25;
/// The share of a new reading in the load.
const SHARE: f64 = 0.4;
/// For a burst of all senders.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Expedited forwarding (RFC 3246).
const TOS: u8 = 46 << 2;

/// One conference's room, and where its packets come from and go to.
pub struct Hosted {
    pub room: Room,
    from: Endpoint,
    destinations: HashMap<Name, Address>,
    reports: Reports,
    /// Who has asked by keys to leave.
    pub leaving: BTreeSet<Name>,
}

/// What the thread has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub packets_in: u64,
    pub packets_out: u64,
    /// From nobody's address.
    pub refused: u64,
    pub send_failures: u64,
    pub codec_failures: u64,
    pub decoded: u64,
    pub encoded: u64,
    pub ticks: u64,
    /// Ticks that were left out because the thread was late.
    pub skipped: u64,
}

/// All conferences that are mixed here.
pub struct Audio {
    host: IpAddr,
    clocks: Arc<Clocks>,
    sounds: Sounds,
    rooms: BTreeMap<String, Hosted>,
    by_source: HashMap<Address, String>,
    /// RTCP that is to go out.
    control: Vec<(Vec<u8>, Address)>,
    pub counts: Counts,
    /// The share of a core that the thread takes; 1 where it does not get what it needs.
    pub load: f64,
}

impl Hosted {
    /// What a participant has last reported of its mix.
    #[must_use]
    pub fn reported(&self, name: &Name) -> Option<Reported> {
        let (_, output) = self.room.outputs().find(|(other, _)| *other == name)?;
        self.reports.reported(output.ssrc)
    }

    /// Where its RTCP goes to, and comes from.
    fn control(&self) -> Address {
        Endpoint::new(self.from.addr, self.from.port.wrapping_add(1)).into()
    }

    fn end(&self, ends: impl Fn(u32) -> bool) -> Vec<(Vec<u8>, Address)> {
        let over: Vec<u32> = self
            .room
            .outputs()
            .map(|(_, output)| output.ssrc)
            .filter(|ssrc| ends(*ssrc))
            .collect();
        self.reports.end(&over).into_iter().map(|said| (said, self.control())).collect()
    }
}

/// What each receiver has been sent. All sources are named.
fn made(room: &Room) -> Vec<Made> {
    let playing: Vec<(u32, u32, u32, Duration)> = room
        .playing()
        .map(|(ssrc, timestamp, rate)| (ssrc, timestamp, rate, Duration::ZERO))
        .collect();
    let sources: Vec<u32> = room.sources().collect();
    let made = room.outputs().map(|(_, output)| Made {
        ssrc: output.ssrc,
        timestamp: output.timestamp(),
        packets: output.packets,
        octets: output.octets,
        contributors: sources.clone(),
        playing: playing.clone(),
    });
    made.collect()
}

impl Audio {
    #[must_use]
    pub fn new(host: IpAddr, clocks: Arc<Clocks>, sounds: Sounds) -> Self {
        Self {
            host,
            clocks,
            sounds,
            rooms: BTreeMap::new(),
            by_source: HashMap::new(),
            control: Vec::new(),
            counts: Counts::default(),
            load: 0.0,
        }
    }

    pub fn conferences(&self) -> impl Iterator<Item = (&String, &Hosted)> {
        self.rooms.iter()
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.rooms.contains_key(name)
    }

    /// Conferences, participants, receivers.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        let sizes = self.rooms.values().map(|hosted| hosted.room.sizes());
        let (participants, receivers) = sizes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (self.rooms.len(), participants, receivers)
    }

    /// Receivers of one conference.
    #[must_use]
    pub fn receivers(&self, name: &str) -> usize {
        self.rooms.get(name).map_or(0, |hosted| hosted.room.sizes().1)
    }

    /// A conference is as described from now on.
    pub fn describe(&mut self, name: &str, checked: Checked) {
        let from = checked.from;
        let hosted = self.rooms.entry(name.to_owned()).or_insert_with(|| Hosted {
            room: Room::default(),
            from,
            destinations: HashMap::new(),
            reports: Reports::new(name, self.host, Arc::clone(&self.clocks)),
            leaving: BTreeSet::new(),
        });
        if hosted.from != from {
            self.by_source.remove(&Address::from(hosted.from));
            hosted.from = from;
        }
        let mixes = checked.described.values().filter_map(|one| one.mix.as_ref());
        let streams: Vec<u32> = mixes.map(|mix| mix.ssrc).collect();
        self.control.extend(hosted.end(|ssrc| !streams.contains(&ssrc)));
        if checked.announcements && hosted.room.sizes().0 > 0 {
            let joined = checked.described.keys().any(|name| !hosted.room.has(name));
            let left = hosted.room.names().any(|name| !checked.described.contains_key(name));
            let sounds = [(left, &self.sounds.left), (joined, &self.sounds.joined)];
            for (_, sound) in sounds.into_iter().filter(|(happened, _)| *happened) {
                sound.iter().for_each(|sound| hosted.room.play(Arc::clone(sound)));
            }
        }
        hosted.room.describe(&checked.described);
        let contributors = checked.sources.keys().copied().collect();
        hosted.reports.describe(checked.sources, &contributors, &streams);
        hosted.destinations = checked.destinations;
        hosted.leaving.retain(|name| checked.described.contains_key(name));
        self.by_source.insert(from.into(), name.to_owned());
    }

    /// Everything ends.
    pub fn end_all(&mut self) {
        let names: Vec<String> = self.rooms.keys().cloned().collect();
        for name in names {
            self.end(&name);
        }
    }

    /// Whether it was there.
    pub fn end(&mut self, name: &str) -> bool {
        let Some(gone) = self.rooms.remove(name) else { return false };
        self.by_source.retain(|_, conference| conference != name);
        self.control.extend(gone.end(|_| true));
        self.clocks.forget(name);
        true
    }

    fn packet(&mut self, now: u64, sender: &Address, packet: &[u8]) {
        self.counts.packets_in += 1;
        let hosted = self.by_source.get(sender).and_then(|name| self.rooms.get_mut(name));
        let Some(hosted) = hosted else {
            self.counts.refused += 1;
            return;
        };
        if demux(packet) == Packet::Rtcp {
            hosted.reports.control(packet, Duration::from_micros(now));
            return;
        }
        hosted.reports.packet(packet, Duration::from_micros(now));
        match hosted.room.packet(now, packet) {
            Ok(Some((name, Command::Leave))) => {
                hosted.leaving.insert(name);
            }
            Ok(_) => {}
            Err(_) => self.counts.refused += 1,
        }
    }

    /// RTCP at its own port comes from the port above that of RTP.
    fn feedback(&mut self, now: u64, sender: &Address, packet: &[u8]) {
        self.counts.packets_in += 1;
        let rtp = sender.endpoint().map(|from| Endpoint::new(from.addr, from.port.wrapping_sub(1)));
        let name = rtp.and_then(|rtp| self.by_source.get(&Address::from(rtp)));
        match name.and_then(|name| self.rooms.get_mut(name)) {
            Some(hosted) => hosted.reports.control(packet, Duration::from_micros(now)),
            None => self.counts.refused += 1,
        }
    }

    fn tick(&mut self, now: u64, out: &mut Outgoing) {
        self.counts.ticks += 1;
        for hosted in self.rooms.values_mut() {
            let room = &hosted.room;
            let reports = hosted.reports.due(Duration::from_micros(now), || made(room));
            let to = hosted.control();
            self.control.extend(reports.into_iter().map(|report| (report, to)));
            let destinations = &hosted.destinations;
            let done = hosted.room.tick(now, |name, packet| {
                if let Some(to) = destinations.get(name) {
                    out.push(packet, *to);
                }
            });
            let done = done.unwrap_or_else(|error| {
                self.counts.codec_failures += 1;
                tracing::debug!("a codec failed: {error}");
                Done::default()
            });
            self.counts.decoded += done.decoded;
            self.counts.encoded += done.encoded;
        }
    }
}

/// Packets of one tick.
#[derive(Default)]
struct Outgoing {
    packets: Vec<(Vec<u8>, Address)>,
    count: usize,
}

impl Outgoing {
    fn push(&mut self, packet: &[u8], to: Address) {
        match self.packets.get_mut(self.count) {
            Some((buffer, address)) => {
                buffer.clear();
                buffer.extend_from_slice(packet);
                *address = to;
            }
            None => self.packets.push((packet.to_vec(), to)),
        }
        self.count += 1;
    }

    /// How many went out, and how many did not.
    fn send(&mut self, socket: &Socket) -> (u64, u64) {
        let (mut sent, mut failed, mut at) = (0, 0, 0);
        while at < self.count {
            match socket.send_each(self.packets[at..self.count].iter().map(|(packet, to)| (packet.as_slice(), to))) {
                Ok(count) if count > 0 => {
                    sent += count as u64;
                    at += count;
                }
                // One that cannot be sent is left out; the next may.
                _ => {
                    failed += 1;
                    at += 1;
                }
            }
        }
        self.count = 0;
        (sent, failed)
    }
}

/// The thread, and what it shares.
pub struct Engine {
    pub audio: Arc<Mutex<Audio>>,
    thread: JoinHandle<()>,
}

pub fn lock(audio: &Mutex<Audio>) -> MutexGuard<'_, Audio> {
    audio.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// RTP at the address, RTCP a port higher.
    ///
    /// # Errors
    /// The address cannot be had, or no thread.
    pub fn start(address: Endpoint, clocks: Arc<Clocks>, sounds: Sounds) -> io::Result<Self> {
        let socket = Socket::bind(address, RECEIVE_BUFFER)?;
        socket.set_tos(TOS)?;
        let control = Socket::bind(Endpoint::new(address.addr, address.port + 1), RECEIVE_BUFFER)?;
        let audio = Arc::new(Mutex::new(Audio::new(address.addr, clocks, sounds)));
        let shared = Arc::clone(&audio);
        let thread = std::thread::Builder::new()
            .name("audio".into())
            .spawn(move || run(&socket, &control, &shared))?;
        Ok(Self { audio, thread })
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }
}

/// The processor time of this thread.
fn spent() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn run(socket: &Socket, control: &Socket, audio: &Mutex<Audio>) {
    let started = Instant::now();
    let micros = |at: Instant| u64::try_from(at.duration_since(started).as_micros()).unwrap_or(u64::MAX);
    let (mut batch, mut out) = (Batch::default(), Outgoing::default());
    let mut due = started + TICK;
    let mut read = (Instant::now(), spent());
    let mut ticks = 0;
    loop {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            let mut descriptors = [
                PollFd::new(socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(control.as_fd(), PollFlags::POLLIN),
            ];
            // A signal, or nothing: the sockets are read all the same.
            let _ = ppoll(&mut descriptors, Some(TimeSpec::from_duration(wait)), None);
        }
        receive(socket, &mut batch, audio, &micros, Audio::packet);
        receive(control, &mut batch, audio, &micros, Audio::feedback);
        let now = Instant::now();
        if now < due {
            continue;
        }
        {
            let mut audio = lock(audio);
            audio.tick(micros(now), &mut out);
            let (sent, failed) = out.send(socket);
            let (_, unreported) = send(control, &audio.control);
            audio.control.clear();
            audio.counts.packets_out += sent;
            audio.counts.send_failures += failed + unreported;
            due += TICK;
            if now > due + SKIP {
                let skipped = now.duration_since(due).as_micros() / TICK.as_micros();
                audio.counts.skipped += u64::try_from(skipped).unwrap_or(u64::MAX);
                due = now + TICK;
                // Whoever else has the core: nothing more fits here.
                audio.load = 1.0;
            }
            ticks += 1;
            if ticks % READ_EVERY == 0 {
                let (at, took) = (Instant::now(), spent());
                let busy = took.saturating_sub(read.1).as_secs_f64() / at.duration_since(read.0).as_secs_f64().max(1e-6);
                audio.load += SHARE * (busy - audio.load);
                read = (at, took);
            }
        }
    }
}

/// Everything that has come.
fn receive(
    socket: &Socket,
    batch: &mut Batch,
    audio: &Mutex<Audio>,
    micros: &dyn Fn(Instant) -> u64,
    take: fn(&mut Audio, u64, &Address, &[u8]),
) {
    loop {
        // A datagram that could not be delivered is reported here, and is no fault of the next.
        let got = socket.receive(batch, MOST).unwrap_or(0);
        if got == 0 {
            return;
        }
        let now = micros(Instant::now());
        let mut audio = lock(audio);
        for at in 0..got {
            take(&mut audio, now, batch.sender(at), batch.packet(at));
        }
        if got < MOST {
            return;
        }
    }
}
