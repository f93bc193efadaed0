/* Where conferences hook in: datagrams that no relay entry claimed, before they are forwarded, and their copies in egress. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_CONFERENCE_P4
#define SHUNT_CONFERENCE_P4

/* Why: replication is decided in ingress, by a packet's sender and stream, and is made by the replication
 * engine. A packet that this control claims has its multicast group set (SEND_TO_GROUP) and md.switched = 1, so
 * that Forwarding leaves it alone. hdr and md are as the parser left them: md.relayed is 0. */
control Conference(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    apply {
    }
}

/* Why: every copy is rewritten for its receiver here, by the replication id of the copy. Copies get their MAC
 * addresses from NextHop like any packet, so this runs before it and may set hdr.bridged.nexthop and routed. */
control ConferenceCopy(inout headers_t hdr, EGRESS_SWITCH) {
    apply {
    }
}

#endif
