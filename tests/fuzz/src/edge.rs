//! What the edge parses itself: frames of a TCP connection, connectivity checks, plain RTP and RTCP with what is kept of them, spatial layers, and SRTCP.

use shunt_edge_media::{
    ALL_LAYERS, Coding, Continuity, Departure, Departures, Estimator, Frames, Layered, Nominated, Presentation, Reception, Retransmissions,
    SpatialLayers, Step, Verdict, cname, local_user, read_cnames, starts_key_frame,
};
use shunt_rtp::rtcp::walk;
use shunt_rtp::{Header, Packet, demux};
use shunt_srtp::{Master, Profile, Protector, SrtpError, Unprotector};
use std::collections::HashSet;
use std::time::Duration;

/// The header extension of dependency descriptors on the plain side.
const DESCRIPTOR: u8 = 12;
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// A stream as RFC 4571 frames it; each frame is a packet of the plain side, 10 ms after the one before.
pub fn edge(data: &[u8]) {
    let mut frames = Frames::default();
    let mut continuity = Continuity::new(Duration::from_millis(500));
    let mut presentation = Presentation::default();
    let mut reception: Option<Reception> = None;
    let mut given = HashSet::new();
    let mut kept = Retransmissions::default();
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
                Packet::Stun => {
                    let _ = (local_user(packet), Nominated::default().check(Duration::ZERO, packet, ()));
                }
                Packet::Rtcp => {
                    for item in walk(packet).map_while(Result::ok) {
                        if let Some(info) = item.sender_info() {
                            presentation.report(now, info.ssrc, info.ntp, info.rtp);
                        }
                        if let Some((ssrc, name)) = cname(&item) {
                            presentation.cname(now, ssrc, name);
                        }
                        assert!(read_cnames(&item).count() <= 31);
                        for number in item.nack().iter().flat_map(|nack| nack.lost()) {
                            let asked = kept.asked(now, number, ROUND_TRIP);
                            assert!(asked.is_none_or(|sequence| kept.get(sequence).is_some()));
                        }
                        departures.feedback(&item, &mut outcomes);
                        estimator.feedback(now, ROUND_TRIP, &outcomes);
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
                        kept.store(now, sequence, header.payload.len()).set_payload(header.payload);
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

/// Packets of one stream with spatial layers, framed the same way; a frame of one octet says which layer is wanted.
pub fn layers(data: &[u8]) {
    let mut frames = Frames::default();
    let mut continuity = Continuity::new(Duration::from_millis(500));
    let mut spatial = SpatialLayers::default();
    let mut given = HashSet::new();
    let mut now = Duration::ZERO;
    frames.push(data);
    while let Ok(Some(packet)) = frames.take() {
        now += Duration::from_millis(10);
        if let [wanted] = packet {
            spatial.want(if *wanted < 8 { *wanted } else { ALL_LAYERS });
            continue;
        }
        let Ok(header) = Header::parse(packet) else { continue };
        let coding = [Coding::Vp8, Coding::Vp9, Coding::H264, Coding::Av1][usize::from(header.payload_type % 4)];
        let (layer, verdict) = spatial.packet(&Layered {
            coding,
            marker: header.marker,
            timestamp: header.timestamp,
            descriptor: header.extension.and_then(|extension| extension.find(DESCRIPTOR).ok().flatten()),
            payload: header.payload,
        });
        let sequence = if verdict == Verdict::LeftOut {
            assert!(layer.is_some(), "what does not say its layer goes on");
            let closed = continuity.leave_out(now, header.ssrc, header.sequence, header.timestamp);
            closed.map(|(sequence, _)| sequence)
        } else {
            match continuity.packet(now, header.ssrc, header.sequence, header.timestamp, 90_000) {
                Step::Forward { sequence, .. } => Some(sequence),
                _ => None,
            }
        };
        assert!(
            sequence.is_none_or(|sequence| given.insert(sequence)),
            "{sequence:?} was given out twice"
        );
    }
}

/// SRTCP: what has not the key is refused; what was encrypted is decrypted to the same, once, and not with a bit changed.
pub fn srtcp(data: &[u8]) {
    for profile in [Profile::Aes128CmHmacSha1_80, Profile::AeadAes128Gcm, Profile::AeadAes256Gcm] {
        let (key, salt) = profile.lengths();
        let Some((master, _)) = Master::pair(profile, &vec![7; 2 * (key + salt)]) else {
            unreachable!("the length is the profile's")
        };
        let (Ok(mut protector), Ok(mut unprotector)) = (Protector::new(&master), Unprotector::new(&master)) else {
            unreachable!("the keys are the profile's")
        };
        let mut opened = Vec::new();
        assert!(unprotector.rtcp(data, &mut opened).is_err());
        let mut sealed = data.to_vec();
        if protector.rtcp(&mut sealed, 0).is_err() {
            assert!(data.len() < 8);
            continue;
        }
        let mut changed = sealed.clone();
        let at = usize::from(data[0]) % changed.len();
        changed[at] ^= 1;
        assert!(unprotector.rtcp(&changed, &mut opened).is_err());
        assert_eq!(unprotector.rtcp(&sealed, &mut opened), Ok(()));
        assert_eq!(opened, data);
        assert_eq!(unprotector.rtcp(&sealed, &mut opened), Err(SrtpError::Replayed));
    }
}
