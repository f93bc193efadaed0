/* What the shared parts call differently on Tofino: ports, drops, counters, checksums, time-outs. */
/* SPDX-License-Identifier: Apache-2.0 */

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

/* A container of the chip is written once a stage, so what different tables set lies in containers of its own; else these
 * tables could not share a stage. */
@pa_solitary("ingress", "md.routable")
@pa_solitary("ingress", "md.switched")
@pa_solitary("ingress", "md.media")
@pa_solitary("ingress", "md.notice")
@pa_solitary("ingress", "md.sampled")
@pa_solitary("ingress", "md.sample")
@pa_solitary("ingress", "md.relayed")
@pa_solitary("ingress", "md.set_dscp")
@pa_solitary("ingress", "md.dscp")
@pa_solitary("ingress", "md.to_v6")
@pa_solitary("ingress", "md.to_v4")
@pa_solitary("ingress", "ig_intr_md_for_dprsr.drop_ctl")
/* In a container of 32 bits the parser could not set them in one state, and bf-p4c would split a checksum over two. */
@pa_container_size("ingress", "hdr.ipv4.$valid", 16)

/* What ingress controls are handed beside headers and metadata, and how they hand it on. */
#define INGRESS_SWITCH in ingress_intrinsic_metadata_t ig_intr_md, in ingress_intrinsic_metadata_from_parser_t ig_prsr_md, \
    inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md, inout ingress_intrinsic_metadata_for_tm_t ig_tm_md
#define INGRESS_SWITCH_PASSED ig_intr_md, ig_prsr_md, ig_dprsr_md, ig_tm_md
#define EGRESS_SWITCH in egress_intrinsic_metadata_t eg_intr_md, in egress_intrinsic_metadata_from_parser_t eg_prsr_md, \
    inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md
#define EGRESS_SWITCH_PASSED eg_intr_md, eg_prsr_md, eg_dprsr_md

#define INGRESS_PORT ig_intr_md.ingress_port
#define ARRIVAL_NS ig_intr_md.ingress_mac_tstamp[31:0]
#define PARSED_WHOLE ig_prsr_md.parser_err == 0
#define SEND_TO(port) ig_tm_md.ucast_egress_port = port
#define SEND_TO_GROUP(group) ig_tm_md.mcast_grp_a = group
#define DISCARD ig_dprsr_md.drop_ctl = 1

#define EGRESS_PORT eg_intr_md.egress_port
#define DEPARTURE_NS eg_prsr_md.global_tstamp[31:0]
#define DISCARD_AT_EGRESS eg_dprsr_md.drop_ctl = 1

/* The adjustment takes the Ethernet header and the frame check sequence off, so that bytes are those of the
 * network layer, as in the softswitch; of a tagged frame the tag remains in. */
#define DIRECT_COUNTER(name) DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) name;
#define COUNT(name) name.count(adjust_byte_count = 18);
#define IDLE_TIMEOUT idle_timeout = true;
/* A row for each reason to drop. */
#define DROP_COUNTER(name) Counter<bit<64>, bit<3>>(8, CounterType_t.PACKETS) name;
#define COUNT_DROP(name, reason) name.count(reason);

/* The checksum units of the parser: the sums of what may change are taken off the checksums. The deparser adds what it has become. */
#define SUBTRACT_IPV4_HEADER(into) \
        ipv4_checksum.subtract({hdr.ipv4}); \
        into.ipv4_residual = ipv4_checksum.get(); \
        udp_checksum.subtract({hdr.ipv4.src_addr, hdr.ipv4.dst_addr});
#define SUBTRACT_IPV6_ADDRESSES \
        udp_checksum.subtract({hdr.ipv6.src_addr, hdr.ipv6.dst_addr});
#define SUBTRACT_UDP_HEADER(into) \
        udp_checksum.subtract({hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum}); \
        into.udp_residual = udp_checksum.get();

/* The hash stored in place of the 5-tuple. The agent computes it too, from the compiler's context.json. */
#if HASH_BITS == 48
#define STORED_HASH(name) \
    CRCPolynomial<bit<64>>(POLYNOMIAL, false, false, false, 64w0, 64w0) name##_polynomial; \
    Hash<bit<48>>(HashAlgorithm_t.CUSTOM, name##_polynomial) name;
#define STORED_AS(name) proxy_hash = name;
#elif HASH_BITS == 32 && !defined(POLYNOMIAL)
#define STORED_HASH(name) Hash<bit<32>>(HashAlgorithm_t.CRC32) name;
#define STORED_AS(name) proxy_hash = name;
#elif HASH_BITS == 32
#define STORED_HASH(name) \
    CRCPolynomial<bit<32>>(POLYNOMIAL, true, false, false, 32w0xffffffff, 32w0xffffffff) name##_polynomial; \
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, name##_polynomial) name;
#define STORED_AS(name) proxy_hash = name;
#else
#define STORED_HASH(name)
#define STORED_AS(name)
#endif
