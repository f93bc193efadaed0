/* The parser from Ethernet to RTP: included inside a parser, which goes on from its own states to `clear`, and has a state rtp_seen. */
/* SPDX-License-Identifier: Apache-2.0 */

/* What may be relayed is decided here, where it costs no stage: md.relayable says that nothing in the headers
 * speaks against it. Whatever is odd is left as it is and forwarded as any other packet. */

    state clear {
        md.relayable = 0;
        md.checksummed = 0;
        md.neighbour_discovery = 0;
        md.hops = 0;
        md.ipv4_residual = 0;
        md.udp_residual = 0;
        md.rtp_version = 0;
        md.rtp_payload_type = 0;
        md.rtp_seq = 0;
        md.rtp_ssrc = 0;
        md.excess = 0;
        md.routable = 0;
        md.switched = 0;
        md.media = 0;
        md.relayed = 0;
        md.notice = 0;
        md.notice_version = 0;
        md.sampled = 0;
        md.sample = 0;
        md.ahead = 0;
        md.set_dscp = 0;
        md.dscp = 0;
        md.to_v6 = 0;
        md.to_v4 = 0;
        md.total_len = 0;
        md.src_port = 0;
        md.dst_port = 0;
        transition parse_ethernet;
    }

    /* What the switch's own CPU sends is bridged as it comes: nothing behind the addresses is looked at. */
    state parse_ethernet {
        pkt.extract(hdr.ethernet);
        transition select(INGRESS_PORT, pkt.lookahead<bit<16>>()) {
            (CPU_PORT, _): accept;
            (_, TPID_8021Q): parse_vlan;
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
        md.rtp_ssrc = rtp.ssrc;
        transition rtp_seen;
    }
