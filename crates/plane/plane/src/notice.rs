//! Digests: learn notices, and packets that the data plane copies to the agent.

use crate::tuple::endpoint;
use bytes::Bytes;
use shunt_bfrt::pb::{self, data_field::Value};
use shunt_bfrt::schema::{Learn, Schema, SchemaError};
use shunt_bfrt::values::number;
use shunt_calls::Notice;
use shunt_net::FiveTuple;
use shunt_rtp::Source;

/// RFC 3550 section 5.1.
const RTP_VERSION: u64 = 2;

/// A digest filter that the agent knows.
#[derive(Clone, Debug)]
pub(crate) enum LearnFilter {
    Miss { id: u32, fields: [u32; 8] },
    Packet { id: u32, length: u32, frame: u32 },
    Held { id: u32, fields: [u32; 4] },
}

/// The content of a digest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Digest {
    Notices(Vec<Notice>),
    Packets(Vec<Bytes>),
    Held(Vec<FiveTuple>),
}

impl LearnFilter {
    /// Finds the known filters of a schema.
    ///
    /// # Errors
    /// A filter of a known name lacks a field.
    pub(crate) fn all(schema: &Schema) -> Result<Vec<Self>, SchemaError> {
        let id = |learn: &Learn, name: &str| learn.fields.named(name).map(|field| field.id);
        let mut found = Vec::new();
        for learn in ["learn", "learn6"].into_iter().filter_map(|name| schema.learn(name)) {
            let mut fields = [0; 8];
            let names = [
                "src_addr",
                "dst_addr",
                "src_port",
                "dst_port",
                "rtp_version",
                "payload_type",
                "seq",
                "ssrc",
            ];
            for (field, name) in fields.iter_mut().zip(names) {
                *field = id(learn, name)?;
            }
            found.push(Self::Miss { id: learn.id, fields });
        }
        if let Some(learn) = schema.learn("softswitch.packet") {
            found.push(Self::Packet {
                id: learn.id,
                length: id(learn, "length")?,
                frame: id(learn, "frame")?,
            });
        }
        for learn in ["softswitch.host_policy", "softswitch.host_policy6"]
            .into_iter()
            .filter_map(|name| schema.learn(name))
        {
            let mut fields = [0; 4];
            for (field, name) in fields.iter_mut().zip(["src_addr", "dst_addr", "src_port", "dst_port"]) {
                *field = id(learn, name)?;
            }
            found.push(Self::Held { id: learn.id, fields });
        }
        Ok(found)
    }

    /// Decodes a digest of this filter; `None` for a digest of another one. Items that lack a field are left out.
    pub(crate) fn read(&self, digest: &pb::DigestList) -> Option<Digest> {
        match self {
            Self::Miss { id, fields } if *id == digest.digest_id => {
                let notices = digest.data.iter().filter_map(|data| notice(data, fields));
                Some(Digest::Notices(notices.collect()))
            }
            Self::Packet { id, length, frame } if *id == digest.digest_id => {
                let packets = digest.data.iter().filter_map(|data| {
                    let length = usize::try_from(number(value(data, *length)?)).ok()?;
                    let frame = value(data, *frame)?;
                    Some(frame.slice(..length.min(frame.len())))
                });
                Some(Digest::Packets(packets.collect()))
            }
            Self::Held { id, fields } if *id == digest.digest_id => {
                let keys = digest.data.iter().filter_map(|data| held(data, fields));
                Some(Digest::Held(keys.collect()))
            }
            _ => None,
        }
    }
}

fn held(data: &pb::TableData, fields: &[u32; 4]) -> Option<FiveTuple> {
    let [src, dst, src_port, dst_port] = fields.map(|id| value(data, id));
    Some(FiveTuple::new(endpoint(src?, src_port?)?, endpoint(dst?, dst_port?)?))
}

fn value(data: &pb::TableData, id: u32) -> Option<&Bytes> {
    let field = data.fields.iter().find(|field| field.field_id == id)?;
    match &field.value {
        Some(Value::Stream(bytes)) => Some(bytes),
        _ => None,
    }
}

fn notice(data: &pb::TableData, fields: &[u32; 8]) -> Option<Notice> {
    let [src, dst, src_port, dst_port, version, payload_type, sequence, ssrc] = fields.map(|id| value(data, id));
    let is_rtp = number(version?) == RTP_VERSION;
    let media = Source {
        ssrc: u32::try_from(number(ssrc?)).ok()?,
        sequence: u16::try_from(number(sequence?)).ok()?,
    };
    let payload_type = u8::try_from(number(payload_type?)).ok()?;
    Some(Notice {
        key: FiveTuple::new(endpoint(src?, src_port?)?, endpoint(dst?, dst_port?)?),
        media: is_rtp.then_some(media),
        payload_type: is_rtp.then_some(payload_type),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use shunt_bfrt::values::stream;
    use shunt_net::Endpoint;
    use std::net::Ipv4Addr;

    fn digest(fields: Vec<pb::DataField>) -> pb::DigestList {
        pb::DigestList {
            digest_id: 3,
            data: vec![pb::TableData { action_id: 0, fields }],
            ..Default::default()
        }
    }

    fn miss(version: u8) -> Vec<pb::DataField> {
        vec![
            stream(1, [10, 0, 0, 1]),
            stream(2, [10, 0, 0, 2]),
            stream(3, [0, 5]),
            stream(4, [0, 6]),
            stream(5, [version]),
            stream(6, [8]),
            stream(7, [1, 0]),
            stream(8, [0, 0, 0, 9]),
        ]
    }

    const FILTER: LearnFilter = LearnFilter::Miss {
        id: 3,
        fields: [1, 2, 3, 4, 5, 6, 7, 8],
    };

    #[test]
    fn a_miss_is_a_notice_and_only_version_2_is_media() {
        let Some(Digest::Notices(found)) = FILTER.read(&digest(miss(2))) else {
            panic!("no notices")
        };
        let key = FiveTuple::new(
            Endpoint::new(Ipv4Addr::new(10, 0, 0, 1), 5),
            Endpoint::new(Ipv4Addr::new(10, 0, 0, 2), 6),
        );
        let media = Source { ssrc: 9, sequence: 256 };
        assert_eq!(
            found,
            [Notice {
                key,
                media: Some(media),
                payload_type: Some(8)
            }]
        );
        let Some(Digest::Notices(found)) = FILTER.read(&digest(miss(0))) else {
            panic!("no notices")
        };
        assert_eq!((found[0].media, found[0].payload_type), (None, None));
    }

    #[test]
    fn a_digest_that_lacks_a_field_is_left_out() {
        for gone in 0..8 {
            let mut fields = miss(2);
            fields.remove(gone);
            assert_eq!(FILTER.read(&digest(fields)), Some(Digest::Notices(vec![])));
        }
        let filter = LearnFilter::Packet {
            id: 4,
            length: 1,
            frame: 2,
        };
        assert_eq!(filter.read(&digest(vec![])), None);
    }

    #[test]
    fn a_packet_is_cut_to_its_length() {
        let filter = LearnFilter::Packet {
            id: 3,
            length: 1,
            frame: 2,
        };
        let found = filter.read(&digest(vec![stream(1, [0, 2]), stream(2, [7, 8, 0, 0])]));
        assert_eq!(found, Some(Digest::Packets(vec![Bytes::from_static(&[7, 8])])));
    }
}
