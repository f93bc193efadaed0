//! One browser: its ICE, DTLS and SRTP, and its media descriptions.

mod describe;
mod descriptor;
mod encodings;
mod keys;
mod layers;
mod line;
mod question;
mod sender;

pub use keys::provider;

use crate::media::{Outgoing, Path, PortLease};
use crate::model::{Answered, Connect, Create, Ice, Medium, Refusal, RestartIce, Role, SessionId, SessionSummary, SessionView, State};
use describe::{Described, candidates, describe, with_credentials, with_streams, without_candidates};
use line::{Asked, Context, Line};
use question::Pair;
use sender::{Ids, Sender, Stream};
use shunt_edge_media::{Came, Flight, Nominated, Presentation, Questions, cname_item, ntp_of_unix, sender_report};
use shunt_rtp::rtcp::{self, SenderInfo};
use shunt_rtp::{Packet, demux};
use shunt_udp::Address;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use str0m::bwe::Bitrate;
use str0m::change::SdpOffer;
use str0m::config::{CryptoProvider, DtlsCert};
use str0m::media::{KeyframeRequestKind, Mid, SenderFeedback};
use str0m::net::{Protocol, Receive, Transmit};
use str0m::rtp::{Extension, RtpPacket};
use str0m::{Candidate, Event, IceConnectionState, IceCreds, Input, Output, Rtc};

/// What a video of the conference is reckoned to need at most, where no more of it comes, and everything else, bit/s.
const VIDEO_WANTED: u64 = 1_500_000;
const REST_WANTED: u64 = 200_000;
/// An estimate of the receivers counts for so long.
const CAP_LASTS: Duration = Duration::from_secs(15);
/// What the browser is asked to send at most is said so often; it may also send so much audio.
const ASK: Duration = Duration::from_secs(1);
const AUDIO: u64 = 100_000;
const STATISTICS: Duration = Duration::from_secs(1);
/// Where no line has anything to do, they are looked at so much later.
const LONGEST: Duration = Duration::from_secs(1);
/// SSRCs of a browser that are remembered.
const SSRCS: usize = 256;
/// No description of a browser is longer.
const LONGEST_OFFER: usize = 256 * 1024;

/// What all sessions share.
pub struct Settings {
    pub certificate: DtlsCert,
    pub crypto: Arc<CryptoProvider>,
    /// For each address of browsers: what they are told.
    pub candidates: Vec<SocketAddr>,
    pub tcp: bool,
    pub media: usize,
    pub send_bitrate: u64,
    pub receive_bitrate: u64,
    pub connect: Duration,
    pub consent: Duration,
    /// The moment from which durations count, and when it was since 1970.
    pub epoch: Instant,
    pub unix: Duration,
}

impl Settings {
    fn since(&self, now: Instant) -> Duration {
        now.duration_since(self.epoch)
    }
}

/// What a session says to others.
#[derive(Debug)]
pub struct Change {
    pub state: State,
    pub reason: Option<String>,
}

/// The state of a session.
pub struct Session {
    pub id: SessionId,
    create: Create,
    created: SystemTime,
    started: Instant,
    rtc: Rtc,
    /// The browser's last offer, without candidates.
    offer: String,
    /// The user name that connectivity checks give.
    pub ufrag: String,
    /// The pair that media takes: the browser's address and ours.
    nominated: Nominated<Pair>,
    /// As DTLS client (`a=setup:passive` in the offer): the flight that the library sent last, and the way that it took.
    client: bool,
    flight: Flight,
    flight_path: Option<Path>,
    /// The edge's own checks of addresses that the browser may have now.
    questions: Questions<Pair>,
    /// Where DTLS puts the keys, and who sends with them.
    keys: keys::Place,
    sender: Sender,
    lines: Vec<Line>,
    /// Which media description an SSRC of the browser belongs to.
    by_ssrc: HashMap<u32, usize>,
    state: State,
    pub changes: Vec<Change>,
    connected: bool,
    consent: Instant,
    remote: Option<(SocketAddr, Protocol)>,
    presentation: Presentation,
    asked: u64,
    next_ask: Instant,
    rtt: Option<Duration>,
    rtc_due: Instant,
    /// When the lines are looked at next, and when these or what the browser is asked.
    lines_due: Instant,
    next_tick: Instant,
    /// A buffer for RTCP.
    opened: Vec<u8>,
    pub ssrcs: u32,
}

