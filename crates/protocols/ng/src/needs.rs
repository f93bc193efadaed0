//! What a command asks for that only rtpengine can do.

use crate::bits::bit_set;

bit_set! {
    /// What rtpengine itself must do to the packets of a call, as far as a command says so.
    ///
    /// A need is a reason to ask, not yet to keep the media on rtpengine: `transcode-PCMA` is without effect when both sides take PCMU. After
    /// the answer `query` tells what became of those in [`Needs::SHOWN_BY_QUERY`]. All others `query` does not show in every version, so
    /// the commands are the only place to learn of them.
    Needs: u32 {
        /// SDES or SRTP: `SAVP` in an m= line or `transport-protocol`, `a=crypto`, `OSRTP-offer`.
        SRTP = "SRTP",
        /// DTLS-SRTP: `TLS` in an m= line or `transport-protocol`, `a=fingerprint`.
        DTLS = "DTLS-SRTP",
        /// ICE in the SDP without `ICE=remove`, or `ICE` with a value that adds candidates.
        ICE = "ICE",
        /// `codec` with transcode, mask, set, accept, consume or ignore, `transcode-…`, `always-transcode`, `ptime`.
        TRANSCODING = "transcoding",
        /// `record-call`.
        RECORDING = "recording",
        /// `recording-vsc`, `vsc-…`: a caller may start recording by DTMF at any time.
        RECORDING_VSC = "recording by DTMF",
        /// `T.38`, an m= line of type image or over UDPTL.
        T38 = "T.38",
        /// `media-echo`: back to the sender, or to nobody.
        MEDIA_ECHO = "media echo",
        /// `drop-traffic=start`.
        DROP_TRAFFIC = "drop traffic",
        /// `block-DTMF`, `DTMF-security`, `DTMF-delay`: events and tones are dropped, replaced or delayed.
        BLOCK_DTMF = "block DTMF",
        /// `detect-DTMF`: tones inside the audio are looked for.
        DETECT_DTMF = "detect DTMF",
        /// `inject-DTMF`: all audio passes the transcoder, for `play DTMF`.
        INJECT_DTMF = "inject DTMF",
        /// `block-short`: short packets are dropped.
        BLOCK_SHORT = "block short packets",
        /// `generate-RTCP`: RTCP ends in rtpengine, which sends its own.
        GENERATE_RTCP = "generate RTCP",
        /// publish, subscribe, connect, mesh: media goes to more than the other party.
        SUBSCRIPTIONS = "subscriptions",
        /// `delay-buffer`.
        DELAY_BUFFER = "delay buffer",
        /// `audio-player`, `moh`, `recording-announcement`.
        AUDIO_PLAYER = "audio player",
        /// `extmap` with mask: header extensions are removed from packets.
        EXTMAP = "extmap",
        /// `bundle`: several media sections on one port.
        BUNDLE = "bundle",
        /// `template`: flags that stand in rtpengine's own configuration.
        TEMPLATE = "template",
    }
}

impl Needs {
    /// Those that the reply to `query` shows after the answer, in every version.
    pub const SHOWN_BY_QUERY: Self = Self::SRTP.union(Self::DTLS).union(Self::ICE).union(Self::TRANSCODING);

    /// Those that `query` cannot take back.
    #[must_use]
    pub const fn hidden(self) -> Self {
        self.without(Self::SHOWN_BY_QUERY)
    }
}
