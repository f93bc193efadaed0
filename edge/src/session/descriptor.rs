//! The dependency descriptor (AV1 RTP specification, appendix A) as a header extension that is carried as it is.

use str0m::rtp::{Extension, ExtensionMap, ExtensionSerializer, ExtensionValues};

/// Its name in SDP.
const URI: &str = "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension";
/// The longest element of the one-byte form (RFC 8285 section 4.2).
const SHORT: usize = 16;
/// Ids of header extensions on the plain side: the same for all browsers, whatever each of them has.
pub const AUDIO_LEVEL: u8 = 1;
pub const DESCRIPTOR: u8 = 12;
pub const ORIENTATION: u8 = 13;

/// The octets of a dependency descriptor.
#[derive(Clone, Debug)]
pub struct Descriptor(pub Vec<u8>);

#[derive(Debug)]
struct Serializer;

impl ExtensionSerializer for Serializer {
    fn write_to(&self, buffer: &mut [u8], values: &ExtensionValues) -> usize {
        let Some(Descriptor(octets)) = values.user_values.get() else {
            return 0;
        };
        let Some(place) = buffer.get_mut(..octets.len()) else { return 0 };
        place.copy_from_slice(octets);
        octets.len()
    }

    fn parse_value(&self, octets: &[u8], values: &mut ExtensionValues) -> bool {
        values.user_values.set(Descriptor(octets.to_vec()));
        true
    }

    fn is_video(&self) -> bool {
        true
    }

    fn is_audio(&self) -> bool {
        false
    }

    fn requires_two_byte_form(&self, values: &ExtensionValues) -> bool {
        values.user_values.get().is_some_and(|Descriptor(octets)| octets.len() > SHORT)
    }
}

/// The header extensions that the edge knows.
#[must_use]
pub fn extensions() -> ExtensionMap {
    let mut map = ExtensionMap::standard();
    map.set(DESCRIPTOR, Extension::with_serializer(URI, Serializer));
    map
}

/// Whether a media description's answer has the descriptor.
#[must_use]
pub fn is_negotiated(line: &str) -> bool {
    line.starts_with("a=extmap:") && line.contains(URI)
}

/// Whether an extension is the descriptor.
#[must_use]
pub fn is_descriptor(extension: &Extension) -> bool {
    extension.as_uri() == URI
}
