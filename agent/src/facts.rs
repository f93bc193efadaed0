//! Converts the call state's and the data plane's facts to values of the admin API. Pure functions.

use shunt_admin::{
    CallFacts, CallWhat, Component, Direction, EndedFacts, EndedLine, EndedParty, Entry, Format, HoldView, LearnFacts, Outcome, SdpLine,
    SipFacts, SipStart, TableFacts, TableOperation, Text, Verdict,
};
use shunt_calls::{Counters, Ended, Happening, Hold, Holder, Ignored, Notice, Operation, RelayEntry, RelayId, Sdp, Side, StreamId, Time};
use shunt_hep::sip::{Message, SdpMedia};
use shunt_net::Endpoint;
use shunt_plane::Written;
use std::time::Duration;

/// Most bytes of one network text in an event.
pub const KEPT: usize = 1024;

/// Returns an entry as the admin API has it.
#[must_use]
pub fn entry(entry: RelayEntry) -> Entry {
    Entry {
        source: entry.key().src,
        destination: entry.key().dst,
        new_source: Some(entry.new_source()),
        new_destination: Some(entry.new_destination()),
    }
}

/// Returns a hold of a media line as the admin API has it. `party`: whose media.
#[must_use]
pub fn hold(hold: &Hold, party: Option<Side>) -> HoldView {
    let (mut selection, mut subscription) = (None, None);
    match &hold.holder {
        Holder::Party(words) | Holder::Flow(words) => selection = Some(text(&words.0)),
        Holder::Subscription(tag) => subscription = some(&tag.0),
        Holder::Call | Holder::Side(_) => {}
    }
    HoldView {
        reason: hold.reason,
        command: some(hold.command.as_bytes()),
        party,
        selection,
        subscription,
        recording: hold.is_recording(),
        to: hold.to.clone(),
    }
}

/// Returns whole microseconds.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns `None` if nothing was carried.
#[must_use]
pub fn counted(counters: Counters) -> Option<shunt_admin::Counters> {
    (counters.packets > 0).then(|| counters.into())
}

fn text(bytes: &[u8]) -> Text {
    Text::cut(bytes, KEPT)
}

/// Returns a text, unless it is empty.
fn some(bytes: &[u8]) -> Option<Text> {
    (!bytes.is_empty()).then(|| text(bytes))
}

/// Returns the facts of a copied SIP message.
#[must_use]
pub fn sip(source: Endpoint, destination: Endpoint, message: &Message) -> SipFacts {
    let known = |end: Endpoint| (end.port != 0).then_some(end);
    SipFacts {
        start: match (message.method(), message.status()) {
            (Some(method), _) => SipStart::Method(method.into()),
            (None, status) => SipStart::Status(status.unwrap_or(0)),
        },
        phrase: message.phrase().and_then(some),
        source: known(source),
        destination: known(destination),
        cseq_method: message.cseq_method().into(),
        cseq: message.cseq(),
        from: some(message.from_uri()),
        to: some(message.to_uri()),
        from_tag: some(message.from_tag()),
        to_tag: message.to_tag().and_then(some),
        request_uri: message.request_uri().and_then(some),
        user_agent: some(message.user_agent()),
        reason: some(message.reason()),
        sdp: message.sdp().map(|sdp| sdp.media.iter().map(sdp_of_message).collect()),
    }
}

fn direction(direction: shunt_calls::Direction) -> Direction {
    match direction {
        shunt_calls::Direction::SendRecv => Direction::SendRecv,
        shunt_calls::Direction::SendOnly => Direction::SendOnly,
        shunt_calls::Direction::RecvOnly => Direction::RecvOnly,
        shunt_calls::Direction::Inactive => Direction::Inactive,
    }
}

fn sdp_of_message(media: &SdpMedia) -> SdpLine {
    let formats = media.formats.iter().map(|format| Format {
        payload_type: format.payload_type,
        encoding: format.name.into(),
        clock_rate: format.clock_rate,
    });
    SdpLine {
        medium: text(media.kind),
        address: media.address,
        port: media.port,
        direction: direction(media.direction),
        formats: formats.collect(),
        ptime_ms: media.ptime,
        rtcp_mux: media.rtcp_mux,
    }
}

/// Returns the last SDP of a party.
#[must_use]
pub fn sdp(sdp: &Sdp) -> SdpLine {
    let formats = sdp.kind.formats.iter().map(|format| Format {
        payload_type: format.payload_type,
        encoding: (&*format.encoding).into(),
        clock_rate: format.clock_rate,
    });
    SdpLine {
        medium: text(&sdp.kind.medium),
        address: sdp.address,
        port: sdp.port,
        direction: direction(sdp.direction),
        formats: formats.collect(),
        ptime_ms: sdp.ptime_ms.map(u32::from),
        rtcp_mux: sdp.rtcp_mux,
    }
}

