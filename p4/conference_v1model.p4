/* The relay program with conferences for v1model, so that BMv2 can run it: the same tables and controls as conference.p4. */
/* SPDX-License-Identifier: Apache-2.0 */

#include "include/conference_config.p4"
#include "include/config.p4"
#include "include/arch_v1model.p4"
#include "include/conference_v1model.p4"
#include "include/headers.p4"
#include "include/extension_headers.p4"
#include "include/conference_packet.p4"

/* Headers only; v1model's parser cannot add. */
parser PacketParser(packet_in pkt, out headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
    state start {
        transition begin;
    }

#include "include/conference_parser.p4"
}

#include "include/learning.p4"
#include "include/units_v1model.p4"
#include "include/counters.p4"
#include "include/relay_tables.p4"
#include "include/numbers.p4"
#include "include/replication.p4"
#include "include/forwarding.p4"
#include "include/conference_pipeline.p4"

/* Fields of headers that are not there count nothing on Tofino. */
#if SEQUENCE
#define NUMBER , md.number
#define NOTE_NUMBER md.number = hdr.rtp.isValid() ? hdr.rtp.seq : 0;
#else
#define NUMBER
#define NOTE_NUMBER
#endif
#if S_LM
#define START_NUMBER md.copy.high = 1;
#else
#define START_NUMBER
#endif
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

/* BMv2's replication engine makes a copy for every node of a tree. What Tofino's leaves out is dropped here: nodes with
 * the packet's L1 XID, and nodes with its RID behind a port of its L2 XID's set. */
control Prune(in metadata_t md, inout standard_metadata_t std, out bit<1> pruned) {
    @name(".Pre.same_l1_xid")
    action same_l1_xid(bit<16> l1_xid) {
        pruned = (bit<1>)(md.l1_xid == l1_xid);
    }

    /* Nodes whose L1 XID is valid. */
    @name(".Pre.node")
    table node {
        key = {
            md.group: exact @name("mgid");
            std.egress_rid: exact @name("rid");
        }
        actions = {
            same_l1_xid;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = COPY_SIZE;
    }

    @name(".Pre.same_rid")
    action same_rid() {
        pruned = 1;
    }

    @name(".Pre.prune")
    table prune {
        key = {
            md.l2_xid: exact @name("l2_xid");
            std.egress_port: exact @name("port");
        }
        actions = {
            same_rid;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 1024;
    }

    apply {
        pruned = 0;
        node.apply();
        if (std.egress_rid == md.rid) {
            prune.apply();
        }
    }
}

/* As PacketIngress. */
control PacketEgress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
    Prune() prune;
    TakeChecksums() take_checksums;
    GiveChecksums() give_checksums;
    EgressPipeline() pipeline;

    apply {
        bit<1> pruned = 0;
        if (hdr.bridged.replicated == 1) {
            prune.apply(md, std, pruned);
            START_NUMBER
            NOTE_NUMBER
            take_checksums.apply(hdr, md);
        }
        if (pruned == 1) {
            mark_to_drop(std);
        } else {
            pipeline.apply(hdr, md.copy, std);
            if (hdr.bridged.replicated == 1) {
                NOTE_NUMBER
                give_checksums.apply(hdr, md);
            }
        }
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
        pkt.emit(hdr.rtp);
        pkt.emit(hdr.extension);
        EMIT_ELEMENT(0)
        EMIT_ELEMENT(1)
        EMIT_ELEMENT(2)
        EMIT_ELEMENT(3)
        EMIT_ELEMENT(4)
        EMIT_ELEMENT(5)
    }
}

V1Switch(PacketParser(), VerifyNothing(), PacketIngress(), PacketEgress(), ComputeNothing(), PacketDeparser()) main;
