/* What conferences call differently on Tofino: replication, mirroring, the walk over header extensions, registers. */
/* SPDX-License-Identifier: Apache-2.0 */

#if SEQUENCE
/* What is moved whole is not to be cut: the compiler tries every cut otherwise. */
@pa_container_size("ingress", "md.frame", 16)
@pa_container_size("ingress", "md.frame_0", 16)
@pa_container_size("ingress", "md.frame_1", 16)
@pa_container_size("ingress", "md.frame_2", 16)
@pa_container_size("ingress", "md.frame_3", 16)
@pa_container_size("ingress", "md.frame_4", 16)
@pa_container_size("ingress", "md.frame_5", 16)
#endif
#if S_LM
@pa_container_size("ingress", "hdr.bridged.frame", 16)
#endif
#if S_LR
@pa_container_size("ingress", "md.rtp_seq", 16)
@pa_container_size("ingress", "md.track.high", 16)
@pa_container_size("ingress", "md.track.high_less_one", 16)
@pa_container_size("ingress", "md.track.word", 8, 8, 16)
@pa_container_size("ingress", "md.track.comparand", 16)
@pa_container_size("ingress", "md.track.lower.gap", 16)
@pa_container_size("ingress", "md.track.lower.suppressed", 16)
@pa_container_size("ingress", "md.track.lower.kept", 16)
@pa_container_size("ingress", "md.track.lower.gone", 16)
@pa_container_size("ingress", "md.track.lower.offset", 16)
@pa_container_size("ingress", "md.track.lower.position", 16)
@pa_container_size("ingress", "md.track.lower.lowest", 16)
@pa_container_size("ingress", "md.track.upper.gap", 16)
@pa_container_size("ingress", "md.track.upper.suppressed", 16)
@pa_container_size("ingress", "md.track.upper.kept", 16)
@pa_container_size("ingress", "md.track.upper.gone", 16)
@pa_container_size("ingress", "md.track.upper.offset", 16)
@pa_container_size("ingress", "md.track.upper.position", 16)
@pa_container_size("ingress", "md.track.upper.lowest", 16)
@pa_container_size("ingress", "hdr.bridged.position_0", 16)
@pa_container_size("ingress", "hdr.bridged.position_1", 16)
@pa_container_size("egress", "md.copy.position", 16)
@pa_container_size("egress", "md.copy.position_next", 16)
@pa_container_size("egress", "md.copy.base", 16)
@pa_container_size("egress", "md.copy.shift", 16)
#endif

/* The checksum units of egress: a copy's own sequence number may be another. */
#if SEQUENCE
#define SUBTRACT_COPY_UDP_HEADER \
        udp_checksum.subtract({hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum, hdr.rtp.seq}); \
        md.copy.udp_residual = udp_checksum.get();
#define COPY_NUMBER hdr.rtp.seq,
#else
#define SUBTRACT_COPY_UDP_HEADER SUBTRACT_UDP_HEADER(md.copy)
#define COPY_NUMBER
#endif

#define SEND_TO_TREE(number) ig_tm_md.mcast_grp_a = number
/* The replication engine, which prunes by itself. */
#define EXCLUDE(l1, id, l2) ig_tm_md.level1_exclusion_id = l1; ig_tm_md.rid = id; ig_tm_md.level2_exclusion_id = l2
#define MIN(a, b) min(a, b)
#define EGRESS_RID eg_intr_md.egress_rid
/* A copy of the packet as it came; what precedes it says that egress has nothing to do with it. */
#define MIRROR_TO_THE_AGENT ig_dprsr_md.mirror_type = MIRROR_TO_AGENT; md.agent_session = AGENT_SESSION
#define AGENT_METADATA MirrorId_t agent_session; bridged_h agent_copy;
/* Bytes behind the Ethernet header, as COUNT. What ingress told egress counts too here: the bytes of bridged_h. */
#if S_LR && DELAY
#define ADDED_TO_COPY 39
#elif S_LR
#define ADDED_TO_COPY 33
#elif SEQUENCE && DELAY
#define ADDED_TO_COPY 37
#elif SEQUENCE
#define ADDED_TO_COPY 31
#elif DELAY
#define ADDED_TO_COPY 34
#else
#define ADDED_TO_COPY 28
#endif
#define COUNT_COPY(name) name.count(adjust_byte_count = ADDED_TO_COPY);

/* RTP without an extension stays with the payload; egress parses a copy for itself. */
#define RTP_ALONE accept
#define RTP_ALONE_STATE

/* The walk over RTP header extensions: bytes of elements left. */
#if __TARGET_TOFINO__ == 2
#define COUNTER_MASK 8w0x7f
#else
#define COUNTER_MASK 3w6
#endif
#define START_WALK left.set(hdr.extension.words, 8w31, 8w6, COUNTER_MASK, 8w0);
#define TAKEN(bytes) left.decrement(bytes);
#define LEFT left.is_zero(), left.is_negative()
#define LEFT_NOTHING true, _
#define LEFT_LESS _, true
#define LEFT_ANY _, _