/// Returns the verdict on a packet.
#[must_use]
pub fn verdict(verdict: shunt_calls::Verdict) -> Verdict {
    use shunt_calls::Verdict as Judged;
    match verdict {
        Judged::Latched => Verdict::Latched,
        Judged::Moved => Verdict::Moved,
        Judged::Restored => Verdict::Restored,
        Judged::Known => Verdict::Known,
        Judged::Contested => Verdict::Contested,
        Judged::Waiting => Verdict::Waiting,
        Judged::Ask => Verdict::AskedIdle,
        Judged::Ignored(Ignored::Scanner) => Verdict::Scanner,
        Judged::Ignored(Ignored::Quarantined) => Verdict::Quarantined,
        Judged::Ignored(Ignored::Former) => Verdict::Former,
        Judged::Ignored(Ignored::Mismatch) => Verdict::SourceMismatch,
        Judged::Ignored(Ignored::Asymmetric) => Verdict::Asymmetric,
    }
}

/// Returns the facts of `count` packets like this one.
#[must_use]
pub fn learned(notice: &Notice, verdict: Verdict, count: u32) -> LearnFacts {
    LearnFacts {
        verdict,
        source: notice.key.src,
        port: notice.key.dst,
        ssrc: notice.media.map(|media| media.ssrc),
        sequence: notice.media.map(|media| media.sequence),
        payload_type: notice.payload_type,
        count,
    }
}

/// Returns the facts of a line's event, and the stream concerned.
#[must_use]
pub fn happened(what: Happening) -> (CallFacts, Option<StreamId>) {
    match what {
        Happening::Suspended(reason) => {
            let mut facts = CallFacts::of(CallWhat::Suspended);
            facts.reason = Some(reason);
            (facts, None)
        }
        Happening::Resumed => (CallFacts::of(CallWhat::Resumed), None),
        Happening::Moved { stream, before, source } => {
            let mut facts = CallFacts::of(CallWhat::Moved);
            (facts.before, facts.source) = (Some(before), Some(source));
            (facts, Some(stream))
        }
        Happening::Idle { stream, silent } => {
            let mut facts = CallFacts::of(CallWhat::Idle);
            facts.seconds = Some(silent.as_secs_f64());
            (facts, Some(stream))
        }
        Happening::Active { stream } => (CallFacts::of(CallWhat::Active), Some(stream)),
        Happening::MediaTimeout(ttl) => {
            let mut facts = CallFacts::of(CallWhat::MediaTimeout);
            facts.seconds = Some(ttl.as_secs_f64());
            (facts, None)
        }
    }
}

/// Returns the facts of a failed write.
#[must_use]
pub fn table(written: &Written) -> TableFacts {
    let (operation, shown) = match written.operation {
        Operation::Insert(written) => (TableOperation::Insert, entry(written)),
        Operation::Modify(written) => (TableOperation::Modify, entry(written)),
        Operation::Delete(key) => {
            let gone = Entry {
                source: key.src,
                destination: key.dst,
                new_source: None,
                new_destination: None,
            };
            (TableOperation::Delete, gone)
        }
    };
    TableFacts {
        operation,
        entry: shown,
        outcome: match (written.outcome, &written.detail) {
            (shunt_calls::Outcome::TableFull, _) => Outcome::TableFull,
            (shunt_calls::Outcome::HashCollision, _) => Outcome::HashCollision,
            (shunt_calls::Outcome::HostPolicy, _) => Outcome::HostPolicy,
            (shunt_calls::Outcome::Unavailable, None) => Outcome::Unavailable,
            (shunt_calls::Outcome::Unavailable, Some(_)) => Outcome::Unacknowledged,
            (shunt_calls::Outcome::Rejected | shunt_calls::Outcome::Done, _) => Outcome::Rejected,
        },
        detail: written.detail.as_deref().map(|detail| text(detail.as_bytes())),
        took_us: micros(written.took),
    }
}

