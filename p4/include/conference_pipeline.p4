/* The order of the controls of the relay and of conferences in ingress and egress, the same on every architecture. */
/* SPDX-License-Identifier: Apache-2.0 */

/* As pipeline.p4, with the conference's tables beside the relay's: a packet is the conference's when no relay entry has claimed it, and a
 * packet of a conference is nothing to be learned from. */
control IngressPipeline(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    Layer2() layer2;
    Media() media;
    Lengths() lengths;
    Watch() watch;
    Conference() conference;
    Relay() relay;
    Replicate() replicate;
    Learn() learn;
    Mark() mark;
    Forwarding() forwarding;

    apply {
        md.notice_version = md.rtp_version;
        layer2.apply(hdr, md, INGRESS_SWITCH_PASSED);
        if (hdr.udp.isValid()) {
            media.apply(hdr, md);
        }
        lengths.apply(hdr, md);
        md.extension_bytes = md.extension_bytes << 2;
        /* The walk over header extensions may meet the end of a packet whose headers are whole. */
        if (md.relayable == 1 && (PARSED_WHOLE || md.extended == 1)) {
            if (WITH_SAMPLES) {
                watch.apply(hdr, md);
            }
            if (!WITH_LENGTHS_CHECKED || (hdr.ipv4.isValid() && md.excess == IPV4_HEADER_BYTES)
                || (!hdr.ipv4.isValid() && md.excess == 0)) {
                if (md.rtp_version == 2 && md.rtp_payload_type[6:5] != 0b10) {
                    conference.apply(hdr, md, INGRESS_SWITCH_PASSED);
                }
                relay.apply(hdr, md);
                if (md.relayed == 0) {
                    if (md.conference == 1 && md.routable == 1) {
                        replicate.apply(hdr, md, INGRESS_SWITCH_PASSED);
                    }
                    if (md.media == 1 && md.routable == 1 && md.conference == 0) {
                        learn.apply(hdr, md, INGRESS_SWITCH_PASSED);
                    }
                }
            }
        }
        if (WITH_FROM) {
            mark.apply(hdr, md);
        }
        forwarding.apply(hdr, md, INGRESS_SWITCH_PASSED);
    }
}

/* Copies first become packets for their receiver; every packet then gets its next hop's addresses, or is dropped and counted by the reason. */
control EgressPipeline(inout headers_t hdr, inout copy_t copy_md, EGRESS_SWITCH) {
    ConferenceCopy() copy;
    NextHop() nexthop;
    Delay() delay;

    apply {
        copy.apply(hdr, copy_md, EGRESS_SWITCH_PASSED);
        nexthop.apply(hdr, EGRESS_SWITCH_PASSED);
        if (WITH_DELAY && hdr.bridged.sampled == 1) {
            delay.apply(hdr, EGRESS_SWITCH_PASSED);
        }
    }
}
