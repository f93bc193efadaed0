/* Layers of conference packets: reads the layer and the frame of a packet, and computes the sequence numbers of its receivers (seq_rewrite.h). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_LAYERS_H
#define SHUNT_LAYERS_H

#include "checksum.h"
#include "seq_rewrite.h"

/* Where in a packet its layer is. */
enum descriptor { NO_LAYERS, DEPENDENCY_DESCRIPTOR, FRAME_MARKING, VP8_PAYLOAD, VP9_PAYLOAD };

#define ONE_BYTE 0xbede /* forms of header extensions, RFC 8285 */
#define TWO_BYTE 0x1000
#define ELEMENTS 48     /* header extensions and padding bytes that are read */
#define LAST_OFFSET 4095 /* of the bytes of a frame that are read */
#define FAR_BACK 256    /* packets; further than any reordering */
#define SILENCE 250     /* ticks of the kernel: 0.25 to 2.5 s */
#define UNCERTAIN 32    /* frames between two packets where their number is unknown: more than sequence rewriting follows (FAR) */

#define SEEN_LAYER 1     /* `template` is valid; without it the packet is for all receivers, and of no frame */
#define SEEN_START 2
#define SEEN_END 4
#define SEEN_STRUCTURE 8 /* carries a template structure */
#define SEEN_KEY 16      /* depends on no other frame */
#define SEEN_SYNC 32     /* depends on the base layer only */
#define SEEN_UP 64       /* from here on, no higher layer depends on earlier frames of a higher layer */
#define SEEN_PICTURE 128 /* has a picture id */

/* State of a walk over header extensions. In memory, so that the verifier keeps one state for each step, not one for each path to it. */
struct walk {
	__u32 at;
	__u32 size; /* of the element at `at` */
	__u32 stop;
	__u32 profile;
};

/* What was read from a packet. */
struct seen {
	__u32 at;        /* offset and length of the RTP packet in the frame */
	__u32 length;
	__u32 ip_length;
	__u32 timestamp;
	struct walk walk;
	struct row row;
	__u16 sequence;
	__u16 frame;     /* dependency descriptor */
	__u16 picture;
	__u8 template;   /* or temporal id */
	__u8 flags;
};

/* State of sequence rewriting for each stream. */
struct track {
	struct slr of[TARGETS];
	/* For streams without frame numbers. */
	__u32 timestamp;
	__u16 sequence;
	__u16 frame;
	__u16 picture;
	__u8 running;
	__u8 ended;
	/* For senders that restart. */
	__u16 expected; /* the sequence number after the last packet that was far back */
	__u16 opening;  /* the last frame with a template structure */
	__u32 last_jiffies; /* of the last packet that was not far back */
	__u32 opened;   /* `opening` is valid and recent */
};

/* State of sequence rewriting for each receiver; one of the two is in use. */
struct receiver {
	struct sequence_state sequence_state;
	struct slm slm;
	__u32 unused;
};

/* Passed from ingress to egress, for each packet. */
struct passing {
	struct outcome of[TARGETS];
	__u16 sequence;
	__u16 frame;
	__u8 layer;
	__u8 flags;     /* SEEN_START, SEEN_END */
	__u8 switches;  /* bit n: a receiver that can decode this frame can decode target n from here on */
	__u8 decodable; /* bit n: a receiver of target n can decode this frame */
	__u8 tracked;   /* `of` is filled in */
	__u8 unused[3];
};

struct layer {
	__u8 layer;
	__u8 unused;
	__u16 switches;
	__u32 unused2;
	__u64 packets;
	__u64 bytes; /* IP packet lengths as received */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32); /* layers << 8 | template */
	__type(value, struct layer);
} c_layers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct track);
} c_tracks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct receiver);
} c_receivers SEC(".maps");

/* A byte of the frame, -1 at or beyond `stop`. */
static __always_inline int byte_at(struct xdp_md *ctx, __u32 at, __u32 stop)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u8 *byte;

	OPAQUE(at);
	if (at >= stop || at > LAST_OFFSET)
		return -1;
	byte = data + at;
	OPAQUE(end);
	if ((void *)(byte + 1) > end)
		return -1;
	return *byte;
}

/* Searches the header extension `id`. On true, `walk` is at the extension's data. */
static __always_inline bool find_element(struct xdp_md *ctx, volatile struct walk *walk, __u32 id)
{
	int i, first, second;
	__u32 at, form;

	for (i = 0; i < ELEMENTS; i++) {
		at = walk->at;
		first = byte_at(ctx, at, walk->stop);
		if (first < 0)
			return false;
		second = byte_at(ctx, at + 1, walk->stop);
		form = walk->profile;
		if (first == 0) {
			walk->size = 0;
			walk->at = at + 1;
		} else if (form == ONE_BYTE) {
			if (first >> 4 == 15)
				return false;
			walk->size = (first & 15) + 1;
			walk->at = at + 1;
			first >>= 4;
		} else {
			if (second < 0)
				return false;
			walk->size = second;
			walk->at = at + 2;
		}
		at = walk->at + walk->size;
		if (at > walk->stop)
			return false;
		if (first == id)
			return true;
		walk->at = at;
	}
	return false;
}

