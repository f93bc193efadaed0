//! The agent: between SIP servers and relays, it puts streams into the data plane.
#![forbid(unsafe_code)]

fn main() {}
