//! RTCP of mixes and tiled streams (RFC 3550 sections 6 and 7.3): sender reports of what is made, reception reports on the sources, and their names.
//!
//! A sender report says when that which is sent now was sampled: as long ago as the sources' own reports say on average. So a receiver plays what was
//! sampled at one time together, whichever of the mixer's streams it is in.

use crate::clocks::Clocks;
use serde::Serialize;
use shunt_edge_media::{BEHIND, Reception, cnames, ntp_of_unix, read_cnames, sender_report};
use shunt_rtp::Header;
use shunt_rtp::rtcp::{Item, Kind, Report, SenderInfo, bye, nack, receiver_report, walk};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Between two reports, on average (section 6.2); each interval is half to one and a half times as long (section 6.3.1).
const INTERVAL: Duration = Duration::from_secs(5);
/// The first one.
const FIRST: Duration = Duration::from_millis(500);
/// Blocks of a report, and octets of names: a compound has to fit into a packet.
const BLOCKS: usize = 15;
const NAMES: usize = 600;
/// The share of a new delay.
const SHARE: f64 = 0.25;

/// The clock rate of video, whatever its payload types.
pub const VIDEO: u32 = 90_000;

/// The clock rates of a source's payload types; none of video.
pub type Rates = Vec<(u8, u32)>;

/// What a stream has sent.
#[derive(Clone, Debug)]
pub struct Made {
    pub ssrc: u32,
    /// Of a packet that would go out now.
    pub timestamp: u32,
    pub packets: u32,
    /// Of payload.
    pub octets: u32,
    /// The sources whose names are told.
    pub contributors: Vec<u32>,
    /// What of them is in it: SSRC, timestamp, clock rate, and how long ago it went out.
    pub playing: Vec<(u32, u32, u32, Duration)>,
}

/// What a receiver has reported of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reported {
    /// Of the packets between its last two reports, 0 to 1.
    pub lost: f64,
    /// In units of the stream's clock.
    pub jitter: u32,
    pub round_trip_ms: Option<f64>,
}

#[derive(Debug, Default)]
struct Source {
    rates: Rates,
    reception: Option<Reception>,
}

/// A stream that is made.
#[derive(Debug, Default)]
struct Stream {
    /// How long ago what goes out was sampled.
    delay: Option<Duration>,
    /// The middle of the last sender report's time, and when it went out.
    sent: Option<(u32, Duration)>,
    reported: Option<Reported>,
}

/// The reports of one conference's mixes, or of one tiling.
pub struct Reports {
    conference: String,
    /// The canonical name of its streams.
    name: String,
    clocks: Arc<Clocks>,
    sources: BTreeMap<u32, Source>,
    /// Canonical names of participants, by SSRC, as far as they have told them.
    names: BTreeMap<u32, Option<String>>,
    streams: HashMap<u32, Stream>,
    due: Option<Duration>,
    /// Counts reports, so that more sources than fit into one have their turns.
    round: usize,
    random: RandomState,
}

/// Since 1970.
fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The middle 32 bits of an NTP timestamp.
fn middle(ntp: u64) -> u32 {
    // Those bits.
    (ntp >> 16) as u32
}

impl Reports {
    /// `host`: where the mixer is.
    #[must_use]
    pub fn new(conference: &str, host: std::net::IpAddr, clocks: Arc<Clocks>) -> Self {
        Self {
            conference: conference.to_owned(),
            name: format!("{conference}@{host}"),
            clocks,
            sources: BTreeMap::new(),
            names: BTreeMap::new(),
            streams: HashMap::new(),
            due: None,
            round: 0,
            random: RandomState::new(),
        }
    }

