/* The order of things in ingress and egress, the same on every architecture. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_PIPELINE_P4
#define SHUNT_PIPELINE_P4

#if S_LM
#include "sequence.p4"
#elif S_LR
#include "tracks.p4"
#include "splice.p4"
#endif
#include "conference.p4"
#include "counters.p4"
#include "forwarding.p4"
#include "learning.p4"
#include "relay.p4"

#if CONFERENCE
#define COPY_METADATA inout copy_t copy_md,
#define COPY_METADATA_PASSED copy_md,
#else
#define COPY_METADATA
#define COPY_METADATA_PASSED
#endif

/* Why: what is looked up on the packet as it came (media, sample) stands before the relay, which changes it;
 * the route stands after it. Nothing else stands between these: every stage that lay between them would be
 * lost to the relay table. So would one in which something that does not fit beside the relay table's parts had
 * to wait for its end: the compiler places nothing of ingress while a table goes on from stage to stage. */
control IngressPipeline(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    Layer2() layer2;
    Media() media;
#if SAMPLES
    Sample() sample;
    Sequence() sequence;
#endif
    Relay() relay;
    Learn() learn;
    Conference() conference;
#if CONFERENCE
    Replicate() replicate;
#endif
#if WITH_FROM
    Mark() mark;
#endif
    Forwarding() forwarding;

    apply {
        md.notice_version = md.rtp_version;

        layer2.apply(hdr, md, INGRESS_SWITCH_PASSED);
        if (hdr.udp.isValid()) {
            media.apply(hdr, md);
        }
#if CHECK_LENGTHS
        if (hdr.ipv4.isValid()) {
            md.excess = hdr.ipv4.total_len - hdr.udp.length;
        } else {
            md.excess = hdr.ipv6.payload_len - hdr.udp.length;
        }
#endif
#if WITH_ACROSS
        md.total_len = hdr.udp.length + IPV4_HEADER_BYTES;
#endif

#if CONFERENCE
        md.extension_bytes = md.extension_bytes << 2;
#endif

        if (md.relayable == 1 && PARSED_WHOLE) {
#if SAMPLES
            sample.apply(hdr, md);
            if (md.sampled == 1) {
#if DELAY
                hdr.bridged.sampled = 1;
                hdr.bridged.sample = md.sample;
#endif
                /* RTP, and not RTCP on the same port (RFC 5761). */
                if (md.rtp_version == 2 && md.rtp_payload_type[6:5] != 0b10) {
                    sequence.apply(md);
                }
            }
#endif
#if CHECK_LENGTHS
            if ((hdr.ipv4.isValid() && md.excess == IPV4_HEADER_BYTES) || (!hdr.ipv4.isValid() && md.excess == 0))
#endif
            {
#if CONFERENCE
                if (md.rtp_version == 2 && md.rtp_payload_type[6:5] != 0b10) {
                    conference.apply(hdr, md, INGRESS_SWITCH_PASSED);
                }
#endif
                relay.apply(hdr, md);
                if (md.relayed == 0) {
#if CONFERENCE
                    if (md.conference == 1 && md.routable == 1) {
                        replicate.apply(hdr, md, INGRESS_SWITCH_PASSED);
                    }
                    if (md.media == 1 && md.routable == 1 && md.conference == 0) {
#else
                    conference.apply(hdr, md, INGRESS_SWITCH_PASSED);
                    if (md.media == 1 && md.routable == 1) {
#endif
                        learn.apply(hdr, md, INGRESS_SWITCH_PASSED);
                    }
                }
            }
        }
#if WITH_FROM
        mark.apply(hdr, md);
#endif
        forwarding.apply(hdr, md, INGRESS_SWITCH_PASSED);
    }
}

/* Why: copies first become packets for their receiver; every packet then gets its next hop's addresses. */
control EgressPipeline(inout headers_t hdr, COPY_METADATA EGRESS_SWITCH) {
    ConferenceCopy() copy;
    NextHop() nexthop;
#if DELAY
    Delay() delay;
#endif

    apply {
        copy.apply(hdr, COPY_METADATA_PASSED EGRESS_SWITCH_PASSED);
        nexthop.apply(hdr, EGRESS_SWITCH_PASSED);
#if DELAY
        if (hdr.bridged.sampled == 1) {
            delay.apply(hdr, EGRESS_SWITCH_PASSED);
        }
#endif
    }
}

#endif
