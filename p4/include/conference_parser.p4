/* The parser's states of the program with conferences: what egress is told, begun before Ethernet, and RTP header extensions. */
/* SPDX-License-Identifier: Apache-2.0 */

    /* Here it costs no table. */
    state begin {
        hdr.bridged.setValid();
        hdr.bridged.nexthop = 0;
        hdr.bridged.length = 0;
        hdr.bridged.routed = 0;
        hdr.bridged.last_hop = 0;
        hdr.bridged.sampled = 0;
        hdr.bridged.drop = 0;
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
        hdr.bridged.ingress_port = INGRESS_PORT;
#if DELAY
        hdr.bridged.sample = 0;
        hdr.bridged.arrival = ARRIVAL_NS;
#endif
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
        md.headers = DATAGRAM_WITH_EXTENSION;
        md.track.row = 0;
        md.track.switches = 0;
        md.track.flags = 0;
        md.track.lower.position = 0;
        md.track.upper.position = 0;
        md.track.high = 1;
        md.track.high_less_one = 1;
        md.track.word = 0xc0;   /* without a descriptor: a frame by itself */
        md.track.comparand = 0xffff;
        md.track.order = LATE;
#endif
        transition clear;
    }

#include "parser.p4"

    /* RTP without contributing sources, and not RTCP, is looked into. */
    state rtp_seen {
        rtp_h seen = pkt.lookahead<rtp_h>();
#if S_LR
        md.track.lower.position = seen.seq;
        md.track.upper.position = seen.seq;
#endif
        transition select(seen.version, seen.extension, seen.csrc_count, seen.payload_type) {
            (2, 1, 0, 0x40 &&& 0x60): accept;
            (2, 1, 0, _): rtp_extension;
            default: RTP_ALONE;
        }
    }

    RTP_ALONE_STATE
#include "extensions.p4"
