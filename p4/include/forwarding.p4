/* Forwarding: what a layer-3 switch does with every packet, relayed or not. */
/* SPDX-License-Identifier: Apache-2.0 */

/* A router takes only frames that are addressed to it. The same table lets the switch's own CPU send:
 * its frames are bridged to a port by destination address. */
control Layer2(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    /* Addressed to this switch: to be routed. */
    @name(".Ingress.route_frame")
    action route_frame() {
        md.routable = 1;
    }

    @name(".Ingress.bridge_to")
    action bridge_to(bit<9> port) {
        SEND_TO(port);
        md.switched = 1;
    }

    /* To the ports of a multicast group of the replication engine. */
    @name(".Ingress.bridge_to_group")
    action bridge_to_group(bit<16> group) {
        SEND_TO_GROUP(group);
        md.switched = 1;
    }

    @name(".Ingress.layer2")
    table layer2 {
        key = {
            INGRESS_PORT: ternary @name("ingress_port");
            hdr.ethernet.dst_addr: ternary @name("hdr.ethernet.dst_addr");
        }
        actions = {
            @tableonly route_frame;
            @tableonly bridge_to;
            @tableonly bridge_to_group;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = L2_SIZE;
    }

    apply {
        layer2.apply();
    }
}

/* The packet has to leave by some port: the longest prefix says by which, and which next hop's addresses
 * the frame gets in egress. Packets that the control plane must see go to the CPU. */
control Forwarding(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    @name(".Ingress.dropped")
    DROP_COUNTER(dropped)

    @name(".Ingress.forward")
    action forward(bit<9> port, bit<16> nexthop) {
        SEND_TO(port);
        hdr.bridged.nexthop = nexthop;
        hdr.bridged.length = hdr.ipv4.total_len;
        hdr.bridged.routed = 1;
        hdr.ipv4.ttl = hdr.ipv4.ttl - md.hops;
    }

    @name(".Ingress.forward6")
    action forward6(bit<9> port, bit<16> nexthop) {
        SEND_TO(port);
        hdr.bridged.nexthop = nexthop;
        hdr.bridged.length = hdr.ipv6.payload_len + IPV6_HEADER_BYTES;
        hdr.bridged.routed = 1;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - md.hops;
    }

    /* For an address of the switch itself, or a reply that only the control plane can give. */
    @name(".Ingress.to_cpu")
    action to_cpu(bit<9> port) {
        SEND_TO(port);
    }

    @name(".Ingress.discard")
    action discard() {
        DISCARD;
        COUNT_DROP(dropped, UNROUTED)
    }

    action discard_not_addressed() {
        DISCARD;
        COUNT_DROP(dropped, NOT_ADDRESSED)
    }

    action discard_not_ip() {
        DISCARD;
        COUNT_DROP(dropped, NOT_IP)
    }

    @name(".Ingress.route")
    table route {
        key = {
            hdr.ipv4.dst_addr: lpm;
        }
        actions = {
            forward;
            to_cpu;
            discard;
        }
        default_action = discard();
        size = ROUTE_SIZE;
    }

    @name(".Ingress.route6")
    table route6 {
        key = {
            hdr.ipv6.dst_addr: lpm;
        }
        actions = {
            forward6;
            to_cpu;
            discard;
        }
        default_action = discard();
        size = ROUTE6_SIZE;
    }

    /* Address resolution and expired packets; the port is the default action's parameter. */
    @name(".Ingress.punt")
    table punt {
        actions = {
            to_cpu;
        }
        default_action = to_cpu(CPU_PORT);
    }

    apply {
        if (md.switched == 1) {
            /* Layer2 has chosen the port. */
        } else if (hdr.ether_type.value == ETHERTYPE_ARP || md.neighbour_discovery == 1) {
            punt.apply();
        } else if (md.routable == 0) {
            discard_not_addressed();
        } else if (!hdr.ipv4.isValid() && !hdr.ipv6.isValid()) {
            discard_not_ip();
        } else if (md.hops == 0 && md.media == 0) {
            punt.apply();
        } else if (hdr.ipv4.isValid()) {
            route.apply();
        } else {
            route6.apply();
        }
    }
}

/* The frame gets the addresses, and the tag, of the way that it takes; or the packet is dropped, and counted by the reason. In egress, because
 * ingress needs its stages for the relay table. */
control NextHop(inout headers_t hdr, EGRESS_SWITCH) {
    @name(".Egress.dropped")
    DROP_COUNTER(dropped)

    /* Two switches that took each other for the way to the relay would pass it on for ever. */
    action turn_back() {
        hdr.bridged.drop = TURNED_BACK;
    }

    @name(".Egress.too_big")
    action too_big() {
        hdr.bridged.drop = TOO_BIG;
    }

    /* What is longer than the port's MTU; the switch neither fragments it nor tells its sender (RFC 1191). A range of lengths takes TCAM, of which
     * there is plenty, and no memory of the relay table. */
    @name(".Egress.mtu")
    table mtu {
        key = {
            EGRESS_PORT: exact @name("port");
            hdr.bridged.length: range @name("length");
        }
        actions = {
            @tableonly too_big;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = MTU_SIZE;
    }

    @name(".Egress.send")
    action send(bit<48> src_mac, bit<48> dst_mac) {
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.vlan.setInvalid();
    }

    /* Every frame has a tag by now; the priority bits of one that came with it stay. */
    @name(".Egress.send_tagged")
    action send_tagged(bit<48> src_mac, bit<48> dst_mac, bit<12> vlan) {
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.vlan.vid = vlan;
    }

    @name(".Egress.unknown_nexthop")
    action unknown_nexthop() {
        DISCARD_AT_EGRESS;
        COUNT_DROP(dropped, UNKNOWN_NEXTHOP)
    }

    @name(".Egress.nexthop")
    table nexthop {
        key = {
            hdr.bridged.nexthop: exact @name("nexthop");
        }
        actions = {
            @tableonly send;
            @tableonly send_tagged;
            @defaultonly unknown_nexthop;
        }
        default_action = unknown_nexthop();
        size = NEXTHOP_SIZE;
    }

    action add_tag() {
        hdr.vlan.setValid();
        hdr.vlan.tpid = TPID_8021Q;
        hdr.vlan.pcp = 0;
        hdr.vlan.dei = 0;
    }

    action drop() {
        DISCARD_AT_EGRESS;
        COUNT_DROP(dropped, hdr.bridged.drop)
    }

    apply {
        if (hdr.bridged.routed == 1) {
            if (hdr.bridged.last_hop == 1 && hdr.bridged.ingress_port == EGRESS_PORT) {
                turn_back();
            } else {
                mtu.apply();
            }
            if (!hdr.vlan.isValid()) {
                add_tag();
            }
        }
        if (hdr.bridged.drop != 0) {
            drop();
        } else if (hdr.bridged.routed == 1) {
            nexthop.apply();
        }
    }
}
