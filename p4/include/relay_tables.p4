/* The relay: which datagrams have an entry, and what the entry makes of them. */
/* SPDX-License-Identifier: Apache-2.0 */

/* The lengths that the headers of IP and UDP give are held against each other, and an IPv4 header's is worked out for a datagram that
 * comes with IPv6. */
control Lengths(in headers_t hdr, inout metadata_t md) {
    apply {
        if (WITH_LENGTHS_CHECKED) {
            if (hdr.ipv4.isValid()) {
                md.excess = hdr.ipv4.total_len - hdr.udp.length;
            } else {
                md.excess = hdr.ipv6.payload_len - hdr.udp.length;
            }
        }
        if (WITH_ACROSS) {
            md.total_len = hdr.udp.length + IPV4_HEADER_BYTES;
        }
    }
}

/* This is what the relay server would do in software: a datagram whose 5-tuple has an entry leaves from the relay's address and port of
 * the other leg, to the other party. Everything else passes unchanged. Names, keys, actions and widths are the contract with the
 * agent (docs/architecture.md). A build has those of the actions that config.p4 lists for its tables. */
control RelayIpv4(inout headers_t hdr, inout metadata_t md) {
    STORED_HASH(relay_hash)
    ENTRY_COUNTER(relay_counter)

    /* To the other party; the relay keeps its address. */
    @name(".Ingress.relay_to")
    action relay_to(bit<32> dst_addr, bit<16> dst_port, bit<16> src_port) {
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.relayed = 1;
        COUNT_ENTRY(relay_counter)
    }

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
        COUNT_ENTRY(relay_counter)
    }

    /* To a party that speaks IPv6. The new header stands beside the old one until Across has chosen. An action of the chip
     * cannot fill one word from a constant and two fields, so the fields follow there. */
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
        COUNT_ENTRY(relay_counter)
    }

    @name(".Ingress.relay")
    table relay {
        key = {
            hdr.ipv4.src_addr: exact;
            hdr.ipv4.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
        }
        actions = {
            RELAY_ACTIONS
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = RELAY_SIZE;
        IDLE_TIMEOUT
        STORED_AS(relay_hash)
        COUNTED_BY(relay_counter)
    }

    apply {
        relay.apply();
    }
}

/* The same for IPv6. */
control RelayIpv6(inout headers_t hdr, inout metadata_t md) {
    STORED_HASH(relay6_hash)
    ENTRY_COUNTER(relay6_counter)

    @name(".Ingress.relay6_to")
    action relay6_to(bit<128> dst_addr, bit<16> dst_port, bit<16> src_port) {
        hdr.ipv6.src_addr = hdr.ipv6.dst_addr;
        hdr.ipv6.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.relayed = 1;
        COUNT_ENTRY(relay6_counter)
    }

    @name(".Ingress.relay6_to_from")
    action relay6_to_from(bit<128> src_addr, bit<128> dst_addr, bit<16> src_port, bit<16> dst_port, bit<1> set_dscp, bit<6> dscp) {
        hdr.ipv6.src_addr = src_addr;
        hdr.ipv6.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        md.set_dscp = set_dscp;
        md.dscp = dscp;
        md.relayed = 1;
        COUNT_ENTRY(relay6_counter)
    }

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
        COUNT_ENTRY(relay6_counter)
    }

    @name(".Ingress.relay6")
    table relay6 {
        key = {
            hdr.ipv6.src_addr: exact;
            hdr.ipv6.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
        }
        actions = {
            RELAY6_ACTIONS
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = RELAY6_SIZE;
        IDLE_TIMEOUT
        STORED_AS(relay6_hash)
        COUNTED_BY(relay6_counter)
    }

    apply {
        relay6.apply();
    }
}

/* A datagram that goes on in the other version of IP gets the rest of its new header and loses the old one. Nothing can compute
 * a checksum over the payload here, and IPv6 must have one; and a damaged IPv4 header must not come out as a good IPv6 header. Such
 * packets go on to the relay server as they came. */
control Across(inout headers_t hdr, inout metadata_t md) {
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

    action leave_as_ipv4() {
        hdr.ipv4.dscp = hdr.ipv6.dscp;
        hdr.ipv4.ecn = hdr.ipv6.ecn;
        hdr.ipv4.total_len = md.total_len;
        hdr.ipv4.ttl = hdr.ipv6.hop_limit;
        hdr.ether_type.value = ETHERTYPE_IPV4;
        hdr.ipv6.setInvalid();
    }

    apply {
        if (md.to_v6 == 1) {
            if (md.checksummed == 1 && (md.ipv4_residual == 0 || md.ipv4_residual == 0xffff)) {
                leave_as_ipv6();
            } else {
                stay_as_ipv4();
            }
        } else if (md.to_v4 == 1) {
            leave_as_ipv4();
        }
    }
}

/* The relay table of the packet's version of IP, and what an entry towards the other version needs beside. */
control Relay(inout headers_t hdr, inout metadata_t md) {
    RelayIpv4() ipv4;
    RelayIpv6() ipv6;
    Across() across;

    apply {
        if (hdr.ipv4.isValid()) {
            ipv4.apply(hdr, md);
        } else if (WITH_RELAY6) {
            ipv6.apply(hdr, md);
        }
        if (WITH_ACROSS) {
            across.apply(hdr, md);
        }
    }
}

/* An entry's DSCP is written in a step of its own, because an action cannot leave a field alone or not by a parameter. */
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