/// Returns the facts of an ended call. `number`: calls that have ended, this one included; `relay`: returns a relay's name; `wall`: the
/// Unix time of `now`.
#[must_use]
pub fn ended<'a>(ended: &Ended, number: u64, relay: impl Fn(RelayId) -> &'a str, now: Time, wall: Duration) -> EndedFacts {
    let duration = now.since(ended.created);
    let first = ended.lines.first();
    EndedFacts {
        number,
        reason: ended.reason,
        relay: first.map_or("", |line| relay(line.relay)).into(),
        from_tag: first.map(|line| (&*line.tag).into()).unwrap_or_default(),
        to_tag: first.and_then(|line| line.other_tag.as_deref()).map(Into::into),
        started_us: micros(wall.saturating_sub(duration)),
        duration_s: duration.as_secs_f64(),
        lines: ended.lines.iter().map(ended_line).collect(),
    }
}

fn ended_line(line: &shunt_calls::EndedLine) -> EndedLine {
    EndedLine {
        media: line.media,
        from_tag: (&*line.tag).into(),
        to_tag: line.other_tag.as_deref().map(Into::into),
        reason: line.reason,
        answered: line.answered,
        recorders: shunt_calls::recorders(line.recorded.iter().map(|(recorded, _)| recorded)) as u64,
        recorded: line.recorded.iter().map(|(recorded, party)| hold(recorded, *party)).collect(),
        caller: ended_party(line.party(Side::Caller)),
        callee: ended_party(line.party(Side::Callee)),
    }
}

fn ended_party(party: &shunt_calls::EndedParty) -> EndedParty {
    EndedParty {
        signalled: party.signalled,
        source: party.learned,
        relay_port: party.relay,
        rtp: counted(party.rtp),
        rtcp: counted(party.rtcp),
        relay_packets: party.relay_packets,
        payload_types: party.payload_types.clone(),
        sdp: party.sdp.as_ref().map(sdp),
        offloaded: party.was_offloaded,
        offloaded_after_us: party.offloaded_after.map(micros),
        source_mismatches: party.mismatches,
    }
}

/// Returns a component as the admin API has it.
#[must_use]
pub fn component(id: StreamId) -> Component {
    id.component.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_message_tells_who_called_whom_and_why_it_ended() {
        let text = b"BYE sip:bob@198.51.100.7:5062 SIP/2.0\r\nFrom: \"Ann <x>\" <sip:ann@example.org>;tag=a1\r\nTo: sip:bob@example.org;tag=b1\r\n\
            Call-ID: c1\r\nCSeq: 3 BYE\r\nUser-Agent: phone 1\r\nReason: Q.850;cause=16\r\n\r\n";
        let message = Message::parse(text).unwrap();
        let facts = sip(Endpoint::new([192, 0, 2, 1], 5060), Endpoint::new([0, 0, 0, 0], 0), &message);
        let shown = |text: &Option<Text>| text.as_ref().map(ToString::to_string);
        assert_eq!(
            (shown(&facts.from), shown(&facts.to)),
            (Some("sip:ann@example.org".into()), Some("sip:bob@example.org".into()))
        );
        assert_eq!(
            (shown(&facts.reason), shown(&facts.user_agent)),
            (Some("Q.850;cause=16".into()), Some("phone 1".into()))
        );
        assert_eq!(
            (facts.cseq, shown(&facts.request_uri)),
            (Some(3), Some("sip:bob@198.51.100.7:5062".into()))
        );
        assert_eq!((facts.destination, facts.sdp.is_none()), (None, true));
        let answer = Message::parse(b"SIP/2.0 486 Busy Here\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n\r\n").unwrap();
        let facts = sip(Endpoint::new([0, 0, 0, 0], 0), Endpoint::new([0, 0, 0, 0], 0), &answer);
        assert_eq!(shown(&facts.phrase), Some("Busy Here".into()));
        assert_eq!((facts.from, facts.from_tag), (None, None));
    }

    #[test]
    fn a_write_without_an_answer_is_not_one_that_was_never_sent() {
        let key = shunt_net::FiveTuple::new(Endpoint::new([192, 0, 2, 1], 6000), Endpoint::new([192, 0, 2, 9], 30000));
        let mut written = Written {
            id: shunt_calls::WriteId::new(1),
            outcome: shunt_calls::Outcome::Unavailable,
            counters: None,
            detail: None,
            operation: Operation::Delete(key),
            took: Duration::from_micros(1500),
        };
        assert_eq!(table(&written).outcome, Outcome::Unavailable);
        written.detail = Some("no answer in 2 s".into());
        let facts = table(&written);
        assert_eq!(
            (facts.outcome, facts.operation, facts.took_us),
            (Outcome::Unacknowledged, TableOperation::Delete, 1500)
        );
        assert_eq!(facts.entry.new_source, None);
    }
}
