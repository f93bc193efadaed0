/* A packet in the relay program: its headers, and what is known of it. */
/* SPDX-License-Identifier: Apache-2.0 */

/* What ingress tells egress about a packet. It never leaves the switch. */
header bridged_h {
    bit<16> nexthop;
    bit<16> length;    /* bytes of the IP packet */
    bit<1> routed;     /* the frame gets the MAC addresses of its next hop; else it leaves as it is */
    bit<1> last_hop;   /* forwarded with a time to live that could not be lowered */
    bit<1> sampled;
    bit<1> unused;
    bit<3> drop;       /* why egress drops it; 0: it does not */
    bit<9> ingress_port;
#if DELAY
    bit<16> sample;
    bit<32> arrival;   /* nanoseconds, the low bits of the time stamp at the ingress port */
#endif
}

struct headers_t {
    bridged_h bridged;
    ethernet_h ethernet;
    vlan_h vlan;
    ether_type_h ether_type;
    ipv4_h ipv4;
    ipv6_h ipv6;
    udp_h udp;
}

struct metadata_t {
#include "metadata.p4"
}