/* The dependency descriptor of `length` bytes (AV1 RTP payload format, appendix A.8.2). */
static __always_inline void read_descriptor(struct xdp_md *ctx, __u32 at, __u32 length, struct seen *seen)
{
	int first = byte_at(ctx, at, at + length), high = byte_at(ctx, at + 1, at + length), low = byte_at(ctx, at + 2, at + length);
	int fourth = byte_at(ctx, at + 3, at + length);

	if (low < 0)
		return;
	seen->template = first & 63;
	seen->frame = high << 8 | low;
	seen->flags = SEEN_LAYER | (first & 0x80 ? SEEN_START : 0) | (first & 0x40 ? SEEN_END : 0);
	if (fourth >= 0 && fourth & 0x80)
		seen->flags |= SEEN_STRUCTURE;
}

/* RFC 9626, the short and the long form. */
static __always_inline void read_frame_mark(struct xdp_md *ctx, __u32 at, __u32 length, struct seen *seen)
{
	int first = length <= 3 ? byte_at(ctx, at, at + length) : -1;

	if (first < 0)
		return;
	seen->template = first & 7;
	seen->flags = SEEN_LAYER | (first & 0x80 ? SEEN_START : 0) | (first & 0x40 ? SEEN_END : 0);
	seen->flags |= (first & 0x20 ? SEEN_KEY : 0) | (first & 8 ? SEEN_SYNC : 0);
}

/* Reads a picture id of 7 or 15 bits; returns its length in bytes, 0 when it is truncated. */
static __always_inline __u32 read_picture(struct xdp_md *ctx, __u32 at, __u32 stop, struct seen *seen)
{
	int first = byte_at(ctx, at, stop), second = byte_at(ctx, at + 1, stop);

	if (first < 0 || (first & 0x80 && second < 0))
		return 0;
	seen->flags |= SEEN_PICTURE;
	seen->picture = first & 0x80 ? (first & 0x7f) << 8 | second : first;
	return first & 0x80 ? 2 : 1;
}

/* RFC 7741 section 4.2. */
__noinline int read_vp8(struct xdp_md *ctx, __u32 at, __u32 stop, struct seen *seen)
{
	int first = byte_at(ctx, at, stop), extended = 0, layer = 0;
	__u32 size;

	if (!seen || first < 0)
		return 0;
	at++;
	if (first & 0x80) {
		extended = byte_at(ctx, at++, stop);
		if (extended < 0)
			return 0;
	}
	if (extended & 0x80) {
		size = read_picture(ctx, at, stop, seen);
		if (!size)
			return 0;
		at += size;
	}
	if (extended & 0x40)
		at++;
	if (extended & 0x30) {
		layer = byte_at(ctx, at++, stop);
		if (layer < 0)
			return 0;
		if (!(extended & 0x20))
			layer = 0;
	}
	seen->template = layer >> 6;
	seen->flags |= SEEN_LAYER | (layer & 0x20 ? SEEN_SYNC : 0);
	if ((first & 0x17) == 0x10) {
		seen->flags |= SEEN_START;
		first = byte_at(ctx, at, stop);
		if (first >= 0 && !(first & 1))
			seen->flags |= SEEN_KEY;
	}
	return 0;
}

/* RFC 9628 section 4.2. */
__noinline int read_vp9(struct xdp_md *ctx, __u32 at, __u32 stop, struct seen *seen)
{
	int first = byte_at(ctx, at, stop), layer = 0;
	__u32 size;

	if (!seen || first < 0)
		return 0;
	at++;
	if (first & 0x80) {
		size = read_picture(ctx, at, stop, seen);
		if (!size)
			return 0;
		at += size;
	}
	if (first & 0x20) {
		layer = byte_at(ctx, at, stop);
		if (layer < 0)
			return 0;
	}
	seen->template = layer >> 5;
	seen->flags |= SEEN_LAYER | (layer & 0x10 ? SEEN_UP : 0);
	/* A spatial layer is a frame of its own in VP9, several to a picture. Here a frame is a whole picture. */
	if (!(layer & 0x0e)) {
		seen->flags |= first & 0x08 ? SEEN_START : 0;
		seen->flags |= first & 0x40 ? 0 : SEEN_KEY;
	}
	return 0;
}

