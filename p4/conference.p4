/* The relay program with conferences for Tofino: the controls of relay.p4, and replication of the packets of a stream to its receivers.
 * Build options and table sizes are in include/conference_config.p4 and include/config.p4. */
/* SPDX-License-Identifier: Apache-2.0 */

#include "include/conference_config.p4"
#include "include/config.p4"
#include "include/arch_tna.p4"
#include "include/conference_tna.p4"
#include "include/headers.p4"
#include "include/extension_headers.p4"
#include "include/conference_packet.p4"

/* Ingress begins here: the headers, RTP header extensions, and the two sums from which the deparser makes the checksums. */
parser IngressParser(packet_in pkt, out headers_t hdr, out metadata_t md, out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;
    ParserCounter() left;

    state start {
        pkt.extract(ig_intr_md);
        pkt.advance(PORT_METADATA_SIZE);
        md.agent_session = 0;
        md.agent_copy.setValid();
        md.agent_copy.nexthop = 0;
        md.agent_copy.length = 0;
        md.agent_copy.routed = 0;
        md.agent_copy.last_hop = 0;
        md.agent_copy.sampled = 0;
        md.agent_copy.replicated = 0;
        md.agent_copy.drop = 0;
        md.agent_copy.ingress_port = 0;
#if DELAY
        md.agent_copy.sample = 0;
        md.agent_copy.arrival = 0;
#endif
#if S_LM
        md.agent_copy.marks = 0;
        md.agent_copy.frame = 0;
        md.agent_copy.layer = 0;
#elif S_LR
        md.agent_copy.said = 0;
        md.agent_copy.changes = 0;
        md.agent_copy.position_0 = 0;
        md.agent_copy.position_1 = 0;
#else
        md.agent_copy.unused_too = 0;
#endif
        md.agent_copy.stream = 0;
        transition begin;
    }

#include "include/conference_parser.p4"
}

#include "include/learning.p4"
#include "include/units_tna.p4"
#include "include/counters.p4"
#include "include/relay_tables.p4"
#include "include/numbers.p4"
#include "include/replication.p4"
#include "include/forwarding.p4"
#include "include/conference_pipeline.p4"

/* The controls in their order are shared with the other architecture; only the name of this control is the schema's. */
control Ingress(inout headers_t hdr, inout metadata_t md, in ingress_intrinsic_metadata_t ig_intr_md,
                in ingress_intrinsic_metadata_from_parser_t ig_prsr_md, inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    IngressPipeline() pipeline;

    apply {
        pipeline.apply(hdr, md, ig_intr_md, ig_prsr_md, ig_dprsr_md, ig_tm_md);
    }
}

/* Learn notices and what is mirrored to the agent leave here, and both checksums are made here. Fields of headers that are not there count nothing, so one list does
 * for both versions of IP. A checksum that was wrong stays wrong. */
control IngressDeparser(packet_out pkt, inout headers_t hdr, in metadata_t md, in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Digest<learn_t>() learn;
    Digest<learn6_t>() learn6;
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;
    Mirror() to_agent;

    apply {
        if (ig_dprsr_md.mirror_type == MIRROR_TO_AGENT) {
            to_agent.emit<bridged_h>(md.agent_session, md.agent_copy);
        }
        if (ig_dprsr_md.digest_type == DIGEST_LEARN) {
            learn.pack({hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port,
                        md.notice_version, md.rtp_payload_type, md.rtp_seq, md.rtp_ssrc});
        }
        if (ig_dprsr_md.digest_type == DIGEST_LEARN6) {
            learn6.pack({hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port,
                         md.notice_version, md.rtp_payload_type, md.rtp_seq, md.rtp_ssrc});
        }
        hdr.ipv4.checksum = ipv4_checksum.update({hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,
                                                  hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.frag_offset,
                                                  hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src_addr, hdr.ipv4.dst_addr,
                                                  md.ipv4_residual});
        if (md.checksummed == 1) {
            hdr.udp.checksum = udp_checksum.update({hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.ipv6.src_addr, hdr.ipv6.dst_addr,
                                                    hdr.udp.src_port, hdr.udp.dst_port, md.udp_residual}, true);
        }
        pkt.emit(hdr);
    }
}

struct egress_metadata_t {
    copy_t copy;
}

