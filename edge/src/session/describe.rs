//! What an answer of our own says of each media description, and its stream names.

use super::descriptor::{DESCRIPTOR, is_negotiated};
use crate::model::{Codec, Direction, Kind, Layers};
use std::collections::HashMap;
use std::fmt::Write as _;

/// A media description of audio or video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub mid: String,
    pub kind: Kind,
    pub direction: Direction,
    /// Without formats that repair.
    pub codecs: Vec<Codec>,
    pub layers: Option<Layers>,
}

fn section(text: &str) -> Option<Described> {
    let mut lines = text.lines();
    let head = lines.next()?.strip_prefix("m=")?;
    let mut words = head.split(' ');
    let kind = match words.next()? {
        "audio" => Kind::Audio,
        "video" => Kind::Video,
        _ => return None,
    };
    let rejected = words.next()? == "0";
    let formats: Vec<u8> = words.skip(1).filter_map(|word| word.parse().ok()).collect();
    let attributes: Vec<&str> = lines.filter_map(|line| line.strip_prefix("a=")).collect();
    let of = |name: &str, format: u8| {
        let start = format!("{name}:{format} ");
        attributes.iter().find_map(|attribute| attribute.strip_prefix(&start))
    };
    let codec = |format: u8| {
        let mut parts = of("rtpmap", format)?.split('/');
        let codec = Codec {
            payload_type: format,
            encoding: parts.next()?.to_owned(),
            clock_rate: parts.next()?.parse().ok()?,
            channels: parts.next().and_then(|part| part.parse().ok()),
            fmtp: of("fmtp", format).map(str::to_owned),
        };
        (!["rtx", "red", "ulpfec"].contains(&codec.encoding.as_str())).then_some(codec)
    };
    let codecs: Vec<Codec> = formats.into_iter().filter_map(codec).collect();
    // The answer has the edge's view.
    let view = attributes.iter().find_map(|attribute| match *attribute {
        "sendrecv" => Some(Direction::SendRecv),
        "sendonly" => Some(Direction::RecvOnly),
        "recvonly" => Some(Direction::SendOnly),
        "inactive" => Some(Direction::Inactive),
        _ => None,
    });
    let direction = if rejected || codecs.is_empty() {
        Direction::Inactive
    } else {
        view.unwrap_or(Direction::SendRecv)
    };
    let layers = (kind == Kind::Video).then(|| layers(text, &codecs)).flatten();
    Some(Described {
        mid: attributes.iter().find_map(|attribute| attribute.strip_prefix("mid:"))?.to_owned(),
        kind,
        direction,
        codecs,
        layers,
    })
}

fn layers(text: &str, codecs: &[Codec]) -> Option<Layers> {
    if text.lines().any(is_negotiated) {
        return Some(Layers {
            by: "dependency-descriptor",
            extension_id: Some(DESCRIPTOR),
        });
    }
    let by = match codecs.first()?.encoding.as_str() {
        "VP8" => "vp8",
        "VP9" => "vp9",
        _ => return None,
    };
    Some(Layers { by, extension_id: None })
}

/// The sections of a description: what goes before the first media description, then each of them.
fn sections(text: &str) -> impl Iterator<Item = &str> {
    let mut starts: Vec<usize> = text.match_indices("\nm=").map(|(at, _)| at + 1).collect();
    starts.insert(0, 0);
    let ends = starts.iter().skip(1).copied().chain([text.len()]).collect::<Vec<_>>();
    starts.into_iter().zip(ends).map(|(start, end)| &text[start..end])
}

/// The audio and video of an answer, in its order.
#[must_use]
pub fn describe(answer: &str) -> Vec<Described> {
    sections(answer).filter_map(section).collect()
}

/// The answer with stream names: the nth audio and the nth video are one stream (RFC 8830), so that a browser keeps them together. A media description
/// that is refused has a format too (RFC 3264 section 6), without which browsers cannot parse it.
#[must_use]
pub fn with_streams(answer: &str) -> String {
    let mut counts: HashMap<Kind, usize> = HashMap::new();
    let mut out = String::with_capacity(answer.len());
    for text in sections(answer) {
        let names = section(text).map(|described| {
            let count = counts.entry(described.kind).or_default();
            *count += 1;
            format!("stream-{count} track-{}", described.mid)
        });
        for line in text.split_inclusive("\r\n") {
            if line.starts_with("m=") && line.split_whitespace().count() == 3 {
                out.extend([line.trim_end(), " 0\r\n"]);
                continue;
            }
            let Some(names) = &names else {
                out.push_str(line);
                continue;
            };
            // Writing to a String does not fail.
            if line.starts_with("a=msid:") {
                let _ = write!(out, "a=msid:{names}\r\n");
            } else if let Some((ssrc, _)) = line.split_once(" msid:").filter(|(start, _)| start.starts_with("a=ssrc:")) {
                let _ = write!(out, "{ssrc} msid:{names}\r\n");
            } else {
                out.push_str(line);
            }
        }
    }
    out
}