#if S_LR
/* Words of state, and what a packet does to them: the action `act` leaves in `before` what was there. */
#define WORDS(width, index_width, name, size) Register<bit<width>, bit<index_width>>(size) name;
#define PASSES(width, index_width, name, act, row, before, does) \
    RegisterAction<bit<width>, bit<index_width>, bit<width>>(name) act##_pass = { \
        void apply(inout bit<width> value, out bit<width> was) { \
            was = value; \
            does \
        } \
    }; \
    action act() { \
        before = act##_pass.execute(row); \
    }
/* The same, where what is left is what is there from now on. */
#define GROWS(width, index_width, name, act, row, after, by) \
    RegisterAction<bit<width>, bit<index_width>, bit<width>>(name) act##_pass = { \
        void apply(inout bit<width> value, out bit<width> now) { \
            value = value + by; \
            now = value; \
        } \
    }; \
    action act() { \
        after = act##_pass.execute(row); \
    }
/* The number of a packet is taken when there is none, or it is ahead of what is there, modulo 2^16. What one less is ahead goes through the other
 * half of the word, which nothing reads. */
struct serial_t {
    int<32> number;
    int<32> between;
}
#define SERIAL_WORDS(name, size) Register<serial_t, bit<16>>(size) name;
#define ADVANCES(name, act, row, new, less_one, gap) \
    RegisterAction<serial_t, bit<16>, int<32>>(name) act##_pass = { \
        void apply(inout serial_t value, out int<32> between) { \
            value.between = (int<32>)less_one - value.number; \
            between = value.between; \
            if (value.number == 0 || (int<32>)new - value.number > 0) { \
                value.number = (int<32>)new; \
            } \
        } \
    }; \
    action act() { \
        gap = (bit<32>)act##_pass.execute(row); \
    }
/* What a word is less than something else; through the other half, as above. */
struct compared_t {
    bit<32> word;
    bit<32> difference;
}
#define COMPARED_WORDS(name, size) Register<compared_t, bit<16>>(size) name;
#define COMPARES(name, act, row, with, less, does) \
    RegisterAction<compared_t, bit<16>, bit<32>>(name) act##_pass = { \
        void apply(inout compared_t value, out bit<32> difference) { \
            value.difference = with - value.word; \
            difference = value.difference; \
            does \
        } \
    }; \
    action act() { \
        less = act##_pass.execute(row); \
    }
/* The lowest number and the first frame that are not too late. Of a receiver sequence state the second is 1 where there is a floor. */
struct floor_t {
    int<16> number;
    int<16> first;
}
#define FLOORS(name, size) Register<floor_t, bit<16>>(size) name;
#define RAISES(name, act, row, lowest, its_frame) \
    RegisterAction<floor_t, bit<16>, bit<8>>(name) act##_pass = { \
        void apply(inout floor_t value) { \
            value.number = (int<16>)lowest; \
            value.first = (int<16>)its_frame; \
        } \
    }; \
    action act() { \
        act##_pass.execute(row); \
    }
#define HOLDS(name, act, row, its_number, its_frame, late) \
    RegisterAction<floor_t, bit<16>, bit<8>>(name) act##_pass = { \
        void apply(inout floor_t value, out bit<8> below) { \
            if ((int<16>)its_number - value.number < 0 || (int<16>)its_frame - value.first < 0) { \
                below = 1; \
            } else { \
                below = 0; \
            } \
        } \
    }; \
    action act() { \
        late = act##_pass.execute(row); \
    }
/* The same, of a number alone, where there is a floor. */
#define HOLDS_NUMBER(name, act, row, its_number, late) \
    RegisterAction<floor_t, bit<16>, bit<8>>(name) act##_pass = { \
        void apply(inout floor_t value, out bit<8> below) { \
            if ((int<16>)its_number - value.number < 0 && value.first != 0) { \
                below = 1; \
            } else { \
                below = 0; \
            } \
        } \
    }; \
    action act() { \
        late = act##_pass.execute(row); \
    }
/* Slots of the last numbers: whether a number was there already. */
#define SLOT(row, number) row[15:0] ++ number[3:0]
#define GIVES(name, act, slot, mark) \
    RegisterAction<bit<16>, bit<20>, bit<8>>(name) act##_pass = { \
        void apply(inout bit<16> value) { \
            value = mark; \
        } \
    }; \
    action act() { \
        act##_pass.execute(slot); \
    }
#define TAKES(name, act, slot, mark, repeated) \
    RegisterAction<bit<16>, bit<20>, bit<8>>(name) act##_pass = { \
        void apply(inout bit<16> value, out bit<8> same) { \
            if (value == mark) { \
                same = 1; \
            } else { \
                same = 0; \
            } \
            value = mark; \
        } \
    }; \
    action act() { \
        repeated = act##_pass.execute(slot); \
    }
#endif