    /// These are the sources, the SSRCs of participants in what they send, and the streams that are made, from now on.
    pub fn describe(&mut self, mut sources: BTreeMap<u32, Rates>, contributors: &BTreeSet<u32>, streams: &[u32]) {
        self.sources.retain(|ssrc, source| match sources.remove(ssrc) {
            Some(rates) => {
                source.rates = rates;
                true
            }
            None => false,
        });
        self.sources.extend(sources.into_iter().map(|(ssrc, rates)| {
            let source = Source {
                rates,
                ..Source::default()
            };
            (ssrc, source)
        }));
        self.names.retain(|ssrc, _| contributors.contains(ssrc));
        for ssrc in contributors {
            self.names.entry(*ssrc).or_default();
        }
        self.streams.retain(|ssrc, _| streams.contains(ssrc));
        for ssrc in streams {
            self.streams.entry(*ssrc).or_default();
        }
    }

    /// What was last reported of a stream.
    #[must_use]
    pub fn reported(&self, stream: u32) -> Option<Reported> {
        self.streams.get(&stream)?.reported
    }

    /// A packet came, of a source or of somebody else. Times are since the thread has begun.
    pub fn packet(&mut self, packet: &[u8], now: Duration) {
        let Ok(header) = Header::parse(packet) else { return };
        let Some(source) = self.sources.get_mut(&header.ssrc) else { return };
        let named = source.rates.iter().find(|(number, _)| *number == header.payload_type);
        let rate = match named {
            Some((_, rate)) => *rate,
            None if source.rates.is_empty() => VIDEO,
            None => return,
        };
        let reception = source.reception.get_or_insert_with(|| Reception::new(header.ssrc, header.sequence));
        reception.packet(now, header.sequence, header.timestamp, rate);
    }

    /// RTCP came.
    pub fn control(&mut self, packet: &[u8], now: Duration) {
        let unix = unix();
        for item in walk(packet).map_while(Result::ok) {
            if let Some(info) = item.sender_info()
                && let Some(reception) = self.sources.get_mut(&info.ssrc).and_then(|source| source.reception.as_mut())
            {
                reception.sender_report(now, info.ntp);
                self.clocks
                    .with(&self.conference, |clocks| clocks.report(unix, info.ssrc, info.ntp, info.rtp));
            }
            for (ssrc, name) in read_cnames(&item) {
                if let Some(known) = self.names.get_mut(&ssrc) {
                    self.clocks.with(&self.conference, |clocks| clocks.cname(unix, ssrc, name));
                    *known = Some(name.to_owned());
                }
            }
            for gone in ended(&item) {
                if let Some(source) = self.sources.get_mut(&gone) {
                    source.reception = None;
                }
            }
            for block in item.reports() {
                if let Some(stream) = self.streams.get_mut(&block.ssrc) {
                    stream.reported = Some(stream.read(&block, now));
                }
            }
        }
    }

    /// The next reports, once they are due: a compound for each stream.
    pub fn due(&mut self, now: Duration, made: impl FnOnce() -> Vec<Made>) -> Vec<Vec<u8>> {
        let due = *self.due.get_or_insert(now + FIRST);
        if now < due {
            return Vec::new();
        }
        // The standard library's seeds are random.
        let random = self.random.hash_one(now) as f64 / u64::MAX as f64;
        self.due = Some(now + INTERVAL.mul_f64(0.5 + random));
        let made = made();
        let unix = unix();
        let mut blocks = self.blocks(now, BLOCKS * made.len()).into_iter();
        let mut compounds = Vec::new();
        for one in &made {
            let delay = self.delay(one, unix);
            let ntp = ntp_of_unix(unix.saturating_sub(delay));
            let mut compound = sender_report(&SenderInfo {
                ssrc: one.ssrc,
                ntp,
                rtp: one.timestamp,
                packets: one.packets,
                octets: one.octets,
            });
            let about: Vec<Report> = blocks.by_ref().take(BLOCKS).collect();
            if !about.is_empty() {
                compound.extend(receiver_report(one.ssrc, &about));
            }
            compound.extend(cnames(&self.names(one)));
            compounds.push(compound);
            if let Some(stream) = self.streams.get_mut(&one.ssrc) {
                stream.sent = Some((middle(ntp), now));
            }
        }
        self.round += 1;
        compounds
    }

    /// Requests for packets that have not come (RFC 4585), in the name of a stream.
    pub fn missing(&mut self, now: Duration, stream: u32) -> Vec<Vec<u8>> {
        let received = self.sources.values_mut().filter_map(|source| source.reception.as_mut());
        received
            .filter_map(|reception| nack(stream, reception.ssrc, reception.due(now)).ok())
            .collect()
    }

