//! BF Runtime as P4 Studio speaks it: the messages, a target's schema, and the driver's error words.
#![forbid(unsafe_code)]

pub mod code;
pub mod envelope;
pub mod schema;
pub mod values;

pub use code::{BfrtError, Code};

/// The generated messages, client and server.
#[allow(clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic, deprecated)]
pub mod pb {
    include!(env!("BFRT_PROTO"));
}

/// The error model of gRPC's status details.
#[allow(clippy::all)]
pub mod google {
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}
