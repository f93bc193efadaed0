/* Sequence numbers of decode targets: S-LR, in registers of ingress, on every packet of a stream. */
/* SPDX-License-Identifier: Apache-2.0 */

/* docs/conference.md describes the words HIGH, FRAME, CADENCE, OFFSET, FLOOR and USED, each read and written once for a packet,
 * and in this order. HIGH and FRAME are a stream's, the others its decode targets 0 and 1; target 2 is everything, and has numbers
 * of its own for nothing but copies that the network made. The row of a stream is its `track`. A row of zeros is a stream of which
 * nothing has come. USED has a slot for each number modulo 16, with the last such
 * number: in a row of zeros that is 0. HIGH is there twice, to give each target a gap of its own: an operation of the chip reads containers of one
 * group only, and what is computed from one number has to lie in one group. */

const bit<8> FRAME_STARTS = 0x80;   /* in the marks of a packet: the first byte of the dependency descriptor */
const bit<8> FRAME_ENDS = 0x40;

/* What a frame cadence leaves out: the frame at a phase of it, those of a whole turn, those between a frame at a phase and one that is so many (modulo
 * 4) frames earlier. */
#define LEFT_OUT(cadence, phase) ((cadence >> ((phase) % 4)) % 2)
#define IN_A_TURN(cadence) (LEFT_OUT(cadence, 0) + LEFT_OUT(cadence, 1) + LEFT_OUT(cadence, 2) + LEFT_OUT(cadence, 3))
#define IN_THE_REST_1(cadence, phase) 0
#define IN_THE_REST_2(cadence, phase) LEFT_OUT(cadence, phase + 3)
#define IN_THE_REST_3(cadence, phase) (LEFT_OUT(cadence, phase + 3) + LEFT_OUT(cadence, phase + 2))
#define IN_THE_REST_0(cadence, phase) (LEFT_OUT(cadence, phase + 3) + LEFT_OUT(cadence, phase + 2) + LEFT_OUT(cadence, phase + 1))

