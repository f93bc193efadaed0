//! The letters after U or L, some with an argument.

use crate::error::{Fault, ParseError};
use crate::words::number;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Digits of Z and t. No relay accepts a longer number.
const MOST_DIGITS: usize = 10;

/// The argument of a modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    None,
    Number(u64),
    Address(IpAddr),
    /// The name of one of the relay's addresses: l{name}.
    Label(&'a [u8]),
    /// The list of c as sent: `0,8,101`.
    Codecs(&'a [u8]),
    /// A letter unknown in all versions, or t without a number.
    Unknown,
}

/// One modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modifier<'a> {
    /// Upper case if it is a letter.
    pub letter: u8,
    pub value: Value<'a>,
    /// With its argument, as sent.
    pub raw: &'a [u8],
    /// Offset in the modifiers' text.
    pub at: usize,
}

/// The modifiers of U or L one by one, in the order of the command.
#[derive(Clone)]
pub struct Modifiers<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Modifiers<'a> {
    /// `text` is the text after the verb. The iterator ends after an error.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn fail(&mut self, fault: Fault, at: usize) -> Option<Result<Modifier<'a>, ParseError>> {
        self.at = self.text.len();
        Some(Err(ParseError::new(fault, at)))
    }

    fn end_of(&self, from: usize, wanted: impl Fn(u8) -> bool) -> usize {
        let rest = &self.text[from..];
        from + rest.iter().position(|&byte| !wanted(byte)).unwrap_or(rest.len())
    }
}

impl<'a> Iterator for Modifiers<'a> {
    type Item = Result<Modifier<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (text, start) = (self.text, self.at);
        let letter = text.get(start)?.to_ascii_uppercase();
        let mut end = start + 1;
        let value = match letter {
            b'Z' | b'T' => {
                end = self.end_of(end, |byte| byte.is_ascii_digit());
                match (number(&text[start + 1..end], MOST_DIGITS), letter) {
                    (Some(value), _) => Value::Number(value),
                    (None, b'Z') => return self.fail(Fault::Resize, start),
                    (None, _) => Value::Unknown,
                }
            }
            b'C' => {
                end = self.end_of(end, |byte| byte.is_ascii_digit() || byte == b',');
                match &text[start + 1..end] {
                    [] => return self.fail(Fault::Codecs, start),
                    list => Value::Codecs(list),
                }
            }
            b'L' if text.get(end) == Some(&b'{') => match label(&text[end..]) {
                Some((label, length)) => {
                    end += length;
                    Value::Label(label)
                }
                None => return self.fail(Fault::LocalAddress, start),
            },
            b'L' | b'R' => match address(&text[end..]) {
                Some((address, length)) => {
                    end += length;
                    Value::Address(address)
                }
                None if letter == b'L' => return self.fail(Fault::LocalAddress, start),
                None => return self.fail(Fault::RemoteAddress, start),
            },
            b'A' | b'E' | b'I' | b'S' | b'W' | b'N' | b'6' => Value::None,
            _ => Value::Unknown,
        };
        self.at = end;
        let raw = &text[start..end];
        Some(Ok(Modifier {
            letter,
            value,
            raw,
            at: start,
        }))
    }
}

/// The name in the braces at the start of `text`, and their length there.
fn label(text: &[u8]) -> Option<(&[u8], usize)> {
    let end = text.iter().position(|&byte| byte == b'}').filter(|end| *end > 1)?;
    Some((&text[1..end], end + 1))
}

