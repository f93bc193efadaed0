//! Forwarding: the same command with another cookie, with added sub-commands, or with one change.

use crate::command::Command;
use crate::reply::split_parts;
use crate::words::Words;
use std::net::IpAddr;

const SELF: &[u8] = b"%%CC_SELF%%";

/// A datagram: the cookie, the unchanged command or reply, and added sub-commands.
#[must_use]
pub fn datagram(cookie: &[u8], body: &[u8], subcommands: &[&[u8]]) -> Vec<u8> {
    let more: usize = subcommands.iter().map(|part| part.len() + 4).sum();
    let mut out = Vec::with_capacity(cookie.len() + 1 + body.len() + more + 1);
    out.extend_from_slice(cookie);
    out.push(b' ');
    append(&mut out, body, subcommands);
    out
}

/// The same for a stream, which has no cookies but a line end.
#[must_use]
pub fn line(body: &[u8], subcommands: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 16 * subcommands.len() + 1);
    append(&mut out, body, subcommands);
    out.push(b'\n');
    out
}

fn append(out: &mut Vec<u8>, body: &[u8], subcommands: &[&[u8]]) {
    out.extend_from_slice(body);
    for part in subcommands {
        out.extend_from_slice(b" && ");
        out.extend_from_slice(part);
    }
}

/// The command with `%%CC_SELF%%` in its notify socket replaced by an address; `None` if it has none.
///
/// `%%CC_SELF%%` means the sender of the command. A relay behind a proxy would take the proxy, so the proxy inserts the SIP server's
/// address.
#[must_use]
pub fn with_notify_address(command: &Command, address: IpAddr) -> Option<Vec<u8>> {
    let notify = command.media()?.notify?;
    let place = notify.socket.windows(SELF.len()).position(|window| window == SELF)?;
    let text = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let at = notify.at + place;
    Some([&command.raw[..at], text.as_bytes(), &command.raw[at + SELF.len()..]].concat())
}

/// The same U or L with modifier N and without sub-commands: the relay allocates another port for the leg in its answer.
#[must_use]
pub fn with_new_port(command: &Command) -> Vec<u8> {
    let mut out = Vec::with_capacity(command.raw.len() + 1);
    for (number, (_, word)) in Words::new(command.raw).take_while(|(_, word)| *word != b"&&").enumerate() {
        if number == 0 {
            out.extend_from_slice(&word[..1]);
            out.push(b'N');
            out.extend_from_slice(&word[1..]);
        } else {
            out.push(b' ');
            out.extend_from_slice(word);
        }
    }
    out
}

/// A reply to U or L with part `number` (from 0; `&&` separates parts) replaced by another answer.
#[must_use]
pub fn splice_reply(reply: &[u8], number: usize, answer: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = split_parts(reply)
        .enumerate()
        .map(|(at, part)| if at == number { answer } else { part })
        .collect();
    parts.join(b" && ".as_slice())
}

/// The modifiers of a leg's last command that its keep-alive L must repeat.
///
/// L overwrites the leg's asymmetric, codec and resize state. N is omitted, because it would move the leg to a new port.
#[must_use]
pub fn keepalive_modifiers(command: &Command) -> Vec<u8> {
    let parts = command.media_modifiers().map_while(Result::ok);
    parts
        .filter(|part| part.letter != b'N')
        .flat_map(|part| part.raw.iter().copied())
        .collect()
}
