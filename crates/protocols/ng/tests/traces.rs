//! Every recorded message goes through the codec: nothing lost, nothing misread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Recorded, recording, recordings, render};
use shunt_net::Endpoint;
use shunt_ng::framing::{join, split, take};
use shunt_ng::{
    CallDescription, Command, Counts, Effect, Encoding, Fault, FrameError, Reply, ReplyResult, Value, Verb, add_counts, decode, describe,
    encode,
};
use std::collections::HashMap;

/// Messages that no side made sense of, each sent on purpose: no cookie, no body, not an encoding, cut off; and the note of a missing reply.
const NO_MESSAGE: [&[u8]; 5] = [
    b"d7:command4:pinge",
    b"ck8 ",
    b"ck5 hello",
    b"ck4 d7:command4:pin",
    b"<no reply in 2 s>",
];

fn messages() -> Vec<Recorded> {
    let all = recordings().into_iter().flat_map(|(_, messages)| messages);
    all.filter(|message| !NO_MESSAGE.contains(&message.bytes.as_slice()) && !message.is_stream)
        .collect()
}

#[test]
fn the_data_is_a_selection_worth_replaying() {
    let (mut verbs, mut encodings) = (HashMap::new(), HashMap::new());
    let (mut replies, mut described) = (0, 0);
    for message in messages() {
        *encodings.entry(decode(message.body()).unwrap().0).or_insert(0) += 1;
        if message.is_command {
            *verbs
                .entry(Command::parse(message.body()).map(|command| command.verb).ok())
                .or_insert(0) += 1;
        } else {
            replies += 1;
            described += usize::from(message.describes());
        }
    }
    for verb in [Verb::Offer, Verb::Answer, Verb::Delete, Verb::Query, Verb::Ping, Verb::List] {
        assert!(verbs.get(&Some(verb)).is_some_and(|count| *count >= 5), "{verb:?}");
    }
    for verb in [
        Verb::StartRecording,
        Verb::BlockMedia,
        Verb::SubscribeRequest,
        Verb::Publish,
        Verb::Statistics,
    ] {
        assert!(verbs.contains_key(&Some(verb)), "{verb:?}");
    }
    assert!(
        encodings[&Encoding::Json] >= 10 && replies >= 400 && described >= 120,
        "{encodings:?} {replies} {described}"
    );
}

#[test]
fn every_message_is_written_again_byte_for_byte() {
    for message in messages() {
        let (cookie, body) = split(&message.bytes).unwrap();
        let place = &message.place;
        assert_eq!(join(cookie, body), message.bytes, "{place}");
        let (encoding, value) = decode(body).unwrap_or_else(|error| panic!("{place}: {error}"));
        let whole = body.strip_suffix(b"\n").unwrap_or(body);
        let again = encode(&value, encoding);
        // A client of JSON that escapes what it need not is written without.
        assert!(
            again == whole || body.windows(2).any(|window| window == b"\\u"),
            "{place}: {}",
            again.escape_ascii()
        );
        assert_eq!(decode(&again).unwrap(), (encoding, value), "{place}");
    }
}

#[test]
fn every_message_means_what_the_recording_says() {
    let mut checked = 0;
    for message in messages() {
        let Some(decoded) = &message.decoded else { continue };
        let (_, value) = decode(message.body()).unwrap();
        let written = format!("cookie={} {}", String::from_utf8_lossy(message.cookie()), render(&value));
        assert_eq!(&written, decoded.split("  TRAILING").next().unwrap(), "{}", message.place);
        checked += 1;
    }
    assert!(checked > 900, "{checked}");
}

#[test]
fn commands_and_replies_are_read() {
    for message in messages() {
        let (body, place) = (message.body(), &message.place);
        if message.is_command {
            match Command::parse(body) {
                Ok(command) => check_command(&command, place),
                Err(error) => assert_eq!((error.fault, body), (Fault::Missing("command"), &b"d1:a1:be"[..]), "{place}"),
            }
        } else {
            check_reply(&Reply::parse(body).unwrap(), place);
        }
    }
}

fn check_command(command: &Command<'_>, place: &str) {
    assert_eq!(command.verb == Verb::Other, command.name.as_ref() == b"foobar", "{place}");
    assert_eq!(
        command.verb.name().as_bytes(),
        if command.verb == Verb::Other { b"" } else { command.name.as_ref() },
        "{place}"
    );
    let has_call = command.call_id.is_some();
    let none = matches!(command.verb, Verb::Ping | Verb::List | Verb::Query | Verb::Statistics);
    assert_eq!(command.effect() == Effect::None, none || !has_call, "{place}");
    if matches!(command.verb, Verb::Offer | Verb::Answer) {
        assert_eq!(command.effect(), Effect::Negotiates, "{place}");
        assert!(command.from_tag.is_some(), "{place}");
    }
}

