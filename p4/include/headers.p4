/* Headers as they are on the wire, and learn notices. */
/* SPDX-License-Identifier: Apache-2.0 */

/* The Ethernet header in three parts, so that a tag comes and goes by its validity alone. */
header ethernet_h {
    bit<48> dst_addr;
    bit<48> src_addr;
}

header vlan_h {
    bit<16> tpid;
    bit<3> pcp;
    bit<1> dei;
    bit<12> vid;
}

header ether_type_h {
    bit<16> value;
}

/* RFC 791 */
header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_len;
    bit<16> identification;
    bit<3> flags;
    bit<13> frag_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

/* RFC 8200 */
header ipv6_h {
    bit<4> version;
    bit<6> dscp;
    bit<2> ecn;
    bit<20> flow_label;
    bit<16> payload_len;
    bit<8> next_hdr;
    bit<8> hop_limit;
    bit<128> src_addr;
    bit<128> dst_addr;
}

/* RFC 768 */
header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

/* RFC 3550 section 5.1; only ever looked at ahead, never taken off the packet. */
header rtp_h {
    bit<2> version;
    bit<1> padding;
    bit<1> extension;
    bit<4> csrc_count;
    bit<1> marker;
    bit<7> payload_type;
    bit<16> seq;
    bit<32> timestamp;
    bit<32> ssrc;
}

/* Learn notices: docs/architecture.md fixes names and widths. */
struct learn_t {
    bit<32> src_addr;
    bit<32> dst_addr;
    bit<16> src_port;
    bit<16> dst_port;
    bit<2> rtp_version;
    bit<7> payload_type;
    bit<16> seq;
    bit<32> ssrc;
}

struct learn6_t {
    bit<128> src_addr;
    bit<128> dst_addr;
    bit<16> src_port;
    bit<16> dst_port;
    bit<2> rtp_version;
    bit<7> payload_type;
    bit<16> seq;
    bit<32> ssrc;
}