fn is_candidate(line: &str) -> bool {
    line.starts_with("a=candidate:") || line.starts_with("a=end-of-candidates")
}

/// A description without candidates: those of an ICE session are of no use in another.
#[must_use]
pub fn without_candidates(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !is_candidate(line)).collect()
}

/// A description with other ICE credentials (RFC 8839 section 5.4) wherever it names some.
#[must_use]
pub fn with_credentials(text: &str, ufrag: &str, pwd: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let renewed = [("a=ice-ufrag:", ufrag), ("a=ice-pwd:", pwd)];
        match renewed.iter().find(|(name, _)| line.starts_with(name)) {
            Some((name, value)) => out.extend([name, value, "\r\n"]),
            None => out.push_str(line),
        }
    }
    out
}

/// The candidates of a description, each once, without `a=`.
#[must_use]
pub fn candidates(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("a=")) {
        if line.starts_with("candidate:") && !found.iter().any(|one| one == line) {
            found.push(line.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "v=0\r\no=- 1 2 IN IP4 0.0.0.0\r\ns=-\r\na=group:BUNDLE 0 1 2\r\n\
        m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\na=sendrecv\r\na=msid:x y\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10\r\n\
        m=video 9 UDP/TLS/RTP/SAVPF 96 97\r\na=mid:1\r\na=extmap:12 https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension\r\n\
        a=recvonly\r\na=rtpmap:96 VP8/90000\r\na=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\na=ssrc:5 msid:x y\r\n\
        m=video 0 UDP/TLS/RTP/SAVPF 96\r\na=mid:2\r\na=inactive\r\na=rtpmap:96 VP8/90000\r\n\
        m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:3\r\n";

    #[test]
    fn an_answer_is_read_from_the_browsers_side() {
        let media = describe(ANSWER);
        let seen: Vec<_> = media.iter().map(|one| (one.mid.as_str(), one.kind, one.direction)).collect();
        assert_eq!(
            seen,
            [
                ("0", Kind::Audio, Direction::SendRecv),
                ("1", Kind::Video, Direction::SendOnly),
                ("2", Kind::Video, Direction::Inactive)
            ]
        );
        assert_eq!(media[0].codecs[0].channels, Some(2));
        assert_eq!(media[0].codecs[0].fmtp.as_deref(), Some("minptime=10"));
        assert_eq!(media[1].codecs.len(), 1, "formats that repair are the edge's own");
        assert_eq!(media[1].layers.unwrap().extension_id, Some(DESCRIPTOR));
        assert_eq!(media[2].layers.unwrap().by, "vp8");
    }

    #[test]
    fn other_credentials_leave_the_rest_of_a_description_as_it_is() {
        let offer = "v=0\r\nm=audio 9 X 0\r\na=ice-ufrag:old\r\na=ice-pwd:old\r\na=candidate:1 1 udp 1 192.0.2.1 5 typ host\r\n\
            a=candidate:1 1 udp 1 192.0.2.1 5 typ host\r\na=end-of-candidates\r\na=mid:0\r\n";
        assert_eq!(candidates(offer), ["candidate:1 1 udp 1 192.0.2.1 5 typ host"]);
        let kept = without_candidates(offer);
        assert_eq!(
            with_credentials(&kept, "new", "secret"),
            "v=0\r\nm=audio 9 X 0\r\na=ice-ufrag:new\r\na=ice-pwd:secret\r\na=mid:0\r\n"
        );
    }

    #[test]
    fn what_is_refused_has_a_format_too() {
        let named = with_streams(&ANSWER.replace("m=video 0 UDP/TLS/RTP/SAVPF 96\r\n", "m=video 0 UDP/TLS/RTP/SAVPF \r\n"));
        assert!(named.contains("\r\nm=video 0 UDP/TLS/RTP/SAVPF 0\r\n"), "{named}");
        assert_eq!(named.lines().count(), ANSWER.lines().count());
    }

    #[test]
    fn audio_and_video_of_one_place_are_one_stream() {
        let named = with_streams(ANSWER);
        assert!(
            named.contains("a=msid:stream-1 track-0\r\n") && named.contains("a=ssrc:5 msid:stream-1 track-1\r\n"),
            "{named}"
        );
        assert_eq!(named.lines().count(), ANSWER.lines().count());
    }
}
