/* Build options, table sizes and constants of conferences, beside those of the relay (config.p4). */
/* SPDX-License-Identifier: Apache-2.0 */

/* ---- Build options, all given to the compiler as -D NAME=VALUE ------------------------------------------
 *
 * SEQUENCE     0 (default), 1, 2 sequence numbers of receivers that do not get every layer: those of the sender, by S-LM, by S-LR
 * CONFERENCE_SIZE, CONFERENCE6_SIZE, LAYER_SIZE, COPY_SIZE   entries of the tables of conferences
 * SEQUENCE_STATE_SIZE, TRACK_SIZE with SEQUENCE: receivers with numbers of their own, and (S-LR) streams
 * and those of config.p4. The relay tables are smaller beside conferences. */
#ifndef SEQUENCE
#define SEQUENCE 0
#endif
#ifndef RELAY_SIZE
#define RELAY_SIZE 40000
#endif
#ifndef RELAY6_SIZE
#define RELAY6_SIZE 8192
#endif
#ifndef CONFERENCE_SIZE
#define CONFERENCE_SIZE 16384
#endif
#ifndef CONFERENCE6_SIZE
#define CONFERENCE6_SIZE 4096
#endif
#ifndef LAYER_SIZE
#define LAYER_SIZE 16384
#endif
#ifndef COPY_SIZE
#define COPY_SIZE 16384
#endif
#ifndef SEQUENCE_STATE_SIZE
#define SEQUENCE_STATE_SIZE 65536
#endif
#ifndef TRACK_SIZE
#define TRACK_SIZE 16384
#endif

#define S_LM (SEQUENCE == 1)
#define S_LR (SEQUENCE == 2)
#if SEQUENCE > 2
#error "SEQUENCE is 0, 1 or 2"
#endif
#if SEQUENCE_STATE_SIZE > 65536 || (SEQUENCE_STATE_SIZE & (SEQUENCE_STATE_SIZE - 1))
#error "SEQUENCE_STATE_SIZE is a power of two, 65536 at most"
#endif
#if TRACK_SIZE > 65536 || (TRACK_SIZE & (TRACK_SIZE - 1))
#error "TRACK_SIZE is a power of two, 65536 at most"
#endif

const bit<16> DATAGRAM_WITH_EXTENSION = 24;   /* the headers of UDP, RTP and of its extension */

/* The mirror session by which packets reach the agent, and the kind of mirroring. */
#define AGENT_SESSION 1
#define MIRROR_TO_AGENT 1
/* docs/replication.md: where the template of a packet comes from. */
#define DEPENDENCY_DESCRIPTOR 1

#if S_LM
/* Where a copy stands to the highest number that its receiver has got. */
#define IN_ORDER 1
#define ONE_BEFORE 2
#define LATE 3
#elif S_LR
/* Where a packet stands to the highest number of its stream. Late ones have no number of a receiver's any more. */
#define LATE 0
#define FIRST 1
#define IN_ORDER 2
#define NEAR 3
/* In bridged_h.said: the packet is one of target n's (n: 0 to 2), and it came in order. */
#define SAID_0 0x01
#define SAID_1 0x02
#define SAID_2 0x04
#define SAID_IN_ORDER 0x80
#endif
