//! One browser: its ICE, DTLS and SRTP, and its media descriptions.

mod describe;
mod descriptor;
mod encodings;
mod line;

use crate::media::{Outgoing, PortLease};
use crate::model::{Answered, Connect, Create, Medium, Refusal, Role, SessionId, SessionSummary, SessionView, State};
use describe::{Described, describe, with_streams};
use line::{Asked, Context, Line};
use shunt_edge_media::{Presentation, cname_item, ntp_of_unix, sender_report};
use shunt_rtp::rtcp::SenderInfo;
use shunt_udp::Address;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use str0m::bwe::{Bitrate, BweKind};
use str0m::change::SdpOffer;
use str0m::config::DtlsCert;
use str0m::media::{KeyframeRequestKind, Mid, SenderFeedback};
use str0m::net::{Protocol, Receive};
use str0m::rtp::RtpPacket;
use str0m::{Candidate, Event, IceConnectionState, IceCreds, Input, Output, Rtc};

/// What the bandwidth estimation begins with, bit/s.
const FIRST_ESTIMATE: u64 = 1_000_000;
/// What a video of the conference is reckoned to need at most, and everything else, bit/s.
const VIDEO_WANTED: u64 = 1_500_000;
const REST_WANTED: u64 = 200_000;
/// An estimate of the receivers counts for so long.
const CAP_LASTS: Duration = Duration::from_secs(15);
/// What the browser is asked to send at most is said so often; it may also send so much audio.
const ASK: Duration = Duration::from_secs(1);
const AUDIO: u64 = 100_000;
/// Packets of one medium that can be sent again, for how long, and up to which share of what is sent.
const CACHE: usize = 1024;
const CACHE_LASTS: Duration = Duration::from_secs(3);
const RETRANSMITTED: f32 = 0.5;
const STATISTICS: Duration = Duration::from_secs(1);
const AUDIO_REPORTS: Duration = Duration::from_secs(1);
/// SSRCs of a browser that are remembered.
const SSRCS: usize = 256;
/// No description of a browser is longer.
const LONGEST_OFFER: usize = 256 * 1024;

