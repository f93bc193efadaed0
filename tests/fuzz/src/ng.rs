//! The NG protocol of rtpengine: frames, trees, commands, replies and what is made of them.

use shunt_ng::framing::{join, split, take};
use shunt_ng::{Command, Counts, Fault, Reply, add_counts, decode, describe, encode, rtpp_flags, sdp};

/// Datagrams and streams. A message that was found whole is found again without what follows it, and not before its last byte.
pub fn framing(data: &[u8]) {
    if let Ok((cookie, body)) = split(data) {
        assert_eq!(join(cookie, body), data);
    }
    let mut rest = data;
    while let Ok(Some((message, length))) = take(rest) {
        let whole = &rest[..length];
        assert_eq!(take(whole), Ok(Some((message, length))));
        assert_eq!(take(&whole[..length - 1]), Ok(None));
        rest = &rest[length..];
    }
}

/// Trees of values. What is written reads back the same; JSON agrees with serde_json on what is JSON.
pub fn value(data: &[u8]) {
    let read = decode(data);
    if let Ok((encoding, value)) = &read {
        let again = encode(value, *encoding);
        assert_eq!(decode(&again).as_ref(), Ok(&(*encoding, value.clone())));
    }
    if data.first() == Some(&b'{') {
        let known = serde_json::from_slice::<serde_json::Value>(data);
        match read {
            Ok(_) => assert!(known.is_ok() || known.is_err_and(|error| error.to_string().starts_with("number out of range"))),
            Err(error) => assert!(known.is_err() || matches!(error.fault, Fault::Depth | Fault::Elements)),
        }
    }
    let _ = (rtpp_flags::read(data), sdp::scan(data));
}

/// A command, and all that can be asked of it.
pub fn command(data: &[u8]) {
    let Ok(command) = Command::parse(data) else { return };
    assert_eq!(command.raw, data);
    let _ = (command.needs().hidden(), command.effect(), command.whom(), command.calls().count());
}

/// A reply, the call that it describes, and counts added to it.
pub fn reply(data: &[u8]) {
    if let Ok(reply) = Reply::parse(data) {
        let _ = (reply.needs(), reply.is_ok());
    }
    assert_eq!(add_counts(data, |_| Counts::default()), None);
    let Ok(before) = describe(data) else {
        assert_eq!(add_counts(data, |_| Counts { packets: 3, bytes: 500 }), None);
        return;
    };
    for line in before.lines() {
        let _ = (line.needs_relay(), line.filters_rtcp());
    }
    if let Some(added) = add_counts(data, |_| Counts { packets: 3, bytes: 500 }) {
        let after = describe(&added).expect("a reply with counts added is a reply");
        assert_eq!(before.tags.len(), after.tags.len());
    }
}
