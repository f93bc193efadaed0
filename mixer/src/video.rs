//! The thread that tiles video: a socket for RTP and one for RTCP, and the streams that are made.

use crate::clocks::Clocks;
use crate::decoder::{Outcome, Sample};
use crate::reports::{Made, Rates, Reports, VIDEO};
use crate::tilings::{self, Codec, Stream, StreamView, Tile, TileView, Tiling, TilingView};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use shunt_edge_media::Sent;
use shunt_latch::Time;
use shunt_net::Endpoint;
use shunt_rtp::rtcp::{pli, walk};
use shunt_rtp::{Header, Packet, demux};
use shunt_tiling::coding::Area;
use shunt_tiling::h261::mosaic::{self, Mosaic as Quarters};
use shunt_tiling::h264::column::Column;
use shunt_tiling::h265::grid::Grid;
use shunt_tiling::sliced::Region;
use shunt_tiling::tiler::{Mosaic, Place, Tiler, Trial};
use shunt_tiling::{Refusal, stream};
use shunt_udp::{Address, Batch, MOST, Socket};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long the thread sleeps at most.
const LOOK: Duration = Duration::from_millis(20);
/// For a burst of all sources.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Interactive video: AF41 (RFC 4594).
const TOS: u8 = 34 << 2;
/// Headers of IPv4 or IPv6, and of UDP.
const HEADERS: (usize, usize) = (28, 48);

/// One stream, of any of the codecs.
trait Tiled: Send {
    fn packet(&mut self, packet: &[u8], now: Time);
    fn poll(&mut self, now: Time) -> Vec<Vec<u8>>;
    fn due_at(&self, now: Time) -> Option<Time>;
    fn timestamp(&self, now: Time) -> u32;
    /// Of each source the timestamp of the picture that is shown, and since when.
    fn shown(&self) -> Vec<(u32, u32, Time)>;
    fn requests(&mut self, now: Time) -> Vec<u32>;
    fn key_frame_wanted(&mut self);
    /// The stream has these tiles from now on.
    fn describe(&mut self, tiles: &[Tile]);
    fn view(&self) -> Vec<TileView>;
    /// The next picture to be decoded, with its source.
    fn sample(&mut self) -> Option<(u32, Vec<u8>)>;
    /// What a decoder says of a source's picture.
    fn tried(&mut self, source: u32, outcome: &Outcome);
}

struct Streaming<M: Mosaic> {
    tiler: Tiler<M>,
    tiles: BTreeMap<usize, Tile>,
    /// By source: what a decoder says of a picture that it cannot decode.
    faults: BTreeMap<u32, String>,
    region: fn(&Tile) -> M::Region,
    area: fn(&M, usize) -> Option<Area>,
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

    fn timestamp(&self, now: Time) -> u32 {
        self.tiler.timestamp(now)
    }

    fn shown(&self) -> Vec<(u32, u32, Time)> {
        self.tiler.shown().collect()
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
                contributor: tile.contributor(),
                region: (self.region)(tile),
            };
            match self.tiler.join(place, joined) {
                Ok(()) => {
                    self.tiles.insert(place, tile.clone());
                }
                Err(refusal) => tracing::warn!("{} gets no tile: {refusal}", tile.participant),
            }
        }
        let tiles = &self.tiles;
        self.faults.retain(|source, _| tiles.values().any(|tile| tile.source == *source));
    }

    fn view(&self) -> Vec<TileView> {
        let view = |(place, tile): (&usize, &Tile)| {
            let area = (self.area)(self.tiler.mosaic(), *place);
            let status = self.tiler.status(*place).unwrap_or_default();
            TileView {
                place: *place,
                participant: tile.participant.clone(),
                contributor: tile.contributor(),
                x: area.map(|area| area.x),
                y: area.map(|area| area.y),
                width: area.map(|area| area.width),
                height: area.map(|area| area.height),
                pictures: status.pictures,
                refused: status.refused,
                refusal: status.refusal.map(|refusal| match self.faults.get(&tile.source) {
                    Some(fault) if refusal == Refusal::Undecodable => format!("{refusal}: {fault}"),
                    _ => refusal.to_string(),
                }),
                trial: tilings::Trial::of(status.trial),
            }
        };
        self.tiles.iter().map(view).collect()
    }

    fn sample(&mut self) -> Option<(u32, Vec<u8>)> {
        self.tiler.sample()
    }

    fn tried(&mut self, source: u32, outcome: &Outcome) {
        let trial = match outcome {
            Outcome::Decoded => Trial::Decoded,
            Outcome::Undecodable(fault) => {
                self.faults.insert(source, fault.clone());
                Trial::Undecodable
            }
            Outcome::Unavailable(_) => Trial::Unavailable,
        };
        self.tiler.tried(source, trial);
    }
}

