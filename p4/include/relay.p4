/* The relay: which datagrams have an entry, and what the entry makes of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_RELAY_P4
#define SHUNT_RELAY_P4

/* Why: this is what the relay server would do in software. A datagram whose 5-tuple has an entry leaves from
 * the relay's address and port of the other leg, to the other party. Everything else passes unchanged.
 * Names, keys, actions and widths are the contract with the agent (docs/architecture.md). */
control Relay(inout headers_t hdr, inout metadata_t md) {
    STORED_HASH(relay_hash)
#if COUNTED
    DIRECT_COUNTER(relay_counter)
#endif

    /* To the other party; the relay keeps its address. */
    @name(".Ingress.relay_to")
    action relay_to(bit<32> dst_addr, bit<16> dst_port, bit<16> src_port) {
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.relayed = 1;
#if COUNTED
        COUNT(relay_counter)
#endif
    }

#if WITH_FROM
    /* From another address of the relay (one between two networks), and perhaps in another traffic class. */
    @name(".Ingress.relay_to_from")
    action relay_to_from(bit<32> src_addr, bit<32> dst_addr, bit<16> src_port, bit<16> dst_port, bit<1> set_dscp, bit<6> dscp) {
        hdr.ipv4.src_addr = src_addr;
        hdr.ipv4.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.set_dscp = set_dscp;
        md.dscp = dscp;
        md.relayed = 1;
#if COUNTED
        COUNT(relay_counter)
#endif
    }
#endif

#if WITH_ACROSS
    /* To a party that speaks IPv6. The new header stands beside the old one until leave_as_ipv6 or stay_as_ipv4. An
     * action of the chip cannot fill one word from a constant and two fields, so the fields follow there. */
    @name(".Ingress.relay_to_v6")
    action relay_to_v6(bit<128> src_addr, bit<128> dst_addr, bit<16> src_port, bit<16> dst_port, bit<1> set_dscp, bit<6> dscp) {
        hdr.ipv6.setValid();
        hdr.ipv6.version = 6;
        hdr.ipv6.flow_label = 0;
        hdr.ipv6.next_hdr = PROTOCOL_UDP;
        hdr.ipv6.src_addr = src_addr;
        hdr.ipv6.dst_addr = dst_addr;
        md.src_port = src_port;
        md.dst_port = dst_port;
        md.set_dscp = set_dscp;
        md.dscp = dscp;
        md.to_v6 = 1;
        md.relayed = 1;
#if COUNTED
        COUNT(relay_counter)
#endif
    }

    action leave_as_ipv6() {
        hdr.ipv6.dscp = hdr.ipv4.dscp;
        hdr.ipv6.ecn = hdr.ipv4.ecn;
        hdr.ipv6.payload_len = hdr.udp.length;
        hdr.ipv6.hop_limit = hdr.ipv4.ttl;
        hdr.ether_type.value = ETHERTYPE_IPV6;
        hdr.ipv4.setInvalid();
        hdr.udp.src_port = md.src_port;
        hdr.udp.dst_port = md.dst_port;
    }

    action stay_as_ipv4() {
        hdr.ipv6.setInvalid();
        md.set_dscp = 0;
    }
#endif

    @name(".Ingress.relay")
    table relay {
        key = {
            hdr.ipv4.src_addr: exact;
            hdr.ipv4.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
        }
        actions = {
            @tableonly relay_to;
#if WITH_FROM
            @tableonly relay_to_from;
#endif
#if WITH_ACROSS
            @tableonly relay_to_v6;
#endif
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = RELAY_SIZE;
        IDLE_TIMEOUT
        STORED_AS(relay_hash)
#if COUNTED
        counters = relay_counter;
#endif
    }

#if WITH_RELAY6
    STORED_HASH(relay6_hash)
#if COUNTED
    DIRECT_COUNTER(relay6_counter)
#endif

    @name(".Ingress.relay6_to")
    action relay6_to(bit<128> dst_addr, bit<16> dst_port, bit<16> src_port) {
        hdr.ipv6.src_addr = hdr.ipv6.dst_addr;
        hdr.ipv6.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.relayed = 1;
#if COUNTED
        COUNT(relay6_counter)
#endif
    }

#if WITH_FROM
    @name(".Ingress.relay6_to_from")
    action relay6_to_from(bit<128> src_addr, bit<128> dst_addr, bit<16> src_port, bit<16> dst_port, bit<1> set_dscp, bit<6> dscp) {
        hdr.ipv6.src_addr = src_addr;
        hdr.ipv6.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.set_dscp = set_dscp;
        md.dscp = dscp;
        md.relayed = 1;
#if COUNTED
        COUNT(relay6_counter)
#endif
    }
#endif

#if WITH_ACROSS
    /* To a party that speaks IPv4: unfragmented, so without an identification (RFC 6864). */
    @name(".Ingress.relay6_to_v4")
    action relay6_to_v4(bit<32> src_addr, bit<32> dst_addr, bit<16> src_port, bit<16> dst_port, bit<1> set_dscp, bit<6> dscp) {
        hdr.ipv4.setValid();
        hdr.ipv4.version = 4;
        hdr.ipv4.ihl = 5;
        hdr.ipv4.identification = 0;
        hdr.ipv4.flags = 0b010;
        hdr.ipv4.frag_offset = 0;
        hdr.ipv4.protocol = PROTOCOL_UDP;
        hdr.ipv4.checksum = 0;
        hdr.ipv4.src_addr = src_addr;
        hdr.ipv4.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.set_dscp = set_dscp;
        md.dscp = dscp;
        md.to_v4 = 1;
        md.relayed = 1;
#if COUNTED
        COUNT(relay6_counter)
#endif
    }

    action leave_as_ipv4() {
        hdr.ipv4.dscp = hdr.ipv6.dscp;
        hdr.ipv4.ecn = hdr.ipv6.ecn;
        hdr.ipv4.total_len = md.total_len;
        hdr.ipv4.ttl = hdr.ipv6.hop_limit;
        hdr.ether_type.value = ETHERTYPE_IPV4;
        hdr.ipv6.setInvalid();
    }
#endif

    @name(".Ingress.relay6")
    table relay6 {
        key = {
            hdr.ipv6.src_addr: exact;
            hdr.ipv6.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
        }
        actions = {
            @tableonly relay6_to;
#if WITH_FROM
            @tableonly relay6_to_from;
#endif
#if WITH_ACROSS
            @tableonly relay6_to_v4;
#endif
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = RELAY6_SIZE;
        IDLE_TIMEOUT
        STORED_AS(relay6_hash)
#if COUNTED
        counters = relay6_counter;
#endif
    }
#endif

    apply {
        if (hdr.ipv4.isValid()) {
            relay.apply();
        }
#if WITH_RELAY6
        else {
            relay6.apply();
        }
#endif
#if WITH_ACROSS
        /* Nothing can compute a checksum over the payload here, and IPv6 must have one; and a damaged IPv4
         * header must not come out as a good IPv6 header. Such packets go on to the relay as they came. */
        if (md.to_v6 == 1) {
            if (md.checksummed == 1 && (md.ipv4_residual == 0 || md.ipv4_residual == 0xffff)) {
                leave_as_ipv6();
            } else {
                stay_as_ipv4();
            }
        } else if (md.to_v4 == 1) {
            leave_as_ipv4();
        }
#endif
    }
}

#if WITH_FROM
/* Why: an action cannot leave a field alone or not by a parameter, so the marking is a step of its own. */
control Mark(inout headers_t hdr, in metadata_t md) {
    apply {
        if (md.set_dscp == 1) {
            if (hdr.ipv4.isValid()) {
                hdr.ipv4.dscp = md.dscp;
            } else {
                hdr.ipv6.dscp = md.dscp;
            }
        }
    }
}
#endif

#endif
