//! Browsers that receive, and one that sends.

use crate::feed::Feed;
use crate::sender::TIME_AT;
use crate::{Asked, Request};
use serde_json::{Value, json};
use shunt_net::Endpoint;
use shunt_udp::{Address, Batch, MOST, Socket};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use str0m::change::{SdpAnswer, SdpOffer, SdpPendingOffer};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::{Candidate, Event, Input, Output, Rtc, RtcError};

const RECEIVE_BUFFER: usize = 4 << 20;
/// Delays that are kept.
const MOST_DELAYS: usize = 2_000_000;

struct Browser {
    rtc: Rtc,
    socket: Socket,
    local: SocketAddr,
    pending: Option<SdpPendingOffer>,
    connected: bool,
    due: Instant,
    /// The video that it offers to send.
    sends: Option<Mid>,
    feed: Option<Feed>,
}

/// All of them, on one thread.
pub struct Browsers {
    start: Instant,
    /// Where they are.
    address: IpAddr,
    browsers: BTreeMap<usize, Browser>,
    batch: Batch,
    packets: u64,
    octets: u64,
    delays: Vec<u64>,
    next_port: u16,
}

impl Browsers {
    pub fn new(start: Instant, address: IpAddr) -> Self {
        Self {
            start,
            address,
            browsers: BTreeMap::new(),
            batch: Batch::default(),
            packets: 0,
            octets: 0,
            delays: Vec::new(),
            next_port: 42_000,
        }
    }

