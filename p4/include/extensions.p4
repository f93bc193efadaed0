/* RTP header extensions: the states that walk their elements; included by conference_parser.p4, inside the parser. */
/* SPDX-License-Identifier: Apache-2.0 */

/* Which id the dependency descriptor has is a matter of each session, and the parser meets the packet before any table
 * does. So the walk notes id and first bytes of every element, and the table `pick` takes the one with the stream's id. Bytes
 * of a header can be skipped only by taking them off the packet, so each element is taken off in parts of 16, 8, 4, 2 and 1
 * bytes and put back by the deparser as it was.
 *
 * An element (RFC 8285) is two bytes and as many more as a length says, in both forms: the one-byte form counts the first byte of
 * data among the two. Padding is an element of one byte. Elements of fewer than three bytes of data are no descriptors. What
 * goes beyond the extension ends the walk, and counts nothing; so does what is longer than 31 bytes. */

    state rtp_extension {
        md.extended = 1;
        pkt.extract(hdr.rtp);
        md.extension_bytes = pkt.lookahead<extension_length_h>().words;
        pkt.extract(hdr.extension);
        transition select(hdr.extension.form, hdr.extension.kind, hdr.extension.many_words, hdr.extension.words) {
            (_, _, _, 0): accept;
            (ONE_BYTE_FORM, ONE_BYTE_KIND, 0, 0 &&& 0xe0): walk_one_byte_form;
            (TWO_BYTE_FORM, TWO_BYTE_KIND, 0, 0 &&& 0xe0): walk_two_byte_form;
            default: accept;
        }
    }

    state walk_one_byte_form {
        START_WALK
        transition one_byte_0;
    }

    state walk_two_byte_form {
        START_WALK
        transition two_byte_0;
    }

    /* The parts of an element behind its first two bytes. */
#define STEP_OVER(form, n, next) \
    state form##_rest_##n { \
        transition select(md.length_##n) { \
            0x0c &&& 0x0c: form##_twelve_##n; \
            0x08 &&& 0x0c: form##_eight_##n; \
            0x04 &&& 0x0c: form##_four_##n; \
            default: form##_end_##n; \
        } \
    } \
    state form##_twelve_##n { \
        pkt.extract(hdr.eight_##n); \
        pkt.extract(hdr.four_##n); \
        TAKEN(12) \
        transition form##_end_##n; \
    } \
    state form##_eight_##n { \
        pkt.extract(hdr.eight_##n); \
        TAKEN(8) \
        transition form##_end_##n; \
    } \
    state form##_four_##n { \
        pkt.extract(hdr.four_##n); \
        TAKEN(4) \
        transition form##_end_##n; \
    } \
    state form##_end_##n { \
        transition select(md.length_##n) { \
            0x03 &&& 0x03: form##_three_##n; \
            0x02 &&& 0x03: form##_two_##n; \
            0x01 &&& 0x03: form##_one_##n; \
            default: next; \
        } \
    } \
    state form##_three_##n { \
        pkt.extract(hdr.two_##n); \
        pkt.extract(hdr.one_##n); \
        TAKEN(3) \
        transition next; \
    } \
    state form##_two_##n { \
        pkt.extract(hdr.two_##n); \
        TAKEN(2) \
        transition next; \
    } \
    state form##_one_##n { \
        pkt.extract(hdr.one_##n); \
        TAKEN(1) \
        transition next; \
    } \
    state form##_beyond_##n { \
        md.beyond = n; \
        transition accept; \
    } \
    state form##_padding_##n { \
        pkt.extract(hdr.padding_##n); \
        TAKEN(1) \
        transition next; \
    }

    /* The first two bytes of an element. In states of their own these would cost a row of the parser each. */
