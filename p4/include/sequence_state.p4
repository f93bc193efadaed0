/* Sequence numbers of a receiver that does not get every layer: receiver sequence state, in registers of egress, on every copy. */
/* SPDX-License-Identifier: Apache-2.0 */

/* docs/conference.md describes the words TARGET, BASE and FLOOR. The row of a receiver is its `sequence_state`, modulo 65536. A row of zeros is a
 * receiver that has got nothing yet. */

/* Only copies whose receiver has a `sequence_state` get a number of their own; the others keep the sender's. What ingress has found for the
 * target in force becomes the receiver's number; a change of target goes on where that ends. */
control Numbers(inout headers_t hdr, inout copy_t copy_md, EGRESS_SWITCH) {
    @name(".Egress.target")
    WORDS(8, 16, target, SEQUENCE_STATE_SIZE)
    @name(".Egress.base")
    WORDS(16, 16, base, SEQUENCE_STATE_SIZE)
    @name(".Egress.floor")
    FLOORS(floor, SEQUENCE_STATE_SIZE)

    action prepare() {
        copy_md.wanted = copy_md.target + 1;
    }

    action may_change() {
        copy_md.may = 1;
    }

    @name(".Egress.changes")
    table changes {
        key = {
            copy_md.target: ternary @name("target");
            hdr.bridged.changes: ternary @name("changes");
        }
        actions = {
            may_change;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (0, SAID_0 &&& SAID_0): may_change();
            (1, SAID_1 &&& SAID_1): may_change();
            (2, SAID_2 &&& SAID_2): may_change();
        }
        size = 4;
    }

    PASSES(8, 16, target, change_target, copy_md.sequence_state[15:0], copy_md.target_before, value = copy_md.wanted;)
    PASSES(8, 16, target, keep_target, copy_md.sequence_state[15:0], copy_md.target_before, if (value == 0) { value = copy_md.wanted; })

    /* The packet's number in a target, and whether it is one of it. */
#define STAYS(n, number) \
    action stay_##n() { \
        copy_md.position = number; \
        copy_md.position_next = number; \
        copy_md.forwarded = hdr.bridged.said[n:n]; \
    }
#define CHANGES(n, m, number, next) \
    action change_##n##_##m() { \
        copy_md.position = number; \
        copy_md.position_next = next; \
        copy_md.forwarded = 1; \
        copy_md.changed = 1; \
    }
    STAYS(0, hdr.bridged.position_0)
    STAYS(1, hdr.bridged.position_1)
    STAYS(2, hdr.rtp.seq)
    CHANGES(0, 1, hdr.bridged.position_0, hdr.bridged.position_1)
    CHANGES(0, 2, hdr.bridged.position_0, hdr.rtp.seq)
    CHANGES(1, 0, hdr.bridged.position_1, hdr.bridged.position_0)
    CHANGES(1, 2, hdr.bridged.position_1, hdr.rtp.seq)
    CHANGES(2, 0, hdr.rtp.seq, hdr.bridged.position_0)
    CHANGES(2, 1, hdr.rtp.seq, hdr.bridged.position_1)

    @name(".Egress.in_force")
    table in_force {
        key = {
            copy_md.target_before: ternary @name("before");
            copy_md.wanted: ternary @name("wanted");
            copy_md.may: ternary @name("may");
        }
        actions = {
            stay_0;
            stay_1;
            stay_2;
            change_0_1;
            change_0_2;
            change_1_0;
            change_1_2;
            change_2_0;
            change_2_1;
        }
        const default_action = stay_2();
        const entries = {
            (0, 1, _): stay_0();
            (0, 2, _): stay_1();
            (0, _, _): stay_2();
            (1, 2, 1): change_0_1();
            (1, 3, 1): change_0_2();
            (1, _, _): stay_0();
            (2, 1, 1): change_1_0();
            (2, 3, 1): change_1_2();
            (2, _, _): stay_1();
            (3, 1, 1): change_2_0();
            (3, 2, 1): change_2_1();
        }
        size = 16;
    }

    action count_shift() {
        copy_md.shift = copy_md.position_next - copy_md.position;
    }

    PASSES(16, 16, base, pass_base, copy_md.sequence_state[15:0], copy_md.base, value = value + copy_md.shift;)

    action count_number() {
        copy_md.position = copy_md.position - copy_md.base;
    }

    RAISES(floor, raise, copy_md.sequence_state[15:0], copy_md.position, 1)
    HOLDS_NUMBER(floor, hold, copy_md.sequence_state[15:0], copy_md.position, copy_md.late)

    action renumber() {
        hdr.rtp.seq = copy_md.position;
    }

    action drop_above_target() {
        hdr.bridged.drop = ABOVE_TARGET;
    }

    action drop_late() {
        hdr.bridged.drop = LATE_COPY;
    }

    apply {
        prepare();
        if (copy_md.sequence_state != 0) {
            changes.apply();
            if (copy_md.may == 1) {
                change_target();
            } else {
                keep_target();
            }
            in_force.apply();
            count_shift();
            pass_base();
            count_number();
            if (copy_md.changed == 1) {
                raise();
            } else if (hdr.bridged.said[7:7] == 0) {
                hold();
            }
            if (copy_md.forwarded == 0) {
                drop_above_target();
            } else if (copy_md.late == 1) {
                drop_late();
            } else {
                renumber();
            }
        }
    }
}
