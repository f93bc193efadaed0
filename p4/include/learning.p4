/* Learning: which packets are media for the relay, and the notice of one that has no entry. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_LEARNING_P4
#define SHUNT_LEARNING_P4

/* Why: only packets to the relay's own addresses and media ports are worth a notice; anything else that
 * passes through the switch is none of the agent's business. */
control Media(inout headers_t hdr, inout metadata_t md) {
    @name(".Ingress.is_media")
    action is_media() {
        md.media = 1;
        md.notice = DIGEST_LEARN;
    }

    @name(".Ingress.is_media6")
    action is_media6() {
        md.media = 1;
        md.notice = DIGEST_LEARN6;
    }

    @name(".Ingress.media")
    table media {
        key = {
            hdr.ipv4.dst_addr: exact;
            hdr.udp.dst_port: range;
        }
        actions = {
            @tableonly is_media;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = MEDIA_SIZE;
    }

    @name(".Ingress.media6")
    table media6 {
        key = {
            hdr.ipv6.dst_addr: exact;
            hdr.udp.dst_port: range;
        }
        actions = {
            @tableonly is_media6;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = MEDIA_SIZE;
    }

    apply {
        if (hdr.ipv4.isValid()) {
            media.apply();
        } else {
            media6.apply();
        }
    }
}

/* Why: the agent learns from the first packets of a stream where a party behind a NAT really is. The packet
 * itself goes on to the relay server, which does its own learning. */
control Learn(in headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    apply {
        RAISE_NOTICE
    }
}

#endif
