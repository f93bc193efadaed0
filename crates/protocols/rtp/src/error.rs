//! Why bytes are not the packet that they were taken for.

use thiserror::Error;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum What {
    #[error("RTP header is cut short")]
    RtpShort,
    #[error("RTP version is not 2")]
    RtpVersion,
    #[error("RTP extension header is cut short")]
    RtpExtension,
    #[error("RTP padding does not fit the payload")]
    RtpPadding,
    #[error("header extension goes beyond its end")]
    Element,
    #[error("RTCP header is cut short")]
    RtcpShort,
    #[error("RTCP version is not 2")]
    RtcpVersion,
    #[error("RTCP packet type is not in 192..223")]
    RtcpType,
    #[error("RTCP item goes beyond the packet")]
    RtcpLength,
    #[error("RTCP padding is wrong")]
    RtcpPadding,
    #[error("RTCP item is too short for its kind")]
    RtcpContent,
    #[error("STUN header is cut short")]
    StunShort,
    #[error("no STUN message")]
    Stun,
    #[error("STUN length does not fit the packet")]
    StunLength,
    #[error("a NACK without numbers")]
    EmptyNack,
    #[error("a REMB for more than 255 streams")]
    LongRemb,
    #[error("dependency descriptor is cut short")]
    Descriptor,
    #[error("dependency descriptor before any template structure")]
    Structure,
    #[error("template id is not in the template structure")]
    Template,
    #[error("payload descriptor is cut short")]
    PayloadDescriptor,
    #[error("VP9 payload descriptor names more than three reference frames")]
    References,
    #[error("frame marking has not 1 to 3 octets")]
    FrameMark,
    #[error("RTX payload is too short for the original sequence number")]
    Rtx,
}

/// Bytes that are not what they were taken for; `at` is the offset into the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} (byte {at})")]
pub struct MediaError {
    pub what: What,
    pub at: usize,
}

impl MediaError {
    pub(crate) fn new(what: What, at: usize) -> Self {
        Self { what, at }
    }
}