/* Reads layer and frame of an RTP packet. A malformed packet has neither. */
__noinline int read_layers(struct xdp_md *ctx, __u32 how, struct seen *seen)
{
	__u32 at, stop, kind = how & 7, body, profile, words;
	int first, marker, high, low, last = 0;
	bool found = false;
	__be32 *head;

	if (!seen)
		return 0;
	seen->template = 0;
	seen->flags = 0;
	seen->frame = 0;
	at = seen->at;
	stop = at + seen->length;
	if (at > 128)
		return 0;
	head = (void *)(long)ctx->data + at;
	if (head + 2 > (__be32 *)(long)ctx->data_end)
		return 0;
	seen->sequence = bpf_ntohl(head[0]);
	seen->timestamp = bpf_ntohl(head[1]);
	if (stop > LAST_OFFSET)
		return 0;
	first = byte_at(ctx, at, stop);
	marker = byte_at(ctx, at + 1, stop);
	body = at + 12 + 4 * (first & 15);
	if (first < 0 || marker < 0)
		return 0;
	if (first & 0x20) {
		last = byte_at(ctx, stop - 1, stop);
		if (last <= 0)
			return 0;
	}
	if (first & 0x10) {
		high = byte_at(ctx, body, stop);
		low = byte_at(ctx, body + 1, stop);
		profile = high << 8 | low;
		high = byte_at(ctx, body + 2, stop);
		low = byte_at(ctx, body + 3, stop);
		if (low < 0)
			return 0;
		words = high << 8 | low;
		body += 4;
		if (body + 4 * words > stop)
			return 0;
		seen->walk = (struct walk){ .at = body, .stop = body + 4 * words, .profile = profile };
		if ((kind == DEPENDENCY_DESCRIPTOR || kind == FRAME_MARKING) && (profile == ONE_BYTE || (profile & 0xfff0) == TWO_BYTE))
			found = find_element(ctx, &seen->walk, how >> 4 & 15);
		body += 4 * words;
	}
	if (body > stop || body + last > stop)
		return 0;
	if (kind == DEPENDENCY_DESCRIPTOR) {
		if (found)
			read_descriptor(ctx, seen->walk.at, seen->walk.size, seen);
	} else if (kind == FRAME_MARKING) {
		if (found)
			read_frame_mark(ctx, seen->walk.at, seen->walk.size, seen);
	} else if (body < stop - last) {
		seen->flags = marker & 0x80 ? SEEN_END : 0;
		if (kind == VP8_PAYLOAD)
			read_vp8(ctx, body, stop - last, seen);
		else if (kind == VP9_PAYLOAD)
			read_vp9(ctx, body, stop - last, seen);
	}
	return 0;
}

/* The frame number of a packet without one: from the picture id if there is one, else from the timestamp. */
static __always_inline __u16 count_frame(struct track *t, const struct seen *seen, __u16 sequence, __u32 timestamp, int start, int end)
{
	s16 ahead = t->running ? (s16)(sequence - t->sequence) : 1;
	__u16 frame = t->frame, gap = ahead - 1, edges = !t->ended + !start;
	int step = ((seen->picture - t->picture + 64) & 127) - 64;

	if (t->running && timestamp != t->timestamp) {
		if (seen->flags & SEEN_PICTURE)
			frame += ahead > 0 || step < 0 ? step : -1;
		else if (ahead <= 0)
			frame -= 1;
		else if (gap == 0 || gap == edges)
			frame += 1;
		else
			frame += gap == 1 && edges == 0 ? 2 : UNCERTAIN;
	}
	if (ahead > 0) {
		t->running = 1;
		t->sequence = sequence;
		t->timestamp = timestamp;
		t->frame = frame;
		t->ended = !!end;
		if (seen->flags & SEEN_PICTURE)
			t->picture = seen->picture;
	}
	return frame;
}

/* Sequence rewriting of one target for one packet. */
__noinline int pass_target_of(struct slr *s, const struct row *row, struct outcome *out)
{
	if (!s || !row || !out)
		return 0;
	*out = slr_accept(s, *row, 1);
	return 0;
}

/* Detects a sender that restarts with a sequence number far back: two packets in order, after a silence. */
static __always_inline void follow_restart(struct track *t, __u16 sequence)
{
	__u32 now = (__u32)bpf_jiffies64();
	int n;

	if (t->of[0].high.two != RUNNING || (s16)(sequence - t->of[0].high.one) > -FAR_BACK) {
		t->last_jiffies = now;
		return;
	}
	if (sequence == t->expected && now - t->last_jiffies > SILENCE)
		for (n = 0; n < TARGETS; n++)
			t->of[n].high.two = RESUME;
	t->expected = sequence + 1;
}

