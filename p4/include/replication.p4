/* Conferences: which streams are replicated, into which tree by their layer, and what each copy becomes. */
/* SPDX-License-Identifier: Apache-2.0 */

#if S_LR
#define TOLD_BY bit<4> descriptor, bit<17> track
#define TRACK_IT md.track.row = track;
#define LAYER bit<4> layer, bit<16> switches
/* What the words of tracks.p4 are held against. */
#define NOTE_DESCRIPTOR \
        md.track.word[31:16] = md.frame; \
        md.track.word[7:0] = md.marks; \
        md.track.comparand[31:16] = md.frame; \
        md.track.flags = md.flags;
#else
#define TOLD_BY bit<4> descriptor
#define TRACK_IT
#define LAYER bit<4> layer
#endif
/* One packet becomes many in the replication engine; all that ingress does is to say which tree it goes into, and whom to
 * leave out. Names, keys, actions and widths are the contract with the agent (docs/replication.md). */
control Conference(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    DIRECT_COUNTER(conference_counter)
    DIRECT_COUNTER(conference6_counter)

    @name(".Ingress.replicate")
    action replicate(bit<16> mgid, bit<16> l1_xid, bit<16> rid, bit<9> l2_xid, bit<24> stream, bit<1> to_agent, bit<4> trees,
                     bit<16> layers, bit<4> extension, TOLD_BY) {
        md.mgid = mgid;
        EXCLUDE(l1_xid, rid, l2_xid);
        hdr.bridged.stream = stream;
        md.to_agent = to_agent;
        md.more_trees = (bit<16>)trees;
        md.layers = layers;
        md.extension = extension;
        md.descriptor = descriptor;
        md.conference = 1;
        TRACK_IT
        COUNT(conference_counter)
    }

    @name(".Ingress.replicate6")
    action replicate6(bit<16> mgid, bit<16> l1_xid, bit<16> rid, bit<9> l2_xid, bit<24> stream, bit<1> to_agent, bit<4> trees,
                      bit<16> layers, bit<4> extension, TOLD_BY) {
        md.mgid = mgid;
        EXCLUDE(l1_xid, rid, l2_xid);
        hdr.bridged.stream = stream;
        md.to_agent = to_agent;
        md.more_trees = (bit<16>)trees;
        md.layers = layers;
        md.extension = extension;
        md.descriptor = descriptor;
        md.conference = 1;
        TRACK_IT
        COUNT(conference6_counter)
    }

    @name(".Ingress.conference")
    table conference {
        key = {
            hdr.ipv4.src_addr: exact;
            hdr.ipv4.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
            md.rtp_ssrc: exact @name("ssrc");
        }
        actions = {
            @tableonly replicate;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = CONFERENCE_SIZE;
        counters = conference_counter;
    }

    @name(".Ingress.conference6")
    table conference6 {
        key = {
            hdr.ipv6.src_addr: exact;
            hdr.ipv6.dst_addr: exact;
            hdr.udp.src_port: exact;
            hdr.udp.dst_port: exact;
            md.rtp_ssrc: exact @name("ssrc");
        }
        actions = {
            @tableonly replicate6;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = CONFERENCE6_SIZE;
        counters = conference6_counter;
    }

#if SEQUENCE
#define PICK_FRAME(n) md.frame = md.frame_##n;
#else
#define PICK_FRAME(n)
#endif
    /* The descriptor is the first element with the stream's id. In the one-byte form the id is the upper half of a byte. */
#define PICK(n, number) \
    action pick_##n() { \
        md.picked = number; \
        md.marks = md.marks_##n; \
        md.flags = md.flags_##n; \
        PICK_FRAME(n) \
    }
    PICK(0, 1)
    PICK(1, 2)
    PICK(2, 3)
    PICK(3, 4)
    PICK(4, 5)
    PICK(5, 6)

#define WITH_ID(form, id, extension) \
            (form, extension, id, _, _, _, _, _): pick_0(); \
            (form, extension, _, id, _, _, _, _): pick_1(); \
            (form, extension, _, _, id, _, _, _): pick_2(); \
            (form, extension, _, _, _, id, _, _): pick_3(); \
            (form, extension, _, _, _, _, id, _): pick_4(); \
            (form, extension, _, _, _, _, _, id): pick_5();
#define WITH_ANY_ID(extension) \
            WITH_ID(ONE_BYTE_FORM, extension << 4 &&& 0xf0, extension) \
            WITH_ID(TWO_BYTE_FORM, extension, extension)

    @name(".Ingress.pick")
    table pick {
        key = {
            hdr.extension.form: ternary @name("form");
            md.extension: ternary @name("extension");
            md.id_0: ternary @name("id_0");
            md.id_1: ternary @name("id_1");
            md.id_2: ternary @name("id_2");
            md.id_3: ternary @name("id_3");
            md.id_4: ternary @name("id_4");
            md.id_5: ternary @name("id_5");
        }
        actions = {
            pick_0;
            pick_1;
            pick_2;
            pick_3;
            pick_4;
            pick_5;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            WITH_ANY_ID(1)
            WITH_ANY_ID(2)
            WITH_ANY_ID(3)
            WITH_ANY_ID(4)
            WITH_ANY_ID(5)
            WITH_ANY_ID(6)
            WITH_ANY_ID(7)
            WITH_ANY_ID(8)
            WITH_ANY_ID(9)
            WITH_ANY_ID(10)
            WITH_ANY_ID(11)
            WITH_ANY_ID(12)
            WITH_ANY_ID(13)
            WITH_ANY_ID(14)
            WITH_ID(TWO_BYTE_FORM, 15, 15)
        }
    }

    @name(".Ingress.set_layer")
    action set_layer(LAYER) {
        md.tree = (bit<16>)layer;
#if S_LM
        hdr.bridged.layer = (bit<8>)layer;
#elif S_LR
        md.track.word[15:8] = (bit<8>)layer;
        md.track.switches = switches[7:0];
        NOTE_DESCRIPTOR
#endif
    }

#if S_LR
    @name(".Ingress.no_layer")
    action no_layer() {
        NOTE_DESCRIPTOR
    }
#define NO_LAYER no_layer
#else
#define NO_LAYER NoAction
#endif

    @name(".Ingress.layer")
    table layer {
        key = {
            md.layers: exact @name("layers");
            md.marks[5:0]: exact @name("template");
        }
        actions = {
            @tableonly set_layer;
            @defaultonly NO_LAYER;
        }
        default_action = NO_LAYER();
        size = LAYER_SIZE;
    }

    action count_trees() {
        md.more_trees = md.more_trees |-| 1;
#if !S_LR
        md.lacking = md.extension_bytes |-| hdr.udp.length;
#endif
    }

    action limit_tree() {
#if S_LM
        hdr.bridged.marks = md.marks;
        hdr.bridged.frame = md.frame;
#endif
        md.tree = MIN(md.tree, md.more_trees);
    }

#if S_LR
    /* A number in HIGH has the lowest bit set, so that none is zero. */
    action prepare_number() {
        md.track.high[31:16] = md.rtp_seq;
        md.track.high_less_one[31:16] = md.rtp_seq - 1;
        md.room = hdr.udp.length |-| md.headers;
    }

    action count_lacking() {
        md.lacking = md.extension_bytes |-| md.room;
    }

    Tracks() tracks;
#endif

    apply {
#if S_LR
        /* Before the tables know the stream: its numbers are a long chain. */
        prepare_number();
        count_lacking();
#else
        md.extension_bytes = md.extension_bytes + DATAGRAM_WITH_EXTENSION;
#endif
        if (hdr.ipv4.isValid()) {
            conference.apply();
        } else {
            conference6.apply();
        }
        if (md.conference == 1) {
            count_trees();
            if (md.descriptor == DEPENDENCY_DESCRIPTOR && hdr.extension.isValid() && md.lacking == 0) {
                pick.apply();
            }
            if (md.picked != 0 && md.picked != md.beyond) {
                layer.apply();
                limit_tree();
            }
#if S_LR
            if (md.track.row != 0) {
                tracks.apply(hdr, md);
            }
#endif
        }
    }
}

/* The packet is the conference's only when no relay entry has claimed it, and what is above need not wait for that. */
control Replicate(inout headers_t hdr, inout metadata_t md, INGRESS_SWITCH) {
    action send_to_tree() {
        SEND_TO_TREE(md.mgid + md.tree);
        hdr.bridged.replicated = 1;
        md.switched = 1;
    }

    apply {
        send_to_tree();
        if (md.to_agent == 1 || (md.flags[7:7] == 1 && md.picked != md.beyond)) {
            MIRROR_TO_THE_AGENT;
        }
    }
}

/* Every copy is a packet of its own, from the relay's address and port of its receiver, to that receiver. The checksums are
 * made as in ingress, from differences. NextHop does the rest, as for any packet. A receiver gets copies in the IP version in which
 * the packet came, or none. */
#if S_LR
#define NUMBERED , bit<4> target, bit<17> sequence_state
#define NUMBER_IT copy_md.target = (bit<8>)target; copy_md.sequence_state = sequence_state;
#elif S_LM
#define NUMBERED , bit<4> target, bit<17> sequence_state, bit<4> cadence
#define NUMBER_IT copy_md.target = (bit<8>)target; copy_md.sequence_state = sequence_state; copy_md.cadence = cadence;
#else
#define NUMBERED
#define NUMBER_IT
#endif
control ConferenceCopy(inout headers_t hdr, inout copy_t copy_md, EGRESS_SWITCH) {
    DIRECT_COUNTER(copy_counter)
#if SEQUENCE
    Numbers() numbers;
#endif

    @name(".Egress.copy_to")
    action copy_to(bit<32> src_addr, bit<32> dst_addr, bit<16> src_port, bit<16> dst_port, bit<16> nexthop NUMBERED) {
        hdr.ipv4.src_addr = src_addr;
        hdr.ipv4.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        hdr.bridged.nexthop = nexthop;
        hdr.bridged.length = hdr.ipv4.total_len;
        hdr.bridged.routed = 1;
        copy_md.four = 1;
        NUMBER_IT
        COUNT_COPY(copy_counter)
    }

    @name(".Egress.copy_to_v6")
    action copy_to_v6(bit<128> src_addr, bit<128> dst_addr, bit<16> src_port, bit<16> dst_port, bit<16> nexthop NUMBERED) {
        hdr.ipv6.src_addr = src_addr;
        hdr.ipv6.dst_addr = dst_addr;
        hdr.udp.src_port = src_port;
        hdr.udp.dst_port = dst_port;
        hdr.bridged.nexthop = nexthop;
        hdr.bridged.length = hdr.ipv6.payload_len + IPV6_HEADER_BYTES;
        hdr.bridged.routed = 1;
        copy_md.six = 1;
        NUMBER_IT
        COUNT_COPY(copy_counter)
    }

    @name(".Egress.no_copy")
    action no_copy() {
    }

    action drop_copy() {
        hdr.bridged.drop = NO_COPY;
        hdr.bridged.routed = 0;
    }

    @name(".Egress.copy")
    table copies {
        key = {
            hdr.bridged.stream: exact @name("stream");
            EGRESS_RID: exact @name("rid");
        }
        actions = {
            @tableonly copy_to;
            @tableonly copy_to_v6;
            @defaultonly no_copy;
        }
        default_action = no_copy();
        size = COPY_SIZE;
        counters = copy_counter;
    }

    action lower_ttl() {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    action lower_hop_limit() {
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    apply {
        if (hdr.bridged.replicated == 1) {
            if (hdr.ipv4.isValid()) {
                lower_ttl();
            } else {
                lower_hop_limit();
            }
            copies.apply();
            /* No row, or one for the other version of IP. */
            if (hdr.ipv4.isValid() && copy_md.four == 0) {
                drop_copy();
            } else if (hdr.ipv6.isValid() && copy_md.six == 0) {
                drop_copy();
            }
#if SEQUENCE
            numbers.apply(hdr, copy_md, EGRESS_SWITCH_PASSED);
#endif
        }
    }
}
