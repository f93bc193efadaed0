/* The order of the relay's controls in ingress and egress, the same on every architecture. */
/* SPDX-License-Identifier: Apache-2.0 */

/* What is looked up on the packet as it came (media, watch) stands before the relay, which changes it; the route stands after it.
 * Nothing else stands between these: every stage that lay between them would be lost to the relay table. So would one in which something that
 * does not fit beside the relay table's parts had to wait for its end: the compiler places nothing of ingress while a table goes on
 * from stage to stage. */
control IngressPipeline(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    Layer2() layer2;
    Media() media;
    Lengths() lengths;
    Watch() watch;
    Relay() relay;
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
        if (md.relayable == 1 && PARSED_WHOLE) {
            if (WITH_SAMPLES) {
                watch.apply(hdr, md);
            }
            if (!WITH_LENGTHS_CHECKED || (hdr.ipv4.isValid() && md.excess == IPV4_HEADER_BYTES)
                || (!hdr.ipv4.isValid() && md.excess == 0)) {
                relay.apply(hdr, md);
                if (md.relayed == 0) {
                    if (md.media == 1 && md.routable == 1) {
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

/* Every packet gets its next hop's addresses, or is dropped and counted by the reason. */
control EgressPipeline(inout headers_t hdr, EGRESS_SWITCH) {
    NextHop() nexthop;
    Delay() delay;

    apply {
        nexthop.apply(hdr, EGRESS_SWITCH_PASSED);
        if (WITH_DELAY && hdr.bridged.sampled == 1) {
            delay.apply(hdr, EGRESS_SWITCH_PASSED);
        }
    }
}