/* A template structure comes with a frame that depends on no other. That frame is for all receivers, and each may switch to a higher
 * target there. The rows of c_layers do not count for it: they may belong to an earlier structure until the agent has read this one. */
static __always_inline void open_sequence(struct passing *passing, const struct seen *seen, struct track *track)
{
	int opening = seen->flags & SEEN_STRUCTURE;
	s16 ahead;

	if (!(seen->flags & SEEN_LAYER))
		return;
	if (track && opening) {
		track->opening = seen->frame;
		track->opened = 1;
	} else if (track && track->opened) {
		ahead = seen->frame - track->opening;
		opening = !ahead;
		if (ahead > FAR_BACK)
			track->opened = 0;
	}
	if (!opening)
		return;
	passing->layer = 0;
	passing->switches = passing->decodable = 0xff;
}

/* Fills in *passing: the layer and frame of a packet, and to which targets receivers may switch. */
__noinline int judge(struct passing *passing, const struct seen *seen, struct track *track, __u32 how)
{
	__u32 key = (how >> 16) << 8 | (seen ? seen->template : 0), layered, above;
	struct layer *layer = NULL;

	if (!passing || !seen)
		return 0;
	layered = seen->flags & SEEN_LAYER;
	if (layered && how >> 16)
		layer = bpf_map_lookup_elem(&c_layers, &key);
	if (layer) {
		layer->packets++;
		layer->bytes += seen->ip_length;
	}
	passing->layer = layer ? layer->layer & 15 : 0;
	passing->sequence = seen->sequence;
	passing->frame = seen->frame;
	passing->flags = layered ? seen->flags & (SEEN_START | SEEN_END) : SEEN_START | SEEN_END;
	passing->switches = 0;
	passing->decodable = 0;
	passing->tracked = !!track;
	above = 0xffU << passing->layer; /* the targets that the packet is in */
	if (layer && (how & 7) == DEPENDENCY_DESCRIPTOR) {
		passing->switches = layer->switches;
		passing->decodable = above;
	} else if (layer) {
		if (seen->flags & SEEN_UP)
			passing->switches = above << 1;
		passing->decodable = above;
		if (seen->flags & SEEN_KEY)
			passing->switches = passing->decodable = 0xff;
		else if (seen->flags & SEEN_SYNC && passing->layer) {
			passing->switches |= 1U << passing->layer;
			passing->decodable = 0xff;
		}
	}
	if ((how & 7) == DEPENDENCY_DESCRIPTOR)
		open_sequence(passing, seen, track);
	else if (track)
		passing->frame = count_frame(track, seen, seen->sequence, seen->timestamp, !!(passing->flags & SEEN_START), !!(passing->flags & SEEN_END));
	if (track && !layered && (how & 7) == DEPENDENCY_DESCRIPTOR)
		passing->frame = track->of[0].frame.one; /* of no frame: the packets around it do not count as suppressed */
	if (track)
		follow_restart(track, passing->sequence);
	return 0;
}

/* The sequence numbers of a packet in all targets. */
static __always_inline void pass_targets(struct passing *passing, struct seen *seen, struct track *track)
{
	struct row *row = &seen->row;
	__u32 n;

	row->sequence = passing->sequence;
	row->frame = passing->frame;
	row->start = !!(passing->flags & SEEN_START);
	row->end = !!(passing->flags & SEEN_END);
	row->key = !!(seen->flags & SEEN_STRUCTURE);
	for (n = 0; n < TARGETS; n++) {
		row->keep = passing->layer <= n || n == TARGETS - 1;
		pass_target_of(&track->of[n], row, &passing->of[n]);
	}
}

/* Whether a copy goes to its receiver, and with which sequence number. */
__noinline int number_for(struct receiver *receiver, const struct passing *passing, __u32 target, __u32 cadence, u16 *number)
{
	struct outcome outcome;
	struct row row = {};
	__u32 current;
	int changes;

	if (!receiver || !passing || !number)
		return 0;
	target &= TARGETS - 1;
	if (passing->tracked) {
		current = receiver->sequence_state.target & (TARGETS - 1);
		changes = passing->flags & SEEN_START && (target < current || (passing->switches >> target & passing->decodable >> current & 1));
		return sequence_state_accept(&receiver->sequence_state, target, changes, passing->of, number);
	}
	if (passing->layer > target)
		return 0;
	row.sequence = passing->sequence;
	row.frame = passing->frame;
	row.start = !!(passing->flags & SEEN_START);
	row.end = !!(passing->flags & SEEN_END);
	row.keep = 1;
	outcome = slm_accept(&receiver->slm, row, cadence & 15);
	*number = outcome.position;
	return outcome.verdict == FORWARD;
}

#endif
