/* The headers into which RTP header extensions are taken apart, and what is noted of each element. */
/* SPDX-License-Identifier: Apache-2.0 */

/* RFC 8285: the first two bytes say which form the elements have, the others how many times four bytes they take. */
#define ONE_BYTE_FORM 0xbe
#define ONE_BYTE_KIND 0xde
#define TWO_BYTE_FORM 0x10
#define TWO_BYTE_KIND 0x00 &&& 0xf0

header extension_h {
    bit<8> form;
    bit<8> kind;
    bit<8> many_words;
    bit<8> words;
}

header extension_length_h {
    bit<16> profile;
    bit<16> words;
}

header bytes_1_h {
    bit<8> bytes;
}

header bytes_2_h {
    bit<16> bytes;
}

header bytes_4_h {
    bit<32> bytes;
}

header bytes_8_h {
    bit<32> bytes_0;
    bit<32> bytes_4;
}

header bytes_16_h {
    bit<32> bytes_0;
    bit<32> bytes_4;
    bit<32> bytes_8;
    bit<32> bytes_12;
}

/* Elements as they are looked at before they are taken off. Of the one-byte form id holds the length too. */
header one_byte_short_h {
    bit<8> id;
    bit<8> marks;
    bit<16> frame;
}

header one_byte_long_h {
    bit<8> id;
    bit<8> marks;
    bit<16> frame;
    bit<8> flags;
}

header two_byte_short_h {
    bit<8> id;
    bit<8> length;
    bit<8> marks;
    bit<16> frame;
}

header two_byte_long_h {
    bit<8> id;
    bit<8> length;
    bit<8> marks;
    bit<16> frame;
    bit<8> flags;
}

#define ELEMENT_HEADERS(n) \
    bytes_1_h padding_##n; \
    bytes_2_h element_##n; \
    bytes_16_h sixteen_##n; \
    bytes_8_h eight_##n; \
    bytes_4_h four_##n; \
    bytes_2_h two_##n; \
    bytes_1_h one_##n;

#if SEQUENCE
#define FRAME_OF(n) bit<16> frame_##n;
#define NO_FRAME(n) md.frame_##n = 0;
#define NOTE_FRAME(n) md.frame_##n = seen.frame;
#else
#define FRAME_OF(n)
#define NO_FRAME(n)
#define NOTE_FRAME(n)
#endif

#define ELEMENT_METADATA(n) \
    bit<8> id_##n; \
    bit<8> length_##n; \
    bit<8> marks_##n; \
    bit<8> flags_##n; \
    FRAME_OF(n)

#define NO_ELEMENT(n) \
    md.id_##n = 0; \
    md.marks_##n = 0; \
    md.flags_##n = 0; \
    NO_FRAME(n)
