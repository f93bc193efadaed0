/* The outcomes of a packet: the numbers that totals and `trace` report. New ones are appended, so that numbers stay. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_REASONS_H
#define SHUNT_REASONS_H

enum reason {
	RELAYED = 0,
	NOT_IP,
	NOT_UDP,
	HAS_OPTIONS,     /* IPv4 options, or an IPv6 extension header */
	FRAGMENT,
	TTL_EXPIRED,
	MALFORMED,
	NO_CHECKSUM,     /* UDP checksum 0 over IPv6 */
	NOT_UNICAST,
	NOT_MEDIA,       /* no entry, and not a media port */
	MISS,            /* a media port without an entry */
	SOURCE_MISMATCH, /* the port's entry, which is in use, has another source */
	NO_NEXTHOP,
	TOO_BIG,         /* for the output interface */
	NO_XMIT,         /* the output interface cannot send what native XDP redirects */
	NO_ROOM,         /* no headroom for the longer header */
	CHANGING,        /* the entry was being written at that moment; dropped if the packet was half rewritten by then */
	OVER_LIMIT,      /* more packets of one stream than its limit */
	CONFERENCE,      /* copied to the receivers of its conference, if it has any */
	BLOCKED,         /* a media port without an entry in use, from a source that the port does not admit */
	NOT_FOR_US,      /* to another MAC address than the receiving interface's */
	REASON_COUNT,
};

/* In which way a program runs; a constant in every program, so the compiler drops the other branches. */
enum mode {
	NATIVE,
	GENERIC,
	TRACE, /* counts nothing, raises no notice; returns verdict | reason << 8 | next hop << 16 */
};

#endif
