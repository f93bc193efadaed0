/* Sequence rewriting (S-LR, S-LM) as passes over words of state: one function for each word, called once for each packet. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHUNT_SEQ_REWRITE_H
#define SHUNT_SEQ_REWRITE_H

/* The state that a switch has in register arrays and eBPF in a map: words of two 16-bit halves. Between two passes there are only
 * comparisons, additions and lookups in small tables. There is no history of offsets. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef short s16;

/* Sizes that user space uses too. */
enum layer_size {
	WINDOW = 16, /* last sequence numbers that are remembered */
	TARGETS = 4, /* decode targets; a power of two */
};
#define FAR 16 /* more frames than this between two packets are not followed */
#define HOLD 0x8000

/* State of the highest sequence number: none yet; valid; the sender restarts. */
enum high_state { FRESH, RUNNING, RESUME };
enum { FORWARD, SUPPRESS, LATE, REPEATED };
enum { ENDED = 1, KEPT = 2 };

struct row {
	u16 sequence, frame;
	u8 start, end, keep, key;
};

struct outcome {
	u8 verdict, in_order, has_position;
	u16 position;
};

struct pair {
	u16 one, two;
};

/* -- the passes ---------------------------------------------------------------------------------------------------- */

static inline struct pair pass_high(struct pair *high, u16 sequence, int *older)
{
	struct pair old = *high;

	*older = old.two == RUNNING && (s16)(sequence - old.one) <= 0;
	if (!*older)
		*high = (struct pair){ sequence, RUNNING };
	return old;
}

static inline struct pair pass_frame(struct pair *frame, struct pair new, int older)
{
	struct pair old = *frame;

	if (!older)
		*frame = new;
	return old;
}

static inline u16 pass_cadence(u16 *cadence, u16 keep_mask, u16 or_mask)
{
	u16 old = *cadence;

	*cadence = (old & keep_mask) | or_mask; /* one of the two has no effect */
	return old;
}

static inline u16 pass_offset(u16 *offset, u16 add)
{
	u16 old = *offset;

	*offset = old + add;
	return old;
}

static inline struct pair pass_floor(struct pair *floor, struct pair new, int set)
{
	struct pair old = *floor;

	if (set)
		*floor = new;
	return old;
}

static inline int pass_used(u16 *used, u16 number)
{
	u16 old = used[number % WINDOW];

	used[number % WINDOW] = number;
	return old == number;
}

/* -- the tables between them --------------------------------------------------------------------------------------- */

static inline u16 suppressed_between(u16 mask, u16 frame, u16 count)
{
	u16 whole = (mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1) + (mask >> 3 & 1);
	u16 found = whole * (count / 4);

	for (u16 n = 1; n <= 3; n++)
		if (n <= count % 4)
			found += mask >> ((frame + n) & 3) & 1;
	return found;
}

/* How many packets of a gap were certainly suppressed; *tail_kept: the gap begins with packets that were kept. */
static inline u16 gone_of(u16 gap, u16 frames, struct pair old, u16 mask, int start, int keep, int *tail_kept)
{
	u16 suppressed = 0, kept = 0, between = frames - 1;

	*tail_kept = 0;
	if (!gap)
		return 0;
	if (!frames) {
		*tail_kept = keep || old.two & KEPT;
		return *tail_kept ? 0 : gap;
	}
	if (!(old.two & ENDED)) {
		*tail_kept = !!(old.two & KEPT);
		kept += *tail_kept;
		suppressed += !*tail_kept;
	}
	if (!start) {
		kept += keep;
		suppressed += !keep;
	}
	if (between > FAR) {
		kept++;
	} else if (between) {
		u16 found = suppressed_between(mask, old.one, between);

		suppressed += found;
		kept += between - found;
	}
	if (!kept)
		return suppressed ? gap : 0;
	if (gap <= kept)
		return 0;
	return suppressed < gap - kept ? suppressed : gap - kept;
}

/* -- S-LR ---------------------------------------------------------------------------------------------------------- */

struct slr {
	struct pair high, frame;
	u16 cadence, offset;
	struct pair floor;
	u16 used[WINDOW];
};

static inline void slr_init(struct slr *s, u16 mask)
{
	*s = (struct slr){ .cadence = mask };
	for (int n = 0; n < WINDOW; n++)
		s->used[n] = n + 1; /* a number that has another slot */
}

