/* The states that both architectures share, from Ethernet on; included inside a parser, which starts at parse_ethernet. */
/* SPDX-License-Identifier: Apache-2.0 */

/* What may be relayed is decided here, where it costs no stage: md.relayable says that nothing in the headers
 * speaks against it. Whatever is odd is left as it is and forwarded as any other packet. */

    state parse_ethernet {
        /* Begun here, where it costs no table. */
        hdr.bridged.setValid();
        hdr.bridged.nexthop = 0;
        hdr.bridged.routed = 0;
        hdr.bridged.last_hop = 0;
        hdr.bridged.sampled = 0;
        hdr.bridged.unused = 0;
#if CONFERENCE
        hdr.bridged.replicated = 0;
#if S_LM
        /* Without a descriptor: a frame by itself. */
        hdr.bridged.marks = 0xc0;
        hdr.bridged.frame = 0;
        hdr.bridged.layer = 0;
#elif S_LR
        hdr.bridged.said = 0;
        hdr.bridged.changes = 0;
        hdr.bridged.position_0 = 0;
        hdr.bridged.position_1 = 0;
#else
        hdr.bridged.unused_too = 0;
#endif
        hdr.bridged.stream = 0;
#endif
        hdr.bridged.ingress_port = INGRESS_PORT;
#if DELAY
        hdr.bridged.sample = 0;
        hdr.bridged.arrival = ARRIVAL_NS;
#endif
        pkt.extract(hdr.ethernet);
        transition select(pkt.lookahead<bit<16>>()) {
            TPID_8021Q: parse_vlan;
            default: parse_ether_type;
        }
    }

    state parse_vlan {
        pkt.extract(hdr.vlan);
        transition parse_ether_type;
    }

    state parse_ether_type {
        pkt.extract(hdr.ether_type);
        transition select(hdr.ether_type.value) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_ipv4 {
        pkt.extract(hdr.ipv4);
        SUBTRACT_IPV4_HEADER(md)
        transition select(hdr.ipv4.ttl) {
            0: ipv4_last_hop;
            1: ipv4_last_hop;
            default: ipv4_alive;
        }
    }

    state ipv4_alive {
        md.hops = 1;
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 0b101, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state ipv4_last_hop {
        hdr.bridged.last_hop = 1;
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 0b101, 0, PROTOCOL_UDP): parse_last_udp;
            default: accept;
        }
    }

    state parse_ipv6 {
        pkt.extract(hdr.ipv6);
        SUBTRACT_IPV6_ADDRESSES
        transition select(hdr.ipv6.hop_limit) {
            0: ipv6_last_hop;
            1: ipv6_last_hop;
            default: ipv6_alive;
        }
    }

    state ipv6_alive {
        md.hops = 1;
        transition select(hdr.ipv6.version, hdr.ipv6.next_hdr) {
            (6, PROTOCOL_UDP): parse_udp6;
            (6, PROTOCOL_ICMPV6): parse_icmpv6;
            default: accept;
        }
    }

    state ipv6_last_hop {
        hdr.bridged.last_hop = 1;
        transition select(hdr.ipv6.version, hdr.ipv6.next_hdr) {
            (6, PROTOCOL_UDP): parse_last_udp;
            default: accept;
        }
    }

    /* Router and neighbour solicitations and advertisements, and redirects (RFC 4861). */
    state parse_icmpv6 {
        transition select(pkt.lookahead<bit<8>>()) {
            133: neighbour_discovery;
            134: neighbour_discovery;
            135: neighbour_discovery;
            136: neighbour_discovery;
            137: neighbour_discovery;
            default: accept;
        }
    }

    state neighbour_discovery {
        md.neighbour_discovery = 1;
        transition accept;
    }

    /* Only so far as to tell whether it goes to a media port. */
    state parse_last_udp {
        pkt.extract(hdr.udp);
        transition accept;
    }

    /* Over IPv4 a checksum of 0 says that there is none; it stays so. */
    state parse_udp {
        pkt.extract(hdr.udp);
        SUBTRACT_UDP_HEADER(md)
        transition select(hdr.udp.checksum) {
            0: check_udp_length;
            default: udp_with_checksum;
        }
    }

    /* Over IPv6 there must be one (RFC 8200 section 8.1). */
    state parse_udp6 {
        pkt.extract(hdr.udp);
        SUBTRACT_UDP_HEADER(md)
        transition select(hdr.udp.checksum) {
            0: accept;
            default: udp_with_checksum;
        }
    }

    state udp_with_checksum {
        md.checksummed = 1;
        transition check_udp_length;
    }

    /* Shorter than its own header: malformed. From 20 on there is room for the fixed header of RTP. */
    state check_udp_length {
        transition select(hdr.udp.length) {
            0 &&& 0xfff8: accept;
            8 &&& 0xfff8: relayable_without_rtp;
            16 &&& 0xfffc: relayable_without_rtp;
            default: look_at_rtp;
        }
    }

    state relayable_without_rtp {
        md.relayable = 1;
        transition accept;
    }

    state look_at_rtp {
        md.relayable = 1;
        rtp_h rtp = pkt.lookahead<rtp_h>();
        md.rtp_version = rtp.version;
        md.rtp_payload_type = rtp.payload_type;
        md.rtp_seq = rtp.seq;
#if S_LR
        md.track.lower.position = rtp.seq;
        md.track.upper.position = rtp.seq;
#endif
        md.rtp_ssrc = rtp.ssrc;
#if CONFERENCE
        /* Without contributing sources, and not RTCP. */
        transition select(rtp.version, rtp.extension, rtp.csrc_count, rtp.payload_type) {
            (2, 1, 0, 0x40 &&& 0x60): accept;
            (2, 1, 0, _): rtp_extension;
            default: RTP_ALONE;
        }
#else
        transition accept;
#endif
    }
#if CONFERENCE
    RTP_ALONE_STATE
#include "extensions.p4"
#endif