fn quarters(stream: stream::Stream, hold: Duration) -> Box<dyn Tiled> {
    Box::new(Streaming {
        tiler: Tiler::new(Quarters::default(), stream, hold),
        tiles: BTreeMap::new(),
        faults: BTreeMap::new(),
        region: |tile| tile.tile.map_or(mosaic::Region::Whole, mosaic::Region::Quarter),
        area: |_, place| {
            let place = u32::try_from(place).ok()?;
            Some(Area {
                x: 176 * (place % 2),
                y: 144 * (place / 2),
                width: 176,
                height: 144,
            })
        },
    })
}

fn column(places: usize, stream: stream::Stream, hold: Duration) -> Box<dyn Tiled> {
    Box::new(Streaming {
        tiler: Tiler::new(Column::new(places), stream, hold),
        tiles: BTreeMap::new(),
        faults: BTreeMap::new(),
        region,
        area: Column::area,
    })
}

fn grid((columns, rows): (u8, u8), stream: stream::Stream, hold: Duration) -> Box<dyn Tiled> {
    Box::new(Streaming {
        tiler: Tiler::new(Grid::new(columns, rows), stream, hold),
        tiles: BTreeMap::new(),
        faults: BTreeMap::new(),
        region,
        area: Grid::area,
    })
}

/// Where slices of a tile come from.
fn region(tile: &Tile) -> Region {
    Region {
        tile: tile.tile.unwrap_or(0).into(),
        tiles: tile.tiles.unwrap_or(1).into(),
        // A mixer's tiles repeat what they have shown.
        predicted: tile.predicted || tile.tiles.is_some(),
    }
}

/// A stream, how many packets of it went out with so many octets of payload, and the latest of them.
struct Running {
    tiled: Box<dyn Tiled>,
    packets: u64,
    octets: u64,
    sent: Sent,
}

struct Hosted {
    described: Tiling,
    streams: BTreeMap<u32, Running>,
    reports: Reports,
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
    /// Requests for packets that have not come, to sources; and packets that receivers got again.
    pub nacks: u64,
    pub again: u64,
}

/// Packets to send, and where to.
type Outgoing = Vec<(Vec<u8>, Address)>;

/// All that is tiled here.
pub struct Video {
    host: IpAddr,
    clocks: Arc<Clocks>,
    tilings: BTreeMap<String, Hosted>,
    by_source: HashMap<Address, String>,
    /// To the decoder.
    samples: mpsc::Sender<Sample>,
    /// Packets that receivers have asked for again, and what is said of streams that are over.
    again: Outgoing,
    farewells: Outgoing,
    pub counts: Counts,
}

fn endpoint(address: std::net::SocketAddr, higher: u16) -> Endpoint {
    Endpoint::new(address.ip().to_canonical(), address.port().wrapping_add(higher))
}

