//! What the edge parses itself: frames of a TCP connection, names in connectivity checks, plain RTP and RTCP with what is kept of them.

use shunt_edge_media::{
    Coding, Continuity, Departure, Departures, Estimator, Frames, Presentation, Reception, Step, cname, local_user, starts_key_frame,
};
use shunt_rtp::rtcp::walk;
use shunt_rtp::{Header, Packet, demux};
use std::collections::HashSet;
use std::time::Duration;

/// A stream as RFC 4571 frames it; each frame is a packet of the plain side, 10 ms after the one before.
pub fn edge(data: &[u8]) {
    let mut frames = Frames::default();
    let mut continuity = Continuity::new(Duration::from_millis(500));
    let mut presentation = Presentation::default();
    let mut reception: Option<Reception> = None;
    let mut given = HashSet::new();
    let (mut departures, mut estimator, mut outcomes) = (Departures::default(), Estimator::new(1_000_000), Vec::new());
    let mut now = Duration::ZERO;
    for piece in data.chunks(50) {
        frames.push(piece);
        while let Ok(Some(packet)) = frames.take() {
            now += Duration::from_millis(10);
            departures.sent(Departure {
                at: now,
                octets: packet.len(),
                probe: estimator.probe(now).map(|probe| probe.id),
            });
            match demux(packet) {
                Packet::Stun => drop(local_user(packet)),
                Packet::Rtcp => {
                    for item in walk(packet).map_while(Result::ok) {
                        if let Some(info) = item.sender_info() {
                            presentation.report(now, info.ssrc, info.ntp, info.rtp);
                        }
                        if let Some((ssrc, name)) = cname(&item) {
                            presentation.cname(now, ssrc, name);
                        }
                        departures.feedback(&item, &mut outcomes);
                        estimator.feedback(now, Duration::from_millis(20), &outcomes);
                        assert!(estimator.estimate() >= 50_000);
                        item.byes().for_each(|ssrc| continuity.leave(ssrc));
                    }
                }
                Packet::Rtp => {
                    let Ok(header) = Header::parse(packet) else { continue };
                    for coding in [Coding::Vp8, Coding::Vp9, Coding::H264, Coding::Av1] {
                        let _ = starts_key_frame(coding, header.payload);
                    }
                    if let Step::Forward { sequence, .. } = continuity.packet(now, header.ssrc, header.sequence, header.timestamp, 90_000) {
                        assert!(given.insert(sequence), "{sequence} was given out twice");
                    }
                    let stream = reception.get_or_insert_with(|| Reception::new(header.ssrc, header.sequence));
                    stream.packet(now, header.sequence, header.timestamp, 90_000);
                    assert!(stream.due(now).len() <= 128);
                    let _ = stream.block(now);
                    let sampled = presentation.sampled(now, header.ssrc, header.timestamp, 90_000);
                    assert!(sampled.is_none_or(|sampled| sampled <= now));
                }
                _ => {}
            }
        }
    }
}
