/* The relay program for Tofino: TNA on Tofino 1, T2NA on Tofino 2. Its build options are in include/config.p4. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "include/config.p4"
#include "include/arch_tna.p4"
#include "include/headers.p4"
#include "include/pipeline.p4"

/* Why: headers, and the two sums from which the deparser makes the checksums. */
parser IngressParser(packet_in pkt, out headers_t hdr, out metadata_t md, out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;
#if CONFERENCE
    ParserCounter() left;
#endif

    state start {
        pkt.extract(ig_intr_md);
        pkt.advance(PORT_METADATA_SIZE);
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
#if WITH_FROM
        md.set_dscp = 0;
        md.dscp = 0;
#endif
#if WITH_ACROSS
        md.to_v6 = 0;
        md.to_v4 = 0;
        md.total_len = 0;
        md.src_port = 0;
        md.dst_port = 0;
#endif
#if CONFERENCE
        md.extended = 0;
        md.beyond = 0;
        NO_ELEMENT(0)
        NO_ELEMENT(1)
        NO_ELEMENT(2)
        NO_ELEMENT(3)
        NO_ELEMENT(4)
        NO_ELEMENT(5)
        md.extension_bytes = 0;
        md.lacking = 0;
        md.conference = 0;
        md.to_agent = 0;
        md.mgid = 0;
        md.tree = 0;
        md.more_trees = 0;
        md.layers = 0;
        md.extension = 0;
        md.descriptor = 0;
        md.picked = 0;
        md.marks = 0;
        md.flags = 0;
#if SEQUENCE
        md.frame = 0;
#endif
#if S_LR
        md.track.row = 0;
        md.track.switches = 0;
        md.track.flags = 0;
        md.track.lower.position = 0;
        md.track.upper.position = 0;
        md.headers = DATAGRAM_WITH_EXTENSION;
        md.track.high = 1;
        md.track.high_less_one = 1;
        md.track.word = 0xc0;   /* without a descriptor: a frame by itself */
        md.track.comparand = 0xffff;
        md.track.place = LATE;
#endif
        md.agent_session = 0;
        md.agent_copy.setValid();
        md.agent_copy.nexthop = 0;
        md.agent_copy.routed = 0;
        md.agent_copy.last_hop = 0;
        md.agent_copy.sampled = 0;
        md.agent_copy.replicated = 0;
        md.agent_copy.unused = 0;
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
#endif
        transition parse_ethernet;
    }

#include "include/parser.p4"
}

/* Why: the pipeline is shared with the other architecture; only the name of this control is the schema's. */
control Ingress(inout headers_t hdr, inout metadata_t md, in ingress_intrinsic_metadata_t ig_intr_md,
                in ingress_intrinsic_metadata_from_parser_t ig_prsr_md, inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    IngressPipeline() pipeline;

    apply {
        pipeline.apply(hdr, md, ig_intr_md, ig_prsr_md, ig_dprsr_md, ig_tm_md);
    }
}

/* Why: learn notices leave here, and both checksums are made here. Fields of headers that are not there count
 * nothing, so one list does for both versions of IP. A checksum that was wrong stays wrong. */
control IngressDeparser(packet_out pkt, inout headers_t hdr, in metadata_t md, in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Digest<learn_t>() learn;
    Digest<learn6_t>() learn6;
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;
#if CONFERENCE
    Mirror() to_agent;
#endif

    apply {
#if CONFERENCE
        if (ig_dprsr_md.mirror_type == MIRROR_TO_AGENT) {
            to_agent.emit<bridged_h>(md.agent_session, md.agent_copy);
        }
#endif
        if (ig_dprsr_md.digest_type == DIGEST_LEARN) {
            learn.pack({hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port,
                        md.notice_version, md.rtp_payload_type, md.rtp_seq, md.rtp_ssrc});
        }
        if (ig_dprsr_md.digest_type == DIGEST_LEARN6) {
            learn6.pack({hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port,
                         md.notice_version, md.rtp_payload_type, md.rtp_seq, md.rtp_ssrc});
        }
        GIVE_CHECKSUMS(md, )
        pkt.emit(hdr);
    }
}