    /// The streams end.
    #[must_use]
    pub fn end(&self, ssrcs: &[u32]) -> Vec<Vec<u8>> {
        let compound = |ssrc: &u32| {
            let mut made = receiver_report(*ssrc, &[]);
            made.extend(cnames(&[(*ssrc, &self.name)]));
            made.extend(bye(&[*ssrc]));
            made
        };
        ssrcs.iter().map(compound).collect()
    }

    /// How long ago what a stream sends now was sampled, as far as is known, on average over its sources.
    fn delay(&mut self, made: &Made, unix: Duration) -> Duration {
        let known = self.clocks.with(&self.conference, |clocks| {
            let delays = made.playing.iter().filter_map(|(ssrc, timestamp, rate, ago)| {
                let shown = unix.saturating_sub(*ago);
                Some(shown.saturating_sub(clocks.sampled(shown, *ssrc, *timestamp, *rate)?).as_secs_f64())
            });
            delays.collect::<Vec<f64>>()
        });
        let Some(stream) = self.streams.get_mut(&made.ssrc) else {
            return BEHIND;
        };
        if !known.is_empty() {
            let average = known.iter().sum::<f64>() / known.len() as f64;
            let delay = stream.delay.map_or(average, |before| {
                let before = before.as_secs_f64();
                before + SHARE * (average - before)
            });
            stream.delay = Some(Duration::from_secs_f64(delay));
        }
        stream.delay.unwrap_or(BEHIND)
    }

    /// Reports on sources of which packets have come, in turns where they are too many.
    fn blocks(&mut self, now: Duration, most: usize) -> Vec<Report> {
        let mut received: Vec<&mut Reception> = self.sources.values_mut().filter_map(|source| source.reception.as_mut()).collect();
        let begin = turn(self.round, received.len(), most);
        received.rotate_left(begin);
        received.into_iter().take(most).map(|reception| reception.block(now)).collect()
    }

    /// The stream's own name first, which says whose the chunks are, then those of its contributors as they have told them.
    fn names<'a>(&'a self, made: &Made) -> Vec<(u32, &'a str)> {
        let named = |ssrc: &u32| Some((*ssrc, self.names.get(ssrc)?.as_deref()?));
        let mut theirs: Vec<(u32, &str)> = made.contributors.iter().filter_map(named).collect();
        let begin = turn(self.round, theirs.len(), BLOCKS);
        theirs.rotate_left(begin);
        let mut octets = 0;
        let fits = |(_, name): &(u32, &str)| {
            octets += 12 + name.len();
            octets <= NAMES
        };
        let own = std::iter::once((made.ssrc, self.name.as_str()));
        own.chain(theirs.into_iter().take(BLOCKS).take_while(fits)).collect()
    }
}

impl Stream {
    fn read(&self, block: &Report, now: Duration) -> Reported {
        let sent = self.sent.filter(|(middle, _)| block.lsr != 0 && *middle == block.lsr);
        let round_trip = sent.map(|(_, at)| now.saturating_sub(at).as_secs_f64() - f64::from(block.dlsr) / 65536.0);
        Reported {
            lost: f64::from(block.fraction_lost) / 256.0,
            jitter: block.jitter,
            round_trip_ms: round_trip.map(|seconds| 1000.0 * seconds.max(0.0)),
        }
    }
}

/// The SSRCs that a BYE is about.
fn ended(item: &Item) -> Vec<u32> {
    if item.kind != Kind::Bye {
        return Vec::new();
    }
    let words = item.bytes.get(4..).unwrap_or_default().chunks_exact(4);
    let ssrcs = words.take(item.count.into()).filter_map(|word| word.try_into().ok());
    ssrcs.map(u32::from_be_bytes).collect()
}

/// Where of `count` a round of `most` begins.
fn turn(round: usize, count: usize, most: usize) -> usize {
    if count <= most { 0 } else { round * most % count }
}
