//! Control sockets of the rtpproxy protocol: listeners, and clients of relays.
