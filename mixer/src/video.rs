//! The thread that tiles video: a socket for RTP and one for RTCP, and the streams that are made.

use crate::tilings::{Codec, Stream, StreamView, Tile, TileView, Tiling, TilingView};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtp::rtcp::{pli, walk};
use shunt_rtp::{Packet, demux};
use shunt_tiling::h261::mosaic::{self, Mosaic as Quarters};
use shunt_tiling::h264::column::{self, Column};
use shunt_tiling::stream;
use shunt_tiling::tiler::{Mosaic, Place, Tiler};
use shunt_udp::{Address, Batch, MOST, Socket};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps at most.
const LOOK: Duration = Duration::from_millis(20);
/// For a burst of all sources.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Interactive video: AF41 (RFC 4594).
const TOS: u8 = 34 << 2;
/// Headers of IPv4 or IPv6, and of UDP.
const HEADERS: (usize, usize) = (28, 48);

/// One stream, of either codec.
trait Tiled: Send {
    fn packet(&mut self, packet: &[u8], now: Time);
    fn poll(&mut self, now: Time) -> Vec<Vec<u8>>;
    fn due_at(&self, now: Time) -> Option<Time>;
    fn requests(&mut self, now: Time) -> Vec<u32>;
    fn key_frame_wanted(&mut self);
    /// The stream has these tiles from now on.
    fn describe(&mut self, tiles: &[Tile]);
    fn view(&self) -> Vec<TileView>;
}

/// x, y, width and height of a place.
type Area = Option<(u32, u32, u32, u32)>;

struct Streaming<M: Mosaic> {
    tiler: Tiler<M>,
    tiles: BTreeMap<usize, Tile>,
    region: fn(&Tile) -> M::Region,
    area: fn(&M, u32) -> Area,
}

impl<M: Mosaic + Send> Tiled for Streaming<M>
where
    M::Region: Send,
    M::Assembler: Send,
{
    fn packet(&mut self, packet: &[u8], now: Time) {
        self.tiler.packet(packet, now);
    }

    fn poll(&mut self, now: Time) -> Vec<Vec<u8>> {
        self.tiler.poll(now)
    }

    fn due_at(&self, now: Time) -> Option<Time> {
        self.tiler.due_at(now)
    }

    fn requests(&mut self, now: Time) -> Vec<u32> {
        self.tiler.requests(now)
    }

    fn key_frame_wanted(&mut self) {
        self.tiler.key_frame_wanted();
    }

    fn describe(&mut self, tiles: &[Tile]) {
        let wanted: BTreeMap<usize, &Tile> = tiles.iter().map(|tile| (tile.place, tile)).collect();
        let gone: Vec<usize> = self
            .tiles
            .iter()
            .filter(|(place, tile)| wanted.get(place) != Some(tile))
            .map(|(place, _)| *place)
            .collect();
        for place in gone {
            self.tiler.leave(place);
            self.tiles.remove(&place);
        }
        for (place, tile) in wanted {
            if self.tiles.contains_key(&place) {
                continue;
            }
            let joined = Place {
                source: tile.source,
                contributor: tile.contributor.unwrap_or(tile.source),
                region: (self.region)(tile),
            };
            match self.tiler.join(place, joined) {
                Ok(()) => {
                    self.tiles.insert(place, tile.clone());
                }
                Err(refusal) => tracing::warn!("{} gets no tile: {refusal}", tile.participant),
            }
        }
    }

    fn view(&self) -> Vec<TileView> {
        let view = |(place, tile): (&usize, &Tile)| {
            let area = u32::try_from(*place).ok().and_then(|place| (self.area)(self.tiler.mosaic(), place));
            let status = self.tiler.status(*place).unwrap_or_default();
            TileView {
                place: *place,
                participant: tile.participant.clone(),
                contributor: tile.contributor.unwrap_or(tile.source),
                x: area.map(|area| area.0),
                y: area.map(|area| area.1),
                width: area.map(|area| area.2),
                height: area.map(|area| area.3),
                pictures: status.pictures,
                refused: status.refused,
                refusal: status.refusal.map(|refusal| refusal.to_string()),
            }
        };
        self.tiles.iter().map(view).collect()
    }
}

fn quarters(stream: stream::Stream, hold: Duration) -> Box<dyn Tiled> {
    Box::new(Streaming {
        tiler: Tiler::new(Quarters::default(), stream, hold),
        tiles: BTreeMap::new(),
        region: |tile| tile.tile.map_or(mosaic::Region::Whole, mosaic::Region::Quarter),
        area: |_, place| Some((176 * (place % 2), 144 * (place / 2), 176, 144)),
    })
}

