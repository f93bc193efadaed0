/* Watching: packets and bytes of the streams that the agent picks; their sequence numbers and delay are in units_*.p4. */
/* SPDX-License-Identifier: Apache-2.0 */

/* A counter on every entry costs a third of the relay table and more, so these tables count a sample of the streams, keyed as the
 * relay tables on the packet as it came. An entry says which registers are the stream's. */
control SampleIpv4(inout headers_t hdr, inout metadata_t md) {
    DIRECT_COUNTER(sample_counter)

    @name(".Ingress.watch")
    action watch(bit<16> index) {
        md.sampled = 1;
        md.sample = index;
        COUNT(sample_counter)
    }

    @name(".Ingress.sample")
    table sample {
        key = {
            hdr.ipv4.src_addr: exact;
            hdr.ipv4.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
        }
        actions = {
            @tableonly watch;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = SAMPLE_SIZE;
        counters = sample_counter;
    }

    apply {
        sample.apply();
    }
}

/* The same for IPv6. */
control SampleIpv6(inout headers_t hdr, inout metadata_t md) {
    DIRECT_COUNTER(sample6_counter)

    @name(".Ingress.watch6")
    action watch6(bit<16> index) {
        md.sampled = 1;
        md.sample = index;
        COUNT(sample6_counter)
    }

    @name(".Ingress.sample6")
    table sample6 {
        key = {
            hdr.ipv6.src_addr: exact;
            hdr.ipv6.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
        }
        actions = {
            @tableonly watch6;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = SAMPLE6_SIZE;
        counters = sample6_counter;
    }

    apply {
        sample6.apply();
    }
}

/* A watched stream is counted, and its sequence numbers are followed where it is RTP, and not RTCP on the same port (RFC 5761). */
control Watch(inout headers_t hdr, inout metadata_t md) {
    SampleIpv4() ipv4;
    SampleIpv6() ipv6;
    TellSample() tell;
    Sequence() sequence;

    apply {
        if (hdr.ipv4.isValid()) {
            ipv4.apply(hdr, md);
        } else if (WITH_RELAY6) {
            ipv6.apply(hdr, md);
        }
        if (md.sampled == 1) {
            tell.apply(hdr, md);
            if (md.rtp_version == 2 && md.rtp_payload_type[6:5] != 0b10) {
                sequence.apply(md);
            }
        }
    }
}
