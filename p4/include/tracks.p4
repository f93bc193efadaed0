/* Sequence numbers of decode targets: S-LR, in registers of ingress, on every packet of a stream. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_TRACKS_P4
#define SHUNT_TRACKS_P4

/* docs/conference.md describes the words HIGH, FRAME, CADENCE, OFFSET, FLOOR and USED, each read and written once for a packet,
 * and in this order. HIGH and FRAME are a stream's, the others its decode targets 0 and 1; target 2 is everything, and has numbers
 * of its own for nothing but copies that the network made. The row of a stream is its `track`. A row of zeros is a stream of which
 * nothing has come. USED has a slot for each number modulo 16: the rest of the number, and 1 so that none is zero. */

const bit<8> FRAME_STARTS = 0x80;   /* in the marks of a packet: the first byte of the dependency descriptor */
const bit<8> FRAME_ENDS = 0x40;

/* What a cadence leaves out: the frame at a place in it, those of a whole turn, those between a frame at a place and one that is so many (modulo
 * 4) frames later. */
#define LEFT_OUT(cadence, place) ((cadence >> ((place) % 4)) % 2)
#define IN_A_TURN(cadence) (LEFT_OUT(cadence, 0) + LEFT_OUT(cadence, 1) + LEFT_OUT(cadence, 2) + LEFT_OUT(cadence, 3))
#define IN_THE_REST_1(cadence, place) 0
#define IN_THE_REST_2(cadence, place) LEFT_OUT(cadence, place + 1)
#define IN_THE_REST_3(cadence, place) (LEFT_OUT(cadence, place + 1) + LEFT_OUT(cadence, place + 2))
#define IN_THE_REST_0(cadence, place) (LEFT_OUT(cadence, place + 1) + LEFT_OUT(cadence, place + 2) + LEFT_OUT(cadence, place + 3))

