//! Payload types of a sender as a receiver knows them: both named the codecs in their own SDP (RFC 3264 section 5.1).

/// A payload type as SDP describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadType {
    pub number: u8,
    /// rtpmap: `opus/48000/2`.
    pub codec: String,
    /// fmtp; empty where there is none.
    pub parameters: String,
}

/// The payload type that a repair format is about (`apt`, RFC 4588 section 8.6).
fn apt(one: &PayloadType) -> Option<u8> {
    let parameters = one.parameters.split(';').map(str::trim);
    parameters
        .filter_map(|part| part.strip_prefix("apt="))
        .find_map(|number| number.parse().ok())
}

fn is_rtx(one: &PayloadType) -> bool {
    one.codec.len() >= 4 && one.codec.is_char_boundary(4) && one.codec[..4].eq_ignore_ascii_case("rtx/")
}

/// `opus/48000` and `OPUS/48000/1` are the same: one channel is the default.
fn same_codec(a: &str, b: &str) -> bool {
    let plain = |codec: &str| codec.strip_suffix("/1").unwrap_or(codec).to_ascii_lowercase();
    plain(a) == plain(b)
}

/// The receiver's number of one of a sender's payload types. Of several with the codec the one with the same parameters is taken, else the
/// first. `None`: the receiver did not name the codec.
#[must_use]
pub fn translate(one: &PayloadType, sender: &[PayloadType], receiver: &[PayloadType]) -> Option<u8> {
    if is_rtx(one) {
        let primary = sender.iter().find(|other| Some(other.number) == apt(one) && !is_rtx(other))?;
        let theirs = translate(primary, sender, receiver)?;
        return receiver
            .iter()
            .find(|other| is_rtx(other) && apt(other) == Some(theirs))
            .map(|other| other.number);
    }
    let mut same = receiver.iter().filter(|other| same_codec(&one.codec, &other.codec));
    let first = same.clone().next()?;
    Some(same.find(|other| other.parameters == one.parameters).unwrap_or(first).number)
}

/// What has to be rewritten on the way from a sender to a receiver, and what the receiver cannot take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// (the sender's number, the receiver's), where they differ.
    pub rewritten: Vec<(u8, u8)>,
    /// The sender's numbers of codecs that the receiver did not name.
    pub unknown: Vec<u8>,
}

impl Translation {
    #[must_use]
    pub fn between(sender: &[PayloadType], receiver: &[PayloadType]) -> Self {
        let mut made = Self::default();
        for one in sender {
            match translate(one, sender, receiver) {
                Some(number) if number == one.number => {}
                Some(number) => made.rewritten.push((one.number, number)),
                None => made.unknown.push(one.number),
            }
        }
        made
    }
}
