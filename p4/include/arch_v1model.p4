/* What the shared parts call differently on v1model (BMv2): ports, drops, counters, checksums, time-outs. */
/* SPDX-License-Identifier: Apache-2.0 */

#include <core.p4>
#include <v1model.p4>

#define INGRESS_SWITCH inout standard_metadata_t std
#define INGRESS_SWITCH_PASSED std
#define EGRESS_SWITCH inout standard_metadata_t std
#define EGRESS_SWITCH_PASSED std

#define INGRESS_PORT std.ingress_port
/* BMv2 counts microseconds. */
#define ARRIVAL_NS (bit<32>)(std.ingress_global_timestamp * 1000)
#define PARSED_WHOLE std.parser_error == error.NoError
#define SEND_TO(port) std.egress_spec = port
#define SEND_TO_GROUP(group) std.mcast_grp = group
#define DISCARD mark_to_drop(std)

#define EGRESS_PORT std.egress_port
#define DEPARTURE_NS (bit<32>)(std.egress_global_timestamp * 1000)
#define DISCARD_AT_EGRESS mark_to_drop(std)

/* BMv2 counts whole frames, by itself. */
#define DIRECT_COUNTER(name) direct_counter(CounterType.packets_and_bytes) name;
#define COUNT(name)
#define IDLE_TIMEOUT support_timeout = true;
#define DROP_COUNTER(name) counter(8, CounterType.packets) name;
#define COUNT_DROP(name, reason) name.count((bit<32>)reason);

/* The same sums as Tofino's parser takes, in the control TakeChecksums. */
#define SUBTRACT_IPV4_HEADER(into)
#define SUBTRACT_IPV6_ADDRESSES
#define SUBTRACT_UDP_HEADER(into)

/* Keys are stored as they are: BMv2 has no hashed tables. */
#define STORED_HASH(name)
#define STORED_AS(name)
