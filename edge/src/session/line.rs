//! One media description: what goes between its browser's stream and its plain socket.

use super::describe::Described;
use super::descriptor::{AUDIO_LEVEL, DESCRIPTOR, Descriptor, ORIENTATION};
use super::encodings::{Encodings, FITS};
use super::layers::Layers;
use super::sender::{Counts, Media};
use crate::media::PortLease;
use crate::model::{Codec, FromBrowser, Kind, Medium, MediumView, ToBrowser};
use shunt_edge_media::{Coding, Continuity, Layered, Plain, Presentation, Reception, Sent, SpatialLayers, Step, Verdict, starts_key_frame};
use shunt_net::Endpoint;
use shunt_rtp::rtcp::{self, Report};
use shunt_rtp::{Header, Packet, demux};
use shunt_udp::Address;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use str0m::media::Mid;
use str0m::rtp::RtpPacket;

/// A source that has been silent for so long makes room for another one of the same medium.
const SILENCE: Duration = Duration::from_millis(500);
/// A key frame is waited for no longer than this, and asked for so often.
const KEY_FRAME_WAIT: Duration = Duration::from_secs(3);
const KEY_FRAME_AGAIN: Duration = Duration::from_millis(500);
/// Requests of a browser that follow sooner are one.
const KEY_FRAME_PAUSE: Duration = Duration::from_millis(200);
/// Encodings of one medium that a browser may send (simulcast), and for which packets are kept.
const ENCODINGS: usize = 4;
/// The largest payload; with header, extensions and tag it stays below what the libraries' buffers hold.
const LARGEST: usize = 1500;
/// A source from which something came so lately is sent to the browser now.
const LIVE: Duration = Duration::from_secs(2);
/// So many times the rate of a video is of use as its share: a little more than it takes to choose its highest layer or encoding.
const WANTED: f64 = 1.05 * FITS;
/// Reports on audio and video.
const AUDIO_REPORTS: Duration = Duration::from_secs(2);
const VIDEO_REPORTS: Duration = Duration::from_millis(500);

/// Where the plain side is.
#[derive(Clone, Copy, Debug)]
struct Remote {
    rtp: Address,
    rtcp: Address,
    shown: SocketAddr,
}

/// Waiting for the first key frame of a source.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    asked: Option<Instant>,
}

/// What packets of one payload type are.
#[derive(Clone, Copy, Debug)]
struct Format {
    payload_type: u8,
    clock_rate: u32,
    /// `None`: audio.
    coding: Option<Coding>,
}

impl Format {
    fn new(codec: &Codec) -> Self {
        let named = [
            ("VP8", Coding::Vp8),
            ("VP9", Coding::Vp9),
            ("H264", Coding::H264),
            ("AV1", Coding::Av1),
        ];
        let found = named.into_iter().find(|(name, _)| codec.encoding.eq_ignore_ascii_case(name));
        Self {
            payload_type: codec.payload_type,
            clock_rate: codec.clock_rate,
            coding: found.map(|(_, coding)| coding),
        }
    }
}

/// The time, and what the browser's side is like.
pub struct Context {
    /// The moment from which durations count.
    pub epoch: Instant,
    pub now: Instant,
    pub connected: bool,
}

impl Context {
    fn since(&self) -> Duration {
        self.now.duration_since(self.epoch)
    }
}

/// What plain RTCP asks of the browser.
#[derive(Debug, Default)]
pub struct Asked {
    /// SSRCs that are to send a key frame.
    pub key_frames: Vec<u32>,
    /// An estimate of the receivers.
    pub bitrate: Option<u64>,
}