/// What all sessions share.
pub struct Settings {
    pub certificate: DtlsCert,
    /// For each address of browsers: what they are told.
    pub candidates: Vec<SocketAddr>,
    pub tcp: bool,
    pub media: usize,
    pub send_bitrate: u64,
    pub receive_bitrate: u64,
    pub connect: Duration,
    pub consent: Duration,
    /// The moment from which durations count.
    pub epoch: Instant,
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
    lines: Vec<Line>,
    /// Which media description an SSRC of the browser belongs to.
    by_ssrc: HashMap<u32, usize>,
    state: State,
    pub changes: Vec<Change>,
    connected: bool,
    consent: Instant,
    remote: Option<(SocketAddr, Protocol)>,
    presentation: Presentation,
    estimate: Option<u64>,
    asked: u64,
    next_ask: Instant,
    rtt: Option<Duration>,
    /// The kind of SRTP profile, and the length of the packet that is being read.
    srtp: Option<&'static str>,
    length: usize,
    rtc_due: Instant,
    pub ssrcs: u32,
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
            .set_stats_interval(Some(STATISTICS))
            .set_extension_map(descriptor::extensions())
            .enable_bwe(Some(Bitrate::bps(FIRST_ESTIMATE)))
            .set_send_buffer_video(CACHE)
            // Audio and video are brought together by two reports of each.
            .set_rtcp_report_interval_audio(AUDIO_REPORTS)
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
            estimate: None,
            asked: settings.send_bitrate,
            next_ask: now,
            rtt: None,
            srtp: None,
            length: 0,
            rtc_due: now,
            ssrcs,
            create,
        };
        let offer = std::mem::take(&mut session.create.offer);
        let mut answered = session.answer(settings, &offer, now, lease)?;
        answered.session = Some(id);
        Ok((session, answered))
    }

    /// Answer an offer, the first or a later one. Media that stay keep their plain sockets.
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
        self.take_over(describe(&answer), now, lease)?;
        self.rtc_due = now;
        Ok(Answered {
            session: None,
            answer,
            media: self.media(),
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
                    self.lines[at].described = described;
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
            let line = &mut self.lines[at];
            let ssrc = stream.as_ref().map(|stream| stream.ssrc());
            if line.outgoing != ssrc {
                line.outgoing = ssrc;
                if let Some(stream) = stream.filter(|_| line.is_video()) {
                    stream.set_rtx_cache(CACHE, CACHE_LASTS, Some(RETRANSMITTED));
                }
            }
        }
        self.by_ssrc.clear();
        Ok(())
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
        Ok(())
    }

    /// The plain sockets.
    pub fn leases(&self) -> impl Iterator<Item = &PortLease> {
        self.lines.iter().map(|line| &line.lease)
    }

    /// The credentials that connectivity checks name.
    pub fn user(&mut self) -> String {
        self.rtc.direct_api().local_ice_credentials().ufrag
    }

    // -- packets -------------------------------------------------------------------------------------

    /// Whether a connectivity check has this session's key.
    pub fn accepts(&self, now: Instant, receive: Receive<'_>) -> Option<()> {
        self.rtc.accepts(&Input::Receive(now, receive)).then_some(())
    }

    /// A packet of the browser, with its length. `check`: it is a connectivity check with the right key.
    pub fn browser(&mut self, now: Instant, receive: Receive<'_>, length: usize, check: bool, out: &mut Outgoing) {
        self.length = length;
        if check {
            self.consent = now;
            let source = (receive.source, receive.proto);
            if self.remote.is_none() {
                self.remote = Some(source);
            }
            if self.state == State::New {
                self.become_state(State::Connecting, None);
            }
        }
        self.input(Input::Receive(now, receive));
        self.drain(now, out);
    }

    /// A packet at the plain socket with a port. It goes out with [`Self::advance`].
    pub fn plain(&mut self, settings: &Settings, now: Instant, port: u16, from: &Address, packet: &[u8]) {
        let Some(at) = self.lines.iter().position(|line| line.lease.port() == port) else {
            return;
        };
        let rtc = &mut self.rtc;
        let context = Context {
            epoch: settings.epoch,
            now,
            connected: self.connected,
        };
        let asked = self.lines[at].plain(&context, from, packet, &mut self.presentation, |ssrc, rtp| {
            if let Some(stream) = rtc.direct_api().stream_tx(&ssrc) {
                stream.write_rtp(rtp);
            }
        });
        self.ask_key_frames(at, &asked);
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
        self.tick(settings, now);
        self.input(Input::Timeout(now));
        self.drain(now, out);
    }

    /// When [`Self::advance`] has something to do.
    pub fn due(&self, settings: &Settings) -> Instant {
        let lines = self.lines.iter().map(|line| line.next_tick(settings.epoch));
        lines.fold(self.rtc_due.min(self.next_ask).min(self.ends_at(settings)), Instant::min)
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
        let estimate = self.estimate.map(|estimate| estimate.min(settings.receive_bitrate));
        let left = estimate.map(|estimate| estimate.saturating_sub(audio));
        for line in &mut self.lines {
            // What is paused is told what it would have.
            let among = videos + u64::from(line.is_paused(now));
            let share = left.filter(|_| line.is_video() && among > 0).map(|left| left / among);
            line.tick(settings.epoch, now, share);
        }
        if now >= self.next_ask {
            self.next_ask = now + ASK;
            let wanted = (videos * VIDEO_WANTED + REST_WANTED).min(settings.receive_bitrate);
            self.rtc.bwe().set_desired_bitrate(Bitrate::bps(wanted));
            self.ask_bitrate(settings, now);
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

    fn drain(&mut self, now: Instant, out: &mut Outgoing) {
        while self.state != State::Closed {
            let rtc = &mut self.rtc;
            match catch_unwind(AssertUnwindSafe(|| rtc.poll_output())) {
                Ok(Ok(Output::Timeout(at))) => {
                    self.rtc_due = at;
                    break;
                }
                Ok(Ok(Output::Transmit(transmit))) => {
                    self.remote = Some((transmit.destination, transmit.proto));
                    out.push(transmit);
                    // The library's pacer lets one packet go each time that it is told the time.
                    self.input(Input::Timeout(now));
                }
                Ok(Ok(Output::Event(event))) => self.event(now, event),
                Ok(Err(error)) => self.close(&error.to_string()),
                Err(_) => self.close("internal error"),
            }
        }
        if self.state != State::Closed && !self.rtc.is_alive() {
            self.close("the browser has closed");
        }
    }

    fn event(&mut self, now: Instant, event: Event) {
        match event {
            Event::RtpPacket(packet) => self.received(&packet),
            Event::Connected => {
                self.connected = true;
                self.consent = now;
                self.become_state(State::Connected, None);
            }
            Event::IceConnectionStateChange(state) => match state {
                IceConnectionState::Disconnected if self.connected => self.become_state(State::Disconnected, None),
                IceConnectionState::Completed | IceConnectionState::Connected if self.connected => {
                    self.become_state(State::Connected, None);
                }
                _ => {}
            },
            Event::KeyframeRequest(request) => {
                if let Some(line) = self.line(request.mid) {
                    line.want_key_frame(now);
                }
            }
            Event::EgressBitrateEstimate(BweKind::Twcc { estimate, can_probe }) => {
                self.estimate = can_probe.then(|| estimate.as_u64());
            }
            Event::EgressBitrateEstimate(BweKind::Remb { estimate, .. }) => self.estimate = Some(estimate.as_u64()),
            Event::SenderFeedback(feedback) => self.report(&feedback),
            Event::PeerStats(statistics) => self.rtt = statistics.rtt,
            Event::MediaIngressStats(statistics) => {
                if let Some(line) = self.line(statistics.mid) {
                    line.from_browser.lost = statistics.loss;
                    line.from_browser.nacks_sent = statistics.nacks;
                }
            }
            Event::MediaEgressStats(statistics) => {
                let packets = statistics.packets;
                if let Some(line) = self.line(statistics.mid) {
                    line.to_browser.browser_lost = statistics.loss;
                    line.to_browser.nacks_received = statistics.nacks;
                    line.to_browser.retransmitted = packets.saturating_sub(line.to_browser.packets);
                }
                if self.rtt.is_none() {
                    self.rtt = statistics.rtt;
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
        if self.srtp.is_none() && !packet.header.has_padding {
            // The library does not tell; the tags have 16 octets (RFC 7714) and 10 (RFC 3711). What was sent again has two more.
            self.srtp = match self.length.saturating_sub(packet.header.header_len + packet.payload.len()) {
                16 => Some("AEAD_AES_GCM"),
                10 => Some("AES_CM_128_HMAC_SHA1_80"),
                _ => None,
            };
        }
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
            transmits.into_iter().for_each(|transmit| out.push(transmit));
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
            remote: self.remote.map(|(address, _)| address),
            transport: self
                .remote
                .map(|(_, protocol)| if protocol == Protocol::Udp { "udp" } else { "tcp" }),
            srtp: self.srtp,
            rtt_ms: self.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            estimate: self.estimate,
            asked: self.asked,
            media: self.lines.iter().map(Line::view).collect(),
        }
    }
}