#define TAKE_ELEMENT(n, length) \
        md.length_##n = length; \
        pkt.extract(hdr.element_##n); \
        TAKEN(2)

#define ONE_BYTE_ELEMENT(n, next) \
    state one_byte_##n { \
        transition select(LEFT, pkt.lookahead<bit<8>>()) { \
            (LEFT_NOTHING, _): accept; \
            (LEFT_LESS, _): one_byte_beyond_##n; \
            (LEFT_ANY, 0): one_byte_padding_##n; \
            (LEFT_ANY, 0xf0 &&& 0xf0): accept; \
            (LEFT_ANY, 0x00 &&& 0x0e): one_byte_element_##n; \
            (LEFT_ANY, 0x02 &&& 0x0f): one_byte_short_##n; \
            default: one_byte_long_##n; \
        } \
    } \
    state one_byte_short_##n { \
        one_byte_short_h seen = pkt.lookahead<one_byte_short_h>(); \
        md.id_##n = seen.id; \
        md.marks_##n = seen.marks; \
        NOTE_FRAME(n) \
        TAKE_ELEMENT(n, seen.id) \
        transition one_byte_rest_##n; \
    } \
    state one_byte_long_##n { \
        one_byte_long_h seen = pkt.lookahead<one_byte_long_h>(); \
        md.id_##n = seen.id; \
        md.marks_##n = seen.marks; \
        NOTE_FRAME(n) \
        md.flags_##n = seen.flags; \
        TAKE_ELEMENT(n, seen.id) \
        transition one_byte_rest_##n; \
    } \
    state one_byte_element_##n { \
        TAKE_ELEMENT(n, pkt.lookahead<bit<8>>()) \
        transition one_byte_rest_##n; \
    } \
    STEP_OVER(one_byte, n, next)

#define TWO_BYTE_ELEMENT(n, next) \
    state two_byte_##n { \
        transition select(LEFT, pkt.lookahead<bit<16>>()) { \
            (LEFT_NOTHING, _): accept; \
            (LEFT_LESS, _): two_byte_beyond_##n; \
            (LEFT_ANY, 0x0000 &&& 0xff00): two_byte_padding_##n; \
            (LEFT_ANY, 0x0003 &&& 0x00ff): two_byte_short_##n; \
            (LEFT_ANY, 0x0000 &&& 0x00fc): two_byte_element_##n; \
            (LEFT_ANY, 0x0000 &&& 0x00e0): two_byte_long_##n; \
            default: accept; \
        } \
    } \
    state two_byte_short_##n { \
        two_byte_short_h seen = pkt.lookahead<two_byte_short_h>(); \
        md.id_##n = seen.id; \
        md.marks_##n = seen.marks; \
        NOTE_FRAME(n) \
        TAKE_ELEMENT(n, seen.length) \
        transition two_byte_all_##n; \
    } \
    state two_byte_long_##n { \
        two_byte_long_h seen = pkt.lookahead<two_byte_long_h>(); \
        md.id_##n = seen.id; \
        md.marks_##n = seen.marks; \
        NOTE_FRAME(n) \
        md.flags_##n = seen.flags; \
        TAKE_ELEMENT(n, seen.length) \
        transition two_byte_all_##n; \
    } \
    state two_byte_element_##n { \
        TAKE_ELEMENT(n, pkt.lookahead<bit<16>>()[7:0]) \
        transition two_byte_all_##n; \
    } \
    state two_byte_all_##n { \
        transition select(md.length_##n) { \
            0x10 &&& 0x10: two_byte_sixteen_##n; \
            default: two_byte_rest_##n; \
        } \
    } \
    state two_byte_sixteen_##n { \
        pkt.extract(hdr.sixteen_##n); \
        TAKEN(16) \
        transition two_byte_rest_##n; \
    } \
    STEP_OVER(two_byte, n, next)

    ONE_BYTE_ELEMENT(0, one_byte_1)
    ONE_BYTE_ELEMENT(1, one_byte_2)
    ONE_BYTE_ELEMENT(2, one_byte_3)
    ONE_BYTE_ELEMENT(3, one_byte_4)
    ONE_BYTE_ELEMENT(4, one_byte_5)
    ONE_BYTE_ELEMENT(5, end_of_walk)
    TWO_BYTE_ELEMENT(0, two_byte_1)
    TWO_BYTE_ELEMENT(1, two_byte_2)
    TWO_BYTE_ELEMENT(2, two_byte_3)
    TWO_BYTE_ELEMENT(3, two_byte_4)
    TWO_BYTE_ELEMENT(4, two_byte_5)
    TWO_BYTE_ELEMENT(5, end_of_walk)

    /* Behind the last element that is read. */
    state end_of_walk {
        transition select(LEFT) {
            (LEFT_LESS): last_goes_beyond;
            default: accept;
        }
    }

    state last_goes_beyond {
        md.beyond = 6;
        transition accept;
    }