/* Rows of `turns`. `phase` is the packet's. One that does not fit may be the first of another frame cadence: then nothing is certain. */
#define FITS(keep, cadence, phase) ((LEFT_OUT(cadence, phase) + keep) % 2)
#define TURN(keep, cadence, phase, frames) \
            (keep, cadence, phase, frames): left_out(FITS(keep, cadence, phase) * IN_A_TURN(cadence), \
                                                     FITS(keep, cadence, phase) * IN_THE_REST_##frames(cadence, phase));
#define TURNS_AT(keep, cadence, phase) \
            TURN(keep, cadence, phase, 0) TURN(keep, cadence, phase, 1) TURN(keep, cadence, phase, 2) TURN(keep, cadence, phase, 3)
#define TURNS_OF(keep, cadence) TURNS_AT(keep, cadence, 0) TURNS_AT(keep, cadence, 1) TURNS_AT(keep, cadence, 2) TURNS_AT(keep, cadence, 3)
#define TURNS(cadence) TURNS_OF(0, cadence) TURNS_OF(1, cadence)

/* Rows of `wholes`: the difference of frames, and what `turns` has found. */
#define OF_WHOLES(frames, turn, rest) (turn * ((frames - 1) / 4) + rest)
#define BETWEEN_REST(frames, turn, rest) \
            (frames, turn, rest): between(OF_WHOLES(frames, turn, rest), (frames - 1 - OF_WHOLES(frames, turn, rest) + 65536) % 65536);
#define BETWEEN_TURN(frames, turn) BETWEEN_REST(frames, turn, 0) BETWEEN_REST(frames, turn, 1) BETWEEN_REST(frames, turn, 2) BETWEEN_REST(frames, turn, 3)
#define BETWEEN(frames) BETWEEN_TURN(frames, 0) BETWEEN_TURN(frames, 1) BETWEEN_TURN(frames, 2) BETWEEN_TURN(frames, 3) BETWEEN_TURN(frames, 4)

/* The words of one decode target, and the tables between them. `whose`: the layers of it, complemented, as `since` has them. */
control Target(in track_t track, inout target_t target)(bit<8> whose) {
    WORDS(8, 16, cadence, TRACK_SIZE)
    WORDS(16, 16, offset, TRACK_SIZE)
    FLOORS(floor, TRACK_SIZE)
    WORDS(16, 20, used, TRACK_SIZE * 16)

    /* CADENCE: the frame's phase is left out, or is not; far from the frame before, or with a template structure, all is forgotten. */
    PASSES(8, 16, cadence, note_kept, track.row[15:0], target.mask, value = value & track.others;)
    PASSES(8, 16, cadence, note_left_out, track.row[15:0], target.mask, value = value | track.phase;)
    PASSES(8, 16, cadence, begin_left_out, track.row[15:0], target.mask, value = track.phase;)
    PASSES(8, 16, cadence, forget, track.row[15:0], target.mask, value = 0;)

    table cadences {
        key = {
            target.keep: ternary @name("keep");
            track.flags: ternary @name("flags");
            track.since[31:16]: ternary @name("frames");
        }
        actions = {
            note_kept;
            note_left_out;
            begin_left_out;
            forget;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (1, 0x80 &&& 0x80, _): forget();
            (1, _, 0x00 &&& 0xfff0): note_kept();
            (1, _, 0x10 &&& 0xfffe): note_kept();
            (1, _, _): forget();
            (0, _, 0x00 &&& 0xfff0): note_left_out();
            (0, _, 0x10 &&& 0xfffe): note_left_out();
            (0, _, _): begin_left_out();
        }
        size = 8;
    }

    /* What of the gap lies at its ends: the rest of the old frame, and the beginning of the new one. */
    action ends(bit<16> suppressed, bit<16> kept, bit<1> tail) {
        target.suppressed = suppressed;
        target.kept = kept;
        target.tail = tail;
    }

    table parts {
        key = {
            track.since[31:16]: ternary @name("frames");
            track.since[7:0]: ternary @name("marks_before");
            track.since[15:8]: ternary @name("layer_before");
            track.word[7:0]: ternary @name("marks");
            target.keep: ternary @name("keep");
        }
        actions = {
            ends;
        }
        const default_action = ends(0, 0, 0);
        const entries = {
            (0, _, whose &&& whose, _, _): ends(0, 1, 1);
            (0, _, _, _, 1): ends(0, 1, 1);
            (0, _, _, _, 0): ends(1, 0, 0);
            (_, 0 &&& FRAME_ENDS, _, FRAME_STARTS &&& FRAME_STARTS, _): ends(0, 0, 0);
            (_, 0 &&& FRAME_ENDS, _, _, 0): ends(1, 0, 0);
            (_, 0 &&& FRAME_ENDS, _, _, 1): ends(0, 1, 0);
            (_, _, whose &&& whose, FRAME_STARTS &&& FRAME_STARTS, _): ends(0, 1, 1);
            (_, _, whose &&& whose, _, 0): ends(1, 1, 1);
            (_, _, whose &&& whose, _, 1): ends(0, 2, 1);
            (_, _, _, FRAME_STARTS &&& FRAME_STARTS, _): ends(1, 0, 0);
            (_, _, _, _, 0): ends(2, 0, 0);
            (_, _, _, _, 1): ends(1, 1, 0);
        }
        size = 16;
    }

    /* Whole frames between them: those that the frame cadence leaves out. */
    action left_out(bit<8> turn, bit<8> rest) {
        target.turn = turn;
        target.rest = rest;
    }

    table turns {
        key = {
            target.keep: exact @name("keep");
            target.mask[3:0]: exact @name("mask");
            track.word[17:16]: exact @name("phase");
            track.since[17:16]: exact @name("frames");
        }
        actions = {
            left_out;
        }
        const default_action = left_out(0, 0);
        const entries = {
            TURNS(0)  TURNS(1)  TURNS(2)  TURNS(3)  TURNS(4)  TURNS(5)  TURNS(6)  TURNS(7)
            TURNS(8)  TURNS(9)  TURNS(10) TURNS(11) TURNS(12) TURNS(13) TURNS(14) TURNS(15)
        }
        size = 512;
    }

    action between(bit<16> suppressed, bit<16> kept) {
        target.suppressed = target.suppressed + suppressed;
        target.kept = target.kept + kept;
    }

    table wholes {
        key = {
            track.since[31:16]: exact @name("frames");
            target.turn[2:0]: exact @name("turn");
            target.rest[1:0]: exact @name("rest");
        }
        actions = {
            between;
        }
        /* So far that nothing is certain. */
        const default_action = between(0, 1);
        const entries = {
            BETWEEN(2)  BETWEEN(3)  BETWEEN(4)  BETWEEN(5)  BETWEEN(6)  BETWEEN(7)  BETWEEN(8)  BETWEEN(9)
            BETWEEN(10) BETWEEN(11) BETWEEN(12) BETWEEN(13) BETWEEN(14) BETWEEN(15) BETWEEN(16) BETWEEN(17)
        }
        size = 512;
    }

    action close() {
        target.gone = target.gap[31:16];
    }

    action leave_room() {
        target.gone = target.gap[31:16] |-| target.kept;
    }

    action close_certain() {
        target.gone = MIN(target.suppressed, target.gone);
    }

    action leave_open() {
        target.gap[31:16] = target.gap[31:16] - target.gone;
    }

    /* The packet itself goes too. */
    action leave_out() {
        target.gone = target.gone + 1;
        target.position = target.position + 1;
    }

    GROWS(16, 16, offset, pass_offset, track.row[15:0], target.offset, target.gone)

    action open_here() {
        target.lowest = target.position;
    }

    action open_before() {
        target.lowest = target.position - target.gap[31:16];
    }

    action subtract_offset() {
        target.position = target.position - target.offset;
        target.lowest = target.lowest - target.offset;
    }

    RAISES(floor, raise, track.row[15:0], target.lowest, track.word[31:16])
    HOLDS(floor, hold, track.row[15:0], target.lowest, track.word[31:16], target.dropped)
    GIVES(used, give, SLOT(track.row, target.position), target.position)
    TAKES(used, take, SLOT(track.row, target.position), target.position, target.dropped)

    apply {
        if (track.order == FIRST || track.order == IN_ORDER) {
            cadences.apply();
            parts.apply();
            turns.apply();
            if (track.since[31:17] != 0) {
                wholes.apply();
            }
            if (target.kept == 0 && target.suppressed != 0) {
                close();
            } else {
                leave_room();
                close_certain();
            }
            if (target.keep == 1) {
                leave_open();
            } else {
                leave_out();
            }
        }
        if (track.order != LATE) {
            pass_offset();
            if (target.keep == 1 && track.word[7:7] == 0 && target.tail == 0 && track.order == IN_ORDER) {
                open_before();
            } else {
                open_here();
            }
            subtract_offset();
            if (track.order == FIRST || (track.order == IN_ORDER && (target.gone != 0 || target.keep == 0))) {
                raise();
            } else if (track.order == NEAR && target.keep == 1) {
                hold();
            }
            if (target.keep == 1) {
                if (track.order != NEAR) {
                    give();
                } else if (target.dropped == 0 && track.misplaced == 0) {
                    take();
                }
            }
        }
    }
}

/* What is the stream's, before its decode targets. */
control Tracks(inout headers_t hdr, inout metadata_t md) {
    Target(0xff) lower;
    Target(0xfe) upper;

    SERIAL_WORDS(high, TRACK_SIZE)
    SERIAL_WORDS(high_of_upper, TRACK_SIZE)
    COMPARED_WORDS(frame, TRACK_SIZE)
    WORDS(16, 20, used, TRACK_SIZE * 16)

    ADVANCES(high, pass_high, md.track.row[15:0], md.track.high, md.track.high_less_one, md.track.lower.gap)
    ADVANCES(high_of_upper, pass_high_of_upper, md.track.row[15:0], md.track.high, md.track.high_less_one, md.track.upper.gap)
    COMPARES(frame, turn_frame, md.track.row[15:0], md.track.comparand, md.track.since, value.word = md.track.word;)
    COMPARES(frame, look_at_frame, md.track.row[15:0], md.track.comparand, md.track.since, )
    GIVES(used, give, SLOT(md.track.row, md.rtp_seq), md.rtp_seq)
    TAKES(used, take, SLOT(md.track.row, md.rtp_seq), md.rtp_seq, md.track.repeated)

    /* Which targets the packet is one of. */
    action belongs(bit<1> to_lower, bit<1> to_upper, bit<8> said) {
        md.track.belongs = said;
        md.track.lower.keep = to_lower;
        md.track.upper.keep = to_upper;
    }

    table targets {
        key = {
            md.track.word[15:8]: exact @name("layer");
        }
        actions = {
            belongs;
        }
        const default_action = belongs(0, 0, SAID_2);
        const entries = {
            0: belongs(1, 1, SAID_2 + SAID_1 + SAID_0);
            1: belongs(0, 1, SAID_2 + SAID_1);
        }
        size = 4;
    }

    /* The phase of the packet's frame in a frame cadence. */
    action at_phase(bit<8> phase, bit<8> others) {
        md.track.phase = phase;
        md.track.others = others;
    }

    table phases {
        key = {
            md.track.word[17:16]: exact @name("frame");
        }
        actions = {
            at_phase;
        }
        const default_action = at_phase(0, 0);
        const entries = {
            0: at_phase(1, 14);
            1: at_phase(2, 13);
            2: at_phase(4, 11);
            3: at_phase(8, 7);
        }
        size = 4;
    }

    action first() {
        md.track.order = FIRST;
        md.track.lower.gap[31:16] = 0;
        md.track.upper.gap[31:16] = 0;
        turn_frame();
    }

    action in_order() {
        md.track.order = IN_ORDER;
        turn_frame();
    }

    action near() {
        md.track.order = NEAR;
        look_at_frame();
    }

    action late() {
        md.track.order = LATE;
    }

    /* Of packets before the highest, those of the last 16 numbers may have a number. */
    table order {
        key = {
            md.track.lower.gap[0:0]: ternary @name("first");
            md.track.lower.gap[31:16]: ternary @name("gap");
        }
        actions = {
            first;
            in_order;
            near;
            late;
        }
        const default_action = late();
        const entries = {
            (1, _): first();
            (0, 0xfff0 &&& 0xfff0): near();
            (0, 0x8000 &&& 0x8000): late();
            (0, 0x7fff): late();
            (0, _): in_order();
        }
        size = 8;
    }

    /* Its frame is none that was before the highest packet's. */
    action misplaced() {
        md.track.misplaced = 1;
    }

    action tell(bit<8> said) {
        hdr.bridged.said = said;
    }

    action change() {
        hdr.bridged.changes = md.track.switches & md.track.belongs;
    }

    action change_all() {
        hdr.bridged.changes = md.track.belongs;
    }

    action number_it() {
        hdr.bridged.position_0 = md.track.lower.position;
        hdr.bridged.position_1 = md.track.upper.position;
    }

    table verdicts {
        key = {
            md.track.order: ternary @name("order");
            md.track.misplaced: ternary @name("misplaced");
            md.track.word[15:8]: ternary @name("layer");
            md.track.repeated: ternary @name("repeated");
            md.track.lower.dropped: ternary @name("lower");
            md.track.upper.dropped: ternary @name("upper");
        }
        actions = {
            tell;
        }
        const default_action = tell(0);
        const entries = {
            (LATE, _, _, _, _, _): tell(0);
            (FIRST, _, 0, _, _, _): tell(SAID_IN_ORDER + SAID_2 + SAID_1 + SAID_0);
            (FIRST, _, 1, _, _, _): tell(SAID_IN_ORDER + SAID_2 + SAID_1);
            (FIRST, _, _, _, _, _): tell(SAID_IN_ORDER + SAID_2);
            (IN_ORDER, _, 0, _, _, _): tell(SAID_IN_ORDER + SAID_2 + SAID_1 + SAID_0);
            (IN_ORDER, _, 1, _, _, _): tell(SAID_IN_ORDER + SAID_2 + SAID_1);
            (IN_ORDER, _, _, _, _, _): tell(SAID_IN_ORDER + SAID_2);
            (NEAR, 0, 0, 0, 0, 0): tell(SAID_2 + SAID_1 + SAID_0);
            (NEAR, 0, 0, 0, 0, _): tell(SAID_2 + SAID_0);
            (NEAR, 0, 0, 0, _, 0): tell(SAID_2 + SAID_1);
            (NEAR, 0, 1, 0, _, 0): tell(SAID_2 + SAID_1);
            (NEAR, 0, _, 0, _, _): tell(SAID_2);
        }
        size = 16;
    }

    apply {
        pass_high();
        pass_high_of_upper();
        order.apply();
        targets.apply();
        phases.apply();
        if (md.track.order == FIRST || md.track.order == IN_ORDER) {
            if (md.track.flags[7:7] == 1) {
                change_all();
            } else {
                change();
            }
        } else if ((md.track.since[31:31] == 0 && md.track.since[31:16] != 0) || md.track.since[31:16] == 0x8000) {
            misplaced();
        }
        lower.apply(md.track, md.track.lower);
        upper.apply(md.track, md.track.upper);
        if (md.track.order == FIRST || md.track.order == IN_ORDER) {
            give();
        } else if (md.track.order == NEAR && md.track.misplaced == 0) {
            take();
        }
        number_it();
        verdicts.apply();
    }
}
