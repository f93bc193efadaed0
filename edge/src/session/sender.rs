//! What goes to a browser: SRTP and SRTCP, paced, packets that it asks for again, and the estimate of what it can be sent.

use super::keys::Keys;
use crate::media::{Outgoing, Path};
use shunt_edge_media::{
    Departure, Departures, Estimator, Kept, Outcome, Pacer, Plain, Probe, Retransmissions, cname_item, ntp_of_unix, sender_report,
};
use shunt_rtp::Extension;
use shunt_rtp::rtcp::{self, Item, Kind, SenderInfo};
use shunt_srtp::{Protector, SrtpError, Unprotector};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What the estimate begins with, bit/s.
const FIRST_ESTIMATE: u64 = 1_000_000;
/// What the round trip is taken for until it is known, and its bounds.
const ROUND_TRIP: Duration = Duration::from_millis(100);
const ROUND_TRIPS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// Sender reports; audio and video are brought together by two of each.
const REPORTS: Duration = Duration::from_secs(1);
/// Octets of a compound of reports.
const COMPOUND: usize = 1000;
/// Packets that wait at most; as many are kept of one medium.
const WAITING: usize = 1024;
/// Packets of a probe leave so far apart at least.
const PROBE_STEP: Duration = Duration::from_millis(1);
/// A probe repeats what has at least so many octets, or sends so many of padding.
const PROBE_OCTETS: usize = 300;
const PADDING: u8 = 255;
/// RTX begins here: what is before the first number has the rollover counter 0 too.
const FIRST_REPAIR: u64 = 1000;

/// The browser's ids of the header extensions that a medium has (RFC 8285).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    pub mid: Option<u8>,
    /// Transport-wide sequence number.
    pub transport: Option<u8>,
    /// Absolute send time.
    pub time: Option<u8>,
    pub level: Option<u8>,
    pub descriptor: Option<u8>,
    pub orientation: Option<u8>,
}

/// What is negotiated of a stream to the browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pub ssrc: u32,
    pub mid: String,
    pub cname: String,
    pub video: bool,
    pub ids: Ids,
    /// The SSRC of what is sent again (RFC 4588), and its payload type for each payload type.
    pub repair: Option<u32>,
    pub repair_types: Vec<(u8, u8)>,
}

/// What the browser says of a stream, and what was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub nacks: u64,
    pub again: u64,
    /// Share of packets lost, as last reported.
    pub lost: Option<f32>,
}

/// A packet for the browser.
pub struct Media<'a> {
    pub marker: bool,
    pub payload_type: u8,
    /// Extended by its rollover counter.
    pub sequence: u64,
    pub timestamp: u32,
    pub clock_rate: u32,
    /// When its content was sampled.
    pub sampled: Duration,
    pub extension: Option<Extension<'a>>,
    pub payload: &'a [u8],
}

/// The state of a stream.
struct Sending {
    stream: Stream,
    counts: Counts,
    packets: u32,
    octets: u32,
    /// A timestamp, when its content was sampled, and the clock rate.
    clock: Option<(u32, Duration, u32)>,
    kept: Retransmissions,
    repair_sequence: u64,
}

/// The ciphers.
struct Ciphers {
    profile: &'static str,
    out: Protector,
    browser: Unprotector,
    library: Unprotector,
}

/// A probe that is being sent.
struct Probing {
    probe: Probe,
    begun: Duration,
    octets: usize,
    packets: u32,
    last: Duration,
}

/// Which packet of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    ssrc: u32,
    sequence: u64,
}

/// The sending side of a session.
pub struct Sender {
    link: Link,
    streams: BTreeMap<u32, Sending>,
    outcomes: Vec<Outcome>,
    estimator: Estimator,
    pacer: Pacer,
    /// What is to be sent again, and what waits for its first time.
    again: VecDeque<Named>,
    queue: VecDeque<Named>,
    /// Octets of what waits for its first time.
    waiting: u64,
    probing: Option<Probing>,
    /// The video that was sent last.
    video: Option<u32>,
    rtt: Option<Duration>,
    remb: Option<u64>,
    next_report: Option<Duration>,
    audio: Kept,
}

impl Default for Sender {
    fn default() -> Self {
        Self {
            link: Link::default(),
            streams: BTreeMap::new(),
            outcomes: Vec::new(),
            estimator: Estimator::new(FIRST_ESTIMATE),
            pacer: Pacer::default(),
            again: VecDeque::new(),
            queue: VecDeque::new(),
            waiting: 0,
            probing: None,
            video: None,
            rtt: None,
            remb: None,
            next_report: None,
            audio: Kept::default(),
        }
    }
}

