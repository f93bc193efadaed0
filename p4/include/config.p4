/* Build options, table sizes and constants of the relay: the one place where they are set. */
/* SPDX-License-Identifier: Apache-2.0 */

/* ---- Build options, all given to the compiler as -D NAME=VALUE ------------------------------------------
 *
 * RELAY_KEY    hash48 (default)  48 bits of a hash of the 5-tuple are stored in place of the 5-tuple
 *              hash32            32 bits: more entries, more false matches (docs/p4.md has both figures)
 *              exact             the 5-tuple itself: no false matches, fewer entries
 * ACTIONS      across (default)  relay_to, relay_to_from (own source address, DSCP) and IPv4 <-> IPv6
 *              bridged           relay_to and relay_to_from
 *              plain             relay_to alone: half the action data, so the most entries
 * COUNTED      0 (default) or 1  a packet and byte counter on every relay entry
 * DELAY        0 (default) or 1  delay registers for sampled streams (ingress and egress timestamps)
 * SAMPLES      1 (default) or 0  counters and sequence registers for watched streams
 * CHECK_LENGTHS 1 (default) or 0 datagrams whose UDP and IP lengths contradict each other are not relayed; without
 *                                that check the relay table gets one stage more
 * RELAY_SIZE, RELAY6_SIZE        entries for IPv4 and IPv6; RELAY6_SIZE=0 leaves relaying of IPv6 out
 * POLYNOMIAL                     of the CRC that hashed builds store: a site's own secret (polynomial.py), else a published one
 * CPU_PORT                       whose frames are only bridged, and where ARP, neighbour discovery and expired packets go until told otherwise
 *
 * The relay tables take what the others leave; p4/builds.yaml sets their sizes for each build. These fit Tofino 1 with all
 * options at once. */
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
#ifndef RELAY_SIZE
#define RELAY_SIZE 98304
#endif
#ifndef RELAY6_SIZE
#define RELAY6_SIZE 16384
#endif
#ifndef CPU_PORT
#if __TARGET_TOFINO__ == 2
#define CPU_PORT 0
#else
#define CPU_PORT 64
#endif
#endif

/* How many bits of a hash are the key as it is stored; 0: the key itself. */
#define hash48 48
#define hash32 32
#define exact 1
#if RELAY_KEY == hash48
#define HASH_BITS 48
#ifndef POLYNOMIAL
#define POLYNOMIAL 0x42f0e1eba9ea3693 /* CRC-64, ECMA-182 */
#endif
#elif RELAY_KEY == hash32
#define HASH_BITS 32
#elif RELAY_KEY == exact
#define HASH_BITS 0
#else
#error "RELAY_KEY is hash48, hash32 or exact"
#endif

/* The actions of the tables relay and relay6. All action data of a table is as wide as its widest action. */
#define plain 1
#define bridged 2
#define across 3
#if ACTIONS == across && RELAY6_SIZE > 0
#define RELAY_ACTIONS @tableonly relay_to; @tableonly relay_to_from; @tableonly relay_to_v6;
#define RELAY6_ACTIONS @tableonly relay6_to; @tableonly relay6_to_from; @tableonly relay6_to_v4;
#elif ACTIONS == bridged
#define RELAY_ACTIONS @tableonly relay_to; @tableonly relay_to_from;
#define RELAY6_ACTIONS @tableonly relay6_to; @tableonly relay6_to_from;
#elif ACTIONS == plain
#define RELAY_ACTIONS @tableonly relay_to;
#define RELAY6_ACTIONS @tableonly relay6_to;
#else
#error "ACTIONS is plain, bridged or across, and across needs RELAY6_SIZE > 0"
#endif
const bool WITH_FROM = ACTIONS > plain;
const bool WITH_ACROSS = ACTIONS == across;

/* These words are the language's own further on. */
#undef hash48
#undef hash32
#undef exact
#undef plain
#undef bridged
#undef across

/* The counter of every entry. */
#if COUNTED
#define ENTRY_COUNTER(name) DIRECT_COUNTER(name)
#define COUNT_ENTRY(name) COUNT(name)
#define COUNTED_BY(name) counters = name;
#else
#define ENTRY_COUNTER(name)
#define COUNT_ENTRY(name)
#define COUNTED_BY(name)
#endif

#if DELAY && !SAMPLES
#error "DELAY=1 needs SAMPLES=1"
#endif
const bool WITH_RELAY6 = RELAY6_SIZE > 0;
const bool WITH_SAMPLES = SAMPLES == 1;
const bool WITH_DELAY = DELAY == 1;
const bool WITH_LENGTHS_CHECKED = CHECK_LENGTHS == 1;

/* ---- Sizes of the other tables -------------------------------------------------------------------------- */
const bit<32> MEDIA_SIZE = 512;     /* relay addresses times port ranges, IPv4 and IPv6 each */
const bit<32> ROUTE_SIZE = 1024;    /* IPv4 prefixes */
const bit<32> ROUTE6_SIZE = 512;    /* IPv6 prefixes */
const bit<32> NEXTHOP_SIZE = 1024;
const bit<32> MTU_SIZE = 512;       /* ports */
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
const bit<16> IPV6_HEADER_BYTES = 40;

/* ---- Why a packet was dropped: rows of the counters Ingress.dropped and Egress.dropped ------------------- */
#define NOT_ADDRESSED 1     /* ingress: to another's MAC address */
#define NOT_IP 2
#define UNROUTED 3
#define UNKNOWN_NEXTHOP 1   /* egress */
#define TURNED_BACK 2       /* at its last hop, and out of the port that it came from */
#define TOO_BIG 3          /* for the port's MTU */
#define NO_COPY 4           /* conferences, from here on: no row, or one for the other version of IP */
#define ABOVE_TARGET 5      /* of a layer that the receiver does not get */
#define LATE_COPY 6         /* out of order, and its number may have been given to another */

/* ---- Kinds of learn notices ----------------------------------------------------------------------------- */
#define DIGEST_LEARN 1
#define DIGEST_LEARN6 2