/* Rows of `turns`. A packet that does not fit may be the first of another cadence: then nothing is certain. */
#define FITS(keep, cadence, place) ((LEFT_OUT(cadence, place) + keep) % 2)
#define TURN(keep, cadence, place, frames) \
            (keep, cadence, place, frames): left_out(FITS(keep, cadence, place + frames) * IN_A_TURN(cadence), \
                                                     FITS(keep, cadence, place + frames) * IN_THE_REST_##frames(cadence, place));
#define TURNS_AT(keep, cadence, place) \
            TURN(keep, cadence, place, 0) TURN(keep, cadence, place, 1) TURN(keep, cadence, place, 2) TURN(keep, cadence, place, 3)
#define TURNS_OF(keep, cadence) TURNS_AT(keep, cadence, 0) TURNS_AT(keep, cadence, 1) TURNS_AT(keep, cadence, 2) TURNS_AT(keep, cadence, 3)
#define TURNS(cadence) TURNS_OF(0, cadence) TURNS_OF(1, cadence)

/* Rows of `wholes`: the difference of frames, and what `turns` has found. */
#define OF_WHOLES(frames, turn, rest) (turn * ((frames - 1) / 4) + rest)
#define BETWEEN_REST(frames, turn, rest) \
            (frames, turn, rest): between(OF_WHOLES(frames, turn, rest), (frames - 1 - OF_WHOLES(frames, turn, rest) + 65536) % 65536);
#define BETWEEN_TURN(frames, turn) BETWEEN_REST(frames, turn, 0) BETWEEN_REST(frames, turn, 1) BETWEEN_REST(frames, turn, 2) BETWEEN_REST(frames, turn, 3)
#define BETWEEN(frames) BETWEEN_TURN(frames, 0) BETWEEN_TURN(frames, 1) BETWEEN_TURN(frames, 2) BETWEEN_TURN(frames, 3) BETWEEN_TURN(frames, 4)

/* Why: the words of one decode target, and the tables between them. `kept_before`: the stream's highest packet was one of it. */
control Target(in bit<16> number, in bit<1> kept_before, in track_t track, inout target_t target) {
    WORDS(8, 16, cadence, TRACK_SIZE)
    WORDS(16, 16, offset, TRACK_SIZE)
    WORDS(32, 16, floor, TRACK_SIZE)
    WORDS(16, 20, used, TRACK_SIZE * 16)

    /* CADENCE: the frame's place is left out, or is not; far from the frame before, or with a template structure, all is forgotten. */
    PASSES(8, 16, cadence, note_kept, track.row[15:0], target.mask, value = value & track.others;)
    PASSES(8, 16, cadence, note_left_out, track.row[15:0], target.mask, value = value | track.phase;)
    PASSES(8, 16, cadence, begin_left_out, track.row[15:0], target.mask, value = track.phase;)
    PASSES(8, 16, cadence, forget, track.row[15:0], target.mask, value = 0;)

    table cadences {
        key = {
            target.keep: ternary @name("keep");
            track.flags: ternary @name("flags");
            track.frames: ternary @name("frames");
        }
        actions = {
            note_kept;
            note_left_out;
            begin_left_out;
            forget;
        }
        const default_action = forget();
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
            track.frames: ternary @name("frames");
            track.word_before[7:0]: ternary @name("marks_before");
            kept_before: ternary @name("kept_before");
            track.word[7:0]: ternary @name("marks");
            target.keep: ternary @name("keep");
        }
        actions = {
            ends;
        }
        const default_action = ends(0, 0, 0);
        const entries = {
            (0, _, 0, _, 0): ends(1, 0, 0);
            (0, _, _, _, _): ends(0, 1, 1);
            (_, FRAME_ENDS &&& FRAME_ENDS, _, FRAME_STARTS &&& FRAME_STARTS, _): ends(0, 0, 0);
            (_, FRAME_ENDS &&& FRAME_ENDS, _, _, 0): ends(1, 0, 0);
            (_, FRAME_ENDS &&& FRAME_ENDS, _, _, 1): ends(0, 1, 0);
            (_, _, 0, FRAME_STARTS &&& FRAME_STARTS, _): ends(1, 0, 0);
            (_, _, 0, _, 0): ends(2, 0, 0);
            (_, _, 0, _, 1): ends(1, 1, 0);
            (_, _, 1, FRAME_STARTS &&& FRAME_STARTS, _): ends(0, 1, 1);
            (_, _, 1, _, 0): ends(1, 1, 1);
            (_, _, 1, _, 1): ends(0, 2, 1);
        }
        size = 16;
    }

    /* Whole frames between them: those that the cadence leaves out. */
    action left_out(bit<8> turn, bit<8> rest) {
        target.turn = turn;
        target.rest = rest;
    }

    table turns {
        key = {
            target.keep: exact @name("keep");
            target.mask[3:0]: exact @name("mask");
            track.word_before[17:16]: exact @name("phase_before");
            track.frames[1:0]: exact @name("frames");
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
            track.frames: exact @name("frames");
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

    action leave_room() {
        target.room = track.gap |-| target.kept;
    }

    action close() {
        target.gone = track.gap;
    }

    action close_certain() {
        target.gone = MIN(target.suppressed, target.room);
    }

    action step_kept() {
        target.step = target.gone;
        target.open = track.gap - target.gone;
        target.base = number;
    }

    action step_left_out() {
        target.step = target.gone + 1;
        target.base = track.following;
    }

    GROWS(16, 16, offset, pass_offset, track.row[15:0], target.offset, target.step)

    action open_here() {
        target.lowest_base = target.base;
    }

    action open_before() {
        target.lowest_base = number - target.open;
    }

    action place() {
        target.position = target.base - target.offset;
        target.floor[31:16] = target.lowest_base - target.offset;
        target.floor[15:0] = track.word[31:16];
    }

    PASSES(32, 16, floor, turn_floor, track.row[15:0], target.floor_before, value = target.floor;)
    PASSES(32, 16, floor, look_at_floor, track.row[15:0], target.floor_before, )

    action compare() {
        target.below = target.position - target.floor_before[31:16];
        target.early = track.word[31:16] - target.floor_before[15:0];
        target.slot[19:4] = track.row[15:0];
        target.slot[3:0] = target.position[3:0];
        target.mark[15:4] = target.position[15:4];
        target.mark[3:0] = 1;
    }

    PASSES(16, 20, used, take, target.slot, target.mark_before, value = target.mark;)

    apply {
        target.gone = 0;
        target.step = 0;
        target.base = number;
        target.forwarded = 0;
        if (track.place == FIRST || track.place == IN_ORDER) {
            cadences.apply();
            parts.apply();
            turns.apply();
            if (track.frames[15:1] != 0) {
                wholes.apply();
            }
            leave_room();
            if (target.kept == 0 && target.suppressed != 0) {
                close();
            } else {
                close_certain();
            }
            if (target.keep == 1) {
                step_kept();
            } else {
                step_left_out();
            }
        }
        if (track.place != LATE) {
            pass_offset();
            if (target.keep == 1 && track.word[7:7] == 0 && target.tail == 0 && track.place == IN_ORDER) {
                open_before();
            } else {
                open_here();
            }
            place();
            if (track.place == FIRST || (track.place == IN_ORDER && (target.gone != 0 || target.keep == 0))) {
                turn_floor();
            } else if (track.place == NEAR) {
                look_at_floor();
            }
            compare();
            if (target.keep == 1) {
                if (track.place != NEAR) {
                    take();
                    target.forwarded = 1;
                } else if (target.below[15:15] == 0 && target.early[15:15] == 0) {
                    take();
                    if (target.mark_before != target.mark) {
                        target.forwarded = 1;
                    }
                }
            }
        }
    }
}

/* Why: what is the stream's, before its decode targets. */
control Tracks(inout headers_t hdr, inout metadata_t md) {
    Target() lower;
    Target() upper;

    SERIAL_WORDS(high, TRACK_SIZE)
    WORDS(32, 16, frame, TRACK_SIZE)
    WORDS(16, 20, used, TRACK_SIZE * 16)

    ADVANCES(high, pass_high, md.track.row[15:0], md.track.high, md.track.high_before)
    PASSES(32, 16, frame, turn_frame, md.track.row[15:0], md.track.word_before, value = md.track.word;)
    PASSES(32, 16, frame, look_at_frame, md.track.row[15:0], md.track.word_before, )
    PASSES(16, 20, used, take, md.track.slot, md.track.mark_before, value = md.track.mark;)

    action prepare() {
        md.track.high[31:16] = md.rtp_seq;
        md.track.following = md.rtp_seq + 1;
        md.track.slot[19:4] = md.track.row[15:0];
        md.track.slot[3:0] = md.rtp_seq[3:0];
        md.track.mark[15:4] = md.rtp_seq[15:4];
        md.track.mark[3:0] = 1;
    }

    /* Which targets the packet is one of, and the place of its frame in a cadence. */
    action belongs(bit<1> to_lower, bit<1> to_upper, bit<8> said) {
        md.track.belongs = said;
        md.track.lower.keep = to_lower;
        md.track.upper.keep = to_upper;
        md.track.word[8:8] = to_lower;
        md.track.word[9:9] = to_upper;
    }

    table targets {
        key = {
            md.track.layer: exact @name("layer");
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

    action at_place(bit<8> phase, bit<8> others) {
        md.track.phase = phase;
        md.track.others = others;
    }

    table places {
        key = {
            md.track.word[17:16]: exact @name("frame");
        }
        actions = {
            at_place;
        }
        const default_action = at_place(0, 0);
        const entries = {
            0: at_place(1, 14);
            1: at_place(2, 13);
            2: at_place(4, 11);
            3: at_place(8, 7);
        }
        size = 4;
    }

    action count_ahead() {
        md.track.ahead = md.track.high[31:16] - md.track.high_before[31:16];
    }

    action first() {
        md.track.place = FIRST;
    }

    action in_order() {
        md.track.place = IN_ORDER;
    }

    action near() {
        md.track.place = NEAR;
    }

    action late() {
        md.track.place = LATE;
    }

    /* Of packets before the highest, those of the last 16 numbers may have a place. */
    table order {
        key = {
            md.track.high_before[0:0]: ternary @name("running");
            md.track.ahead: ternary @name("ahead");
        }
        actions = {
            first;
            in_order;
            near;
            late;
        }
        const default_action = in_order();
        const entries = {
            (0, _): first();
            (1, 0): near();
            (1, 0xfff0): late();
            (1, 0xfff0 &&& 0xfff0): near();
            (1, 0x8000 &&& 0x8000): late();
        }
        size = 8;
    }

    action count_frames() {
        md.track.frames = md.track.word[31:16] - md.track.word_before[31:16];
        md.track.gap = md.track.ahead - 1;
    }

    action no_gap() {
        md.track.gap = 0;
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
            md.track.place: ternary @name("place");
            md.track.lower.forwarded: ternary @name("lower");
            md.track.upper.forwarded: ternary @name("upper");
            md.track.layer: ternary @name("layer");
        }
        actions = {
            tell;
        }
        const default_action = tell(0);
        const entries = {
            (NEAR, 0, 0, _): tell(SAID_2);
            (NEAR, 1, 0, _): tell(SAID_2 + SAID_0);
            (NEAR, 0, 1, _): tell(SAID_2 + SAID_1);
            (NEAR, 1, 1, _): tell(SAID_2 + SAID_1 + SAID_0);
            (LATE, _, _, _): tell(0);
            (_, _, _, 0): tell(SAID_IN_ORDER + SAID_2 + SAID_1 + SAID_0);
            (_, _, _, 1): tell(SAID_IN_ORDER + SAID_2 + SAID_1);
            (_, _, _, _): tell(SAID_IN_ORDER + SAID_2);
        }
        size = 8;
    }

    apply {
        prepare();
        pass_high();
        targets.apply();
        places.apply();
        count_ahead();
        order.apply();
        if (md.track.place == FIRST || md.track.place == IN_ORDER) {
            turn_frame();
            if (md.track.flags[7:7] == 1) {
                change_all();
            } else {
                change();
            }
        } else {
            look_at_frame();
        }
        count_frames();
        if (md.track.place == FIRST) {
            no_gap();
        } else if (md.track.place == NEAR && ((md.track.frames[15:15] == 0 && md.track.frames != 0) || md.track.frames == 0x8000)) {
            late();
        }
        lower.apply(md.rtp_seq, md.track.word_before[8:8], md.track, md.track.lower);
        upper.apply(md.rtp_seq, md.track.word_before[9:9], md.track, md.track.upper);
        if (md.track.place != LATE) {
            take();
            if (md.track.place == NEAR && md.track.mark_before == md.track.mark) {
                late();
            }
        }
        number_it();
        verdicts.apply();
    }
}

#endif