    pub fn run(mut self, asked: &Receiver<Asked>) {
        loop {
            while let Ok((request, reply)) = asked.try_recv() {
                let answer = self.carry_out(request).unwrap_or_else(|error| json!({"error": error.to_string()}));
                let _ = reply.send(answer);
            }
            if !self.advance() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    fn add(&mut self, id: usize) -> Result<&mut Browser, RtcError> {
        let ip = self.address;
        let socket = loop {
            self.next_port += 1;
            match Socket::bind(Endpoint::new(ip, self.next_port), RECEIVE_BUFFER) {
                Ok(socket) => break socket,
                Err(error) if self.next_port > 60_000 => return Err(error.into()),
                Err(_) => {}
            }
        };
        let local = SocketAddr::new(ip, self.next_port);
        let mut rtc = Rtc::builder().set_rtp_mode(true).build(Instant::now());
        rtc.add_local_candidate(Candidate::host(local, Protocol::Udp)?);
        let browser = Browser {
            rtc,
            socket,
            local,
            pending: None,
            connected: false,
            due: Instant::now(),
            sends: None,
            feed: None,
        };
        self.browsers.insert(id, browser);
        self.browsers.get_mut(&id).ok_or(RtcError::NoSenderSource)
    }

    fn carry_out(&mut self, request: Request) -> Result<Value, RtcError> {
        match request {
            Request::Offer { id, audio, video } => {
                let browser = self.add(id)?;
                let mut api = browser.rtc.sdp_api();
                for kind in std::iter::repeat_n(MediaKind::Audio, audio).chain(std::iter::repeat_n(MediaKind::Video, video)) {
                    api.add_media(kind, Direction::RecvOnly, None, None, None);
                }
                let Some((offer, pending)) = api.apply() else {
                    return Ok(json!({"error": "nothing to offer"}));
                };
                browser.pending = Some(pending);
                Ok(json!({"offer": offer.to_sdp_string()}))
            }
            Request::Accept { id, answer } => {
                let answer = SdpAnswer::from_sdp_string(&answer)?;
                if let Some(browser) = self.browsers.get_mut(&id)
                    && let Some(pending) = browser.pending.take()
                {
                    browser.rtc.sdp_api().accept_answer(pending, answer)?;
                    browser.due = Instant::now();
                }
                Ok(json!({}))
            }
            Request::Answer { id, offer } => {
                let offer = SdpOffer::from_sdp_string(&offer)?;
                if !self.browsers.contains_key(&id) {
                    self.add(id)?;
                }
                let Some(browser) = self.browsers.get_mut(&id) else {
                    return Ok(json!({}));
                };
                let answer = browser.rtc.sdp_api().accept_offer(offer)?;
                browser.due = Instant::now();
                Ok(json!({"answer": answer.to_sdp_string()}))
            }
            Request::Publish { id } => {
                let browser = self.add(id)?;
                let mut api = browser.rtc.sdp_api();
                browser.sends = Some(api.add_media(MediaKind::Video, Direction::SendOnly, None, None, None));
                let Some((offer, pending)) = api.apply() else {
                    return Ok(json!({"error": "nothing to offer"}));
                };
                browser.pending = Some(pending);
                Ok(json!({"offer": offer.to_sdp_string()}))
            }
            Request::Feed { id, rate } => {
                let browser = self.browsers.get_mut(&id);
                let Some((browser, mid)) = browser.and_then(|browser| browser.sends.map(|mid| (browser, mid))) else {
                    return Ok(json!({"error": format!("browser {id} does not send")}));
                };
                browser.feed = Some(Feed::new(rate, mid));
                Ok(json!({}))
            }
            Request::State => {
                let connected = self.browsers.values().filter(|browser| browser.connected).count();
                Ok(json!({ "connected": connected }))
            }
            Request::Reset => {
                (self.packets, self.octets) = (0, 0);
                self.delays.clear();
                Ok(json!({}))
            }
            Request::Report => {
                self.delays.sort_unstable();
                let at = |share: usize| {
                    self.delays
                        .get((self.delays.len() * share / 1000).min(self.delays.len().saturating_sub(1)))
                };
                Ok(json!({"packets": self.packets, "octets": self.octets, "p50_ns": at(500), "p99_ns": at(990)}))
            }
            Request::Send(_) | Request::Stop | Request::Floor { .. } => Ok(json!({})),
        }
    }

    /// A round; whether anything was received.
    fn advance(&mut self) -> bool {
        let mut busy = false;
        let (batch, start) = (&mut self.batch, self.start);
        let mut seen = |payload: &[u8]| {
            self.packets += 1;
            self.octets += payload.len() as u64;
            if let Some(time) = payload.get(TIME_AT..TIME_AT + 8).and_then(|bytes| bytes.try_into().ok())
                && self.delays.len() < MOST_DELAYS
            {
                // Until 584 years after the start.
                #[allow(clippy::cast_possible_truncation)]
                let now = start.elapsed().as_nanos() as u64;
                self.delays.push(now.saturating_sub(u64::from_be_bytes(time)));
            }
        };
        for browser in self.browsers.values_mut() {
            let got = browser.socket.receive(batch, MOST).unwrap_or(0);
            busy |= got > 0;
            for at in 0..got {
                let Some(from) = batch.sender(at).endpoint() else { continue };
                let from = SocketAddr::new(from.addr, from.port);
                if let Ok(receive) = Receive::new(Protocol::Udp, from, browser.local, batch.packet(at)) {
                    let _ = browser.rtc.handle_input(Input::Receive(Instant::now(), receive));
                    browser.drain(&mut seen);
                }
            }
            if let Some(feed) = &mut browser.feed
                && feed.send(&mut browser.rtc, start)
            {
                busy = true;
                browser.due = Instant::now();
            }
            let now = Instant::now();
            if now >= browser.due {
                let _ = browser.rtc.handle_input(Input::Timeout(now));
                browser.drain(&mut seen);
            }
        }
        busy
    }
}

impl Browser {
    fn drain(&mut self, seen: &mut impl FnMut(&[u8])) {
        loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(at)) => {
                    self.due = at;
                    return;
                }
                Ok(Output::Transmit(transmit)) => {
                    let to = Endpoint::new(transmit.destination.ip(), transmit.destination.port());
                    let _ = self.socket.send_one(&transmit.contents, &Address::from(to));
                }
                Ok(Output::Event(Event::Connected)) => self.connected = true,
                Ok(Output::Event(Event::RtpPacket(packet))) => seen(&packet.payload),
                Ok(Output::Event(_)) => {}
                Err(_) => {
                    self.due = Instant::now() + Duration::from_secs(3600);
                    return;
                }
            }
        }
    }
}
