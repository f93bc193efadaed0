//! One tiled stream: sources' packets, joins and leaves in; its packets, and whom to ask for a key frame, out.

use crate::order::{Next, Order};
use crate::queue::Pace;
use crate::refusal::Refusal;
use crate::stream::{Payload, Stream};
use shunt_latch::Time;
use shunt_rtp::Header;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two requests for a key frame to one source.
pub const ASK: Duration = Duration::from_secs(1);
/// Between two key frames of the stream that receivers have asked for.
const REFRESH: Duration = Duration::from_millis(500);
/// How long the stream is silent at most: what is on the way (NATs, latching) forgets, or has not yet seen, who sends nothing (RFC 6263).
const SILENCE: Duration = Duration::from_secs(1);
/// RTP timestamps of video in a second.
const CLOCK: u64 = 90_000;

/// What is tiled, by one codec.
pub trait Mosaic {
    /// A source's packets, put together.
    type Assembler: Default;
    /// A picture of a source.
    type Picture;
    /// Which part of a source's picture a tile shows.
    type Region: Copy;

    /// The next packet or gap of a source; the pictures that end with it. `alone`: [`Mosaic::alone`] will be asked for.
    fn assemble(assembler: &mut Self::Assembler, next: &Next, alone: bool) -> Vec<Self::Picture>;

    /// A picture as a stream of its own, as decoders read it from a file; nothing if it is not whole, or cannot be decoded without those before.
    fn alone(picture: &mut Self::Picture) -> Option<Vec<u8>>;

    /// How many tiles there can be.
    fn places(&self) -> usize;

    /// Gives a place to a contributor; who had it leaves.
    fn join(&mut self, place: usize, contributor: u32, region: Self::Region);

    fn leave(&mut self, place: usize);

    /// A picture for some places, whose contributors one source sends.
    ///
    /// # Errors
    /// It cannot be tiled.
    fn put(&mut self, places: &[usize], picture: Self::Picture, now: Time) -> Result<(), Refusal>;

    /// Of each place that is taken: how many pictures wait, and since when.
    fn queues(&self) -> Vec<(usize, Option<Time>)>;

    /// Whether a picture is due although nothing waits.
    fn due(&self) -> bool;

    /// Somebody begins to decode.
    fn refresh(&mut self);

    /// Whether the tile at a place needs a key frame.
    fn needs_key_frame(&self, place: usize) -> bool;

    /// The next picture, for packets of at most `size` octets. Nothing, if it has to wait.
    fn compose(&mut self, now: Time, size: usize) -> Vec<Payload>;
}

/// A tile of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<R> {
    /// The SSRC of the packets that its pictures come in.
    pub source: u32,
    /// The participant's own SSRC: the source, unless that is a mixer.
    pub contributor: u32,
    pub region: R,
}

/// How the decoding of one of a source's pictures, by a decoder that is not part of this crate, has gone so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trial {
    /// Its sources have been tried by the mixer that it is.
    None,
    /// Until a picture has been tiled that can be decoded alone, and has been decoded.
    #[default]
    Pending,
    Decoded,
    Undecodable,
    /// No decoder has said anything.
    Unavailable,
}

/// What is known of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub trial: Trial,
    /// Pictures, whole or not.
    pub pictures: u64,
    /// Pictures that were refused, and why the last one was, unless one has been taken since.
    pub refused: u64,
    pub refusal: Option<Refusal>,
}

#[derive(Debug, Default)]
struct Source<A> {
    order: Order,
    assembler: A,
    /// A receiver of the stream needs its key frame.
    wanted: bool,
    asked: Option<Time>,
    /// The timestamp of the last packet of a picture that waits, and of the one that is shown, with the time since which it is.
    put: Option<u32>,
    shown: Option<(u32, Time)>,
    /// A picture to be decoded, and that one has been taken for it.
    sample: Option<Vec<u8>>,
    sampled: bool,
    status: Status,
}

/// Makes one stream.
#[derive(Debug)]
pub struct Tiler<M: Mosaic> {
    mosaic: M,
    stream: Stream,
    pace: Pace,
    places: BTreeMap<usize, Place<M::Region>>,
    sources: BTreeMap<u32, Source<M::Assembler>>,
    /// A receiver needs a key frame, and when one was begun for a receiver.
    refresh: bool,
    refreshed: Option<Time>,
    /// When the last packet went out, or the first could have.
    sent: Option<Time>,
}

