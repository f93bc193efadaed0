/* The relay program for Tofino: TNA on Tofino 1, T2NA on Tofino 2. It reads from top to bottom as a packet goes: what is included stands
 * where the packet meets it. Build options and table sizes are in include/config.p4. */
/* SPDX-License-Identifier: Apache-2.0 */

#include "include/config.p4"
#include "include/arch_tna.p4"
#include "include/headers.p4"
#include "include/packet.p4"

/* Ingress begins here: the headers, and the two sums from which the deparser makes the checksums. */
parser IngressParser(packet_in pkt, out headers_t hdr, out metadata_t md, out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;

    state start {
        pkt.extract(ig_intr_md);
        pkt.advance(PORT_METADATA_SIZE);
        transition begin;
    }

#include "include/relay_parser.p4"
}

#include "include/learning.p4"
#include "include/units_tna.p4"
#include "include/counters.p4"
#include "include/relay_tables.p4"
#include "include/forwarding.p4"
#include "include/pipeline.p4"

/* The controls in their order are shared with the other architecture; only the name of this control is the schema's. */
control Ingress(inout headers_t hdr, inout metadata_t md, in ingress_intrinsic_metadata_t ig_intr_md,
                in ingress_intrinsic_metadata_from_parser_t ig_prsr_md, inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    IngressPipeline() pipeline;

    apply {
        pipeline.apply(hdr, md, ig_intr_md, ig_prsr_md, ig_dprsr_md, ig_tm_md);
    }
}

/* Learn notices leave here, and both checksums are made here. Fields of headers that are not there count nothing, so one list does
 * for both versions of IP. A checksum that was wrong stays wrong. */
control IngressDeparser(packet_out pkt, inout headers_t hdr, in metadata_t md, in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Digest<learn_t>() learn;
    Digest<learn6_t>() learn6;
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;

    apply {
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
}

/* Egress begins here. It changes nothing behind the tag, so it parses no further. */
parser EgressParser(packet_in pkt, out headers_t hdr, out egress_metadata_t md, out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        pkt.extract(eg_intr_md);
        pkt.extract(hdr.bridged);
        pkt.extract(hdr.ethernet);
        transition select(pkt.lookahead<bit<16>>()) {
            TPID_8021Q: parse_vlan;
            default: accept;
        }
    }

    state parse_vlan {
        pkt.extract(hdr.vlan);
        transition accept;
    }
}

/* As Ingress. */
control Egress(inout headers_t hdr, inout egress_metadata_t md, in egress_intrinsic_metadata_t eg_intr_md,
               in egress_intrinsic_metadata_from_parser_t eg_prsr_md, inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
               inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    EgressPipeline() pipeline;

    apply {
        pipeline.apply(hdr, eg_intr_md, eg_prsr_md, eg_dprsr_md);
    }
}

/* All but the bridged header goes on the wire. */
control EgressDeparser(packet_out pkt, inout headers_t hdr, in egress_metadata_t md, in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    apply {
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.vlan);
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