impl Video {
    #[must_use]
    pub fn new(host: IpAddr, clocks: Arc<Clocks>, samples: mpsc::Sender<Sample>) -> Self {
        Self {
            host,
            clocks,
            samples,
            tilings: BTreeMap::new(),
            by_source: HashMap::new(),
            again: Vec::new(),
            farewells: Vec::new(),
            counts: Counts::default(),
        }
    }

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
        let mut streams = BTreeMap::new();
        let mut reports = None;
        if let Some(before) = self.tilings.remove(name) {
            self.by_source.remove(&Address::from(endpoint(before.described.from, 0)));
            let goes_on = before.described.goes_on(&described);
            let stays = |ssrc: u32| {
                let mut same = described.streams.iter().filter(|stream| stream.ssrc == ssrc);
                goes_on && same.any(|stream| before.described.streams.iter().any(|other| other.goes_on(stream)))
            };
            self.farewells.extend(before.end(|ssrc| !stays(ssrc)));
            if goes_on {
                (streams, reports) = (before.streams, Some(before.reports));
            }
            streams.retain(|ssrc, _| stays(*ssrc));
        }
        let mut reports = reports.unwrap_or_else(|| Reports::new(name, self.host, Arc::clone(&self.clocks)));
        let tiles = || described.streams.iter().flat_map(|stream| &stream.tiles);
        let ssrcs: Vec<u32> = described.streams.iter().map(|stream| stream.ssrc).collect();
        reports.describe(
            tiles().map(|tile| (tile.source, Rates::new())).collect(),
            &tiles().map(Tile::contributor).collect(),
            &ssrcs,
        );
        for stream in &described.streams {
            let running = streams.entry(stream.ssrc).or_insert_with(|| Running {
                tiled: begin(&described, stream),
                packets: 0,
                octets: 0,
                sent: Sent::new(stream.ssrc),
            });
            running.tiled.describe(&stream.tiles);
        }
        self.by_source.insert(endpoint(described.from, 0).into(), name.to_owned());
        self.tilings.insert(
            name.to_owned(),
            Hosted {
                described,
                streams,
                reports,
            },
        );
    }

    /// Whether it was there.
    pub fn end(&mut self, name: &str) -> bool {
        self.by_source.retain(|_, tiling| tiling != name);
        let Some(gone) = self.tilings.remove(name) else { return false };
        self.farewells.extend(gone.end(|_| true));
        self.clocks.forget(name);
        true
    }

    /// Everything ends.
    pub fn end_all(&mut self) {
        let names: Vec<String> = self.tilings.keys().cloned().collect();
        for name in names {
            self.end(&name);
        }
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
                    reported: hosted.reports.reported(*ssrc),
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
            (Some(hosted), Packet::Rtp) => {
                hosted.reports.packet(packet, since_start(now));
                hosted.streams.values_mut().for_each(|running| running.tiled.packet(packet, now));
            }
            (Some(hosted), Packet::Rtcp) => self.again.extend(hosted.feedback(packet, now)),
            _ => self.counts.refused += 1,
        }
    }

    /// RTCP at its own port comes from the port above that of RTP.
    fn feedback(&mut self, now: Time, sender: &Address, packet: &[u8]) {
        self.counts.packets_in += 1;
        let rtp = sender.endpoint().map(|from| Endpoint::new(from.addr, from.port.wrapping_sub(1)));
        let name = rtp.and_then(|rtp| self.by_source.get(&Address::from(rtp)));
        match name.and_then(|name| self.tilings.get_mut(name)) {
            Some(hosted) => self.again.extend(hosted.feedback(packet, now)),
            None => self.counts.refused += 1,
        }
    }

    /// What the decoder says of a source's picture; it may have left.
    pub fn tried(&mut self, sample: &Sample, outcome: &Outcome) {
        let hosted = self.tilings.get_mut(&sample.tiling);
        if let Some(running) = hosted.and_then(|hosted| hosted.streams.get_mut(&sample.stream)) {
            running.tiled.tried(sample.source, outcome);
        }
    }

    /// Pictures for the decoder, as many as may wait.
    fn sample(&mut self) {
        for (name, hosted) in &mut self.tilings {
            for (ssrc, running) in &mut hosted.streams {
                while let Ok(room) = self.samples.try_reserve() {
                    let Some((source, octets)) = running.tiled.sample() else { break };
                    room.send(Sample {
                        tiling: name.clone(),
                        stream: *ssrc,
                        source,
                        codec: hosted.described.codec,
                        octets,
                    });
                }
            }
        }
    }

    /// Packets that are due, with requests and reports; and when the next are.
    fn poll(&mut self, now: Time, media: &mut Outgoing, control: &mut Outgoing) -> Option<Time> {
        let mut due: Option<Time> = None;
        self.sample();
        self.counts.again += self.again.len() as u64;
        media.append(&mut self.again);
        control.append(&mut self.farewells);
        for hosted in self.tilings.values_mut() {
            let to = Address::from(endpoint(hosted.described.to, 0));
            let asked = Address::from(endpoint(hosted.described.from, 1));
            for (ssrc, running) in &mut hosted.streams {
                let packets = running.tiled.poll(now);
                packets.iter().for_each(|packet| running.count(packet));
                media.extend(packets.into_iter().map(|packet| (packet, to)));
                let requests = running.tiled.requests(now);
                self.counts.requests += requests.len() as u64;
                control.extend(requests.into_iter().map(|source| (pli(*ssrc, source), asked)));
                due = due.into_iter().chain(running.tiled.due_at(now)).min();
            }
            let since = since_start(now);
            if let Some(stream) = hosted.described.streams.first() {
                let nacks = hosted.reports.missing(since, stream.ssrc);
                self.counts.nacks += nacks.len() as u64;
                control.extend(nacks.into_iter().map(|nack| (nack, asked)));
            }
            let (described, streams) = (&hosted.described, &hosted.streams);
            let reports = hosted.reports.due(since, || made(described, streams, now));
            control.extend(reports.into_iter().map(|report| (report, asked)));
        }
        due
    }
}

