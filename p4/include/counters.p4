/* Watching: packets, bytes and sequence numbers of the streams that the agent picks, and their delay. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_COUNTERS_P4
#define SHUNT_COUNTERS_P4

/* Why: counters for every entry cost a third of the relay table and more, so they serve a sample of streams.
 * Keyed as the relay tables, on the packet as it came; the entry says which registers are the stream's. */
control Sample(inout headers_t hdr, inout metadata_t md) {
    DIRECT_COUNTER(sample_counter)
#if WITH_RELAY6
    DIRECT_COUNTER(sample6_counter)
#endif

    @name(".Ingress.watch")
    action watch(bit<16> index) {
        md.sampled = 1;
        md.sample = index;
        COUNT(sample_counter)
    }

#if WITH_RELAY6
    @name(".Ingress.watch6")
    action watch6(bit<16> index) {
        md.sampled = 1;
        md.sample = index;
        COUNT(sample6_counter)
    }
#endif

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

#if WITH_RELAY6
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
#endif

    apply {
        if (hdr.ipv4.isValid()) {
            sample.apply();
        }
#if WITH_RELAY6
        else {
            sample6.apply();
        }
#endif
    }
}

struct sequence_t {
    bit<16> expected;   /* the sequence number that should come next */
    bit<16> ahead;      /* by how many the last packet was ahead of its own */
}

#ifdef __TARGET_TOFINO__
/* Why: lost packets show nowhere else in the switch. `missing` sums, modulo 65536, by how many each packet
 * was ahead of the number expected, which is minus one for the packet that comes a place late; so it grows by
 * the packets that never came. The agent takes the difference of two readings: what the first packet of a
 * stream adds is arbitrary. */
control Sequence(inout metadata_t md) {
    @name(".Ingress.sequence")
    Register<sequence_t, bit<16>>(SAMPLE_SIZE) sequence;
    RegisterAction<sequence_t, bit<16>, bit<16>>(sequence) follow = {
        void apply(inout sequence_t value, out bit<16> ahead) {
            value.ahead = md.rtp_seq - value.expected;
            value.expected = md.rtp_seq + 1;
            ahead = value.ahead;
        }
    };

    @name(".Ingress.missing")
    Register<bit<16>, bit<16>>(SAMPLE_SIZE) missing;
    RegisterAction<bit<16>, bit<16>, bit<16>>(missing) add = {
        void apply(inout bit<16> value) {
            value = value + md.ahead;
        }
    };

    action follow_sequence() {
        md.ahead = follow.execute(md.sample);
    }

    action add_missing() {
        add.execute(md.sample);
    }

    apply {
        follow_sequence();
        add_missing();
    }
}
#else
/* Why: as on Tofino, where registers are worked on by their own units. */
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
#endif

#if DELAY
struct delay_t {
    bit<32> last;
    bit<32> most;
}

struct variation_t {
    bit<32> last;
    bit<32> change;   /* this packet's delay less the one before's, two's complement */
}

#ifdef __TARGET_TOFINO__
/* Why: the delay that the switch adds, from its arrival at the ingress port to egress, and how it varies
 * (RFC 4689), for streams that are watched. Nanoseconds. */
control Delay(in headers_t hdr, EGRESS_SWITCH) {
    bit<32> nanoseconds = 0;

    @name(".Egress.delay")
    Register<delay_t, bit<16>>(SAMPLE_SIZE) delay;
    RegisterAction<delay_t, bit<16>, bit<32>>(delay) keep = {
        void apply(inout delay_t value) {
            value.last = nanoseconds;
            if (nanoseconds > value.most) {
                value.most = nanoseconds;
            }
        }
    };

    @name(".Egress.delay_variation")
    Register<variation_t, bit<16>>(SAMPLE_SIZE) delay_variation;
    RegisterAction<variation_t, bit<16>, bit<32>>(delay_variation) compare = {
        void apply(inout variation_t value) {
            value.change = nanoseconds - value.last;
            value.last = nanoseconds;
        }
    };

    apply {
        nanoseconds = DEPARTURE_NS - hdr.bridged.arrival;
        keep.execute(hdr.bridged.sample);
        compare.execute(hdr.bridged.sample);
    }
}
#else
/* Why: as on Tofino, in BMv2's microseconds. */
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
#endif
#endif

#endif