impl<M: Mosaic> Tiler<M> {
    /// `hold`: how long a picture waits at most for other tiles' pictures; a frame of the sources' usual rate.
    #[must_use]
    pub fn new(mosaic: M, stream: Stream, hold: Duration) -> Self {
        Self {
            mosaic,
            stream,
            pace: Pace::new(hold),
            places: BTreeMap::new(),
            sources: BTreeMap::new(),
            refresh: false,
            refreshed: None,
            sent: None,
        }
    }

    #[must_use]
    pub fn mosaic(&self) -> &M {
        &self.mosaic
    }

    /// The tiles that are taken.
    #[must_use]
    pub fn places(&self) -> &BTreeMap<usize, Place<M::Region>> {
        &self.places
    }

    /// What is known of a place's source; nothing if nobody has the place.
    #[must_use]
    pub fn status(&self, place: usize) -> Option<Status> {
        let place = self.places.get(&place)?;
        self.sources.get(&place.source).map(|source| source.status)
    }

    /// A participant gets a place.
    ///
    /// # Errors
    /// There is no such place, or it is taken.
    pub fn join(&mut self, at: usize, place: Place<M::Region>) -> Result<(), Refusal> {
        if at >= self.mosaic.places() || self.places.contains_key(&at) {
            return Err(Refusal::Place);
        }
        if self.places.values().any(|other| other.contributor == place.contributor) {
            return Err(Refusal::Taken);
        }
        self.sources.entry(place.source).or_insert_with(|| Source {
            order: Order::default(),
            assembler: M::Assembler::default(),
            wanted: false,
            asked: None,
            put: None,
            shown: None,
            sample: None,
            sampled: false,
            status: Status {
                trial: if place.source == place.contributor {
                    Trial::Pending
                } else {
                    Trial::None
                },
                ..Status::default()
            },
        });
        self.mosaic.join(at, place.contributor, place.region);
        self.places.insert(at, place);
        Ok(())
    }

    /// Whoever has the place gives it up.
    pub fn leave(&mut self, at: usize) {
        let Some(left) = self.places.remove(&at) else { return };
        self.mosaic.leave(at);
        if self.places.values().all(|place| place.source != left.source) {
            self.sources.remove(&left.source);
        }
    }

    /// An RTP packet of a source. Packets of SSRCs that have no place are passed over.
    pub fn packet(&mut self, packet: &[u8], now: Time) {
        let Ok(header) = Header::parse(packet) else { return };
        if let Some(source) = self.sources.get_mut(&header.ssrc) {
            source.order.push(header.sequence, packet, now);
            self.read(header.ssrc, now);
        }
    }

    fn read(&mut self, ssrc: u32, now: Time) {
        let Some(source) = self.sources.get_mut(&ssrc) else { return };
        let places = self.places.iter().filter(|(_, place)| place.source == ssrc);
        let places: Vec<usize> = places.map(|(at, _)| *at).collect();
        while let Some(next) = source.order.pop(now) {
            if is_empty(&next) {
                continue;
            }
            let untried = source.status.trial == Trial::Pending && !source.sampled;
            for mut picture in M::assemble(&mut source.assembler, &next, untried && source.sample.is_none()) {
                source.status.pictures += 1;
                if source.status.trial == Trial::Undecodable {
                    source.status.refused += 1;
                    source.status.refusal = Some(Refusal::Undecodable);
                    continue;
                }
                let sample = if untried && source.sample.is_none() {
                    M::alone(&mut picture)
                } else {
                    None
                };
                source.status.refusal = self.mosaic.put(&places, picture, now).err();
                if source.status.refusal.is_none() && sample.is_some() {
                    source.sample = sample;
                }
                source.status.refused += u64::from(source.status.refusal.is_some());
                if let (Next::Packet(packet), None) = (&next, &source.status.refusal) {
                    source.put = packet.header().map(|header| header.timestamp);
                }
            }
        }
    }

    /// Pictures to be decoded, one of each source, as streams of their own ([`Mosaic::alone`]): the next that is the first of its source to be
    /// tiled. What a decoder says of it is for [`Tiler::tried`].
    pub fn sample(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut sources = self.sources.iter_mut();
        sources.find_map(|(ssrc, source)| {
            let sample = source.sample.take()?;
            source.sampled = true;
            Some((*ssrc, sample))
        })
    }