/// The 24 bits of a send time: seconds with 18 bits of fraction, 64 s in all.
fn send_time(now: Duration) -> [u8; 3] {
    let fraction = (u64::from(now.subsec_nanos()) << 18) / 1_000_000_000;
    let [.., a, b, c] = ((now.as_secs() & 63) << 18 | fraction).to_be_bytes();
    [a, b, c]
}

/// The header extensions of a plain packet that the browser knows, with its ids, and the payload.
fn keep(media: &Media<'_>, ids: &Ids, packet: &mut Kept) {
    packet.marker = media.marker;
    packet.payload_type = media.payload_type;
    packet.timestamp = media.timestamp;
    if let Some(extension) = media.extension {
        for element in extension.elements().flatten() {
            let id = match element.id {
                super::descriptor::AUDIO_LEVEL => ids.level,
                super::descriptor::DESCRIPTOR => ids.descriptor,
                super::descriptor::ORIENTATION => ids.orientation,
                _ => None,
            };
            if let Some(id) = id {
                packet.element(id, element.data);
            }
        }
    }
    packet.set_payload(media.payload);
}

/// How a packet is sent.
struct How {
    ssrc: u32,
    payload_type: u8,
    sequence: u64,
    /// What goes before the payload: the number of what is sent again.
    original: Option<u16>,
    /// The payload is padding.
    padding: bool,
    probe: Option<u32>,
}

/// Where packets leave: who encrypts them, by which way, and when each was sent.
#[derive(Default)]
struct Link {
    ciphers: Option<Ciphers>,
    path: Option<Path>,
    departures: Departures,
}

impl Link {
    fn is_open(&self) -> bool {
        self.ciphers.is_some() && self.path.is_some()
    }

    /// Write and encrypt a packet; its octets.
    fn rtp(&mut self, now: Duration, stream: &Stream, packet: &Kept, how: &How, out: &mut Outgoing) -> Option<usize> {
        let (ciphers, path) = (self.ciphers.as_mut()?, self.path.as_ref()?);
        let number = self.departures.next().to_be_bytes();
        let time = send_time(now);
        let mut elements = [(0, &[][..]); 8];
        let own = [
            (stream.ids.mid, stream.mid.as_bytes()),
            (stream.ids.transport, &number),
            (stream.ids.time, &time),
        ];
        let own = own.into_iter().filter_map(|(id, data)| Some((id?, data)));
        let mut count = 0;
        for (place, element) in elements.iter_mut().zip(own.chain(packet.elements())) {
            *place = element;
            count += 1;
        }
        // The low 16 bits of an extended number.
        #[allow(clippy::cast_possible_truncation)]
        let sequence = how.sequence as u16;
        let plain = Plain {
            marker: packet.marker,
            payload_type: how.payload_type,
            sequence,
            timestamp: packet.timestamp,
            ssrc: how.ssrc,
            elements: &elements[..count],
            payload: packet.payload(),
        };
        let octets = out.write(path, |buffer| {
            let start = buffer.len();
            plain.write_header(buffer);
            let header = buffer.len() - start;
            if how.padding {
                buffer[start] |= 0x20;
            }
            if let Some(original) = how.original {
                buffer.extend_from_slice(&original.to_be_bytes());
            }
            buffer.extend_from_slice(plain.payload);
            ciphers.out.rtp(buffer, start, header, how.sequence).ok()
        })?;
        if stream.ids.transport.is_some() {
            self.departures.sent(Departure {
                at: now,
                octets,
                probe: how.probe,
            });
        }
        Some(octets)
    }

    /// Encrypt and send an RTCP compound.
    fn rtcp(&mut self, compound: &[u8], out: &mut Outgoing) {
        let (Some(ciphers), Some(path)) = (&mut self.ciphers, &self.path) else {
            return;
        };
        out.write(path, |buffer| {
            let start = buffer.len();
            buffer.extend_from_slice(compound);
            ciphers.out.rtcp(buffer, start).ok()
        });
    }
}

impl Sender {
    /// DTLS has handed the keys over.
    ///
    /// # Errors
    /// The library takes no key of this kind.
    pub fn set_keys(&mut self, keys: &Keys) -> Result<(), SrtpError> {
        self.link.ciphers = Some(Ciphers {
            profile: keys.local.profile().name(),
            out: Protector::new(&keys.local)?,
            browser: Unprotector::new(&keys.remote)?,
            library: Unprotector::new(&keys.library)?,
        });
        Ok(())
    }

