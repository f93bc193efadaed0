/* The relay program for v1model, so that BMv2 can run it: the same tables and controls as relay.p4. */
/* SPDX-License-Identifier: Apache-2.0 */

#include "include/config.p4"
#include "include/arch_v1model.p4"
#include "include/headers.p4"
#include "include/packet.p4"

/* Headers only; v1model's parser cannot add. */
parser PacketParser(packet_in pkt, out headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
    state start {
        transition begin;
    }

#include "include/relay_parser.p4"
}

#include "include/learning.p4"
#include "include/units_v1model.p4"
#include "include/counters.p4"
#include "include/relay_tables.p4"
#include "include/forwarding.p4"
#include "include/pipeline.p4"

#define NUMBER
#include "include/checksums_v1model.p4"

/* The pipeline is shared with the other architecture, and so are the names of its tables. */
control PacketIngress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
    TakeChecksums() take_checksums;
    GiveChecksums() give_checksums;
    IngressPipeline() pipeline;

    apply {
        take_checksums.apply(hdr, md);
        pipeline.apply(hdr, md, std);
        give_checksums.apply(hdr, md);
    }
}

/* As PacketIngress. */
control PacketEgress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
    EgressPipeline() pipeline;

    apply {
        pipeline.apply(hdr, std);
    }
}

/* All but the bridged header goes on the wire. */
control PacketDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.vlan);
        pkt.emit(hdr.ether_type);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.ipv6);
        pkt.emit(hdr.udp);
    }
}

V1Switch(PacketParser(), VerifyNothing(), PacketIngress(), PacketEgress(), ComputeNothing(), PacketDeparser()) main;