/// The pair that a packet came by.
fn pair(receive: &Receive<'_>) -> Pair {
    (receive.source, receive.destination, receive.proto)
}

fn unix(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The description as the library reads it.
fn parse(offer: &str) -> Result<SdpOffer, Refusal> {
    if offer.len() > LONGEST_OFFER {
        return Err(Refusal::Invalid(format!(
            "the offer has {} octets, at most {LONGEST_OFFER} are read",
            offer.len()
        )));
    }
    SdpOffer::from_sdp_string(offer).map_err(|error| Refusal::Invalid(format!("the offer cannot be read: {error}")))
}

impl Session {
    /// Answer a browser's first offer. `lease` opens a plain socket.
    ///
    /// # Errors
    /// The offer cannot be answered, or there is no port.
    pub fn create(
        settings: &Settings,
        id: SessionId,
        credentials: IceCreds,
        ssrcs: u32,
        create: Create,
        now: Instant,
        lease: &mut dyn FnMut() -> Result<PortLease, Refusal>,
    ) -> Result<(Self, Answered), Refusal> {
        let mut config = Rtc::builder()
            .set_rtp_mode(true)
            .set_ice_lite(true)
            .set_local_ice_credentials(credentials)
            .set_dtls_cert(settings.certificate.clone())
            .set_crypto_provider(Arc::clone(&settings.crypto))
            .set_stats_interval(Some(STATISTICS))
            .set_extension_map(descriptor::extensions())
            .clear_codecs();
        let allowed = |name: &str| create.codecs.is_empty() || create.codecs.iter().any(|codec| codec.eq_ignore_ascii_case(name));
        config = config
            .enable_opus(allowed("opus"), false)
            .enable_pcmu(allowed("PCMU"), false)
            .enable_pcma(allowed("PCMA"), false)
            .enable_g722(allowed("G722"), false)
            .enable_vp8(allowed("VP8"))
            .enable_h264(allowed("H264"))
            .enable_vp9(allowed("VP9"))
            .enable_av1(allowed("AV1"));
        let mut rtc = config.build(now);
        let keys = keys::place_of_last();
        for address in &settings.candidates {
            let udp = Candidate::host(*address, Protocol::Udp);
            let tcp = settings.tcp.then(|| {
                Candidate::builder()
                    .tcp()
                    .host(*address)
                    .tcptype(str0m::net::TcpType::Passive)
                    .build()
            });
            for candidate in [Some(udp), tcp].into_iter().flatten() {
                let candidate = candidate.map_err(|error| Refusal::Unavailable(format!("{address} is no candidate: {error}")))?;
                rtc.add_local_candidate(candidate);
            }
        }
        let mut session = Self {
            id,
            created: SystemTime::now(),
            started: now,
            rtc,
            offer: String::new(),
            ufrag: String::new(),
            nominated: Nominated::default(),
            client: false,
            flight: Flight::default(),
            flight_path: None,
            questions: Questions::default(),
            keys,
            sender: Sender::default(),
            lines: Vec::new(),
            by_ssrc: HashMap::new(),
            state: State::New,
            changes: vec![Change {
                state: State::New,
                reason: None,
            }],
            connected: false,
            consent: now,
            remote: None,
            presentation: Presentation::default(),
            asked: settings.send_bitrate,
            next_ask: now,
            rtt: None,
            rtc_due: now,
            lines_due: now,
            next_tick: now,
            opened: Vec::new(),
            ssrcs,
            create,
        };
        let offer = std::mem::take(&mut session.create.offer);
        let mut answered = session.answer(settings, &offer, now, lease)?;
        answered.session = Some(id);
        Ok((session, answered))
    }

    /// Answer an offer, the first or a later one. Media that stay keep their plain sockets. Other ICE credentials than before begin ICE anew
    /// (RFC 8839 section 4.4.1.1.1): DTLS and SRTP stay, and so does the way to the browser until a check with the new ones nominates another.
    ///
    /// # Errors
    /// The offer cannot be answered, or there is no port; of a later offer nothing is changed then, unless the library began to.
    pub fn answer(
        &mut self,
        settings: &Settings,
        offer: &str,
        now: Instant,
        lease: &mut dyn FnMut() -> Result<PortLease, Refusal>,
    ) -> Result<Answered, Refusal> {
        let parsed = parse(offer)?;
        let count = offer.matches("\nm=").count();
        if count > settings.media {
            return Err(Refusal::Limit(format!(
                "limits.media: {count} media descriptions, at most {}",
                settings.media
            )));
        }
        self.suits(offer)?;
        let answer = catch_unwind(AssertUnwindSafe(|| self.rtc.sdp_api().accept_offer(parsed)))
            .map_err(|_| Refusal::Invalid("the offer cannot be answered".into()))?
            .map_err(|error| Refusal::Invalid(format!("the offer cannot be answered: {error}")))?;
        let answer = with_streams(&answer.to_sdp_string());
        self.client = answer.contains("\r\na=setup:active\r\n");
        self.take_over(describe(&answer), now, lease)?;
        (self.rtc_due, self.lines_due) = (now, now);
        let credentials = self.rtc.direct_api().local_ice_credentials();
        self.ufrag = credentials.ufrag;
        self.offer = without_candidates(offer);
        self.questions.clear();
        Ok(Answered {
            session: None,
            answer,
            media: self.media(),
        })
    }

    /// Begin ICE anew with the browser's new credentials; all else stays as its last offer says. The same ones again change nothing.
    ///
    /// # Errors
    /// The credentials are none (RFC 8839 section 5.4).
    pub fn restart_ice(
        &mut self,
        settings: &Settings,
        restart: &RestartIce,
        now: Instant,
        lease: &mut dyn FnMut() -> Result<PortLease, Refusal>,
    ) -> Result<Ice, Refusal> {
        for (name, text, least) in [("ufrag", &restart.ufrag, 4), ("pwd", &restart.pwd, 22)] {
            let plain = text
                .bytes()
                .all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'+' | b'/'));
            if !plain || !(least..=256).contains(&text.len()) {
                return Err(Refusal::Invalid(format!("{name}: not {least} to 256 letters, digits, + and /")));
            }
        }
        let offer = with_credentials(&self.offer, &restart.ufrag, &restart.pwd);
        let answered = self.answer(settings, &offer, now, lease)?;
        let credentials = self.rtc.direct_api().local_ice_credentials();
        Ok(Ice {
            ufrag: credentials.ufrag,
            pwd: credentials.pass,
            candidates: candidates(&answered.answer),
        })
    }

    /// Whether an offer does what the session is there for.
    fn suits(&self, offer: &str) -> Result<(), Refusal> {
        let wrong: &[&str] = match self.create.role {
            Role::Room => return Ok(()),
            Role::Publish => &["a=recvonly"],
            Role::Watch => &["a=sendonly"],
        };
        match offer.lines().find(|line| wrong.contains(line)) {
            Some(line) => {
                let role = if self.create.role == Role::Publish { "publish" } else { "watch" };
                Err(Refusal::Invalid(format!("{} in an offer of who is there to {role}", &line[2..])))
            }
            None => Ok(()),
        }
    }

    /// The media descriptions are these now.
    fn take_over(
        &mut self,
        media: Vec<Described>,
        now: Instant,
        lease: &mut dyn FnMut() -> Result<PortLease, Refusal>,
    ) -> Result<(), Refusal> {
        self.lines.retain(|line| media.iter().any(|one| one.mid == line.described.mid));
        for described in media {
            let at = match self.lines.iter().position(|line| line.described.mid == described.mid) {
                Some(at) => {
                    self.lines[at].describe(described);
                    at
                }
                None => {
                    self.ssrcs = self.ssrcs.wrapping_add(1);
                    self.lines.push(Line::new(described, lease()?, self.ssrcs, now));
                    self.lines.len() - 1
                }
            };
            let mid = self.lines[at].mid;
            let mut direct = self.rtc.direct_api();
            let stream = direct.stream_tx_by_mid(mid, None);
            self.lines[at].outgoing = stream.map(|stream| *stream.ssrc());
        }
        let streams = (0..self.lines.len()).filter_map(|at| self.stream(at)).collect();
        self.sender.set_streams(streams);
        self.by_ssrc.clear();
        Ok(())
    }

    /// What is negotiated of the stream to the browser.
    fn stream(&mut self, at: usize) -> Option<Stream> {
        let line = &self.lines[at];
        let (mid, video, ssrc) = (line.mid, line.is_video(), line.outgoing?);
        let repair = self.rtc.direct_api().stream_tx_by_mid(mid, None)?.rtx().map(|ssrc| *ssrc);
        let codecs = self.rtc.codec_config();
        let repair_types = codecs.iter().filter_map(|params| Some((*params.pt(), *params.resend()?))).collect();
        let media = self.rtc.media(mid)?;
        let extensions = media.remote_extmap();
        let descriptor = extensions.iter().find(|(_, extension)| descriptor::is_descriptor(extension));
        Some(Stream {
            ssrc,
            mid: mid.to_string(),
            cname: media.cname().to_owned(),
            video,
            ids: Ids {
                mid: extensions.id_of(Extension::RtpMid),
                transport: extensions.id_of(Extension::TransportSequenceNumber),
                time: extensions.id_of(Extension::AbsoluteSendTime),
                level: extensions.id_of(Extension::AudioLevel),
                descriptor: descriptor.map(|(id, _)| id),
                orientation: extensions.id_of(Extension::VideoOrientation),
            },
            repair,
            repair_types,
        })
    }

    /// Where the media go on the plain side.
    ///
    /// # Errors
    /// A media description is not there, or an address cannot be sent to.
    pub fn connect(&mut self, connect: &Connect, now: Instant) -> Result<(), Refusal> {
        for medium in &connect.media {
            let line = self.lines.iter().find(|line| line.described.mid == medium.mid);
            let line = line.ok_or_else(|| Refusal::Invalid(format!("there is no media description {}", medium.mid)))?;
            for address in [medium.rtp, medium.rtcp].into_iter().flatten() {
                if address.is_ipv6() != line.lease.address().is_ipv6() || address.port() == 0 || address.ip().is_unspecified() {
                    let text = format!("{}: {address} cannot be sent to from {}", medium.mid, line.lease.address());
                    return Err(Refusal::Invalid(text));
                }
            }
        }
        for medium in &connect.media {
            if let Some(line) = self.lines.iter_mut().find(|line| line.described.mid == medium.mid) {
                line.connect(now, medium.rtp, medium.rtcp);
            }
        }
        self.lines_due = now;
        Ok(())
    }

    /// The plain sockets.
    pub fn leases(&self) -> impl Iterator<Item = &PortLease> {
        self.lines.iter().map(|line| &line.lease)
    }

    // -- packets -------------------------------------------------------------------------------------

    /// Whether a connectivity check has this session's key.
    pub fn accepts(&self, now: Instant, receive: Receive<'_>) -> bool {
        self.rtc.accepts(&Input::Receive(now, receive))
    }

    /// Whether such a check is a copy of one that came by another pair.
    pub fn is_copy(&mut self, pair: Pair, packet: &[u8]) -> bool {
        self.nominated.is_copy(packet, pair)
    }

    /// Whether media goes to this address of the browser, by TCP or by UDP.
    pub fn is_at(&self, address: SocketAddr, tcp: bool) -> bool {
        let at = self.nominated.pair();
        at.is_some_and(|(peer, _, protocol)| peer == address && (protocol != Protocol::Udp) == tcp)
    }

    /// A packet of the browser. `check`: it is a connectivity check with the right key.
    pub fn browser(&mut self, settings: &Settings, now: Instant, receive: Receive<'_>, packet: &[u8], check: bool, out: &mut Outgoing) {
        let (pair, since) = (pair(&receive), settings.since(now));
        if check {
            if self.remote.is_none() {
                self.remote = Some((receive.source, receive.proto));
            }
            let came = self.nominated.check(since, packet, pair);
            if self.nominated.pair().is_none_or(|current| current == pair) {
                self.consent = now;
            }
            self.came(settings, now, came, pair, out);
            if self.state == State::New {
                self.become_state(State::Connecting, None);
            }
        } else {
            let came = self.nominated.media(since, pair);
            self.came(settings, now, came, pair, out);
        }
        if demux(packet) == Packet::Dtls {
            self.flight.answer();
        }
        self.input(Input::Receive(now, receive));
        self.drain(settings, now, out);
    }

    /// Acts on what a packet means for the pair that media takes.
    fn came(&mut self, settings: &Settings, now: Instant, came: Came, pair: Pair, out: &mut Outgoing) {
        let (peer, own, protocol) = pair;
        match came {
            Came::Nothing => {}
            Came::First => self.set_path(out.path(own, peer, protocol), protocol),
            Came::Again => self.questions.clear(),
            Came::Elsewhere => self.ask_address(settings, now, pair, out),
        }
    }

    /// Whether media from an address that has shown no key may be this browser's: its NAT has rebound. `ssrc`: of RTP.
    pub fn may_have_moved(&self, settings: &Settings, now: Instant, from: SocketAddr, ssrc: Option<u32>) -> bool {
        let pair = self.nominated.pair().filter(|(_, _, protocol)| *protocol == Protocol::Udp);
        let owns = ssrc.is_some_and(|ssrc| self.by_ssrc.contains_key(&ssrc));
        self.connected && self.nominated.is_silent(settings.since(now)) && pair.is_some_and(|(peer, ..)| owns || peer.ip() == from.ip())
    }

    /// Check an address that the browser may have now.
    pub fn ask_address(&mut self, settings: &Settings, now: Instant, pair: Pair, out: &mut Outgoing) {
        let (peer, own, protocol) = pair;
        let since = settings.since(now);
        if self.questions.may_begin(since, pair)
            && let Some(check) = question::check(&settings.crypto, &self.offer, &self.ufrag)
        {
            out.push(&out.path(own, peer, protocol), &check);
            self.questions.begin(since, pair, check);
        }
    }

    /// Whether a packet answers such a check, with the browser's key. Media goes there from now on.
    pub fn is_answer(&mut self, settings: &Settings, now: Instant, pair: Pair, packet: &[u8], out: &Outgoing) -> bool {
        let (peer, own, protocol) = pair;
        let since = settings.since(now);
        if !self.questions.is_answered_by(since, pair, packet) || !question::is_success(&settings.crypto, &self.offer, packet) {
            return false;
        }
        self.questions.clear();
        self.consent = now;
        self.nominated.take(since, pair);
        self.set_path(out.path(own, peer, protocol), protocol);
        if self.connected {
            self.become_state(State::Connected, None);
        }
        true
    }

    /// An SRTCP packet of the browser. What it says of what it sends itself is for the library.
    pub fn browser_rtcp(&mut self, settings: &Settings, now: Instant, receive: Receive<'_>, packet: &[u8], out: &mut Outgoing) {
        let pair = pair(&receive);
        let came = self.nominated.media(settings.since(now), pair);
        self.came(settings, now, came, pair, out);
        let mut opened = std::mem::take(&mut self.opened);
        if self.sender.open(packet, &mut opened) {
            let (since, unix) = (settings.since(now), settings.unix + settings.since(now));
            let mut other = false;
            for item in rtcp::walk(&opened).flatten() {
                other |= matches!(item.kind, rtcp::Kind::Sr | rtcp::Kind::Bye | rtcp::Kind::Xr);
                self.sender.feedback(since, unix, &item);
                for request in item.key_frame_requests() {
                    let asked = |line: &&mut Line| line.outgoing == Some(request.media_ssrc);
                    if let Some(line) = self.lines.iter_mut().find(asked) {
                        line.want_key_frame(now);
                    }
                }
            }
            self.sender.advance(since, unix, out);
            if other {
                self.input(Input::Receive(now, receive));
                self.drain(settings, now, out);
            }
        }
        self.opened = opened;
    }

    /// The plain socket of a media description.
    pub fn lease(&self, at: usize) -> Option<&PortLease> {
        self.lines.get(at).map(|line| &line.lease)
    }

    /// A packet at a plain socket. It goes to the browser with the round.
    pub fn plain(&mut self, settings: &Settings, now: Instant, at: usize, from: &Address, packet: &[u8], out: &mut Outgoing) {
        let sender = &mut self.sender;
        let context = Context {
            epoch: settings.epoch,
            now,
            connected: self.connected,
        };
        let line = &mut self.lines[at];
        let asked = line.plain(&context, from, packet, &mut self.presentation, |ssrc, media| {
            sender.send(settings.since(now), ssrc, media, out);
        });
        self.lines_due = self.lines_due.min(line.next_tick(settings.epoch));
        if !asked.key_frames.is_empty() {
            self.ask_key_frames(at, &asked);
            self.rtc_due = now;
        }
    }

    fn ask_key_frames(&mut self, at: usize, asked: &Asked) {
        for ssrc in &asked.key_frames {
            let belongs = self.by_ssrc.get(ssrc) == Some(&at);
            if let Some(stream) = self.rtc.direct_api().stream_rx(&(*ssrc).into()).filter(|_| belongs) {
                stream.request_keyframe(KeyframeRequestKind::Pli);
                self.lines[at].from_browser.key_frames_asked += 1;
            }
        }
    }

    /// Send what is due, and look at the time.
    pub fn advance(&mut self, settings: &Settings, now: Instant, out: &mut Outgoing) {
        if now >= self.next_tick {
            self.tick(settings, now);
        }
        if now >= self.rtc_due {
            self.input(Input::Timeout(now));
            self.drain(settings, now, out);
        }
        let since = settings.since(now);
        if let Some(path) = self.flight_path.filter(|_| self.state != State::Closed) {
            for packet in self.flight.again(since) {
                out.push(&path, packet);
            }
        }
        if self.state != State::Closed {
            for ((peer, own, protocol), check) in self.questions.again(since) {
                out.push(&out.path(own, peer, protocol), check);
            }
        }
        self.sender.advance(since, settings.unix + since, out);
    }

    /// When [`Self::advance`] has something to do.
    pub fn due(&mut self, settings: &Settings) -> Instant {
        self.next_tick = self.lines_due.min(self.next_ask).min(self.ends_at(settings));
        let others = self
            .sender
            .due()
            .into_iter()
            .chain(self.flight.due())
            .chain(self.questions.due())
            .map(|due| settings.epoch + due);
        others.fold(self.next_tick.min(self.rtc_due), Instant::min)
    }

    fn ends_at(&self, settings: &Settings) -> Instant {
        if self.connected {
            self.consent + settings.consent
        } else {
            self.started + settings.connect
        }
    }

    fn tick(&mut self, settings: &Settings, now: Instant) {
        if self.state == State::Closed {
            return;
        }
        if now >= self.ends_at(settings) {
            let reason = if self.connected { "no consent" } else { "not connected in time" };
            return self.close(reason);
        }
        let live = |line: &&Line| line.is_video() && line.is_live(now);
        let videos = self.lines.iter().filter(live).count() as u64;
        let audio: u64 = self.lines.iter().filter(|line| !line.is_video()).map(|line| line.rate).sum();
        let estimate = self.sender.estimate().map(|estimate| estimate.min(settings.receive_bitrate));
        let left = estimate.map(|estimate| estimate.saturating_sub(audio));
        for line in &mut self.lines {
            // What is paused is told what it would have.
            let among = videos + u64::from(line.is_paused(now));
            let share = left.filter(|_| line.is_video() && among > 0).map(|left| left / among);
            line.tick(settings.epoch, now, share);
        }
        let lines = self.lines.iter().map(|line| line.next_tick(settings.epoch));
        self.lines_due = lines.fold(now + LONGEST, Instant::min);
        if now >= self.next_ask {
            self.next_ask = now + ASK;
            let most = self.lines.iter().filter(live).map(Line::wanted).fold(VIDEO_WANTED, u64::max);
            let wanted = (videos * most + REST_WANTED).min(settings.receive_bitrate);
            self.sender.set_wanted(wanted);
            self.ask_bitrate(settings, now);
            self.rtc_due = now;
        }
    }

    /// Tell the browser how much it may send: what the receivers can take, and what the configuration allows.
    fn ask_bitrate(&mut self, settings: &Settings, now: Instant) {
        let caps = self.lines.iter().filter_map(|line| line.cap);
        let caps: Vec<u64> = caps
            .filter(|(_, at)| now.duration_since(*at) < CAP_LASTS)
            .map(|(bitrate, _)| bitrate)
            .collect();
        let all = caps.iter().fold(AUDIO, |sum, cap| sum.saturating_add(*cap));
        self.asked = if caps.is_empty() {
            settings.send_bitrate
        } else {
            all.min(settings.send_bitrate)
        };
        let video = self.by_ssrc.iter().find(|(_, at)| self.lines.get(**at).is_some_and(Line::is_video));
        let mut direct = self.rtc.direct_api();
        if let Some(stream) = video.and_then(|(ssrc, _)| direct.stream_rx(&(*ssrc).into())) {
            stream.request_remb(Bitrate::bps(self.asked));
        }
    }

    // -- the library ---------------------------------------------------------------------------------

    fn input(&mut self, input: Input<'_>) {
        if self.state == State::Closed {
            return;
        }
        let rtc = &mut self.rtc;
        // What a browser sends must not end the process, whatever the library makes of it.
        match catch_unwind(AssertUnwindSafe(|| rtc.handle_input(input))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.close(&error.to_string()),
            Err(_) => self.close("internal error"),
        }
    }

    fn drain(&mut self, settings: &Settings, now: Instant, out: &mut Outgoing) {
        while self.state != State::Closed {
            let rtc = &mut self.rtc;
            match catch_unwind(AssertUnwindSafe(|| rtc.poll_output())) {
                Ok(Ok(Output::Timeout(at))) => {
                    self.rtc_due = at;
                    break;
                }
                Ok(Ok(Output::Transmit(transmit))) => self.transmit(settings.since(now), &transmit, out),
                Ok(Ok(Output::Event(event))) => self.event(settings, now, event),
                Ok(Err(error)) => self.close(&error.to_string()),
                Err(_) => self.close("internal error"),
            }
        }
        if self.state != State::Closed && !self.rtc.is_alive() {
            self.close("the browser has closed");
        }
        let since = settings.since(now);
        self.sender.advance(since, settings.unix + since, out);
    }

    /// A packet of the library. Answers to connectivity checks go back where these came from, all else to the pair that media takes.
    fn transmit(&mut self, since: Duration, transmit: &Transmit, out: &mut Outgoing) {
        let (peer, own, protocol) = match (demux(&transmit.contents), self.nominated.pair()) {
            (Packet::Stun, _) | (_, None) => (transmit.destination, transmit.source, transmit.proto),
            (_, Some(pair)) => pair,
        };
        let path = out.path(own, peer, protocol);
        match demux(&transmit.contents) {
            Packet::Stun => out.push(&path, &transmit.contents),
            // It is given no media.
            Packet::Rtp => {}
            packet => {
                if self.nominated.pair().is_none() {
                    self.set_path(path, protocol);
                }
                match packet {
                    Packet::Rtcp => self.sender.relay(&transmit.contents, out),
                    Packet::Dtls if self.client && !self.connected => {
                        self.flight.sent(since, &transmit.contents);
                        self.flight_path = Some(path);
                        out.push(&path, &transmit.contents);
                    }
                    _ => out.push(&path, &transmit.contents),
                }
            }
        }
    }

    fn set_path(&mut self, path: Path, protocol: Protocol) {
        self.remote = Some((path.peer, protocol));
        self.sender.set_path(path);
    }

    fn event(&mut self, settings: &Settings, now: Instant, event: Event) {
        match event {
            Event::RtpPacket(packet) => self.received(&packet),
            Event::Connected => match keys::take(&self.keys).map(|keys| self.sender.set_keys(&keys)) {
                Some(Ok(())) => {
                    self.connected = true;
                    self.flight.finish();
                    self.consent = now;
                    self.become_state(State::Connected, None);
                }
                _ => self.close("no keys"),
            },
            Event::IceConnectionStateChange(state) => match state {
                // The library knows nothing of a pair that answered a check of the edge's own.
                IceConnectionState::Disconnected if self.connected && self.nominated.is_unheard(settings.since(now)) => {
                    self.become_state(State::Disconnected, None);
                }
                IceConnectionState::Completed | IceConnectionState::Connected if self.connected => {
                    self.become_state(State::Connected, None);
                }
                _ => {}
            },
            Event::SenderFeedback(feedback) => self.report(&feedback),
            Event::PeerStats(statistics) => self.rtt = statistics.rtt,
            Event::MediaIngressStats(statistics) => {
                if let Some(line) = self.line(statistics.mid) {
                    line.from_browser.lost = statistics.loss;
                    line.from_browser.nacks_sent = statistics.nacks;
                }
            }
            Event::Closed => self.close("the browser has closed"),
            _ => {}
        }
    }

    fn line(&mut self, mid: Mid) -> Option<&mut Line> {
        self.lines.iter_mut().find(|line| line.mid == mid)
    }

    fn received(&mut self, packet: &RtpPacket) {
        let ssrc = packet.header.ssrc;
        let at = match self.by_ssrc.get(&ssrc) {
            Some(at) => *at,
            None => {
                let mid = self.rtc.direct_api().stream_rx(&ssrc).map(|stream| stream.mid());
                let Some(at) = mid.and_then(|mid| self.lines.iter().position(|line| line.mid == mid)) else {
                    return;
                };
                if self.by_ssrc.len() >= SSRCS {
                    self.by_ssrc.clear();
                }
                self.by_ssrc.insert(*ssrc, at);
                at
            }
        };
        if let Some(line) = self.lines.get_mut(at) {
            line.browser(packet);
        }
    }

    /// A sender report of the browser goes on with its own clock.
    fn report(&mut self, feedback: &SenderFeedback) {
        let info = &feedback.sender_info;
        let Some(line) = self.by_ssrc.get(&info.ssrc).and_then(|at| self.lines.get(*at)) else {
            return;
        };
        // Timestamps are the low 32 bits of the extended one.
        #[allow(clippy::cast_possible_truncation)]
        let rtp = info.rtp_time.numer() as u32;
        let mut compound = sender_report(&SenderInfo {
            ssrc: *info.ssrc,
            ntp: ntp_of_unix(unix(info.ntp_time)),
            rtp,
            packets: info.sender_packet_count,
            octets: info.sender_octet_count,
        });
        // All that a browser sends is of one source.
        compound.extend(cname_item(*info.ssrc, &self.id.to_string()));
        line.send_rtcp(&compound);
    }

    // -- states --------------------------------------------------------------------------------------

    fn become_state(&mut self, state: State, reason: Option<String>) {
        if self.state != state && self.state != State::Closed {
            self.state = state;
            self.changes.push(Change { state, reason });
        }
    }

    /// End the session; its sockets are closed when it is dropped.
    pub fn close(&mut self, reason: &str) {
        self.become_state(State::Closed, Some(reason.to_owned()));
    }

    /// Tell the browser that it is over, as far as that can be.
    pub fn say_goodbye(&mut self, now: Instant, out: &mut Outgoing) {
        let rtc = &mut self.rtc;
        let said = catch_unwind(AssertUnwindSafe(|| {
            rtc.close()?;
            rtc.handle_input(Input::Timeout(now))?;
            let mut transmits = Vec::new();
            for _ in 0..64 {
                match rtc.poll_output()? {
                    Output::Transmit(transmit) => transmits.push(transmit),
                    Output::Timeout(_) => break,
                    Output::Event(_) => {}
                }
            }
            Ok::<_, str0m::RtcError>(transmits)
        }));
        if let Ok(Ok(transmits)) = said {
            let since = now.duration_since(self.started);
            transmits.iter().for_each(|transmit| self.transmit(since, transmit, out));
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    // -- for people ----------------------------------------------------------------------------------

    pub fn conference(&self) -> &str {
        &self.create.conference
    }

    pub fn participant(&self) -> &str {
        &self.create.participant
    }

    pub fn media(&self) -> Vec<Medium> {
        self.lines.iter().map(Line::medium).collect()
    }

    pub fn summary(&self) -> SessionSummary {
        SessionSummary {
            session: self.id,
            conference: self.create.conference.clone(),
            participant: self.create.participant.clone(),
            role: self.create.role,
            label: self.create.label.clone(),
            state: self.state,
            created: unix(self.created).as_secs_f64(),
        }
    }

    pub fn view(&self) -> SessionView {
        SessionView {
            summary: self.summary(),
            ufrag: self.ufrag.clone(),
            remote: self.remote.map(|(address, _)| address),
            transport: self
                .remote
                .map(|(_, protocol)| if protocol == Protocol::Udp { "udp" } else { "tcp" }),
            srtp: self.sender.profile(),
            rtt_ms: self.sender.rtt().or(self.rtt).map(|rtt| rtt.as_secs_f64() * 1000.0),
            estimate: self.sender.estimate(),
            asked: self.asked,
            media: self
                .lines
                .iter()
                .map(|line| line.view(&self.sender.counts(line.outgoing.unwrap_or_default())))
                .collect(),
        }
    }
}
