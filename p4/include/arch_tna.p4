/* What the shared parts call differently on Tofino: ports, drops, counters, checksums, time-outs. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_ARCH_P4
#define SHUNT_ARCH_P4

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

/* A container of the chip is written once a stage, so what different tables set lies in containers of its own; else these
 * tables could not share a stage. */
@pa_solitary("ingress", "md.routable")
@pa_solitary("ingress", "md.switched")
@pa_solitary("ingress", "md.media")
@pa_solitary("ingress", "md.notice")
@pa_solitary("ingress", "md.sampled")
@pa_solitary("ingress", "md.sample")
@pa_solitary("ingress", "md.relayed")
@pa_solitary("ingress", "md.set_dscp")
@pa_solitary("ingress", "md.dscp")
@pa_solitary("ingress", "md.to_v6")
@pa_solitary("ingress", "md.to_v4")
@pa_solitary("ingress", "ig_intr_md_for_dprsr.drop_ctl")
/* In a container of 32 bits the parser could not set them in one state, and bf-p4c would split a checksum over two. */
@pa_container_size("ingress", "hdr.ipv4.$valid", 16)
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

/* What ingress controls are handed beside headers and metadata, and how they hand it on. */
#define INGRESS_SWITCH in ingress_intrinsic_metadata_t ig_intr_md, in ingress_intrinsic_metadata_from_parser_t ig_prsr_md, \
    inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md, inout ingress_intrinsic_metadata_for_tm_t ig_tm_md
#define INGRESS_SWITCH_PASSED ig_intr_md, ig_prsr_md, ig_dprsr_md, ig_tm_md
#define EGRESS_SWITCH in egress_intrinsic_metadata_t eg_intr_md, in egress_intrinsic_metadata_from_parser_t eg_prsr_md, \
    inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md
#define EGRESS_SWITCH_PASSED eg_intr_md, eg_prsr_md, eg_dprsr_md

#define INGRESS_PORT ig_intr_md.ingress_port
#define ARRIVAL_NS ig_intr_md.ingress_mac_tstamp[31:0]
#if CONFERENCE
/* The walk over header extensions may meet the end of a packet whose headers are whole. */
#define PARSED_WHOLE (ig_prsr_md.parser_err == 0 || md.extended == 1)
#else
#define PARSED_WHOLE (ig_prsr_md.parser_err == 0)
#endif
#define SEND_TO(port) ig_tm_md.ucast_egress_port = port
#define SEND_TO_GROUP(group) ig_tm_md.mcast_grp_a = group
#define SEND_TO_TREE(number) ig_tm_md.mcast_grp_a = number
#define DISCARD ig_dprsr_md.drop_ctl = 1
#define RAISE_NOTICE ig_dprsr_md.digest_type = md.notice;

#define EGRESS_PORT eg_intr_md.egress_port
#define DEPARTURE_NS eg_prsr_md.global_tstamp[31:0]
#define DISCARD_AT_EGRESS eg_dprsr_md.drop_ctl = 1

/* The adjustment takes the Ethernet header and the frame check sequence off, so that bytes are those of the
 * network layer, as in the softswitch; of a tagged frame the tag remains in. */
#define DIRECT_COUNTER(name) DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) name;
#define COUNT(name) name.count(adjust_byte_count = 18);
#define IDLE_TIMEOUT idle_timeout = true;

/* The checksum units of the parser: the sums of what may change are taken off the checksums. */
#define SUBTRACT_IPV4_HEADER(into) \
        ipv4_checksum.subtract({hdr.ipv4}); \
        into.ipv4_residual = ipv4_checksum.get(); \
        udp_checksum.subtract({hdr.ipv4.src_addr, hdr.ipv4.dst_addr});
#define SUBTRACT_IPV6_ADDRESSES \
        udp_checksum.subtract({hdr.ipv6.src_addr, hdr.ipv6.dst_addr});
#define SUBTRACT_UDP_HEADER(into) \
        udp_checksum.subtract({hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum}); \
        into.udp_residual = udp_checksum.get();
#define SUBTRACT_UDP_HEADER_AND_NUMBER(into) \
        udp_checksum.subtract({hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum, hdr.rtp.seq}); \
        into.udp_residual = udp_checksum.get();

/* The checksum units of the deparser: what it has become is added. Fields of headers that are not there count nothing, so one
 * list does for both versions of IP. `number`: nothing, or the sequence number and a comma. */
#define GIVE_CHECKSUMS(from, number) \
        hdr.ipv4.checksum = ipv4_checksum.update({hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, \
                                                  hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.frag_offset, \
                                                  hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src_addr, hdr.ipv4.dst_addr, \
                                                  from.ipv4_residual}); \
        if (from.checksummed == 1) { \
            hdr.udp.checksum = udp_checksum.update({hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.ipv6.src_addr, hdr.ipv6.dst_addr, \
                                                    hdr.udp.src_port, hdr.udp.dst_port, number from.udp_residual}, true); \
        }

#if CONFERENCE
/* The replication engine, which prunes by itself. */
#define EXCLUDE(l1, id, l2) ig_tm_md.level1_exclusion_id = l1; ig_tm_md.rid = id; ig_tm_md.level2_exclusion_id = l2
#define MIN(a, b) min(a, b)
#define EGRESS_RID eg_intr_md.egress_rid
/* A copy of the packet as it came; what precedes it says that egress has nothing to do with it. */
#define MIRROR_TO_THE_AGENT ig_dprsr_md.mirror_type = MIRROR_TO_AGENT; md.agent_session = AGENT_SESSION
#define AGENT_METADATA MirrorId_t agent_session; bridged_h agent_copy;
/* Bytes behind the Ethernet header, as COUNT. What ingress told egress counts too here: the bytes of bridged_h. */
#if S_LR && DELAY
#define ADDED_TO_COPY 37
#elif S_LR
#define ADDED_TO_COPY 31
#elif SEQUENCE && DELAY
#define ADDED_TO_COPY 35
#elif SEQUENCE
#define ADDED_TO_COPY 29
#elif DELAY
#define ADDED_TO_COPY 32
#else
#define ADDED_TO_COPY 26
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
#endif

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
/* The lowest number and the first frame that are not too late. Of receivers (Splice) the second is 1 where there is a floor. */
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

/* The hash stored in place of the 5-tuple. The agent computes it too (agent/shunt/bfrt), from the compiler's context.json. */
#ifndef HASH_BITS
#error "config.p4 comes first"
#endif
#if HASH_BITS == 48
#define STORED_HASH(name) \
    CRCPolynomial<bit<64>>(64w0x42f0e1eba9ea3693, false, false, false, 64w0, 64w0) name##_polynomial; \
    Hash<bit<48>>(HashAlgorithm_t.CUSTOM, name##_polynomial) name;
#define STORED_AS(name) proxy_hash = name;
#elif HASH_BITS == 32
#define STORED_HASH(name) Hash<bit<32>>(HashAlgorithm_t.CRC32) name;
#define STORED_AS(name) proxy_hash = name;
#else
#define STORED_HASH(name)
#define STORED_AS(name)
#endif

#endif