/// The state of a media description.
pub struct Line {
    pub mid: Mid,
    pub described: Described,
    /// That of the last packet from the plain side.
    format: Option<Format>,
    pub lease: PortLease,
    remote: Option<Remote>,
    /// Its own reports' SSRC on the plain side.
    reporter: u32,
    /// The SSRC of the stream to the browser.
    pub outgoing: Option<u32>,
    continuity: Continuity,
    reception: Option<Reception>,
    waiting: Option<Waiting>,
    encodings: Encodings,
    /// The source of which these are.
    layered: Option<u32>,
    layers: Layers,
    spatial: SpatialLayers,
    asked_key_frame: Option<Instant>,
    sent: Vec<Sent>,
    pub from_browser: FromBrowser,
    pub to_browser: ToBrowser,
    received_at: Option<Instant>,
    /// Octets since the last report, and the rate then.
    octets: u64,
    measured: Instant,
    pub rate: u64,
    next_report: Instant,
    /// What the receivers can take, and when that was said.
    pub cap: Option<(u64, Instant)>,
    buffer: Vec<u8>,
}

impl Line {
    pub fn new(described: Described, lease: PortLease, reporter: u32, now: Instant) -> Self {
        Self {
            mid: Mid::from(described.mid.as_str()),
            described,
            format: None,
            lease,
            remote: None,
            reporter,
            outgoing: None,
            continuity: Continuity::new(SILENCE),
            reception: None,
            waiting: None,
            encodings: Encodings::default(),
            layered: None,
            layers: Layers::default(),
            spatial: SpatialLayers::default(),
            asked_key_frame: None,
            sent: Vec::new(),
            from_browser: FromBrowser::default(),
            to_browser: ToBrowser::default(),
            received_at: None,
            octets: 0,
            measured: now,
            rate: 0,
            next_report: now,
            cap: None,
            buffer: Vec::with_capacity(2048),
        }
    }

    pub fn is_video(&self) -> bool {
        self.described.kind == Kind::Video
    }

    /// Whether something comes from the plain side.
    pub fn is_live(&self, now: Instant) -> bool {
        self.described.direction.receives() && self.received_at.is_some_and(|at| now.duration_since(at) < LIVE)
    }

    /// Whether its source sends nothing at present, and has not left.
    pub fn is_paused(&self, now: Instant) -> bool {
        self.described.direction.receives() && self.reception.is_some() && !self.is_live(now)
    }

    /// The share of the estimate with which all that comes of a video would be sent, bit/s.
    pub fn wanted(&self) -> u64 {
        let most = [self.layers.most(), self.encodings.most()]
            .into_iter()
            .flatten()
            .fold(0.0, f64::max);
        // A rate that is positive and below 2^63.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let share = (most * WANTED) as u64;
        share
    }

    /// Say where the plain side is, or that it is nowhere.
    pub fn connect(&mut self, now: Instant, rtp: Option<SocketAddr>, rtcp: Option<SocketAddr>) {
        let address = |at: SocketAddr| Address::from(Endpoint::new(at.ip(), at.port()));
        let before = self.remote.map(|remote| remote.shown);
        self.remote = rtp.map(|rtp| Remote {
            rtp: address(rtp),
            rtcp: address(rtcp.unwrap_or(rtp)),
            shown: rtp,
        });
        if before != rtp {
            self.continuity.release();
            self.reception = None;
            self.encodings.clear();
        }
        // Who only listens is found by what it sends.
        self.next_report = now;
    }

    /// It is described like this now.
    pub fn describe(&mut self, described: Described) {
        (self.described, self.format) = (described, None);
    }

    fn format(&mut self, payload_type: u8) -> Option<Format> {
        if self.format.is_none_or(|format| format.payload_type != payload_type) {
            let codec = self.described.codecs.iter().find(|codec| codec.payload_type == payload_type)?;
            self.format = Some(Format::new(codec));
        }
        self.format
    }

    // -- from the plain side -------------------------------------------------------------------------