/// The address at the start of `text` and its length there: in brackets, IPv4, or bare IPv6.
///
/// A following `c<list>` may touch bare IPv6, and c is a hexadecimal digit. OpenSIPS writes addresses in upper case, so the address ends at
/// the first position that makes it valid and precedes `c` and a digit.
fn address(text: &[u8]) -> Option<(IpAddr, usize)> {
    let parse = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<IpAddr>().ok();
    if text.first() == Some(&b'[') {
        let end = text.iter().position(|&byte| byte == b']')?;
        return Some((parse(&text[1..end])?, end + 1));
    }
    let length = |wanted: fn(&u8) -> bool| text.iter().position(|byte| !wanted(byte)).unwrap_or(text.len());
    let v6 = length(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
    if text[..v6].contains(&b':') {
        let codecs = |&end: &usize| text[end] == b'c' && text.get(end + 1).is_some_and(u8::is_ascii_digit);
        let mut ends = (0..v6).filter(codecs).chain([v6]);
        return ends.find_map(|end| Some((parse(&text[..end])?, end)));
    }
    let end = length(|byte| byte.is_ascii_digit() || *byte == b'.');
    Some((parse(&text[..end])?, end))
}

/// Modifiers E and I: the side of a relay that bridges two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// E: the relay's second address.
    External,
    /// I: the relay's first address.
    Internal,
}

/// Modifiers A and S; the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// A: no latching; packets go to the signalled address.
    Asymmetric,
    /// S: latch even in bridging mode.
    Symmetric,
}

/// The request in the modifiers of a U or L.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaFlags<'a> {
    /// The list of c as sent; [`MediaFlags::payload_types`] reads it.
    pub codecs: Option<&'a [u8]>,
    /// Packet time of Z in ms.
    pub resize: Option<u64>,
    /// l: the relay address to use.
    pub local_address: Option<IpAddr>,
    /// l{name}: the same by the relay's name for it.
    pub local_label: Option<&'a [u8]>,
    /// R: the next hop by which the relay chooses its address (automatic bridging).
    pub remote_address: Option<IpAddr>,
    /// Session time-out of t, s (OpenSIPS; no rtpproxy up to 3.2 has it).
    pub ttl: Option<u64>,
    pub symmetry: Option<Symmetry>,
    /// The side of the command's sender, then the side of the returned address.
    pub directions: Vec<Direction>,
    /// W: D must clear it with w.
    pub weak: bool,
    /// 6: the media address is IPv6.
    pub ipv6: bool,
    /// N: the relay allocates a new port, so the port of a live leg changes.
    pub new_port: bool,
    /// Letters unknown in all versions; the relay judges them.
    pub unknown: Vec<u8>,
}

impl<'a> MediaFlags<'a> {
    /// # Errors
    /// A modifier lacks the argument that it needs, or c is there twice.
    pub fn parse(text: &'a [u8]) -> Result<Self, ParseError> {
        let mut flags = Self::default();
        for modifier in Modifiers::new(text) {
            flags.add(modifier?)?;
        }
        Ok(flags)
    }

    fn add(&mut self, modifier: Modifier<'a>) -> Result<(), ParseError> {
        match (modifier.letter, modifier.value) {
            (b'Z', Value::Number(ms)) => self.resize = Some(ms),
            (b'T', Value::Number(seconds)) => self.ttl = Some(seconds),
            (_, Value::Codecs(list)) => {
                if self.codecs.replace(list).is_some() {
                    return Err(ParseError::new(Fault::Codecs, modifier.at));
                }
            }
            (b'L', Value::Address(address)) => self.local_address = Some(address),
            (_, Value::Label(label)) => self.local_label = Some(label),
            (_, Value::Address(address)) => self.remote_address = Some(address),
            (b'A', _) => self.symmetry = Some(Symmetry::Asymmetric),
            (b'S', _) => self.symmetry = Some(Symmetry::Symmetric),
            (b'E', _) => self.directions.push(Direction::External),
            (b'I', _) => self.directions.push(Direction::Internal),
            (b'W', _) => self.weak = true,
            (b'N', _) => self.new_port = true,
            (b'6', _) => self.ipv6 = true,
            _ => self.unknown.extend_from_slice(modifier.raw),
        }
        Ok(())
    }

    /// The payload types of c, in its order.
    pub fn payload_types(&self) -> impl Iterator<Item = u16> + '_ {
        let items = self.codecs.unwrap_or_default().split(|&byte| byte == b',');
        items
            .filter_map(|item| number(item, 3))
            .filter_map(|number| u16::try_from(number).ok())
    }
}

/// Whether `text` is a complete IPv4 or IPv6 address without brackets.
pub(crate) fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if text.contains(':') {
        text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    } else {
        text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    }
}