    /// How the decoding of a source's picture has gone. A source whose picture cannot be decoded shows nothing from now on, and its pictures
    /// are refused.
    pub fn tried(&mut self, ssrc: u32, trial: Trial) {
        let source = self.sources.get_mut(&ssrc);
        let Some(source) = source.filter(|source| source.sampled && source.status.trial == Trial::Pending) else {
            return;
        };
        source.status.trial = trial;
        if trial == Trial::Undecodable {
            source.status.refusal = Some(Refusal::Undecodable);
            (source.wanted, source.put) = (false, None);
            let places = self.places.iter().filter(|(_, place)| place.source == ssrc);
            places.for_each(|(at, _)| self.mosaic.leave(*at));
        }
    }

    /// A receiver of the stream asks for a key frame, or begins to receive: sources are asked for theirs. Requests that come together count
    /// as one.
    pub fn key_frame_wanted(&mut self) {
        self.refresh = true;
    }

    fn refresh(&mut self, now: Time) {
        if self.refresh && self.refreshed.is_none_or(|before| now.since(before) >= REFRESH) {
            (self.refresh, self.refreshed) = (false, Some(now));
            self.mosaic.refresh();
            self.sources.values_mut().for_each(|source| source.wanted = true);
        }
    }

    /// Sources that have to be asked for a key frame now, each at most once in [`ASK`].
    pub fn requests(&mut self, now: Time) -> Vec<u32> {
        let mut due = Vec::new();
        for (ssrc, source) in &mut self.sources {
            let mut places = self.places.iter().filter(|(_, place)| place.source == *ssrc);
            let needed = source.wanted || places.any(|(at, _)| self.mosaic.needs_key_frame(*at));
            if needed && source.asked.is_none_or(|asked| now.since(asked) >= ASK) {
                (source.wanted, source.asked) = (false, Some(now));
                due.push(*ssrc);
            }
        }
        due
    }

    /// Packets that are due. One without a payload goes out when nothing else has for a second, and there is no picture that could.
    pub fn poll(&mut self, now: Time) -> Vec<Vec<u8>> {
        let waiting: Vec<u32> = self.sources.keys().copied().collect();
        waiting.into_iter().for_each(|ssrc| self.read(ssrc, now));
        self.refresh(now);
        let silent = now.since(*self.sent.get_or_insert(now)) >= SILENCE;
        if !silent && self.picture_at(now).is_none_or(|due| due > now) {
            return Vec::new();
        }
        let mut payloads = self.mosaic.compose(now, self.stream.size);
        self.pace.made(now);
        if payloads.is_empty() && silent {
            payloads.push(Payload::default());
        }
        if !payloads.is_empty() {
            self.sent = Some(now);
        }
        if !payloads.is_empty() {
            for source in self.sources.values_mut() {
                source.shown = source.put.take().map(|timestamp| (timestamp, now)).or(source.shown);
            }
        }
        let timestamp = self.timestamp(now);
        let last = payloads.len().saturating_sub(1);
        let numbered = payloads.iter().enumerate();
        numbered
            .map(|(at, payload)| self.stream.packet(payload, timestamp, at == last && !payload.octets.is_empty()))
            .collect()
    }

    /// The timestamp of a packet that goes out now.
    #[must_use]
    pub fn timestamp(&self, now: Time) -> u32 {
        // Timestamps wrap.
        #[allow(clippy::cast_possible_truncation)]
        let elapsed = (u128::from(now.as_nanos()) * u128::from(CLOCK) / 1_000_000_000) as u32;
        self.stream.timestamp.wrapping_add(elapsed)
    }

    /// Of each source the timestamp of the picture that is shown, and since when.
    pub fn shown(&self) -> impl Iterator<Item = (u32, u32, Time)> {
        let shown = |(ssrc, source): (&u32, &Source<M::Assembler>)| source.shown.map(|(timestamp, at)| (*ssrc, timestamp, at));
        self.sources.iter().filter_map(shown)
    }

    /// When to poll next; never, unless something comes.
    #[must_use]
    pub fn due_at(&self, now: Time) -> Option<Time> {
        let late = self.sources.values().filter_map(|source| source.order.due_at());
        let refresh = self.refresh.then(|| self.refreshed.map_or(now, |before| before + REFRESH));
        late.chain(refresh)
            .chain(self.picture_at(now))
            .chain(self.sent.map(|sent| sent + SILENCE))
            .min()
    }

    fn picture_at(&self, now: Time) -> Option<Time> {
        self.pace.due_at(self.mosaic.queues().into_iter(), self.mosaic.due(), now)
    }
}

/// Whether a packet only keeps its source latched (RFC 6263 section 4.6), as those of a mixer that has nothing to send.
fn is_empty(next: &Next) -> bool {
    matches!(next, Next::Packet(packet) if packet.header().is_some_and(|header| header.payload.is_empty()))
}