fn column(places: usize, stream: stream::Stream, hold: Duration) -> Box<dyn Tiled> {
    Box::new(Streaming {
        tiler: Tiler::new(Column::new(places), stream, hold),
        tiles: BTreeMap::new(),
        region: |tile| column::Region {
            tile: tile.tile.unwrap_or(0).into(),
            tiles: tile.tiles.unwrap_or(1).into(),
            // A mixer's tiles repeat what they have shown.
            predicted: tile.predicted || tile.tiles.is_some(),
        },
        area: |column, place| {
            let format = column.format()?;
            Some((0, 16 * format.height * place, 16 * format.width, 16 * format.height))
        },
    })
}

/// A stream, and how many packets of it went out.
struct Running {
    tiled: Box<dyn Tiled>,
    packets: u64,
}

struct Hosted {
    described: Tiling,
    streams: BTreeMap<u32, Running>,
}

/// What the thread has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub packets_in: u64,
    pub packets_out: u64,
    /// From nobody's address.
    pub refused: u64,
    pub send_failures: u64,
    /// Requests for key frames, to sources.
    pub requests: u64,
}

/// All that is tiled here.
#[derive(Default)]
pub struct Video {
    tilings: BTreeMap<String, Hosted>,
    by_source: HashMap<Address, String>,
    pub counts: Counts,
}

fn endpoint(address: std::net::SocketAddr, higher: u16) -> Endpoint {
    Endpoint::new(address.ip().to_canonical(), address.port().wrapping_add(higher))
}

impl Video {
    /// Tiles of all streams but those of one tiling.
    #[must_use]
    pub fn tiles_without(&self, name: &str) -> usize {
        let others = self.tilings.iter().filter(|(other, _)| *other != name);
        others.map(|(_, hosted)| hosted.described.tiles()).sum()
    }

    /// Tilings, streams, tiles.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        let streams = self.tilings.values().map(|hosted| hosted.streams.len()).sum();
        (self.tilings.len(), streams, self.tiles_without(""))
    }

    /// A tiling is as described from now on. Its description has been checked.
    pub fn describe(&mut self, name: &str, described: Tiling) {
        let before = self.tilings.remove(name);
        let mut streams = match before {
            Some(before) => {
                self.by_source.remove(&Address::from(endpoint(before.described.from, 0)));
                if before.described.goes_on(&described) {
                    before.streams
                } else {
                    BTreeMap::new()
                }
            }
            None => BTreeMap::new(),
        };
        streams.retain(|ssrc, _| described.streams.iter().any(|stream| stream.ssrc == *ssrc));
        for stream in &described.streams {
            let running = streams.entry(stream.ssrc).or_insert_with(|| Running {
                tiled: begin(&described, stream),
                packets: 0,
            });
            running.tiled.describe(&stream.tiles);
        }
        self.by_source.insert(endpoint(described.from, 0).into(), name.to_owned());
        self.tilings.insert(name.to_owned(), Hosted { described, streams });
    }

    /// Whether it was there.
    pub fn end(&mut self, name: &str) -> bool {
        self.by_source.retain(|_, tiling| tiling != name);
        self.tilings.remove(name).is_some()
    }

    #[must_use]
    pub fn views(&self) -> Vec<TilingView> {
        let view = |(name, hosted): (&String, &Hosted)| TilingView {
            tiling: name.clone(),
            codec: hosted.described.codec,
            from: hosted.described.from.to_string(),
            to: hosted.described.to.to_string(),
            streams: hosted
                .streams
                .iter()
                .map(|(ssrc, running)| StreamView {
                    ssrc: *ssrc,
                    packets: running.packets,
                    tiles: running.tiled.view(),
                })
                .collect(),
        };
        self.tilings.iter().map(view).collect()
    }

    fn packet(&mut self, now: Time, sender: &Address, packet: &[u8]) {
        self.counts.packets_in += 1;
        let hosted = self.by_source.get(sender).and_then(|name| self.tilings.get_mut(name));
        match (hosted, demux(packet)) {
            (Some(hosted), Packet::Rtp) => hosted.streams.values_mut().for_each(|running| running.tiled.packet(packet, now)),
            (Some(hosted), Packet::Rtcp) => hosted.feedback(packet),
            _ => self.counts.refused += 1,
        }
    }

    /// RTCP at its own port comes from the port above that of RTP.
    fn feedback(&mut self, sender: &Address, packet: &[u8]) {
        self.counts.packets_in += 1;
        let rtp = sender.endpoint().map(|from| Endpoint::new(from.addr, from.port.wrapping_sub(1)));
        let name = rtp.and_then(|rtp| self.by_source.get(&Address::from(rtp)));
        match name.and_then(|name| self.tilings.get_mut(name)) {
            Some(hosted) => hosted.feedback(packet),
            None => self.counts.refused += 1,
        }
    }

    /// Packets that are due, with requests for key frames; and when the next are.
    fn poll(&mut self, now: Time, media: &mut Vec<(Vec<u8>, Address)>, control: &mut Vec<(Vec<u8>, Address)>) -> Option<Time> {
        let mut due: Option<Time> = None;
        for hosted in self.tilings.values_mut() {
            let to = Address::from(endpoint(hosted.described.to, 0));
            let asked = Address::from(endpoint(hosted.described.from, 1));
            for (ssrc, running) in &mut hosted.streams {
                let packets = running.tiled.poll(now);
                running.packets += packets.len() as u64;
                media.extend(packets.into_iter().map(|packet| (packet, to)));
                let requests = running.tiled.requests(now);
                self.counts.requests += requests.len() as u64;
                control.extend(requests.into_iter().map(|source| (pli(*ssrc, source), asked)));
                due = due.into_iter().chain(running.tiled.due_at(now)).min();
            }
        }
        due
    }
}

