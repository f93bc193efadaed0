//! Codecs against FFmpeg's. `vectors/wide.s16` is half a second of a voice-like sound with noise, silence and a burst beyond full scale; the others are what FFmpeg makes of it:
//! `ffmpeg -f s16le -ar 16000 -ac 1 -i wide.s16 -f g722 wide.g722`, and so on. `alaw.s16` and `mulaw.s16` are all 256 codes, decoded.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use shunt_mix::codec::{Codec, Decoder, Encoder};
use shunt_mix::{FRAME, g711, g722};

fn words(data: &[u8]) -> Vec<i16> {
    data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
}

fn wide() -> Vec<i16> {
    words(include_bytes!("vectors/wide.s16"))
}

#[test]
fn g722_decodes_as_ffmpeg_does() {
    let mut made = Vec::new();
    g722::Decoder::default().decode(include_bytes!("vectors/wide.g722"), &mut made);
    assert!(made == words(include_bytes!("vectors/wide.g722.s16")));
}

#[test]
fn g722_encodes_as_ffmpeg_does() {
    let mut made = Vec::new();
    g722::Encoder::default().encode(&wide(), &mut made);
    let expected: &[u8] = include_bytes!("vectors/wide.g722");
    let first = made.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!((made.len(), first), (expected.len(), None));
}

#[test]
fn g711_decodes_and_encodes_as_ffmpeg_does() {
    let all = 0..=255_u8;
    let alaw: Vec<i16> = all.clone().map(g711::decode_alaw).collect();
    assert_eq!(alaw, words(include_bytes!("vectors/alaw.s16")));
    let ulaw: Vec<i16> = all.map(g711::decode_ulaw).collect();
    assert_eq!(ulaw, words(include_bytes!("vectors/mulaw.s16")));
    // FFmpeg rounds to the nearest code where the Recommendation has decision values: never more than one step apart.
    let near = |ours: u8, theirs: u8, decode: fn(u8) -> i16| {
        let (a, b) = (i32::from(decode(ours)), i32::from(decode(theirs)));
        (a - b).abs() <= (a.abs() / 12).max(16)
    };
    for (sample, theirs) in wide().iter().zip(include_bytes!("vectors/wide.alaw")) {
        assert!(near(g711::encode_alaw(*sample), *theirs, g711::decode_alaw), "A-law of {sample}");
    }
    for (sample, theirs) in wide().iter().zip(include_bytes!("vectors/wide.mulaw")) {
        assert!(near(g711::encode_ulaw(*sample), *theirs, g711::decode_ulaw), "µ-law of {sample}");
    }
}

/// The best correlation of what was decoded with what was encoded, whatever the codec's delay.
fn likeness(sent: &[i16], heard: &[i16]) -> f64 {
    let at = |delay: usize| {
        let (mut product, mut a2, mut b2) = (0.0, 1.0, 1.0);
        for (a, b) in sent.iter().zip(&heard[delay..]) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            product += a * b;
            a2 += a * a;
            b2 += b * b;
        }
        product / (a2 * b2).sqrt()
    };
    (0..200).map(at).fold(0.0, f64::max)
}

#[test]
fn every_codec_gives_back_what_went_in() {
    // Below 3,400 Hz, so that all of them carry it.
    let sent: Vec<i16> = wide()[..5600].to_vec();
    for codec in [Codec::Pcmu, Codec::Pcma, Codec::G722, Codec::Opus] {
        let (mut encoder, mut decoder) = (Encoder::new(codec).unwrap(), Decoder::new(codec).unwrap());
        let (mut heard, mut payload) = (Vec::new(), Vec::new());
        for block in sent.chunks_exact(FRAME) {
            encoder.encode(block.try_into().unwrap(), &mut payload).unwrap();
            assert_eq!(decoder.samples(&payload), FRAME, "{codec:?}");
            decoder.decode(&payload, &mut heard).unwrap();
        }
        let found = likeness(&sent[..4800], &heard);
        // Opus at 28 kbit/s keeps less of the noise.
        assert!(found > if codec == Codec::Opus { 0.8 } else { 0.95 }, "{codec:?}: {found}");
    }
}
