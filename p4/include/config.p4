/* Build options, constants and table sizes of the relay program: the one place where they are set. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_CONFIG_P4
#define SHUNT_CONFIG_P4

/* ---- Build options, all given to the compiler as -D NAME=VALUE ------------------------------------------
 *
 * RELAY_KEY    hash48 (default)  48 bits of a hash of the 5-tuple are stored in place of the 5-tuple
 *              hash32            32 bits: more entries, more strays (docs/p4.md has both figures)
 *              exact             the 5-tuple itself: no strays, fewer entries
 * ACTIONS      across (default)  relay_to, relay_to_from (own source address, DSCP) and IPv4 <-> IPv6
 *              bridged           relay_to and relay_to_from
 *              plain             relay_to alone: half the action data, so the most entries
 * COUNTED      0 (default) or 1  a packet and byte counter on every relay entry
 * DELAY        0 (default) or 1  delay registers for sampled streams (ingress and egress timestamps)
 * SAMPLES      1 (default) or 0  counters and sequence registers for watched streams
 * CHECK_LENGTHS 1 (default) or 0 datagrams whose UDP and IP lengths contradict each other are not relayed; without
 *                                that check the relay table gets one stage more
 * RELAY_SIZE, RELAY6_SIZE        entries for IPv4 and IPv6; RELAY6_SIZE=0 leaves relaying of IPv6 out
 * CONFERENCE   0 (default) or 1  conferences beside the relay: replication, layers (docs/replication.md)
 * CONFERENCE_SIZE, CONFERENCE6_SIZE, LAYER_SIZE, COPY_SIZE   entries of the tables of conferences
 * SEQUENCE     0 (default), 1, 2 with CONFERENCE=1: sequence numbers of receivers that do not get every layer, by S-LM or by S-LR
 * SPLICE_SIZE, TRACK_SIZE        such receivers, and (S-LR) streams
 * CPU_PORT                       where ARP, neighbour discovery and expired packets go until told otherwise
 */
#define hash48 48
#define hash32 32
#define exact 1
#define plain 1
#define bridged 2
#define across 3

#ifndef RELAY_KEY
#define RELAY_KEY hash48
#endif
#ifndef ACTIONS
#define ACTIONS across
#endif
#ifndef COUNTED
#define COUNTED 0
#endif
#ifndef DELAY
#define DELAY 0
#endif

#ifndef SAMPLES
#define SAMPLES 1
#endif
#ifndef CHECK_LENGTHS
#define CHECK_LENGTHS 1
#endif

#ifndef CONFERENCE
#define CONFERENCE 0
#endif
#ifndef SEQUENCE
#define SEQUENCE 0
#endif
#define S_LM (SEQUENCE == 1)
#define S_LR (SEQUENCE == 2)

#if RELAY_KEY == hash48
#define HASH_BITS 48
#elif RELAY_KEY == hash32
#define HASH_BITS 32
#elif RELAY_KEY == exact
#define HASH_BITS 0
#else
#error "RELAY_KEY is hash48, hash32 or exact"
#endif

#if ACTIONS == across
#define WITH_FROM 1
#define WITH_ACROSS 1
#elif ACTIONS == bridged
#define WITH_FROM 1
#define WITH_ACROSS 0
#elif ACTIONS == plain
#define WITH_FROM 0
#define WITH_ACROSS 0
#else
#error "ACTIONS is plain, bridged or across"
#endif

/* These words are the language's own further on. */
#undef hash48
#undef hash32
#undef exact
#undef plain
#undef bridged
#undef across

/* ---- Table sizes ----------------------------------------------------------------------------------------
 * The relay tables take what the others leave. p4/builds.yaml sets them for each build. These fit Tofino 1 with all
 * options of the relay at once; with CONFERENCE=1, with the other options as they are by default. */
#if CONFERENCE
#ifndef RELAY_SIZE
#define RELAY_SIZE 40000
#endif
#ifndef RELAY6_SIZE
#define RELAY6_SIZE 8192
#endif
#endif
#ifndef RELAY_SIZE
#define RELAY_SIZE 98304
#endif
#ifndef RELAY6_SIZE
#define RELAY6_SIZE 16384
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
#ifndef SPLICE_SIZE
#define SPLICE_SIZE 65536
#endif
#ifndef TRACK_SIZE
#define TRACK_SIZE 16384
#endif
#define WITH_RELAY6 (RELAY6_SIZE > 0)
#if DELAY && !SAMPLES
#error "DELAY=1 needs SAMPLES=1"
#endif
#if SEQUENCE > 2
#error "SEQUENCE is 0, 1 or 2"
#endif
#if SEQUENCE && !CONFERENCE
#error "SEQUENCE needs CONFERENCE=1"
#endif
#if SPLICE_SIZE > 65536 || (SPLICE_SIZE & (SPLICE_SIZE - 1))
#error "SPLICE_SIZE is a power of two, 65536 at most"
#endif
#if TRACK_SIZE > 65536 || (TRACK_SIZE & (TRACK_SIZE - 1))
#error "TRACK_SIZE is a power of two, 65536 at most"
#endif
#if WITH_ACROSS && RELAY6_SIZE == 0
#error "ACTIONS=across needs RELAY6_SIZE > 0"
#endif

const bit<32> MEDIA_SIZE = 512;     /* relay addresses times port ranges, IPv4 and IPv6 each */
const bit<32> ROUTE_SIZE = 1024;    /* IPv4 prefixes */
const bit<32> ROUTE6_SIZE = 512;    /* IPv6 prefixes */
const bit<32> NEXTHOP_SIZE = 1024;
const bit<32> L2_SIZE = 256;        /* the switch's own MAC addresses, and the neighbours of its CPU */
const bit<32> SAMPLE_SIZE = 2048;   /* streams watched at a time, IPv4; half as many for IPv6 */
const bit<32> SAMPLE6_SIZE = 1024;

/* ---- Numbers of the protocols --------------------------------------------------------------------------- */
const bit<16> TPID_8021Q = 0x8100;
const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<16> ETHERTYPE_IPV6 = 0x86dd;
const bit<8> PROTOCOL_UDP = 17;
const bit<8> PROTOCOL_ICMPV6 = 58;
const bit<16> IPV4_HEADER_BYTES = 20;
#if CONFERENCE
const bit<16> DATAGRAM_WITH_EXTENSION = 24;   /* the headers of UDP, RTP and of its extension */
#endif

/* ---- Our own numbers ------------------------------------------------------------------------------------ */
#ifndef CPU_PORT
#define CPU_PORT 64
#endif
#define DIGEST_LEARN 1
#define DIGEST_LEARN6 2
#if CONFERENCE
/* The mirror session by which packets reach the agent, and the kind of mirroring. */
#define AGENT_SESSION 1
#define MIRROR_TO_AGENT 1
/* docs/replication.md: where the template of a packet comes from. */
#define DEPENDENCY_DESCRIPTOR 1
#endif
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

#endif