#if CONFERENCE
#define WITHOUT_TAG parse_copy
#else
#define WITHOUT_TAG accept
#endif
#if SEQUENCE
#define COPY_NUMBER hdr.rtp.seq,
#else
#define COPY_NUMBER
#endif
#if S_LR
#define NO_NUMBER \
        md.copy.splice = 0; \
        md.copy.target = 0; \
        md.copy.wanted = 0; \
        md.copy.may = 0; \
        md.copy.target_before = 0; \
        md.copy.changed = 0; \
        md.copy.forwarded = 0; \
        md.copy.position = 0; \
        md.copy.position_next = 0; \
        md.copy.base = 0; \
        md.copy.shift = 0; \
        md.copy.late = 0;
#elif S_LM
#define NO_NUMBER \
        md.copy.splice = 0; \
        md.copy.cadence = 0; \
        md.copy.target = 0; \
        md.copy.beyond = 0; \
        md.copy.high = 1; \
        md.copy.high_before = 0; \
        md.copy.frame = 0; \
        md.copy.frame_before = 0; \
        md.copy.ahead = 0; \
        md.copy.gap = 0; \
        md.copy.frames = 0; \
        md.copy.place = 0; \
        md.copy.gone = 0; \
        md.copy.offset = 0; \
        md.copy.opens = 0; \
        md.copy.opened = 0;
#endif

struct egress_metadata_t {
#if CONFERENCE
    copy_t copy;
#endif
}

/* Why: egress changes nothing behind the tag, so it parses no further, but in copies for the receivers of a stream. These are
 * such that ingress took them for fit to be relayed. */
parser EgressParser(packet_in pkt, out headers_t hdr, out egress_metadata_t md, out egress_intrinsic_metadata_t eg_intr_md) {
#if CONFERENCE
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;
#endif

    state start {
        pkt.extract(eg_intr_md);
        pkt.extract(hdr.bridged);
        pkt.extract(hdr.ethernet);
#if CONFERENCE
        md.copy.checksummed = 0;
        md.copy.ipv4_residual = 0;
        md.copy.udp_residual = 0;
        md.copy.four = 0;
        md.copy.six = 0;
#if SEQUENCE
        NO_NUMBER
#endif
#endif
        transition select(pkt.lookahead<bit<16>>()) {
            TPID_8021Q: parse_vlan;
            default: WITHOUT_TAG;
        }
    }

    state parse_vlan {
        pkt.extract(hdr.vlan);
        transition WITHOUT_TAG;
    }
#if CONFERENCE
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
        SUBTRACT_UDP_HEADER_AND_NUMBER(md.copy)
#else
        SUBTRACT_UDP_HEADER(md.copy)
#endif
        transition select(hdr.udp.checksum) {
            0: accept;
            default: udp_with_checksum;
        }
    }

    state udp_with_checksum {
        md.copy.checksummed = 1;
        transition accept;
    }
#endif
}

/* Why: as Ingress. */
control Egress(inout headers_t hdr, inout egress_metadata_t md, in egress_intrinsic_metadata_t eg_intr_md,
               in egress_intrinsic_metadata_from_parser_t eg_prsr_md, inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
               inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    EgressPipeline() pipeline;

    apply {
#if CONFERENCE
        pipeline.apply(hdr, md.copy, eg_intr_md, eg_prsr_md, eg_dprsr_md);
#else
        pipeline.apply(hdr, eg_intr_md, eg_prsr_md, eg_dprsr_md);
#endif
    }
}

/* Why: all but the bridged header goes on the wire. */
control EgressDeparser(packet_out pkt, inout headers_t hdr, in egress_metadata_t md, in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
#if CONFERENCE
    Checksum() ipv4_checksum;
    Checksum() udp_checksum;
#endif

    apply {
#if CONFERENCE
        GIVE_CHECKSUMS(md.copy, COPY_NUMBER)
#endif
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.vlan);
#if CONFERENCE
        pkt.emit(hdr.ether_type);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.ipv6);
        pkt.emit(hdr.udp);
#endif
#if SEQUENCE
        pkt.emit(hdr.rtp);
#endif
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