impl Hosted {
    fn feedback(&mut self, packet: &[u8]) {
        for request in walk(packet)
            .map_while(Result::ok)
            .flat_map(|item| item.key_frame_requests().collect::<Vec<_>>())
        {
            if let Some(running) = self.streams.get_mut(&request.media_ssrc) {
                running.tiled.key_frame_wanted();
            }
        }
    }
}

fn begin(described: &Tiling, stream: &Stream) -> Box<dyn Tiled> {
    let headers = if described.to.is_ipv4() { HEADERS.0 } else { HEADERS.1 };
    // The standard library's seeds are random, and that is all that is asked for here.
    let random = RandomState::new().hash_one(stream.ssrc);
    let settings = stream::Stream {
        ssrc: stream.ssrc,
        payload_type: described.payload_type,
        sequence: (random >> 48) as u16,
        timestamp: random as u32,
        size: described.mtu - headers,
    };
    let hold = Duration::from_millis(described.hold_ms);
    match described.codec {
        Codec::H261 => quarters(settings, hold),
        Codec::H264 => column(stream.places, settings, hold),
    }
}

/// The thread, and what it shares.
pub struct Engine {
    pub video: Arc<Mutex<Video>>,
    /// Where video is to go.
    pub address: Endpoint,
    thread: JoinHandle<()>,
}

pub fn lock(video: &Mutex<Video>) -> MutexGuard<'_, Video> {
    video.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// RTP at the address, RTCP a port higher.
    ///
    /// # Errors
    /// The address cannot be had, or no thread.
    pub fn start(address: Endpoint) -> io::Result<Self> {
        let media = Socket::bind(address, RECEIVE_BUFFER)?;
        media.set_tos(TOS)?;
        let control = Socket::bind(Endpoint::new(address.addr, address.port + 1), RECEIVE_BUFFER)?;
        let video = Arc::new(Mutex::new(Video::default()));
        let shared = Arc::clone(&video);
        let thread = std::thread::Builder::new()
            .name("video".into())
            .spawn(move || run(&media, &control, &shared))?;
        Ok(Self { video, address, thread })
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }
}

fn run(media: &Socket, control: &Socket, video: &Mutex<Video>) {
    let started = Instant::now();
    let clock = || Time::from(started.elapsed());
    let mut batch = Batch::default();
    let (mut packets, mut requests) = (Vec::new(), Vec::new());
    let mut due: Option<Time> = None;
    loop {
        let wait = due.map_or(LOOK, |due| due.since(clock()).min(LOOK));
        let mut descriptors = [
            PollFd::new(media.as_fd(), PollFlags::POLLIN),
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
        ];
        // A signal, or nothing: the sockets are read all the same.
        let _ = ppoll(&mut descriptors, Some(TimeSpec::from_duration(wait)), None);
        {
            // A datagram that could not be delivered is reported here, and is no fault of the next.
            let got = media.receive(&mut batch, MOST).unwrap_or(0);
            let mut video = lock(video);
            (0..got).for_each(|at| video.packet(clock(), batch.sender(at), batch.packet(at)));
            let got = control.receive(&mut batch, MOST).unwrap_or(0);
            (0..got).for_each(|at| video.feedback(batch.sender(at), batch.packet(at)));
            due = video.poll(clock(), &mut packets, &mut requests);
        }
        let (sent, failed) = send(media, &packets);
        let (_, unasked) = send(control, &requests);
        packets.clear();
        requests.clear();
        let mut video = lock(video);
        video.counts.packets_out += sent;
        video.counts.send_failures += failed + unasked;
    }
}

/// How many went out, and how many did not.
fn send(socket: &Socket, packets: &[(Vec<u8>, Address)]) -> (u64, u64) {
    let (mut sent, mut failed, mut at) = (0, 0, 0);
    while at < packets.len() {
        match socket.send_each(packets[at..].iter().map(|(packet, to)| (packet.as_slice(), to))) {
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
    (sent, failed)
}