    /// The protection profile.
    pub fn profile(&self) -> Option<&'static str> {
        self.link.ciphers.as_ref().map(|ciphers| ciphers.profile)
    }

    /// The browser has taken this way.
    pub fn set_path(&mut self, path: Path) {
        self.link.path = Some(path);
    }

    /// The streams are these now.
    pub fn set_streams(&mut self, streams: Vec<Stream>) {
        self.streams.retain(|ssrc, _| streams.iter().any(|stream| stream.ssrc == *ssrc));
        for stream in streams {
            match self.streams.get_mut(&stream.ssrc) {
                Some(sending) => sending.stream = stream,
                None => {
                    let sending = Sending {
                        counts: Counts::default(),
                        packets: 0,
                        octets: 0,
                        clock: None,
                        kept: Retransmissions::default(),
                        repair_sequence: FIRST_REPAIR,
                        stream,
                    };
                    self.streams.insert(sending.stream.ssrc, sending);
                }
            }
        }
    }

    pub fn counts(&self, ssrc: u32) -> Counts {
        self.streams.get(&ssrc).map(|sending| sending.counts).unwrap_or_default()
    }

    pub fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// What the browser can be sent, bit/s, once that is known.
    pub fn estimate(&self) -> Option<u64> {
        if self.estimator.is_measured() {
            Some(self.estimator.estimate())
        } else {
            self.remb
        }
    }

    /// What can be of use at most, bit/s.
    pub fn set_wanted(&mut self, wanted: u64) {
        self.estimator.set_wanted(wanted);
    }

    fn bitrate(&self) -> u64 {
        self.estimate().unwrap_or(FIRST_ESTIMATE)
    }

    fn round_trip(&self) -> Duration {
        self.rtt.unwrap_or(ROUND_TRIP).clamp(ROUND_TRIPS.0, ROUND_TRIPS.1)
    }

    // -- media ---------------------------------------------------------------------------------------

    /// Send a packet: at once, or when the pacer lets it go.
    pub fn send(&mut self, now: Duration, ssrc: u32, media: &Media<'_>, out: &mut Outgoing) {
        let Some(sending) = self.streams.get_mut(&ssrc) else { return };
        sending.clock = Some((media.timestamp, media.sampled, media.clock_rate));
        if sending.packets == 0 {
            self.next_report = Some(now);
        }
        let named = Named {
            ssrc,
            sequence: media.sequence,
        };
        if !sending.stream.video {
            let mut packet = std::mem::take(&mut self.audio);
            packet.clear();
            keep(media, &sending.stream.ids, &mut packet);
            self.transmit(now, named, Some(&packet), out);
            self.audio = packet;
            return;
        }
        let packet = sending.kept.store(now, media.sequence, media.payload.len());
        keep(media, &sending.stream.ids, packet);
        self.video = Some(ssrc);
        let bitrate = self.bitrate();
        if self.queue.is_empty() && self.pacer.admits(now, bitrate, 0) {
            self.transmit(now, named, None, out);
        } else {
            if self.queue.len() == WAITING
                && let Some(oldest) = self.queue.pop_front()
            {
                self.transmit(now, oldest, None, out);
            }
            self.waiting += media.payload.len() as u64;
            self.queue.push_back(named);
        }
    }

    fn probe_id(&self) -> Option<u32> {
        self.probing.as_ref().map(|probing| probing.probe.id)
    }

    fn count(&mut self, octets: usize) {
        self.pacer.sent(octets);
        if let Some(probing) = &mut self.probing {
            probing.octets += octets;
            probing.packets += 1;
        }
    }

    /// Send a packet for the first time: this one, or the one that is kept.
    fn transmit(&mut self, now: Duration, named: Named, packet: Option<&Kept>, out: &mut Outgoing) {
        let probe = self.probe_id();
        let Some(sending) = self.streams.get_mut(&named.ssrc) else { return };
        let Some(packet) = packet.or_else(|| sending.kept.get(named.sequence)) else {
            return;
        };
        let how = How {
            ssrc: named.ssrc,
            payload_type: packet.payload_type,
            sequence: named.sequence,
            original: None,
            padding: false,
            probe,
        };
        let sent = self.link.rtp(now, &sending.stream, packet, &how, out);
        if let Some(octets) = sent {
            sending.packets = sending.packets.wrapping_add(1);
            // Counts that wrap (RFC 3550 section 6.4.1).
            #[allow(clippy::cast_possible_truncation)]
            let payload = packet.payload().len() as u32;
            sending.octets = sending.octets.wrapping_add(payload);
            self.count(octets);
        }
    }

    /// Send a packet again (RFC 4588), or only padding; whether there was something to send.
    fn repeat(&mut self, now: Duration, ssrc: u32, sequence: Option<u64>, out: &mut Outgoing) -> bool {
        let probe = self.probe_id();
        let Some(sending) = self.streams.get_mut(&ssrc) else { return false };
        let mut padding = Kept::default();
        let packet = match sequence {
            Some(sequence) => sending.kept.get(sequence),
            None => {
                padding.payload_type = sending.stream.repair_types.first().map(|(of, _)| *of).unwrap_or_default();
                padding.timestamp = sending.clock.map(|(timestamp, ..)| timestamp).unwrap_or_default();
                let mut octets = [0; PADDING as usize];
                octets[PADDING as usize - 1] = PADDING;
                padding.set_payload(&octets);
                Some(&padding)
            }
        };
        let (Some(packet), Some(repair)) = (packet, sending.stream.repair) else {
            return false;
        };
        let types = &sending.stream.repair_types;
        let Some((_, payload_type)) = types.iter().find(|(of, _)| *of == packet.payload_type) else {
            return false;
        };
        // The low 16 bits of an extended number.
        #[allow(clippy::cast_possible_truncation)]
        let original = sequence.map(|sequence| sequence as u16);
        let how = How {
            ssrc: repair,
            payload_type: *payload_type,
            sequence: sending.repair_sequence,
            original,
            padding: original.is_none(),
            probe,
        };
        sending.repair_sequence += 1;
        let sent = self.link.rtp(now, &sending.stream, packet, &how, out);
        if let Some(octets) = sent {
            self.count(octets);
        }
        sent.is_some()
    }

    /// Send what may go now: what is asked for again, what waits, probes, reports. `unix`: the time since 1970.
    pub fn advance(&mut self, now: Duration, unix: Duration, out: &mut Outgoing) {
        if !self.link.is_open() {
            return;
        }
        if self.next_report.is_some_and(|at| now >= at) {
            self.next_report = Some(now + REPORTS);
            self.report(now, unix, out);
        }
        let bitrate = self.bitrate();
        while !self.again.is_empty() && self.pacer.admits(now, bitrate, self.waiting) {
            if let Some(named) = self.again.pop_front()
                && self.repeat(now, named.ssrc, Some(named.sequence), out)
                && let Some(sending) = self.streams.get_mut(&named.ssrc)
            {
                sending.counts.again += 1;
            }
        }
        while !self.queue.is_empty() && self.pacer.admits(now, bitrate, self.waiting) {
            if let Some(named) = self.queue.pop_front() {
                let kept = self.streams.get(&named.ssrc).and_then(|sending| sending.kept.get(named.sequence));
                self.waiting -= kept.map_or(0, |packet| packet.payload().len() as u64).min(self.waiting);
                self.transmit(now, named, None, out);
            }
        }
        if self.queue.is_empty() {
            self.waiting = 0;
        }
        self.probe(now, out);
    }

    /// The stream by which probes go: the last video, if it has RTX and feedback.
    fn probed(&self) -> Option<u32> {
        let sending = self.streams.get(&self.video?)?;
        let stream = &sending.stream;
        (stream.ids.transport.is_some() && stream.repair.is_some() && !stream.repair_types.is_empty()).then_some(stream.ssrc)
    }

    fn probe(&mut self, now: Duration, out: &mut Outgoing) {
        let Some(ssrc) = self.probed() else {
            self.probing = None;
            return;
        };
        if self.probing.is_none() {
            let Some(probe) = self.estimator.probe(now) else { return };
            self.probing = Some(Probing {
                probe,
                begun: now,
                octets: 0,
                packets: 0,
                last: now,
            });
        }
        loop {
            let Some(probing) = &mut self.probing else { return };
            let probe = probing.probe;
            if probing.octets >= probe.octets && probing.packets >= probe.packets {
                self.probing = None;
                return;
            }
            // One packet at first, then as the rate says.
            let due = probe.bitrate / 8.0 * now.saturating_sub(probing.begun).as_secs_f64();
            probing.last = now;
            // Octets of a probe.
            #[allow(clippy::cast_precision_loss)]
            if probing.octets > 0 && probing.octets as f64 > due {
                return;
            }
            let sequence = self.streams.get(&ssrc).and_then(|sending| sending.kept.latest(PROBE_OCTETS));
            if !self.repeat(now, ssrc, sequence, out) {
                self.probing = None;
            }
        }
    }

    /// When [`Self::advance`] has something to do.
    pub fn due(&self) -> Option<Duration> {
        if !self.link.is_open() {
            return None;
        }
        let waits = !self.queue.is_empty() || !self.again.is_empty();
        let pacer = waits.then(|| self.pacer.next(self.bitrate(), self.waiting));
        let probe = match &self.probing {
            Some(probing) => Some(probing.last + PROBE_STEP),
            None => self.probed().and_then(|_| self.estimator.next_probe()),
        };
        [pacer, probe, self.next_report].into_iter().flatten().min()
    }

    // -- reports -------------------------------------------------------------------------------------

    fn report(&mut self, now: Duration, unix: Duration, out: &mut Outgoing) {
        let mut compound = Vec::new();
        let ntp = ntp_of_unix(unix);
        let mut whole = Vec::new();
        for sending in self.streams.values().filter(|sending| sending.packets > 0) {
            let Some((timestamp, sampled, rate)) = sending.clock else {
                continue;
            };
            // The low 32 bits: a timestamp wraps.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let later = (now.saturating_sub(sampled).as_secs_f64() * f64::from(rate)) as u64 as u32;
            compound.extend(sender_report(&SenderInfo {
                ssrc: sending.stream.ssrc,
                ntp,
                rtp: timestamp.wrapping_add(later),
                packets: sending.packets,
                octets: sending.octets,
            }));
            compound.extend(cname_item(sending.stream.ssrc, &sending.stream.cname));
            if compound.len() > COMPOUND {
                whole.push(std::mem::take(&mut compound));
            }
        }
        whole.push(compound);
        for compound in whole.iter().filter(|compound| !compound.is_empty()) {
            self.link.rtcp(compound, out);
        }
    }

    /// An SRTCP packet of the library: what it says of what it receives goes on. It sends no media, and so has no sender reports.
    pub fn relay(&mut self, packet: &[u8], out: &mut Outgoing) {
        let Some(ciphers) = &mut self.link.ciphers else { return };
        let mut opened = Vec::new();
        if ciphers.library.rtcp(packet, &mut opened).is_err() {
            return;
        }
        let mut compound = Vec::new();
        for item in rtcp::walk(&opened).flatten() {
            match item.kind {
                Kind::Sr => {
                    let reports: Vec<_> = item.reports().collect();
                    if let Some(ssrc) = item.sender_ssrc().filter(|_| !reports.is_empty()) {
                        compound.extend(rtcp::receiver_report(ssrc, &reports));
                    }
                }
                Kind::Sdes => {}
                _ => compound.extend_from_slice(item.bytes),
            }
        }
        if !compound.is_empty() {
            self.link.rtcp(&compound, out);
        }
    }

    /// Decrypt an SRTCP packet of the browser; whether it was one.
    pub fn open(&mut self, packet: &[u8], opened: &mut Vec<u8>) -> bool {
        let ciphers = self.link.ciphers.as_mut();
        ciphers.is_some_and(|ciphers| ciphers.browser.rtcp(packet, opened).is_ok())
    }

    /// What the browser says of what it is sent. `unix`: the time since 1970.
    pub fn feedback(&mut self, now: Duration, unix: Duration, item: &Item<'_>) {
        for report in item.reports() {
            let Some(sending) = self.streams.get_mut(&report.ssrc) else {
                continue;
            };
            sending.counts.lost = Some(f32::from(report.fraction_lost) / 256.0);
            if report.lsr != 0 {
                // The middle 32 bits.
                #[allow(clippy::cast_possible_truncation)]
                let middle = (ntp_of_unix(unix) >> 16) as u32;
                let elapsed = middle.wrapping_sub(report.lsr).wrapping_sub(report.dlsr);
                // What is negative by rounding is none; more than 30 s is another clock.
                if elapsed < 30 << 16 {
                    self.rtt = Some(Duration::from_secs_f64(f64::from(elapsed) / 65536.0));
                }
            }
        }
        if let Some(nack) = item.nack() {
            let rtt = self.round_trip();
            if let Some(sending) = self
                .streams
                .get_mut(&nack.media_ssrc)
                .filter(|sending| sending.stream.repair.is_some())
            {
                sending.counts.nacks += 1;
                for number in nack.lost() {
                    if self.again.len() < WAITING
                        && let Some(sequence) = sending.kept.asked(now, number, rtt)
                    {
                        self.again.push_back(Named {
                            ssrc: nack.media_ssrc,
                            sequence,
                        });
                    }
                }
            }
        }
        if let Some(remb) = item.remb() {
            self.remb = Some(remb.bitrate);
        }
        if item.kind == Kind::Twcc {
            let mut outcomes = std::mem::take(&mut self.outcomes);
            self.link.departures.feedback(item, &mut outcomes);
            self.estimator.feedback(now, self.round_trip(), &outcomes);
            self.outcomes = outcomes;
        }
    }
}