    /// A packet came to the plain socket; `write` takes what goes to the browser.
    pub fn plain(
        &mut self,
        context: &Context,
        from: &Address,
        packet: &[u8],
        presentation: &mut Presentation,
        write: impl FnOnce(u32, &Media<'_>),
    ) -> Asked {
        let Some(remote) = self.remote.filter(|remote| remote.rtp == *from || remote.rtcp == *from) else {
            self.to_browser.other_address += 1;
            return Asked::default();
        };
        match demux(packet) {
            Packet::Rtp if remote.rtp == *from => {
                // Before it is connected there would only be a queue: it begins with a key frame then.
                if context.connected {
                    self.copy(context, packet, presentation, write);
                }
                Asked::default()
            }
            Packet::Rtcp => self.rtcp(context, packet, presentation),
            _ => {
                self.to_browser.unusable += 1;
                Asked::default()
            }
        }
    }

    fn copy(&mut self, context: &Context, packet: &[u8], presentation: &mut Presentation, write: impl FnOnce(u32, &Media<'_>)) {
        let (now, since) = (context.now, context.since());
        let (Ok(header), Some(outgoing)) = (Header::parse(packet), self.outgoing) else {
            self.to_browser.unusable += 1;
            return;
        };
        let usable = self.described.direction.receives() && !header.payload.is_empty() && header.payload.len() <= LARGEST;
        let Some(Format { clock_rate, coding, .. }) = self.format(header.payload_type).filter(|_| usable) else {
            self.to_browser.unusable += 1;
            return;
        };
        let encoding = self.is_encoding(header.ssrc, presentation);
        if encoding {
            self.encodings.packet(now, header.ssrc, packet.len());
            let begins = coding.is_some_and(|coding| starts_key_frame(coding, header.payload));
            if begins && self.encodings.wanted() == Some(header.ssrc) {
                self.encodings.switched();
                self.continuity.release();
            }
        }
        if self.continuity.resumes(since, header.ssrc, header.sequence) {
            self.continuity.release();
            if let Some(before) = self.reception.take() {
                self.to_browser.repaired += before.repaired;
            }
        }
        if !self.continuity.admits(since, header.ssrc) {
            let count = if encoding {
                &mut self.to_browser.other_encoding
            } else {
                &mut self.to_browser.other_source
            };
            *count += 1;
            return;
        }
        if self.reception.as_ref().is_none_or(|reception| reception.ssrc != header.ssrc) {
            if let Some(before) = self.reception.replace(Reception::new(header.ssrc, header.sequence)) {
                self.to_browser.repaired += before.repaired;
            }
            self.waiting = coding.map(|_| Waiting { since: now, asked: None });
            self.layers_of(header.ssrc);
        }
        if let Some(reception) = &mut self.reception {
            reception.packet(since, header.sequence, header.timestamp, clock_rate);
        }
        self.received_at = Some(now);
        self.octets += packet.len() as u64;
        if let (Some(waiting), Some(coding)) = (self.waiting, coding) {
            if !starts_key_frame(coding, header.payload) && now.duration_since(waiting.since) < KEY_FRAME_WAIT {
                self.to_browser.before_key_frame += 1;
                return;
            }
            self.waiting = None;
        }
        let mut media = Media {
            marker: header.marker,
            payload_type: header.payload_type,
            sequence: 0,
            timestamp: 0,
            clock_rate,
            sampled: presentation
                .sampled(since, header.ssrc, header.timestamp, clock_rate)
                .unwrap_or(since),
            extension: header.extension,
            payload: header.payload,
        };
        match self.verdict(now, &header, coding, packet.len()) {
            Verdict::Forward { marker } => {
                let step = self
                    .continuity
                    .packet(since, header.ssrc, header.sequence, header.timestamp, clock_rate);
                let Step::Forward { sequence, timestamp, .. } = step else {
                    self.to_browser.unusable += 1;
                    return;
                };
                (media.marker, media.sequence, media.timestamp) = (marker, sequence, timestamp);
            }
            Verdict::LeftOut => {
                self.to_browser.other_layer += 1;
                let closed = self.continuity.leave_out(since, header.ssrc, header.sequence, header.timestamp);
                let Some((sequence, timestamp)) = closed else { return };
                // An empty packet, in the place of one for which a number was kept.
                (media.marker, media.sequence, media.timestamp) = (false, sequence, timestamp);
                (media.extension, media.payload) = (None, &[]);
            }
        }
        self.to_browser.packets += 1;
        self.to_browser.bytes += media.payload.len() as u64;
        self.to_browser.ssrc = Some(header.ssrc);
        write(outgoing, &media);
    }

    /// Whether a packet of the source goes on, by its spatial layer.
    fn verdict(&mut self, now: Instant, header: &Header<'_>, coding: Option<Coding>, octets: usize) -> Verdict {
        let Some(coding) = coding else {
            return Verdict::Forward { marker: header.marker };
        };
        let descriptor = header.extension.and_then(|extension| extension.find(DESCRIPTOR).ok().flatten());
        let (spatial, verdict) = self.spatial.packet(&Layered {
            coding,
            marker: header.marker,
            timestamp: header.timestamp,
            descriptor,
            payload: header.payload,
        });
        if let Some(spatial) = spatial {
            self.layers.packet(now, spatial, octets);
        }
        verdict
    }

    /// What comes now is of this source: what is known of another one's layers is forgotten.
    fn layers_of(&mut self, ssrc: u32) {
        if self.layered != Some(ssrc) {
            (self.layered, self.layers, self.spatial) = (Some(ssrc), Layers::default(), SpatialLayers::default());
        }
    }

    /// Whether an SSRC is of the sender whose video goes to the browser.
    fn is_encoding(&self, ssrc: u32, presentation: &Presentation) -> bool {
        let current = self.continuity.ssrc().filter(|_| self.is_video());
        current.is_some_and(|current| {
            let name = || presentation.cname_of(current);
            current == ssrc || (name().is_some() && name() == presentation.cname_of(ssrc))
        })
    }

    fn rtcp(&mut self, context: &Context, packet: &[u8], presentation: &mut Presentation) -> Asked {
        let (now, since) = (context.now, context.since());
        let mut asked = Asked::default();
        for item in rtcp::walk(packet) {
            let Ok(item) = item else {
                self.to_browser.unusable += 1;
                break;
            };
            if let Some(info) = item.sender_info() {
                presentation.report(since, info.ssrc, info.ntp, info.rtp);
                if let Some(reception) = self.reception.as_mut().filter(|reception| reception.ssrc == info.ssrc) {
                    reception.sender_report(since, info.ntp);
                }
            }
            if let Some((ssrc, cname)) = shunt_edge_media::cname(&item) {
                presentation.cname(since, ssrc, cname);
            }
            asked.key_frames.extend(item.key_frame_requests().map(|request| request.media_ssrc));
            if let Some(nack) = item.nack() {
                self.resend(nack.media_ssrc, nack.lost());
            }
            if let Some(remb) = item.remb() {
                asked.bitrate = Some(remb.bitrate);
                self.cap = Some((remb.bitrate, now));
            }
            for ssrc in item.byes() {
                self.continuity.leave(ssrc);
                if let Some(before) = self.reception.take_if(|reception| reception.ssrc == ssrc) {
                    self.to_browser.repaired += before.repaired;
                }
            }
        }
        asked
    }

    /// Packets that the data plane's side has lost.
    fn resend(&mut self, ssrc: u32, numbers: impl Iterator<Item = u16>) {
        let Some(remote) = self.remote else { return };
        let Some(sent) = self.sent.iter().find(|sent| sent.ssrc == ssrc) else {
            return;
        };
        for packet in numbers.filter_map(|number| sent.packet(number)) {
            if self.lease.socket.send_one(packet, &remote.rtp).is_ok() {
                self.from_browser.resent += 1;
            }
        }
    }

    // -- from the browser ----------------------------------------------------------------------------

    /// A packet of the browser, decrypted.
    pub fn browser(&mut self, packet: &RtpPacket) -> bool {
        self.from_browser.packets += 1;
        self.from_browser.bytes += packet.payload.len() as u64;
        let Some(remote) = self.remote else {
            self.from_browser.unconnected += 1;
            return true;
        };
        let ssrc = *packet.header.ssrc;
        let extensions = &packet.header.ext_vals;
        let level = extensions.audio_level.map(|level| {
            let voice = u8::from(extensions.voice_activity.unwrap_or_default());
            [voice << 7 | (level.unsigned_abs() & 0x7F)]
        });
        let orientation = extensions.video_orientation.map(|orientation| [orientation as u8]);
        let descriptor = extensions.user_values.get().map(|Descriptor(octets)| octets.as_slice());
        let elements = [
            (AUDIO_LEVEL, level.as_ref().map(<[u8; 1]>::as_slice)),
            (DESCRIPTOR, descriptor),
            (ORIENTATION, orientation.as_ref().map(<[u8; 1]>::as_slice)),
        ];
        let mut present = [(0, &[][..]); 3];
        let mut count = 0;
        for (id, octets) in elements {
            if let Some(octets) = octets {
                present[count] = (id, octets);
                count += 1;
            }
        }
        let plain = Plain {
            marker: packet.header.marker,
            payload_type: *packet.header.payload_type,
            sequence: packet.header.sequence_number,
            timestamp: packet.header.timestamp,
            ssrc,
            elements: &present[..count],
            payload: &packet.payload,
        };
        let buffer = if self.described.kind == Kind::Video {
            if !self.sent.iter().any(|sent| sent.ssrc == ssrc) {
                if self.sent.len() == ENCODINGS {
                    self.sent.remove(0);
                }
                self.sent.push(Sent::new(ssrc));
            }
            self.sent
                .iter_mut()
                .find(|sent| sent.ssrc == ssrc)
                .map(|sent| sent.slot(packet.header.sequence_number))
        } else {
            None
        };
        let buffer = buffer.unwrap_or(&mut self.buffer);
        buffer.clear();
        plain.write(buffer);
        self.lease.socket.send_one(buffer, &remote.rtp).is_ok()
    }

    /// Send RTCP to the plain side.
    pub fn send_rtcp(&self, packet: &[u8]) {
        if let Some(remote) = self.remote {
            // What is lost here is said again.
            let _ = self.lease.socket.send_one(packet, &remote.rtcp);
        }
    }

    /// The browser wants a key frame of what it is sent.
    pub fn want_key_frame(&mut self, now: Instant) {
        self.to_browser.key_frames_wanted += 1;
        let soon = self
            .asked_key_frame
            .is_some_and(|asked| now.duration_since(asked) < KEY_FRAME_PAUSE);
        if !soon && let Some(reception) = &self.reception {
            self.asked_key_frame = Some(now);
            self.send_rtcp(&rtcp::pli(self.reporter, reception.ssrc));
        }
    }

    /// What is due by time; `share`: what the browser can be sent of this medium, bit/s.
    pub fn tick(&mut self, epoch: Instant, now: Instant, share: Option<u64>) {
        let since = now.duration_since(epoch);
        self.waiting = self.waiting.filter(|waiting| now.duration_since(waiting.since) < KEY_FRAME_WAIT);
        if let Some(waiting) = &mut self.waiting
            && let Some(reception) = &self.reception
            && waiting.asked.is_none_or(|asked| now.duration_since(asked) >= KEY_FRAME_AGAIN)
        {
            waiting.asked = Some(now);
            let request = rtcp::pli(self.reporter, reception.ssrc);
            self.send_rtcp(&request);
        }
        if let Some(reception) = &mut self.reception {
            let ssrc = reception.ssrc;
            let lost = reception.due(since);
            if let Ok(nack) = rtcp::nack(self.reporter, ssrc, lost) {
                self.send_rtcp(&nack);
            }
        }
        if now >= self.next_report {
            self.report(since, now, share);
        }
    }

    fn report(&mut self, since: Duration, now: Instant, share: Option<u64>) {
        self.next_report = now + if self.is_video() { VIDEO_REPORTS } else { AUDIO_REPORTS };
        let elapsed = now.duration_since(self.measured).as_secs_f64();
        if elapsed > 0.1 {
            // A rate of less than 2^63.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let rate = (self.octets as f64 * 8.0 / elapsed) as u64;
            (self.rate, self.octets, self.measured) = (rate, 0, now);
        }
        if self.remote.is_none() || !self.described.direction.receives() {
            return;
        }
        if let Some(current) = self.continuity.ssrc().filter(|_| self.is_video()) {
            self.encodings.choose(now, current, share);
            if let Some(wanted) = self.encodings.wanted() {
                self.send_rtcp(&rtcp::pli(self.reporter, wanted));
            }
            let wanted = self.layers.choose(now, self.spatial.wanted(), share);
            self.spatial.want(wanted);
            if self.spatial.waits() && self.is_live(now) {
                self.send_rtcp(&rtcp::pli(self.reporter, current));
            }
        }
        let live = self.is_live(now);
        let reports: Vec<Report> = self
            .reception
            .as_mut()
            .filter(|_| live)
            .map(|reception| reception.block(since))
            .into_iter()
            .collect();
        let mut compound = rtcp::receiver_report(self.reporter, &reports);
        // Also of a source that is paused: only what the browser could be sent now says when it may go on.
        if let (Some(share), Some(reception)) = (share, &self.reception)
            && let Ok(remb) = rtcp::remb(self.reporter, share, &[reception.ssrc])
        {
            compound.extend(remb);
            if let Some(least) = [self.layers.least(), self.encodings.least()].into_iter().flatten().reduce(f64::min) {
                // A rate that is positive and below 2^64.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                compound.extend(rtcp::least_rate(self.reporter, reception.ssrc, least as u64));
            }
        }
        self.send_rtcp(&compound);
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_tick(&self, epoch: Instant) -> Instant {
        let repair = self.reception.as_ref().and_then(Reception::next_due).map(|due| epoch + due);
        let key_frame = self
            .waiting
            .map(|waiting| waiting.asked.map_or(waiting.since, |asked| asked + KEY_FRAME_AGAIN));
        [repair, key_frame].into_iter().flatten().fold(self.next_report, Instant::min)
    }

    // -- for people ----------------------------------------------------------------------------------

    pub fn medium(&self) -> Medium {
        Medium {
            mid: self.described.mid.clone(),
            kind: self.described.kind,
            direction: self.described.direction,
            rtp: self.lease.address(),
            codecs: self.described.codecs.clone(),
            layers: self.described.layers,
        }
    }

    pub fn view(&self, counts: &Counts) -> MediumView {
        let mut to_browser = ToBrowser {
            browser_lost: counts.lost,
            nacks_received: counts.nacks,
            retransmitted: counts.again,
            ..self.to_browser.clone()
        };
        let layers = u8::try_from(self.layers.count()).unwrap_or_default();
        if layers > 1 {
            to_browser.layers = Some(layers);
            to_browser.layers_sent = Some(self.spatial.current().saturating_add(1).min(layers));
        }
        if let Some(reception) = &self.reception {
            to_browser.lost = reception.lost();
            to_browser.repaired += reception.repaired;
            let clock_rate = self.described.codecs.first().map_or(90_000, |codec| codec.clock_rate);
            to_browser.jitter_ms = Some(reception.jitter() * 1000.0 / f64::from(clock_rate.max(1)));
        }
        MediumView {
            medium: self.medium(),
            connected: self.remote.map(|remote| remote.shown),
            from_browser: self.from_browser.clone(),
            to_browser,
        }
    }
}
