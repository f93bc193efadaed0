/* What conferences call differently on v1model (BMv2): replication, mirroring, the walk over header extensions, registers. */
/* SPDX-License-Identifier: Apache-2.0 */

#define SEND_TO_TREE(number) std.mcast_grp = number; md.group = std.mcast_grp
/* BMv2's replication engine does not prune; the twin does it in egress (conference_v1model.p4). */
#define EXCLUDE(l1, id, l2) md.l1_xid = l1; md.rid = id; md.l2_xid = l2
#define MIN(a, b) (a < b ? a : b)
#define EGRESS_RID std.egress_rid
/* A clone is parsed anew, so what precedes it says by itself that egress has nothing to do with it. */
#define MIRROR_TO_THE_AGENT clone(CloneType.I2E, AGENT_SESSION)
#define AGENT_METADATA bit<16> group; bit<16> l1_xid; bit<16> rid; bit<9> l2_xid; bit<16> left; bit<16> number; copy_t copy;
#define COUNT_COPY(name)

#if SEQUENCE
/* Egress does not parse, and gives copies numbers of their own. */
#define RTP_ALONE rtp_alone
#define RTP_ALONE_STATE \
    state rtp_alone { \
        md.extended = 1; \
        pkt.extract(hdr.rtp); \
        transition accept; \
    }
#else
#define RTP_ALONE accept
#define RTP_ALONE_STATE
#endif

#define START_WALK md.left = (bit<16>)hdr.extension.words << 2;
#define TAKEN(bytes) md.left = md.left - bytes;
#define LEFT md.left
#define LEFT_NOTHING 0
#define LEFT_LESS 0x8000 &&& 0x8000
#define LEFT_ANY _
#define EMIT_ELEMENT(n) \
        pkt.emit(hdr.padding_##n); \
        pkt.emit(hdr.element_##n); \
        pkt.emit(hdr.sixteen_##n); \
        pkt.emit(hdr.eight_##n); \
        pkt.emit(hdr.four_##n); \
        pkt.emit(hdr.two_##n); \
        pkt.emit(hdr.one_##n);

#if S_LR
/* As on Tofino, where registers are worked on by their own units. */
#define WORDS(width, index_width, name, size) register<bit<width>>(size) name;
#define PASSES(width, index_width, name, act, row, before, does) \
    action act() { \
        bit<width> value; \
        name.read(value, (bit<32>)row); \
        before = value; \
        does \
        name.write((bit<32>)row, value); \
    }
#define GROWS(width, index_width, name, act, row, after, by) \
    action act() { \
        name.read(after, (bit<32>)row); \
        after = after + by; \
        name.write((bit<32>)row, after); \
    }
#define SERIAL_WORDS(name, size) register<bit<32>>(size) name;
#define ADVANCES(name, act, row, new, less_one, gap) \
    action act() { \
        bit<32> value; \
        name.read(value, (bit<32>)row); \
        bit<32> ahead = new - value; \
        gap = less_one - value; \
        if (value == 0 || (ahead != 0 && ahead[31:31] == 0)) { \
            value = new; \
        } \
        name.write((bit<32>)row, value); \
    }
struct compared_t {
    bit<32> word;
}
#define COMPARED_WORDS(name, size) register<bit<32>>(size) name;
#define COMPARES(name, act, row, with, less, does) \
    action act() { \
        compared_t value; \
        name.read(value.word, (bit<32>)row); \
        less = with - value.word; \
        does \
        name.write((bit<32>)row, value.word); \
    }
#define FLOORS(name, size) register<bit<32>>(size) name;
#define RAISES(name, act, row, lowest, first) \
    action act() { \
        name.write((bit<32>)row, lowest ++ (bit<16>)first); \
    }
#define HOLDS(name, act, row, its_number, its_frame, late) \
    action act() { \
        bit<32> value; \
        name.read(value, (bit<32>)row); \
        bit<16> above = its_number - value[31:16]; \
        bit<16> behind = its_frame - value[15:0]; \
        late = (bit<8>)(above[15:15] | behind[15:15]); \
    }
#define HOLDS_NUMBER(name, act, row, its_number, late) \
    action act() { \
        bit<32> value; \
        name.read(value, (bit<32>)row); \
        bit<16> above = its_number - value[31:16]; \
        late = (bit<8>)above[15:15]; \
        if (value[15:0] == 0) { \
            late = 0; \
        } \
    }
#define SLOT(row, number) (row[15:0] ++ number[3:0])
#define GIVES(name, act, slot, mark) \
    action act() { \
        name.write((bit<32>)slot, mark); \
    }
#define TAKES(name, act, slot, mark, repeated) \
    action act() { \
        bit<16> value; \
        name.read(value, (bit<32>)slot); \
        repeated = 0; \
        if (value == mark) { \
            repeated = 1; \
        } \
        name.write((bit<32>)slot, mark); \
    }
#endif
