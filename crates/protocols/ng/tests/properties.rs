//! Any bytes: nothing panics, nothing is lost, what is built reads back, and memory stays in proportion to what came in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use shunt_ng::framing::{join, split, take};
use shunt_ng::{Command, Counts, Encoding, MAX_DEPTH, Reply, Value, add_counts, build, decode, describe, encode, rtpp_flags, sdp};
use std::borrow::Cow;
use std::mem::size_of;

const PIECES: [&[u8]; 40] = [
    b"d",
    b"l",
    b"e",
    b"i7e",
    b"i-1e",
    b"i",
    b"0:",
    b"3:sdp",
    b"4:tags",
    b"6:medias",
    b"7:streams",
    b"5:stats",
    b"7:packetsi1e",
    b"5:bytesi1e",
    b"10:local porti9e",
    b"13:local address3:::1",
    b"5:flagsl3:RTPe",
    b"6:totals",
    b"3:RTP",
    b"7:command5:offer",
    b"7:call-id1:x",
    b"5:flags",
    b"10:rtpp-flags",
    b"5:codec",
    b"99:",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"tags\":",
    b"\"a\"",
    b"1",
    b"\"\\u00e9\"",
    b" ",
    b"\n",
    b"cookie ",
    b"m=audio 1 RTP/AVP 0\r\n",
    b"\xff",
];

/// Bytes that come near to messages.
fn near() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60).prop_map(|pieces| pieces.concat());
    prop_oneof![4 => pieces, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

fn text() -> impl Strategy<Value = Value<'static>> {
    "[ -~\r\n\u{e9}\u{1f600}]{0,12}".prop_map(|text| Value::Text(Cow::Owned(text.into_bytes())))
}

fn value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![any::<i64>().prop_map(Value::Integer), text()];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let key = "[a-z \"\\\\-]{0,8}".prop_map(|key| Cow::Owned(key.into_bytes()));
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            prop::collection::vec((key, inner), 0..6).prop_map(Value::Dictionary),
        ]
    })
}

fn dictionary() -> impl Strategy<Value = Value<'static>> {
    prop::collection::vec(("[a-z -]{0,8}".prop_map(|key| Cow::Owned(key.into_bytes())), value()), 0..6).prop_map(Value::Dictionary)
}

/// Bytes on the heap, spare room included.
fn heap(value: &Value<'_>) -> usize {
    let owned = |text: &Cow<'_, [u8]>| match text {
        Cow::Borrowed(_) => 0,
        Cow::Owned(text) => text.capacity(),
    };
    match value {
        Value::Integer(_) => 0,
        Value::Text(text) => owned(text),
        Value::List(items) => items.capacity() * size_of::<Value<'_>>() + items.iter().map(heap).sum::<usize>(),
        Value::Dictionary(entries) => {
            let each = size_of::<(Cow<'_, [u8]>, Value<'_>)>();
            entries.capacity() * each + entries.iter().map(|(key, value)| owned(key) + heap(value)).sum::<usize>()
        }
    }
}

fn depth(value: &Value<'_>) -> usize {
    match value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Dictionary(entries) => 1 + entries.iter().map(|(_, value)| depth(value)).max().unwrap_or(0),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(value in dictionary(), json in any::<bool>()) {
        let encoding = if json { Encoding::Json } else { Encoding::Bencode };
        let body = encode(&value, encoding);
        prop_assert_eq!(decode(&body).unwrap(), (encoding, value));
    }

    #[test]
    fn a_message_ends_where_it_ends(value in dictionary(), json in any::<bool>(), rest in near()) {
        let body = encode(&value, if json { Encoding::Json } else { Encoding::Bencode });
        let message = join(b"12_3", &body);
        prop_assert_eq!(split(&message), Ok((&b"12_3"[..], &body[..])));
        let (found, length) = take(&message).unwrap().unwrap();
        prop_assert_eq!((found.cookie, found.body, length), (&b"12_3"[..], &body[..], message.len()));
        let stream = [&message[..], &rest].concat();
        prop_assert_eq!(take(&stream).unwrap().unwrap().1, message.len());
        for cut in 0..message.len() {
            prop_assert_eq!(take(&message[..cut]), Ok(None), "{}", cut);
        }
    }

    #[test]
    fn any_bytes(data in near()) {
        if let Ok((cookie, body)) = split(&data) {
            prop_assert_eq!(join(cookie, body), data.clone());
        }
        if let Ok(Some((message, length))) = take(&data) {
            prop_assert!(length <= data.len() && message.body.len() < length);
        }
        if let Ok((encoding, value)) = decode(&data) {
            prop_assert!(depth(&value) <= MAX_DEPTH);
            prop_assert!(heap(&value) <= 64 * data.len(), "{} for {}", heap(&value), data.len());
            let again = encode(&value, encoding);
            prop_assert_eq!(decode(&again).unwrap().1, value);
        }
        if let Ok(command) = Command::parse(&data) {
            prop_assert_eq!(command.raw, &data[..]);
            let _ = (command.needs(), command.effect(), command.whom(), command.calls().count());
        }
        if let Ok(reply) = Reply::parse(&data) {
            let _ = (reply.needs(), reply.is_ok());
        }
        if let Ok(call) = describe(&data) {
            for line in call.lines() {
                let _ = (line.needs_relay(), line.filters_rtcp());
            }
        }
        prop_assert!(sdp::scan(&data).media.len() <= data.len());
        let words = rtpp_flags::read(&data);
        prop_assert!(words.iter().map(|(word, _)| word.len()).sum::<usize>() <= data.len());
    }

    /// Whatever counts are added, the reply differs in numbers alone, and reads back.
    #[test]
    fn counts(data in near(), packets in any::<u64>(), bytes in any::<u64>()) {
        prop_assert_eq!(add_counts(&data, |_| Counts::default()), None);
        if let Some(added) = add_counts(&data, |_| Counts { packets, bytes }) {
            let digits = |bytes: &[u8]| bytes.iter().copied().filter(|byte| !byte.is_ascii_digit() && *byte != b'-').collect::<Vec<_>>();
            prop_assert_eq!(digits(&added), digits(&data));
            prop_assert!(describe(&added).is_ok());
        }
    }

    #[test]
    fn what_is_built_is_a_command(call_id in prop::collection::vec(any::<u8>(), 0..40), limit in any::<u32>()) {
        for body in [build::query(&call_id), build::delete(&call_id, Some(b"f"), None, Some(limit))] {
            let command = Command::parse(&body).unwrap();
            prop_assert_eq!(command.call_id.as_deref(), Some(&call_id[..]));
        }
        prop_assert_eq!(Command::parse(&build::list(limit)).unwrap().options.limit, Some(limit.into()));
    }
}