/* Egress begins here. It changes nothing behind the tag but in copies for the receivers of a stream, so it parses only these further.
 * They are such that ingress took them for fit to be relayed. */
parser EgressParser(packet_in pkt, out headers_t hdr, out egress_metadata_t md, out egress_intrinsic_metadata_t eg_intr_md) {
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;

    state start {
        pkt.extract(eg_intr_md);
        pkt.extract(hdr.bridged);
        pkt.extract(hdr.ethernet);
        md.copy.checksummed = 0;
        md.copy.ipv4_residual = 0;
        md.copy.udp_residual = 0;
        md.copy.four = 0;
        md.copy.six = 0;
#if S_LR
        md.copy.sequence_state = 0;
        md.copy.target = 0;
        md.copy.wanted = 0;
        md.copy.may = 0;
        md.copy.target_before = 0;
        md.copy.changed = 0;
        md.copy.forwarded = 0;
        md.copy.position = 0;
        md.copy.position_next = 0;
        md.copy.base = 0;
        md.copy.shift = 0;
        md.copy.late = 0;
#elif S_LM
        md.copy.sequence_state = 0;
        md.copy.cadence = 0;
        md.copy.target = 0;
        md.copy.beyond = 0;
        md.copy.high = 1;
        md.copy.high_before = 0;
        md.copy.frame = 0;
        md.copy.frame_before = 0;
        md.copy.ahead = 0;
        md.copy.gap = 0;
        md.copy.frames = 0;
        md.copy.order = 0;
        md.copy.gone = 0;
        md.copy.offset = 0;
        md.copy.opens = 0;
        md.copy.opened = 0;
#endif
        transition select(pkt.lookahead<bit<16>>()) {
            TPID_8021Q: parse_vlan;
            default: parse_copy;
        }
    }

    state parse_vlan {
        pkt.extract(hdr.vlan);
        transition parse_copy;
    }

    state parse_copy {
        transition select(hdr.bridged.replicated) {
            1: parse_ether_type;
            default: accept;
        }
    }

    state parse_ether_type {
        pkt.extract(hdr.ether_type);
        transition select(hdr.ether_type.value) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: parse_ipv6;
        }
    }

    state parse_ipv4 {
        pkt.extract(hdr.ipv4);
        SUBTRACT_IPV4_HEADER(md.copy)
        transition parse_udp;
    }

    state parse_ipv6 {
        pkt.extract(hdr.ipv6);
        SUBTRACT_IPV6_ADDRESSES
        transition parse_udp;
    }

    state parse_udp {
        pkt.extract(hdr.udp);
#if SEQUENCE
        pkt.extract(hdr.rtp);
#endif
        SUBTRACT_COPY_UDP_HEADER
        transition select(hdr.udp.checksum) {
            0: accept;
            default: udp_with_checksum;
        }
    }

    state udp_with_checksum {
        md.copy.checksummed = 1;
        transition accept;
    }
}

/* As Ingress. */
control Egress(inout headers_t hdr, inout egress_metadata_t md, in egress_intrinsic_metadata_t eg_intr_md,
               in egress_intrinsic_metadata_from_parser_t eg_prsr_md, inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
               inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    EgressPipeline() pipeline;

    apply {
        pipeline.apply(hdr, md.copy, eg_intr_md, eg_prsr_md, eg_dprsr_md);
    }
}

/* The checksums of copies are made as in ingress. All but the bridged header goes on the wire. */
control EgressDeparser(packet_out pkt, inout headers_t hdr, in egress_metadata_t md, in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;

    apply {
        hdr.ipv4.checksum = ipv4_checksum.update({hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len,
                                                  hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.frag_offset,
                                                  hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src_addr, hdr.ipv4.dst_addr,
                                                  md.copy.ipv4_residual});
        if (md.copy.checksummed == 1) {
            hdr.udp.checksum = udp_checksum.update({hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.ipv6.src_addr, hdr.ipv6.dst_addr,
                                                    hdr.udp.src_port, hdr.udp.dst_port, COPY_NUMBER md.copy.udp_residual}, true);
        }
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.vlan);
        pkt.emit(hdr.ether_type);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.ipv6);
        pkt.emit(hdr.udp);
#if SEQUENCE
        pkt.emit(hdr.rtp);
#endif
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
