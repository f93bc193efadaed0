//! A browser: the full ICE role, an offer, and RTP as packets.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::media::{Direction, KeyframeRequestKind, MediaKind, Mid};
use str0m::net::{Protocol, Receive, TcpType};
use str0m::rtp::{ExtensionValues, RtpPacket, RtpWrite};
use str0m::{Candidate, Event, Input, Output, Rtc};

/// How it reaches the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Udp,
    Tcp,
}

enum Link {
    Udp(UdpSocket),
    Tcp(TcpStream, Vec<u8>),
}

/// What the network does to a packet: true loses it.
pub type Loss = Box<dyn FnMut(&[u8]) -> bool>;

pub struct Browser {
    pub rtc: Rtc,
    link: Link,
    local: SocketAddr,
    edge: SocketAddr,
    pub connected: bool,
    pub closed: bool,
    pub packets: VecDeque<RtpPacket>,
    pub key_frames_wanted: u32,
    pub remb: Option<u64>,
    /// Losses of what it sends, and of what it is sent.
    pub lose_sent: Loss,
    pub lose_received: Loss,
    due: Instant,
}

impl Browser {
    pub fn new(way: Way, edge: SocketAddr) -> Self {
        let mut rtc = Rtc::builder().set_rtp_mode(true).enable_raw_packets(true).build(Instant::now());
        let (link, local, candidate) = match way {
            Way::Udp => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.set_nonblocking(true).unwrap();
                let local = socket.local_addr().unwrap();
                (Link::Udp(socket), local, Candidate::host(local, Protocol::Udp).unwrap())
            }
            Way::Tcp => {
                let stream = TcpStream::connect(edge).unwrap();
                stream.set_nonblocking(true).unwrap();
                stream.set_nodelay(true).unwrap();
                let local = stream.local_addr().unwrap();
                let candidate = Candidate::builder().tcp().host(local).tcptype(TcpType::Active).build().unwrap();
                (Link::Tcp(stream, Vec::new()), local, candidate)
            }
        };
        rtc.add_local_candidate(candidate);
        Self {
            rtc,
            link,
            local,
            edge,
            connected: false,
            closed: false,
            packets: VecDeque::new(),
            key_frames_wanted: 0,
            remb: None,
            lose_sent: Box::new(|_| false),
            lose_received: Box::new(|_| false),
            due: Instant::now(),
        }
    }

    /// Add media; the offer, and what its answer needs.
    pub fn offer(&mut self, media: &[(MediaKind, Direction)]) -> (String, SdpPendingOffer, Vec<Mid>) {
        let mut api = self.rtc.sdp_api();
        let mids = media
            .iter()
            .map(|(kind, direction)| api.add_media(*kind, *direction, None, None, None))
            .collect();
        let (offer, pending) = api.apply().unwrap();
        (offer.to_sdp_string(), pending, mids)
    }

    pub fn accept(&mut self, pending: SdpPendingOffer, answer: &str) {
        let answer = SdpAnswer::from_sdp_string(answer).unwrap();
        self.rtc.sdp_api().accept_answer(pending, answer).unwrap();
        self.due = Instant::now();
    }

    /// Begin ICE anew: the offer, and what its answer needs.
    pub fn restart_ice(&mut self) -> (String, SdpPendingOffer) {
        let mut api = self.rtc.sdp_api();
        api.ice_restart(false);
        let (offer, pending) = api.apply().unwrap();
        (offer.to_sdp_string(), pending)
    }

    /// Accept the answer to that, by UDP from another address; the address.
    pub fn accept_elsewhere(&mut self, pending: SdpPendingOffer, answer: &str) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        self.local = socket.local_addr().unwrap();
        self.link = Link::Udp(socket);
        self.accept(pending, answer);
        self.rtc.add_local_candidate(Candidate::host(self.local, Protocol::Udp).unwrap());
        self.local
    }

    /// Its NAT gives it another address, of which it knows nothing; the address.
    pub fn rebind(&mut self) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        self.link = Link::Udp(socket);
        address
    }

    /// Send a packet that the library does not know of, by UDP.
    pub fn send(&self, packet: &[u8]) {
        if let Link::Udp(socket) = &self.link {
            socket.send_to(packet, self.edge).unwrap();
        }
    }

    fn protocol(&self) -> Protocol {
        match self.link {
            Link::Udp(_) => Protocol::Udp,
            Link::Tcp(..) => Protocol::Tcp,
        }
    }

    /// Send RTP of a medium.
    pub fn write(&mut self, mid: Mid, payload_type: u8, sequence: u64, timestamp: u32, values: ExtensionValues, payload: &[u8]) {
        let mut direct = self.rtc.direct_api();
        let stream = direct.stream_tx_by_mid(mid, None).unwrap();
        let rtp = RtpWrite::new(payload_type.into(), sequence.into(), timestamp, Instant::now(), payload);
        stream.write_rtp(rtp.ext_vals(values).nackable(true));
        self.due = Instant::now();
        self.advance();
    }

    /// Ask for a key frame of what comes by a medium.
    pub fn want_key_frame(&mut self, mid: Mid) {
        let mut direct = self.rtc.direct_api();
        direct
            .stream_rx_by_mid(mid, None)
            .unwrap()
            .request_keyframe(KeyframeRequestKind::Pli);
        self.due = Instant::now();
    }

    /// A few milliseconds of its life.
    pub fn advance(&mut self) {
        let until = Instant::now() + Duration::from_millis(5);
        loop {
            let now = Instant::now();
            if now >= self.due && self.rtc.handle_input(Input::Timeout(now)).is_err() {
                self.closed = true;
            }
            self.drain();
            while let Some(packet) = self.receive() {
                if (self.lose_received)(&packet) {
                    continue;
                }
                let Ok(receive) = Receive::new(self.protocol(), self.edge, self.local, &packet) else {
                    continue;
                };
                if self.rtc.handle_input(Input::Receive(Instant::now(), receive)).is_err() {
                    self.closed = true;
                }
                self.drain();
            }
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        match &mut self.link {
            Link::Udp(socket) => {
                let mut buffer = [0; 2048];
                let (size, from) = socket.recv_from(&mut buffer).ok()?;
                assert_eq!(from, self.edge);
                Some(buffer[..size].to_vec())
            }
            Link::Tcp(stream, buffered) => {
                let mut chunk = [0; 4096];
                match stream.read(&mut chunk) {
                    Ok(size) => buffered.extend(&chunk[..size]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                let size = 2 + usize::from(u16::from_be_bytes(*buffered.first_chunk()?));
                (buffered.len() >= size).then(|| buffered.drain(..size).skip(2).collect())
            }
        }
    }

    fn drain(&mut self) {
        loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(at)) => {
                    self.due = at;
                    return;
                }
                Ok(Output::Transmit(transmit)) => {
                    if (self.lose_sent)(&transmit.contents) {
                        continue;
                    }
                    match &mut self.link {
                        Link::Udp(socket) => {
                            socket.send_to(&transmit.contents, transmit.destination).unwrap();
                        }
                        Link::Tcp(stream, _) => {
                            let size = u16::try_from(transmit.contents.len()).unwrap();
                            stream.write_all(&[&size.to_be_bytes()[..], &transmit.contents].concat()).unwrap();
                        }
                    }
                }
                Ok(Output::Event(event)) => self.event(event),
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Connected => self.connected = true,
            Event::Closed => self.closed = true,
            Event::RtpPacket(packet) => self.packets.push_back(packet),
            Event::KeyframeRequest(_) => self.key_frames_wanted += 1,
            Event::EgressBitrateEstimate(str0m::bwe::BweKind::Remb { estimate, .. }) => self.remb = Some(estimate.as_u64()),
            _ => {}
        }
    }
}
