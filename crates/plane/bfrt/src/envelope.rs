//! The messages that carry batches, with the batch's members as bytes.
//!
//! On the wire an embedded message and a byte string are the same. So a server decodes a large batch piece by piece, and a client
//! encodes its members once. The numbers of the fields are those of bfruntime.proto.

use crate::pb;
use bytes::Bytes;

/// `WriteRequest`, whose updates are encoded `Update`s.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteRequest {
    #[prost(message, optional, tag = "1")]
    pub target: Option<pb::TargetDevice>,
    #[prost(uint32, tag = "2")]
    pub client_id: u32,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub updates: Vec<Bytes>,
    #[prost(enumeration = "Atomicity", tag = "4")]
    pub atomicity: i32,
    #[prost(string, tag = "5")]
    pub p4_name: String,
}

/// What becomes of a batch with an error in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Atomicity {
    ContinueOnError = 0,
    RollbackOnError = 1,
    DataplaneAtomic = 2,
}

/// `ReadRequest`, whose entities are encoded `Entity`s.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadRequest {
    #[prost(message, optional, tag = "1")]
    pub target: Option<pb::TargetDevice>,
    #[prost(uint32, tag = "2")]
    pub client_id: u32,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub entities: Vec<Bytes>,
    #[prost(string, tag = "4")]
    pub p4_name: String,
}

/// `ReadResponse`, whose entities are encoded `Entity`s.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub entities: Vec<Bytes>,
    #[prost(message, repeated, tag = "2")]
    pub status: Vec<pb::Error>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn members_are_embedded_messages_on_the_wire() {
        let update = pb::Update { r#type: 1, entity: None };
        let request = WriteRequest {
            updates: vec![update.encode_to_vec().into(); 2],
            client_id: 5,
            ..WriteRequest::default()
        };
        // 2: client_id 5; 3: two messages of two bytes with field 1 = 1.
        assert_eq!(request.encode_to_vec(), [0x10, 5, 0x1a, 2, 8, 1, 0x1a, 2, 8, 1]);
    }
}
