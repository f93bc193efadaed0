/* What Tofino has units of its own for: raising learn notices, and registers for what is watched. */
/* SPDX-License-Identifier: Apache-2.0 */

/* The agent learns from the first packets of a stream where a party behind a NAT really is; the deparser makes the notice. The packet
 * itself goes on to the relay server, which does its own learning. */
control Learn(in headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    apply {
        ig_dprsr_md.digest_type = md.notice;
    }
}

struct sequence_t {
    bit<16> expected;   /* the sequence number that should come next */
    bit<16> ahead;      /* by how many the last packet was ahead of its own */
}

/* Lost packets show nowhere else in the switch. `missing` sums, modulo 65536, by how many each packet
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

#if DELAY
/* Egress is told that a packet is watched, and which registers are its stream's. */
control TellSample(inout headers_t hdr, in metadata_t md) {
    apply {
        hdr.bridged.sampled = 1;
        hdr.bridged.sample = md.sample;
    }
}

struct delay_t {
    bit<32> last;
    bit<32> most;
}

struct variation_t {
    bit<32> last;
    bit<32> change;   /* this packet's delay less the one before's, two's complement */
}

/* The delay that the switch adds, from its arrival at the ingress port to egress, and how it varies
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
control TellSample(inout headers_t hdr, in metadata_t md) {
    apply {
    }
}

control Delay(in headers_t hdr, EGRESS_SWITCH) {
    apply {
    }
}
#endif
