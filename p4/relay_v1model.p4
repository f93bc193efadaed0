/* The relay program for v1model, so that BMv2 can run it: the same tables and controls as relay.p4. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "include/config.p4"
#include "include/arch_v1model.p4"
#include "include/headers.p4"
#include "include/pipeline.p4"

/* Why: headers only; v1model's parser cannot add. */
parser PacketParser(packet_in pkt, out headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
    state start {
#if S_LR
        md.headers = DATAGRAM_WITH_EXTENSION;
        md.track.high = 1;
        md.track.high_less_one = 1;
        md.track.word = 0xc0;   /* without a descriptor: a frame by itself */
        md.track.comparand = 0xffff;
#endif
        transition parse_ethernet;
    }

#include "include/parser.p4"
}

/* Why: nothing is verified; a checksum that was wrong stays wrong. */
control VerifyNothing(inout headers_t hdr, inout metadata_t md) {
    apply {
    }
}

#if SEQUENCE
/* Fields of headers that are not there count nothing on Tofino. */
#define NUMBER , md.number
#define NOTE_NUMBER md.number = hdr.rtp.isValid() ? hdr.rtp.seq : 0;
#if S_LM
#define START_NUMBER md.copy.high = 1;
#else
#define START_NUMBER
#endif
#else
#define NUMBER
#define NOTE_NUMBER
#define START_NUMBER
#endif

/* Why: what Tofino's parser does with its checksum units: take off the checksums what may change. The
 * complement of a sum is its negative. */
control TakeChecksums(inout headers_t hdr, inout metadata_t md) {
    apply {
        if (hdr.ipv4.isValid()) {
            hash(md.ipv4_residual, HashAlgorithm.csum16, 16w0,
                 {hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.identification,
                  hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.checksum,
                  hdr.ipv4.src_addr, hdr.ipv4.dst_addr}, 32w0x10000);
        }
        if (md.checksummed == 1) {
            if (hdr.ipv4.isValid()) {
                hash(md.udp_residual, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum NUMBER}, 32w0x10000);
            } else {
                hash(md.udp_residual, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum NUMBER}, 32w0x10000);
            }
        }
    }
}

/* Why: what Tofino's deparser does with its checksum units. */
control GiveChecksums(inout headers_t hdr, inout metadata_t md) {
    apply {
        if (hdr.ipv4.isValid()) {
            hash(hdr.ipv4.checksum, HashAlgorithm.csum16, 16w0,
                 {hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.identification,
                  hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
                  hdr.ipv4.src_addr, hdr.ipv4.dst_addr, md.ipv4_residual}, 32w0x10000);
        }
        if (md.checksummed == 1) {
            if (hdr.ipv4.isValid()) {
                hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port NUMBER, md.udp_residual}, 32w0x10000);
            } else {
                hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port NUMBER, md.udp_residual}, 32w0x10000);
            }
            if (hdr.udp.checksum == 0) {
                hdr.udp.checksum = 0xffff;
            }
        }
    }
}

/* Why: the pipeline is shared with the other architecture, and so are the names of its tables. */
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

#if CONFERENCE
/* Why: BMv2's replication engine makes a copy for every node of a tree. What Tofino's leaves out is dropped here: nodes with
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
#endif

/* Why: as PacketIngress. */
control PacketEgress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t std) {
#if CONFERENCE
    Prune() prune;
    TakeChecksums() take_checksums;
    GiveChecksums() give_checksums;
#endif
    EgressPipeline() pipeline;

    apply {
#if CONFERENCE
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
#else
        pipeline.apply(hdr, std);
#endif
    }
}

/* Why: v1model computes checksums here from whole fields; they are already made. */
control ComputeNothing(inout headers_t hdr, inout metadata_t md) {
    apply {
    }
}

/* Why: all but the bridged header goes on the wire. */
control PacketDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.vlan);
        pkt.emit(hdr.ether_type);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.ipv6);
        pkt.emit(hdr.udp);
#if CONFERENCE
        pkt.emit(hdr.rtp);
        pkt.emit(hdr.extension);
        EMIT_ELEMENT(0)
        EMIT_ELEMENT(1)
        EMIT_ELEMENT(2)
        EMIT_ELEMENT(3)
        EMIT_ELEMENT(4)
        EMIT_ELEMENT(5)
#endif
    }
}

V1Switch(PacketParser(), VerifyNothing(), PacketIngress(), PacketEgress(), ComputeNothing(), PacketDeparser()) main;