fn check_reply(reply: &Reply<'_>, place: &str) {
    match &reply.result {
        ReplyResult::Error(reason) => assert!(!reason.is_empty(), "{place}"),
        ReplyResult::Other => assert!(reply.notify.is_some(), "{place}"),
        ReplyResult::Ok | ReplyResult::Pong | ReplyResult::LoadLimit => {}
    }
}

#[test]
fn every_reply_of_a_call_is_described() {
    for message in messages().iter().filter(|message| message.describes()) {
        let (body, place) = (message.body(), &message.place);
        let call = describe(body).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!(call.created > 1_700_000_000 && !call.tags.is_empty(), "{place}");
        for media in call.tags.iter().flat_map(|tag| &tag.medias) {
            assert!(media.index >= 1 && media.other.is_empty(), "{place}: {:?}", media.other);
            assert!(media.streams.iter().all(|stream| stream.other.is_empty()), "{place}");
        }
        check_counts(body, &call, place);
    }
}

/// Counts of nothing change nothing; other counts are found where they were added, and nothing else differs.
fn check_counts(body: &[u8], call: &CallDescription, place: &str) {
    assert_eq!(add_counts(body, |_| Counts::default()), None, "{place}");
    let of = |local: Endpoint| Counts {
        packets: u64::from(local.port),
        bytes: 160 * u64::from(local.port),
    };
    let streams = |call: &CallDescription| -> Vec<_> {
        let medias = call.tags.clone().into_iter().flat_map(|tag| tag.medias);
        medias.flat_map(|media| media.streams).collect()
    };
    let before = streams(call);
    if before.iter().all(|stream| stream.local.is_none()) {
        assert_eq!(add_counts(body, of), None, "{place}");
        return;
    }
    let added = add_counts(body, of).unwrap();
    let after = streams(&describe(&added).unwrap());
    assert_eq!(before.len(), after.len(), "{place}");
    let mut sum = 0;
    for (before, after) in before.iter().zip(&after) {
        let more = before.local.map(of).unwrap_or_default();
        assert_eq!(after.packets, before.packets + more.packets, "{place}");
        assert_eq!(after.bytes, before.bytes + more.bytes, "{place}");
        sum += more.bytes;
    }
    let total = |body| {
        let (_, value) = decode(body).unwrap();
        let totals = value.get("totals").unwrap();
        let bytes = |kind| totals.get(kind).unwrap().get("bytes").and_then(Value::integer).unwrap();
        bytes("RTP") + bytes("RTCP")
    };
    assert_eq!(total(&added), total(body) + i64::try_from(sum).unwrap(), "{place}");
    let without_numbers = |value: Value<'_>| render(&value).replace(|c: char| c.is_ascii_digit(), "");
    let (encoding, value) = decode(&added).unwrap();
    assert_eq!(without_numbers(value), without_numbers(decode(body).unwrap().1), "{place}");
    assert_eq!(encode(&decode(&added).unwrap().1, encoding), added, "{place}");
}

#[test]
fn what_is_no_message_is_refused() {
    assert_eq!(split(b"d7:command4:pinge"), Err(FrameError::NoCookie));
    assert_eq!(split(b"ck8 "), Err(FrameError::Empty));
    assert_eq!(decode(split(b"ck5 hello").unwrap().1).unwrap_err().fault, Fault::Format);
    assert_eq!(
        decode(split(b"ck4 d7:command4:pin").unwrap().1).unwrap_err().fault,
        Fault::Truncated
    );
}

#[test]
fn a_stream_is_cut_where_the_replies_say() {
    let stream = |is_command| -> Vec<u8> {
        let parts = recording("33_framing_errors.txt").into_iter();
        parts
            .filter(|part| part.is_stream && part.is_command == is_command)
            .flat_map(|part| part.bytes)
            .collect()
    };
    let cookies = |bytes: &[u8]| {
        let (mut rest, mut found) = (bytes, Vec::new());
        while let Some((message, length)) = take(rest).unwrap() {
            assert!(decode(message.body).is_ok());
            found.push(String::from_utf8(message.cookie.to_vec()).unwrap());
            rest = &rest[length..];
        }
        assert!(rest.iter().all(u8::is_ascii_whitespace));
        found
    };
    assert_eq!(cookies(&stream(true)), ["t1", "t2", "t3", "t4", "t5"]);
    assert_eq!(cookies(&stream(true)), cookies(&stream(false)));
}
