"""The built-in relay: the rtpproxy protocol, port pairs, and forwarding of RTP and RTCP in user space."""
