/* The parser's states of the relay alone: what egress is told, begun before Ethernet, and the end at RTP. */
/* SPDX-License-Identifier: Apache-2.0 */

    /* Here it costs no table. */
    state begin {
        hdr.bridged.setValid();
        hdr.bridged.nexthop = 0;
        hdr.bridged.length = 0;
        hdr.bridged.routed = 0;
        hdr.bridged.last_hop = 0;
        hdr.bridged.sampled = 0;
        hdr.bridged.unused = 0;
        hdr.bridged.drop = 0;
        hdr.bridged.ingress_port = INGRESS_PORT;
#if DELAY
        hdr.bridged.sample = 0;
        hdr.bridged.arrival = ARRIVAL_NS;
#endif
        transition clear;
    }

#include "parser.p4"

    state rtp_seen {
        transition accept;
    }
