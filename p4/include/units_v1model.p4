/* What BMv2 does in place of the units that Tofino has: raising learn notices, and registers for what is watched. */
/* SPDX-License-Identifier: Apache-2.0 */

/* The agent learns from the first packets of a stream where a party behind a NAT really is. The packet itself goes on to the relay
 * server, which does its own learning. */
control Learn(in headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    apply {
        if (md.notice == DIGEST_LEARN) {
            digest<learn_t>(DIGEST_LEARN, {hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port,
                                           md.notice_version, md.rtp_payload_type, md.rtp_seq, md.rtp_ssrc});
        } else if (md.notice == DIGEST_LEARN6) {
            digest<learn6_t>(DIGEST_LEARN6, {hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port,
                                             md.notice_version, md.rtp_payload_type, md.rtp_seq, md.rtp_ssrc});
        }
    }
}

/* As on Tofino, where registers are worked on by their own units. */
control Sequence(inout metadata_t md) {
    @name(".Ingress.sequence.expected")
    register<bit<16>>(SAMPLE_SIZE) expected;
    @name(".Ingress.missing")
    register<bit<16>>(SAMPLE_SIZE) missing;

    apply {
        bit<16> value;
        expected.read(value, (bit<32>)md.sample);
        md.ahead = md.rtp_seq - value;
        expected.write((bit<32>)md.sample, md.rtp_seq + 1);
        missing.read(value, (bit<32>)md.sample);
        missing.write((bit<32>)md.sample, value + md.ahead);
    }
}

#if DELAY
/* Egress is told that a packet is watched, and which registers are its stream's. */
control TellSample(inout headers_t hdr, in metadata_t md) {
    apply {
        hdr.bridged.sampled = 1;
        hdr.bridged.sample = md.sample;
    }
}

/* As on Tofino, in BMv2's microseconds. */
control Delay(in headers_t hdr, EGRESS_SWITCH) {
    @name(".Egress.delay.last")
    register<bit<32>>(SAMPLE_SIZE) last;
    @name(".Egress.delay.most")
    register<bit<32>>(SAMPLE_SIZE) most;
    @name(".Egress.delay_variation.change")
    register<bit<32>>(SAMPLE_SIZE) change;

    apply {
        bit<32> nanoseconds = DEPARTURE_NS - hdr.bridged.arrival;
        bit<32> before;
        last.read(before, (bit<32>)hdr.bridged.sample);
        change.write((bit<32>)hdr.bridged.sample, nanoseconds - before);
        last.write((bit<32>)hdr.bridged.sample, nanoseconds);
        most.read(before, (bit<32>)hdr.bridged.sample);
        if (nanoseconds > before) {
            most.write((bit<32>)hdr.bridged.sample, nanoseconds);
        }
    }
}
#else
control TellSample(inout headers_t hdr, in metadata_t md) {
    apply {
    }
}

control Delay(in headers_t hdr, EGRESS_SWITCH) {
    apply {
    }
}
#endif