static inline struct outcome slr_accept(struct slr *s, struct row r, int learn)
{
	u16 bit = 1 << (r.frame & 3), keep_mask = 0xffff, or_mask = 0, mask, gone = 0, gap, offset, position, following, number;
	struct pair high, frame, floor;
	int older, tail_kept = 0, opens;

	high = pass_high(&s->high, r.sequence, &older);
	frame = pass_frame(&s->frame, (struct pair){ r.frame, (r.end ? ENDED : 0) | (r.keep ? KEPT : 0) }, older);

	if (!older && r.key && r.keep) {
		keep_mask = learn ? 0 : 0x7fff;
	} else if (!older && learn) {
		int far = (u16)(r.frame - frame.one - 1) > FAR && r.frame != frame.one;

		keep_mask = far ? HOLD : 0xffff;
		if (r.keep)
			keep_mask &= ~bit;
		else
			or_mask = bit;
	}
	mask = pass_cadence(&s->cadence, keep_mask, or_mask);
	if (mask & HOLD || !!(mask & bit) == r.keep)
		mask = 0;

	gap = r.sequence - high.one - 1;
	if (!older && high.two == RUNNING)
		gone = gone_of(gap, r.frame - frame.one, frame, mask, r.start, r.keep, &tail_kept);
	else if (!older && high.two == RESUME)
		gone = gap;

	offset = pass_offset(&s->offset, older ? 0 : gone + !r.keep);
	position = r.sequence - offset - gone;
	following = high.one + 1 - offset;
	opens = !older && (high.two == FRESH || gone || !r.keep);
	floor = pass_floor(&s->floor, (struct pair){ r.keep && !r.start && !tail_kept && high.two == RUNNING ? following : position, r.frame }, opens);

	if (!older) {
		if (r.keep)
			pass_used(s->used, position);
		return (struct outcome){ r.keep ? FORWARD : SUPPRESS, 1, 1, position };
	}
	if (!r.keep)
		return (struct outcome){ SUPPRESS, 0, 0, 0 };
	number = r.sequence - offset;
	if ((s16)(number - floor.one) < 0 || (s16)(r.frame - floor.two) < 0 || (s16)(frame.one - r.frame) < 0 || (u16)(following - 1 - number) >= WINDOW)
		return (struct outcome){ r.sequence == high.one ? REPEATED : LATE, 0, 0, 0 };
	if (pass_used(s->used, number))
		return (struct outcome){ REPEATED, 0, 0, 0 };
	return (struct outcome){ FORWARD, 0, 1, number };
}

/* -- S-LM ---------------------------------------------------------------------------------------------------------- */

struct slm {
	struct pair high, frame;
	u16 offset, open;
};

static inline u16 pass_open(u16 *open, u16 new, int set)
{
	u16 old = *open;

	if (set)
		*open = new;
	return old;
}

static inline struct outcome slm_accept(struct slm *s, struct row r, u16 mask)
{
	struct pair high, frame;
	u16 offset, add = 0, frames;
	int older, closes, before, open;

	high = pass_high(&s->high, r.sequence, &older);
	frame = pass_frame(&s->frame, (struct pair){ r.frame, r.end ? ENDED : 0 }, older);
	frames = r.frame - frame.one;
	closes = high.two == RUNNING && frame.two & ENDED && r.start && frames >= 2 && frames <= FAR && !(mask >> (r.frame & 3) & 1) &&
		 suppressed_between(mask, frame.one, frames - 1) == frames - 1;
	if (!older && (high.two == RESUME || closes))
		add = r.sequence - high.one - 1;
	offset = pass_offset(&s->offset, add);
	before = older && (u16)(high.one - r.sequence) == 1;
	open = pass_open(&s->open, !older && high.two == RUNNING && (u16)(r.sequence - high.one) > 1 && !closes, !older || before);
	if (older && !(before && open))
		return (struct outcome){ r.sequence == high.one ? REPEATED : LATE, 0, 0, 0 };
	return (struct outcome){ FORWARD, !older, 1, r.sequence - offset - add };
}

/* -- Receiver sequence state: from the numbers of the decode target to the receiver's --------------------------------- */

struct sequence_state {
	u16 target, base;
	struct pair floor; /* the first number of this target; whether the target was ever changed */
};

static inline u16 pass_target(u16 *target, u16 wanted, int may)
{
	u16 old = *target;

	if (may)
		*target = wanted;
	return old;
}

/* Returns whether the packet goes to this receiver, and its number. All targets have the same packets in order. */
static inline int sequence_state_accept(struct sequence_state *s, u16 wanted, int changes, const struct outcome *of, u16 *number)
{
	const struct outcome *new = &of[wanted & (TARGETS - 1)], *old;
	int may = changes && new->in_order && new->verdict == FORWARD;
	u16 was = pass_target(&s->target, wanted, may), base;
	struct pair floor;
	int changed = may && was != wanted;

	old = &of[was & (TARGETS - 1)];
	base = pass_offset(&s->base, changed ? new->position - old->position : 0);
	*number = old->position - base; /* the same for the last packet of the old target and the first of the new one */
	floor = pass_floor(&s->floor, (struct pair){ *number, 1 }, changed);
	if (changed)
		return 1;
	return old->verdict == FORWARD && (old->in_order || !floor.two || (s16)(*number - floor.one) >= 0);
}

#endif