fn since_start(now: Time) -> Duration {
    Duration::from_nanos(now.as_nanos())
}

/// What has been sent of each stream.
fn made(described: &Tiling, streams: &BTreeMap<u32, Running>, now: Time) -> Vec<Made> {
    let made = described.streams.iter().filter_map(|stream| {
        let running = streams.get(&stream.ssrc)?;
        let contributors: BTreeSet<u32> = stream.tiles.iter().map(Tile::contributor).collect();
        let shown = running.tiled.shown().into_iter();
        // Counters wrap.
        Some(Made {
            ssrc: stream.ssrc,
            timestamp: running.tiled.timestamp(now),
            packets: running.packets as u32,
            octets: running.octets as u32,
            contributors: contributors.into_iter().collect(),
            playing: shown.map(|(ssrc, timestamp, at)| (ssrc, timestamp, VIDEO, now.since(at))).collect(),
        })
    });
    made.collect()
}

impl Running {
    /// A packet goes out.
    fn count(&mut self, packet: &[u8]) {
        self.packets += 1;
        if let Ok(header) = Header::parse(packet) {
            self.octets += header.payload.len() as u64;
            self.sent.slot(header.sequence).extend(packet);
        }
    }
}

impl Hosted {
    /// What is to be said of streams that end.
    fn end(&self, ends: impl Fn(u32) -> bool) -> Outgoing {
        let over: Vec<u32> = self.streams.keys().filter(|ssrc| ends(**ssrc)).copied().collect();
        let to = Address::from(endpoint(self.described.from, 1));
        self.reports.end(&over).into_iter().map(|said| (said, to)).collect()
    }

    /// RTCP came; packets that are to be sent again.
    fn feedback(&mut self, packet: &[u8], now: Time) -> Outgoing {
        self.reports.control(packet, since_start(now));
        let to = Address::from(endpoint(self.described.to, 0));
        let mut again = Vec::new();
        for item in walk(packet).map_while(Result::ok) {
            for request in item.key_frame_requests() {
                if let Some(running) = self.streams.get_mut(&request.media_ssrc) {
                    running.tiled.key_frame_wanted();
                }
            }
            if let Some(nack) = item.nack()
                && let Some(running) = self.streams.get(&nack.media_ssrc)
            {
                let kept = nack.lost().filter_map(|number| running.sent.packet(number));
                again.extend(kept.map(|packet| (packet.to_vec(), to)));
            }
        }
        again
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
        Codec::H264 => column(stream.places(described.codec), settings, hold),
        Codec::H265 => grid(stream.grid(), settings, hold),
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
    pub fn start(address: Endpoint, clocks: Arc<Clocks>, samples: mpsc::Sender<Sample>) -> io::Result<Self> {
        let media = Socket::bind(address, RECEIVE_BUFFER)?;
        media.set_tos(TOS)?;
        let control = Socket::bind(Endpoint::new(address.addr, address.port + 1), RECEIVE_BUFFER)?;
        let video = Arc::new(Mutex::new(Video::new(address.addr, clocks, samples)));
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
            (0..got).for_each(|at| video.feedback(clock(), batch.sender(at), batch.packet(at)));
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
pub fn send(socket: &Socket, packets: &[(Vec<u8>, Address)]) -> (u64, u64) {
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
