/* What the relay knows of a packet beside its headers: fields, included inside the struct metadata_t. */
/* SPDX-License-Identifier: Apache-2.0 */

    /* Set by the parser. All are zero where nothing sets them. */
    bit<1> relayable;       /* a datagram that may be relayed as far as its headers say: no fragment, no options, time to live left */
    bit<1> checksummed;     /* it carries a UDP checksum, which has to stay right */
    bit<1> neighbour_discovery;
    bit<8> hops;            /* what forwarding takes off the time to live: 1, or 0 when there is none left to take */
    bit<16> ipv4_residual;  /* what the IPv4 header checksum covers beside the fixed header: 0 in a good header without options */
    bit<16> udp_residual;   /* what the UDP checksum covers beside addresses and ports */
    bit<2> rtp_version;     /* these four are RTP's fixed header, or all zero in a payload too short for it */
    bit<7> rtp_payload_type;
    bit<16> rtp_seq;
    bit<32> rtp_ssrc;

    /* Set by the tables. */
    bit<16> excess;         /* IPv4 total length less UDP length: 20, or the two contradict each other */
    bit<1> routable;        /* addressed to this switch's MAC address */
    bit<1> switched;        /* not to be routed: the layer 2 table has said where it goes */
    bit<1> media;           /* to a relay address and media port */
    bit<1> relayed;         /* its 5-tuple has an entry */
    bit<3> notice;          /* DIGEST_LEARN or DIGEST_LEARN6: the notice of a packet to a relay address and media port */
    bit<2> notice_version;  /* rtp_version, moved to where a notice has it in its byte */
    bit<1> sampled;
    bit<16> sample;
    bit<16> ahead;          /* by how many sequence numbers a packet is ahead of the expected one */
    bit<1> set_dscp;
    bit<6> dscp;
    bit<1> to_v6;           /* an IPv4 packet whose IPv6 header has been begun beside it */
    bit<1> to_v4;           /* and the other way round */
    bit<16> total_len;      /* of an IPv6 packet when it becomes IPv4 */
    bit<16> src_port;
    bit<16> dst_port;
