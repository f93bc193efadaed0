//! The thread that mixes audio: one socket, a tick of 20 ms, and the rooms of all conferences.

use crate::description::Checked;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use shunt_mix::keys::Command;
use shunt_mix::room::{Done, Name, Room};
use shunt_net::Endpoint;
use shunt_udp::{Address, Batch, MOST, Socket};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
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
    from: Address,
    destinations: HashMap<Name, Address>,
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
#[derive(Default)]
pub struct Audio {
    rooms: BTreeMap<String, Hosted>,
    by_source: HashMap<Address, String>,
    pub counts: Counts,
    /// The share of a core that the thread takes; 1 where it does not get what it needs.
    pub load: f64,
}

impl Audio {
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
        let from = Address::from(checked.from);
        let hosted = self.rooms.entry(name.to_owned()).or_insert_with(|| Hosted {
            room: Room::default(),
            from,
            destinations: HashMap::new(),
            leaving: BTreeSet::new(),
        });
        if hosted.from != from {
            self.by_source.remove(&hosted.from);
            hosted.from = from;
        }
        hosted.room.describe(&checked.described);
        hosted.destinations = checked.destinations;
        hosted.leaving.retain(|name| checked.described.contains_key(name));
        self.by_source.insert(from, name.to_owned());
    }

    /// Whether it was there.
    pub fn end(&mut self, name: &str) -> bool {
        let Some(gone) = self.rooms.remove(name) else { return false };
        self.by_source.retain(|from, conference| *from != gone.from || conference != name);
        true
    }

    fn packet(&mut self, now: u64, sender: &Address, packet: &[u8]) {
        self.counts.packets_in += 1;
        let hosted = self.by_source.get(sender).and_then(|name| self.rooms.get_mut(name));
        let Some(hosted) = hosted else {
            self.counts.refused += 1;
            return;
        };
        match hosted.room.packet(now, packet) {
            Ok(Some((name, Command::Leave))) => {
                hosted.leaving.insert(name);
            }
            Ok(_) => {}
            Err(_) => self.counts.refused += 1,
        }
    }

    fn tick(&mut self, now: u64, out: &mut Outgoing) {
        self.counts.ticks += 1;
        for hosted in self.rooms.values_mut() {
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
    /// # Errors
    /// The address cannot be had, or no thread.
    pub fn start(address: Endpoint) -> io::Result<Self> {
        let socket = Socket::bind(address, RECEIVE_BUFFER)?;
        socket.set_tos(TOS)?;
        let audio = Arc::new(Mutex::new(Audio::default()));
        let shared = Arc::clone(&audio);
        let thread = std::thread::Builder::new()
            .name("audio".into())
            .spawn(move || run(&socket, &shared))?;
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

fn run(socket: &Socket, audio: &Mutex<Audio>) {
    let started = Instant::now();
    let micros = |at: Instant| u64::try_from(at.duration_since(started).as_micros()).unwrap_or(u64::MAX);
    let (mut batch, mut out) = (Batch::default(), Outgoing::default());
    let mut due = started + TICK;
    let mut read = (Instant::now(), spent());
    let mut ticks = 0;
    loop {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            let mut descriptors = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            // A signal, or nothing: the socket is read all the same.
            let _ = ppoll(&mut descriptors, Some(TimeSpec::from_duration(wait)), None);
        }
        receive(socket, &mut batch, audio, &micros);
        let now = Instant::now();
        if now < due {
            continue;
        }
        {
            let mut audio = lock(audio);
            audio.tick(micros(now), &mut out);
            let (sent, failed) = out.send(socket);
            audio.counts.packets_out += sent;
            audio.counts.send_failures += failed;
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
fn receive(socket: &Socket, batch: &mut Batch, audio: &Mutex<Audio>, micros: &dyn Fn(Instant) -> u64) {
    loop {
        // A datagram that could not be delivered is reported here, and is no fault of the next.
        let got = socket.receive(batch, MOST).unwrap_or(0);
        if got == 0 {
            return;
        }
        let now = micros(Instant::now());
        let mut audio = lock(audio);
        for at in 0..got {
            audio.packet(now, batch.sender(at), batch.packet(at));
        }
        if got < MOST {
            return;
        }
    }
}
