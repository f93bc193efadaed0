//! The rtpproxy protocol: commands and replies, what is made of them on their way, and the call state that they drive.

use shunt_calls::{Book, Decision, Limits, Outcome, Relay, Settings, Step, Time};
use shunt_latch::Policy;
use shunt_rtpproxy::capability::KeepAlive;
use shunt_rtpproxy::framing::{ControlAddress, reply_length, take_line};
use shunt_rtpproxy::{
    Command, Info, NotifyTarget, Reply, Request, add_counts, keepalive_modifiers, listing, query_counters, split_datagram, with_new_port,
    with_notify_address,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SIP_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A datagram and its command. What is passed on is the same command.
pub fn command(data: &[u8]) {
    let body = split_datagram(data).map_or(data, |(_, body)| body);
    let Ok(command) = Command::parse(body) else { return };
    assert_eq!(command.raw, body);
    let _ = command.sub_lookup();
    let _ = command.session();
    let _ = keepalive_modifiers(&command);
    if let Some(media) = command.media() {
        let _ = (media.ip(), media.endpoint(), media.on_hold());
        if let Some(notify) = &media.notify {
            let _ = NotifyTarget::parse(notify.socket, Some(SIP_SERVER));
        }
    }
    if let Some(passed_on) = with_notify_address(&command, SIP_SERVER) {
        let again = Command::parse(&passed_on).expect("a command with another notify address is a command");
        assert_eq!(std::mem::discriminant(&again.request), std::mem::discriminant(&command.request));
    }
    if matches!(command.request, Request::Stream { .. }) {
        let moved = with_new_port(&command);
        let again = Command::parse(&moved).expect("a command with modifier N is a command");
        assert!(again.has_modifier(b'N'));
    }
}

/// Replies, one to the command in the first line; counts are added to a reply that can be read.
pub fn reply(data: &[u8]) {
    let reply = Reply::new(data);
    let _ = (reply.error(), reply.number(), reply.port(), reply.ports());
    let _ = (Info::parse(data), listing::read(data));
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (line, answer) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let Ok(command) = Command::parse(line) else { return };
    let Ok(before) = query_counters(&command, answer) else { return };
    if let Ok(added) = add_counts(&command, answer, |_| 3) {
        let after = query_counters(&command, &added).expect("a reply with counts added is a reply");
        assert_eq!(after.len(), before.len());
    }
}

/// Streams of commands and replies, and socket addresses.
pub fn framing(data: &[u8]) {
    let mut rest = data;
    while let Some((line, length)) = take_line(rest) {
        assert!(line.len() < length && !line.contains(&b'\n'));
        rest = &rest[length..];
    }
    let split = data.len().min(8);
    if let Some(length) = reply_length(&data[..split], data) {
        assert!((1..=data.len()).contains(&length));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(address) = text.parse::<ControlAddress>()
    {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    let _ = NotifyTarget::parse(data, Some(SIP_SERVER));
}

/// Commands and replies, one a line in turn, through the call state: nothing panics, whatever the relay answers.
pub fn book(data: &[u8]) {
    let settings = Settings {
        enabled: true,
        limits: Limits {
            legs_per_call: 16,
            sessions_per_source: None,
        },
        ..Settings::default()
    };
    let mut book = Book::new(settings, Policy::default());
    let relay = book.add_relay(Relay {
        name: "r1".into(),
        addresses: vec![SIP_SERVER],
        ttl: Duration::from_secs(60),
        setup_ttl: Duration::from_secs(60),
        symmetric_bridging: false,
        advertised: Vec::new(),
        verifies_sources: false,
        keepalive: KeepAlive::TtlSubcommand,
        kind: shunt_calls::RelayKind::Rtpproxy,
        may_query: true,
    });
    let mut now = Time::from(Duration::from_secs(1000));
    let mut lines = data.split(|byte| *byte == b'\n');
    while let (Some(body), answer) = (lines.next(), lines.next()) {
        now = now + Duration::from_millis(700);
        if let Ok(command) = Command::parse(body) {
            let (step, _, decisions) = book.command(now, &command);
            settle(&mut book, now, decisions);
            if matches!(step, Step::Pass { .. }) {
                let decisions = book.replied(now, Some(SIP_SERVER), relay, &command, answer);
                settle(&mut book, now, decisions.unwrap_or_default());
            }
        }
        let decisions = book.tick(now, 100);
        settle(&mut book, now, decisions);
    }
}

/// Carry out writes at once, and what follows from them.
fn settle(book: &mut Book, now: Time, mut decisions: Vec<Decision>) {
    for _ in 0..8 {
        let writes: Vec<_> = decisions
            .drain(..)
            .filter_map(|decision| match decision {
                Decision::Write(write) => Some(write.id),
                _ => None,
            })
            .collect();
        if writes.is_empty() {
            return;
        }
        for id in writes {
            decisions.extend(book.written(now, id, Outcome::Done, None, None));
        }
    }
}
