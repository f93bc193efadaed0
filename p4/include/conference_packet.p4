/* A packet in the program with conferences: its headers, and what is known of it and of its copies. */
/* SPDX-License-Identifier: Apache-2.0 */

/* What ingress tells egress about a packet. It never leaves the switch. */
header bridged_h {
    bit<16> nexthop;
    bit<16> length;    /* bytes of the IP packet */
    bit<1> routed;     /* the frame gets the MAC addresses of its next hop; else it leaves as it is */
    bit<1> last_hop;   /* forwarded with a time to live that could not be lowered */
    bit<1> sampled;
    bit<1> replicated; /* a copy for a receiver of `stream`; ConferenceCopy says for which */
    bit<3> drop;       /* why egress drops it; 0: it does not */
    bit<9> ingress_port;
#if DELAY
    bit<16> sample;
    bit<32> arrival;   /* nanoseconds, the low bits of the time stamp at the ingress port */
#endif
#if S_LM
    bit<8> marks;      /* of the packet's descriptor: first and last packet of a frame */
#elif S_LR
    bit<8> said;       /* which decode targets the packet is one of, and whether it came in order */
#else
    bit<8> unused_too;
#endif
    bit<24> stream;
#if S_LM
    bit<16> frame;     /* its frame number */
    bit<8> layer;
#elif S_LR
    bit<8> changes;    /* bit n: receivers may change to decode target n with this packet */
    bit<16> position_0; /* its number in decode target 0, and in 1 */
    bit<16> position_1;
#endif
}

struct headers_t {
    bridged_h bridged;
    ethernet_h ethernet;
    vlan_h vlan;
    ether_type_h ether_type;
    ipv4_h ipv4;
    ipv6_h ipv6;
    udp_h udp;
    rtp_h rtp;
    extension_h extension;
    ELEMENT_HEADERS(0)
    ELEMENT_HEADERS(1)
    ELEMENT_HEADERS(2)
    ELEMENT_HEADERS(3)
    ELEMENT_HEADERS(4)
    ELEMENT_HEADERS(5)
}

/* What a copy needs to know of its packet in egress, beside its headers. */
struct copy_t {
    bit<1> checksummed;     /* as in metadata_t, these three */
    bit<16> ipv4_residual;
    bit<16> udp_residual;
    bit<1> four;            /* there is a receiver, and it speaks IPv4 */
    bit<1> six;             /* or IPv6 */
#if SEQUENCE
    bit<17> sequence_state; /* the receiver's row in the words of sequence.p4 or sequence_state.p4; 0: its numbers are the sender's */
#if S_LM
    bit<4> cadence;         /* the frame cadence. Bit n: frames with a number of n modulo 4 are suppressed */
#endif
    bit<8> target;          /* the highest layer that it gets, or (S-LR) is to get */
#endif
#if S_LM
    bit<8> beyond;          /* by how much the packet's is higher */
    bit<32> high;           /* number, and 1: there is one */
    bit<32> high_before;
    bit<32> frame;          /* frame number, and marks */
    bit<32> frame_before;
    bit<16> ahead;          /* by how much the number is higher than the highest before */
    bit<16> gap;            /* the numbers between */
    bit<16> frames;         /* as ahead, of frame numbers */
    bit<2> order;           /* IN_ORDER, ONE_BEFORE or LATE */
    bit<16> gone;           /* of the gap, what the receiver does not miss */
    bit<16> offset;         /* what is taken from its numbers */
    bit<8> opens;           /* the number before this one is left for a late packet */
    bit<8> opened;          /* it was */
#elif S_LR
    bit<8> wanted;          /* the target, and 1 */
    bit<1> may;             /* with this packet it may change */
    bit<8> target_before;   /* what it has got until now, and 1 */
    bit<1> changed;
    bit<1> forwarded;       /* the target in force has the packet */
    bit<16> position;       /* its number there, and less the base the receiver's */
    bit<16> position_next;  /* and in the target from now on */
    bit<16> base;           /* what is taken from that */
    bit<16> shift;          /* what the base grows by */
    bit<8> late;            /* it is from before the last change */
#endif
}

#if S_LR
/* What tracks.p4 works out for a decode target. */
struct target_t {
    bit<1> keep;            /* the packet is one of it */
    bit<8> mask;            /* the frames that are left out: one bit for each phase of the frame cadence */
    bit<8> turn;            /* how many of four frames are left out */
    bit<8> rest;            /* and how many of those beyond whole fours */
    bit<1> tail;            /* the gap begins with packets of the target */
    bit<32> gap;            /* the numbers between this packet and the highest before, and 1: there was none */
    bit<16> suppressed;     /* parts of the gap that are certainly left out, and others */
    bit<16> kept;
    bit<16> gone;           /* of the gap, what the receivers do not miss */
    bit<16> offset;
    bit<16> position;       /* the packet's number */
    bit<16> lowest;         /* the lowest number that the offset is for, or the packet's, which is to be none below */
    bit<8> dropped;         /* it came too late for a number, or its number was given out */
}

/* And for the stream. */
struct track_t {
    bit<17> row;            /* of the words of tracks.p4; 0: its receivers' numbers are its own */
    bit<8> switches;        /* bit n: who can decode it can decode all of target n from there on */
    bit<8> belongs;         /* bit n: the packet is one of target n */
    bit<8> flags;           /* 0x80: a template structure */
    bit<32> high;           /* number, and 1: there is one */
    bit<32> high_less_one;  /* the number before, and 1 */
    bit<32> word;           /* frame number, layer, marks */
    bit<32> comparand;      /* frame number, and ones */
    bit<32> since;          /* by how much the frame number is higher than the one before, and the complement of that one's layer and marks */
    bit<2> order;           /* FIRST, IN_ORDER, NEAR or LATE */
    bit<1> misplaced;       /* an older packet of a frame that is none before the highest packet's */
    bit<8> phase;           /* the bit of the frame's phase in the frame cadence, and all others */
    bit<8> others;
    bit<8> repeated;        /* the network made a copy of it */
    target_t lower;
    target_t upper;
}
#endif

struct metadata_t {
#include "metadata.p4"

    /* Of conferences. */
    bit<1> extended;        /* RTP with a header extension, which was looked into */
    bit<4> beyond;          /* the how many-th of its elements goes beyond it, from 1 on; 0: none */
    ELEMENT_METADATA(0)
    ELEMENT_METADATA(1)
    ELEMENT_METADATA(2)
    ELEMENT_METADATA(3)
    ELEMENT_METADATA(4)
    ELEMENT_METADATA(5)
    bit<16> extension_bytes;   /* what the extension says that it takes: words, as parsed */
    bit<16> lacking;        /* and how many of these lie beyond the datagram */

    bit<1> conference;      /* a stream of a conference */
    bit<1> to_agent;
    bit<16> mgid;
    bit<16> tree;           /* which of the stream's trees: the layer */
    bit<16> more_trees;     /* how many it has beside the first */
    bit<16> layers;
    bit<4> extension;
    bit<4> descriptor;
    bit<4> picked;          /* which element is the descriptor, from 1 on; 0: none */
    bit<8> marks;           /* its first byte: first and last packet of a frame, template id */
    bit<8> flags;           /* its fourth byte: whether there is a template structure */
#if SEQUENCE
    bit<16> frame;          /* its second and third: the frame number */
#endif
#if S_LR
    bit<16> headers;        /* DATAGRAM_WITH_EXTENSION: the chip subtracts no constant so that it stops at 0 */
    bit<16> room;           /* the bytes of the datagram behind the extension's header */
    track_t track;
#endif
    AGENT_METADATA
}
