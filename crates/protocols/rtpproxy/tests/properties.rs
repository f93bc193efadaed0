//! Any bytes: nothing panics, nothing is lost, what is built reads back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_rtpproxy::framing::{ControlAddress, reply_length, take_line};
use shunt_rtpproxy::{
    Command, DEFAULT_COUNTERS, NotifyTarget, Reply, add_counts, build, datagram, keepalive_modifiers, notify_line, query_counters,
    splice_reply, split_datagram, with_new_port, with_notify_address,
};
use std::net::IpAddr;

const PIECES: [&[u8]; 33] = [
    b"U",
    b"L",
    b"Q",
    b"Qv",
    b"D",
    b"P",
    b"C",
    b"VF",
    b"&&",
    b" ",
    b"\t",
    b"\r\n",
    b"c0,8",
    b"Z20",
    b"R10.0.0.1",
    b"l[",
    b"R::1c0",
    b"call",
    b"10.0.0.1",
    b"-",
    b"6000",
    b"tag;1",
    b";",
    b"%",
    b"tcp:%%CC_SELF%%:1",
    b"E50",
    b"0",
    b"36884",
    b"=",
    b"ttl=6",
    b"\xff",
    b"\0",
    b"6",
];

fn anything() -> impl Strategy<Value = Vec<u8>> {
    let pieces = || prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..14);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        pieces().prop_map(|pieces| pieces.concat()),
        pieces().prop_map(|pieces| pieces.join(&b' ')),
    ]
}

fn without_line_end(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
    &bytes[..end]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_as_a_command(data in anything()) {
        let command = match Command::parse(&data) {
            Ok(command) => command,
            Err(error) => {
                prop_assert!(error.at <= data.len());
                return Ok(());
            }
        };
        prop_assert_eq!(command.raw, without_line_end(&data));
        prop_assert_eq!(&Command::parse(command.raw).unwrap(), &command);
        if let Some(media) = command.media() {
            let parts: Vec<u8> = command.media_modifiers().flat_map(|part| part.unwrap().raw.to_vec()).collect();
            prop_assert_eq!(parts, command.modifiers);
            prop_assert!(media.endpoint().is_none() || !media.on_hold());
            let _ = keepalive_modifiers(&command);
            let moved = with_new_port(&command);
            prop_assert!(Command::parse(&moved).unwrap().media().unwrap().flags.new_port);
        }
        let _ = command.sub_lookup();
        let own: IpAddr = "192.0.2.1".parse().unwrap();
        if let Some(rewritten) = with_notify_address(&command, own) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("192.0.2.1", "%%CC_SELF%%");
            prop_assert_eq!(text(&rewritten), text(command.raw));
        }
    }

    #[test]
    fn any_bytes_as_a_datagram_and_a_reply(data in anything()) {
        let Ok((cookie, body)) = split_datagram(&data) else {
            prop_assert!(data.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')));
            return Ok(());
        };
        let again = datagram(cookie, body, &[]);
        prop_assert_eq!(split_datagram(&again).unwrap().0, cookie);
        let reply = Reply::new(body);
        let _ = (reply.error(), reply.number(), reply.port(), reply.ports(), take_line(body), reply_length(cookie, body));
        let _ = shunt_rtpproxy::listing::read(body);
        let _ = (splice_reply(body, 1, b"x"), notify_line(body), NotifyTarget::parse(body, None));
        let _ = std::str::from_utf8(body).map(str::parse::<ControlAddress>);
        for query in [&b"Q c a;1 b;1"[..], b"Qv c a;1 b;1"] {
            let _ = query_counters(&Command::parse(query).unwrap(), body);
        }
    }

    #[test]
    fn what_is_built_reads_back(
        call_id in "[!-~&&[^&;%:/]]{1,20}", from in "[!-~&&[^&;%:/]]{1,20}", to in prop::option::of("[!-~&&[^&;%:/]]{1,20}"),
        port: u16, media in prop::option::of(0u32..100),
    ) {
        let whole = |tag: &str| media.map_or(tag.to_owned(), |media| format!("{tag};{media}"));
        let (from_tag, to_tag) = (whole(&from), to.as_deref().map(whole));
        let target = build::Target { call_id: call_id.as_bytes(), from: from_tag.as_bytes(), to: to_tag.as_ref().map(String::as_bytes) };
        let built = build::update(b"", target, Some([10, 0, 0, 1].into()), port, None).unwrap();
        let command = Command::parse(&built).unwrap();
        let offer = command.media().unwrap();
        prop_assert_eq!(offer.session.call_id, call_id.as_bytes());
        prop_assert_eq!((offer.session.from.name, offer.session.from.media), (from.as_bytes(), media));
        prop_assert_eq!(offer.session.to.map(|tag| (tag.name.to_vec(), tag.media)), to.map(|to| (to.into_bytes(), media)));
        prop_assert_eq!(offer.port, port);
    }

    #[test]
    fn counts_are_added_and_nothing_else_changes(values in prop::array::uniform5(0u64..1 << 40), more in 0u64..1 << 40, verbose: bool) {
        let words = DEFAULT_COUNTERS.iter().zip(values).map(|(name, value)| {
            let name = String::from_utf8_lossy(name);
            if verbose { format!("{name}={value}") } else { value.to_string() }
        });
        let reply = words.collect::<Vec<_>>().join(" ").into_bytes();
        let command = Command::parse(if verbose { b"Qv c a;1 b;1" } else { b"Q c a;1 b;1" }).unwrap();
        let added = add_counts(&command, &reply, |name| if name == b"nrelayed" { more } else { 0 }).unwrap();
        let values_of = |reply: &[u8]| query_counters(&command, reply).unwrap().iter().map(|c| c.value().unwrap()).collect::<Vec<_>>();
        let mut expected = values;
        expected[3] += more;
        prop_assert_eq!(values_of(&added), expected);
    }
}
