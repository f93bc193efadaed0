/* Sequence numbers of a receiver that does not get every layer: S-LM, in registers, on every copy. */
/* SPDX-License-Identifier: Apache-2.0 */

/* docs/conference.md describes the words HIGH, FRAME, OFFSET and OPEN, each read and written once for a packet, and in this order.
 * The row of a receiver is its `sequence_state`, modulo 65536. An entry of zeros is a receiver that has got nothing yet. */

const bit<8> FRAME_STARTS = 0x80;   /* in the marks of a packet: the first byte of the dependency descriptor */
const bit<8> FRAME_ENDS = 0x40;

#ifdef __TARGET_TOFINO__
/* The words, and what a packet does to each. Comparisons of differences are modulo their width. */
control Words(inout copy_t copy_md) {
    @name(".Egress.high")
    Register<int<32>, bit<16>>(SEQUENCE_STATE_SIZE) high;
    @name(".Egress.frame")
    Register<bit<32>, bit<16>>(SEQUENCE_STATE_SIZE) frame;
    @name(".Egress.offset")
    Register<bit<16>, bit<16>>(SEQUENCE_STATE_SIZE) offset;
    @name(".Egress.open")
    Register<bit<8>, bit<16>>(SEQUENCE_STATE_SIZE) open;

    RegisterAction<int<32>, bit<16>, int<32>>(high) advance = {
        void apply(inout int<32> value, out int<32> before) {
            before = value;
            if (value == 0 || (int<32>)copy_md.high - value > 0) {
                value = (int<32>)copy_md.high;
            }
        }
    };
    action pass_high() {
        copy_md.high_before = (bit<32>)advance.execute(copy_md.sequence_state[15:0]);
    }

    RegisterAction<bit<32>, bit<16>, bit<32>>(frame) turn = {
        void apply(inout bit<32> value, out bit<32> before) {
            before = value;
            value = copy_md.frame;
        }
    };
    action pass_frame() {
        copy_md.frame_before = turn.execute(copy_md.sequence_state[15:0]);
    }

    RegisterAction<bit<16>, bit<16>, bit<16>>(offset) grow = {
        void apply(inout bit<16> value, out bit<16> now) {
            value = value + copy_md.gone;
            now = value;
        }
    };
    action pass_offset() {
        copy_md.offset = grow.execute(copy_md.sequence_state[15:0]);
    }

    RegisterAction<bit<8>, bit<16>, bit<8>>(open) take = {
        void apply(inout bit<8> value, out bit<8> before) {
            before = value;
            value = copy_md.opens;
        }
    };
    action pass_open() {
        copy_md.opened = take.execute(copy_md.sequence_state[15:0]);
    }
#else
#define ROW (bit<32>)copy_md.sequence_state[15:0]

/* As on Tofino, where registers are worked on by their own units. */
control Words(inout copy_t copy_md) {
    @name(".Egress.high")
    register<bit<32>>(SEQUENCE_STATE_SIZE) high;
    @name(".Egress.frame")
    register<bit<32>>(SEQUENCE_STATE_SIZE) frame;
    @name(".Egress.offset")
    register<bit<16>>(SEQUENCE_STATE_SIZE) offset;
    @name(".Egress.open")
    register<bit<8>>(SEQUENCE_STATE_SIZE) open;

    action pass_high() {
        high.read(copy_md.high_before, ROW);
        bit<32> ahead = copy_md.high - copy_md.high_before;
        bit<32> high_now = copy_md.high_before;
        if (copy_md.high_before == 0 || (ahead != 0 && ahead[31:31] == 0)) {
            high_now = copy_md.high;
        }
        high.write(ROW, high_now);
    }

    action pass_frame() {
        frame.read(copy_md.frame_before, ROW);
        frame.write(ROW, copy_md.frame);
    }

    action pass_offset() {
        offset.read(copy_md.offset, ROW);
        copy_md.offset = copy_md.offset + copy_md.gone;
        offset.write(ROW, copy_md.offset);
    }

    action pass_open() {
        open.read(copy_md.opened, ROW);
        open.write(ROW, copy_md.opens);
    }
#endif
    action count_ahead() {
        copy_md.ahead = copy_md.high[31:16] - copy_md.high_before[31:16];
    }

    action count_frames() {
        copy_md.frames = copy_md.frame[31:16] - copy_md.frame_before[31:16];
        copy_md.gap = copy_md.ahead - 1;
    }

    /* Where the packet stands to the highest before it. `opens`: the number right before it has not been given out. */
    @name(".Egress.in_order")
    action in_order(bit<8> opens) {
        copy_md.order = IN_ORDER;
        copy_md.opens = opens;
    }

    @name(".Egress.one_before")
    action one_before() {
        copy_md.order = ONE_BEFORE;
    }

    @name(".Egress.late")
    action late() {
        copy_md.order = LATE;
    }

    @name(".Egress.order")
    table order {
        key = {
            copy_md.high_before[0:0]: ternary @name("running");
            copy_md.ahead: ternary @name("ahead");
        }
        actions = {
            in_order;
            one_before;
            late;
        }
        const default_action = in_order(1);
        const entries = {
            (0, _): in_order(0);
            (1, 1): in_order(0);
            (1, 0xffff): one_before();
            (1, 0): late();
            (1, 0x8000 &&& 0x8000): late();
        }
        size = 8;
    }

    /* A gap in which by the frame cadence there were nothing but suppressed frames: all its numbers go. `cadence` has bit n set where
     * frames with a number of n modulo 4 are suppressed; this packet's frame is none of them, so there are three between at most. */
    @name(".Egress.close")
    action close() {
        copy_md.gone = copy_md.gap;
        copy_md.opens = 0;
    }

#define CLOSES(phase, two, three, four) \
            (1, FRAME_ENDS &&& FRAME_ENDS, FRAME_STARTS &&& FRAME_STARTS, 2, phase, two): close(); \
            (1, FRAME_ENDS &&& FRAME_ENDS, FRAME_STARTS &&& FRAME_STARTS, 3, phase, three): close(); \
            (1, FRAME_ENDS &&& FRAME_ENDS, FRAME_STARTS &&& FRAME_STARTS, 4, phase, four): close();

    @name(".Egress.closing")
    table closing {
        key = {
            copy_md.high_before[0:0]: ternary @name("running");
            copy_md.frame_before[7:0]: ternary @name("marks_before");
            copy_md.frame[7:0]: ternary @name("marks");
            copy_md.frames: ternary @name("frames");
            copy_md.frame[17:16]: ternary @name("phase");
            copy_md.cadence: ternary @name("cadence");
        }
        actions = {
            close;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            CLOSES(0, 0x8 &&& 0x9, 0xc &&& 0xd, 0xe)
            CLOSES(1, 0x1 &&& 0x3, 0x9 &&& 0xb, 0xd)
            CLOSES(2, 0x2 &&& 0x6, 0x3 &&& 0x7, 0xb)
            CLOSES(3, 0x4 &&& 0xc, 0x6 &&& 0xe, 0x7)
        }
        size = 16;
    }

    apply {
        pass_high();
        count_ahead();
        order.apply();
        if (copy_md.order == IN_ORDER) {
            pass_frame();
            count_frames();
            closing.apply();
        }
        if (copy_md.order != LATE) {
            pass_offset();
            pass_open();
        }
    }
}

/* Only copies whose receiver has a `sequence_state` get a number of their own; the others keep the sender's. */
control Numbers(inout headers_t hdr, inout copy_t copy_md, EGRESS_SWITCH) {
    Words() words;

    /* What the words are held against. A packet in HIGH has the lowest bit set, so that none of them is zero. */
    action prepare() {
        copy_md.high[31:16] = hdr.rtp.seq;
        copy_md.frame[31:16] = hdr.bridged.frame;
        copy_md.frame[7:0] = hdr.bridged.marks;
    }

    action compare_layer() {
        copy_md.beyond = hdr.bridged.layer |-| copy_md.target;
    }

    action renumber() {
        hdr.rtp.seq = hdr.rtp.seq - copy_md.offset;
    }

    action drop_above_target() {
        hdr.bridged.drop = ABOVE_TARGET;
    }

    action drop_late() {
        hdr.bridged.drop = LATE_COPY;
    }

    apply {
        prepare();
        compare_layer();
        if (copy_md.sequence_state != 0) {
            if (copy_md.beyond != 0) {
                drop_above_target();
            } else {
                words.apply(copy_md);
                if (copy_md.order == LATE || (copy_md.order == ONE_BEFORE && copy_md.opened == 0)) {
                    drop_late();
                } else {
                    renumber();
                }
            }
        }
    }
}
