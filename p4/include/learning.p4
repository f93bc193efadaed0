/* Learning: which packets are media for the relay. units_*.p4 raise the notice of one that has no entry. */
/* SPDX-License-Identifier: Apache-2.0 */

/* Only packets to the relay's own addresses and media ports are worth a notice; anything else that
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
