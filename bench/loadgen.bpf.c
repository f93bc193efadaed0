/* The load generator's three programs: send RTP frames by the clock, account for what arrives, time the softirqs. */
/* SPDX-License-Identifier: Apache-2.0 */
/* bench/load.py runs `generate` by BPF_PROG_TEST_RUN with live frames, on a core of its own: each run sends the frame
 * that is due, or nothing. `receive` sits as native XDP on both phones' interfaces and swallows what it has counted.
 * Both read the same clock in the kernel, so a delay needs no clock to be matched. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define STREAMS 65536
#define SIDES 2
#define BINS 2048       /* 32 to each power of two: 3 % */
#define WINDOW 64       /* sequence numbers behind the highest within which a duplicate is told from a late packet */
#define STALL 10000000  /* ns behind the clock after which what was missed is counted and not made up for in a burst */
#define SSRC_MARK 0x5a000000

/* One direction of one call. */
struct stream {
	__be32 saddr, daddr;
	__be16 sport, dport;
	__be32 far_addr; /* where the frame has to come out */
	__be16 far_port;
	__u16 side;      /* interface it is sent on */
	__u32 sum;       /* ones' complement sum of everything in the checksum that never changes */
	__u32 seq;       /* extended: the low half is what the packet says */
	__u64 sent;
};

struct received {
	__u64 packets;    /* each sequence number once */
	__u64 duplicates;
	__u64 reordered;  /* within the window; among `packets` */
	__u64 stale;      /* older than the window: not told from a duplicate, not among `packets` */
	__u64 misdelivered;
	__u64 corrupt;    /* wrong IPv4 header checksum */
	__u64 window;     /* bit n: sequence number highest - n arrived */
	__u64 delay_sum;  /* ns */
	__u64 delay_max;
	__u64 last_delay;
	__u64 variation_sum;
	__u32 highest;
	__u32 started;
};

struct histogram {
	__u64 bin[BINS];
};

/* Written by user space before and, where said so, during a run. */
struct settings {
	__u64 start_ns, stop_ns;
	__u64 interval_ns;      /* between two frames, 1/1024 ns; may change during a run */
	__u32 active;           /* streams that talk; may grow during a run */
	__u32 run;              /* frames of other runs are not counted */
	__u32 ifindex[SIDES];
	__u32 watched;          /* thread group whose time in softirqs is counted apart */
	__u32 batch;            /* frames handed over together, as many as the runs between two flushes */
	__u8 macs[SIDES][16];   /* destination, source */
};

/* Written by the generator alone: one core. */
struct progress {
	__u64 due;      /* clock of the next frame, 1/1024 ns after start_ns */
	__u64 sent;
	__u64 skipped;  /* frames that were not sent because the generator was too far behind */
	__u64 late_sum; /* ns between the time at which a frame should have been handed over and its sending */
	__u64 late_max;
	__u64 runs;
	__u64 release;  /* when the last frame of the batch is due: all of it is handed over then */
	__u32 position;
	__u32 open;     /* whether this batch is sent */
};

struct softirq {
	__u64 begun;
	__u64 ns;         /* receive and transmit softirqs of the network that are the load's */
	__u64 watched_ns; /* the part that interrupted the watched process */
	__u64 count;
};

struct settings settings SEC(".data.settings") = {};
struct progress progress SEC(".data.progress") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, STREAMS);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, STREAMS);
	__type(key, __u32);
	__type(value, struct received);
} receiveds SEC(".maps");

/* 0: delay, 1: delay variation, 2: lateness of the generator. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct softirq);
} softirqs SEC(".maps");

static __always_inline __u32 log2_of(__u64 v)
{
	__u32 r = 0;

	if (v >> 32) { v >>= 32; r += 32; }
	if (v >> 16) { v >>= 16; r += 16; }
	if (v >> 8) { v >>= 8; r += 8; }
	if (v >> 4) { v >>= 4; r += 4; }
	if (v >> 2) { v >>= 2; r += 2; }
	return r + (v >> 1);
}

/* Below 32 ns each has its own bin; above, the five bits behind the highest one choose it. */
static __always_inline void put(__u32 which, __u64 ns)
{
	struct histogram *h = bpf_map_lookup_elem(&histograms, &which);
	__u32 power, bin;

	if (!h)
		return;
	if (ns < 32) {
		bin = ns;
	} else {
		power = log2_of(ns);
		bin = (power - 4) * 32 + ((ns >> (power - 5)) & 31);
	}
	h->bin[bin & (BINS - 1)]++;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Ethernet, IPv4, UDP, RTP, and in the payload the clock and the run. */
struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	__be16 rtp_head, seq;
	__be32 timestamp, ssrc;
	__u32 clock_low, clock_high, run; /* as stored: only this machine reads them */
} __attribute__((packed, aligned(2)));

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	__u64 now, due, late, run = progress.runs++;
	struct stream *s;
	__u32 n, side, *word;
	__u64 sum;

	now = bpf_ktime_get_ns();
	due = settings.start_ns + (progress.due >> 10);
	/* What was due before the end is still sent after it: user space decides for how long. */
	if (due >= settings.stop_ns || !settings.active || !settings.batch)
		return XDP_DROP;
	/* The kernel flushes after every `batch` runs, the first of which decides for all. */
	if (run % settings.batch == 0) {
		progress.release = due + ((settings.batch - 1) * settings.interval_ns >> 10);
		if (progress.release > settings.stop_ns)
			progress.release = settings.stop_ns;
		progress.open = now >= progress.release;
	}
	if (!progress.open)
		return XDP_DROP;
	late = now - progress.release;
	if (late > STALL && settings.interval_ns) {
		/* Half of the stall is given up, in whole frames, the rest is caught up with. */
		__u64 given_up = ((late / 2) << 10) / settings.interval_ns;

		progress.skipped += given_up;
		progress.due += given_up * settings.interval_ns;
	}
	if ((void *)(f + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	n = progress.position;
	progress.position = n + 1 < settings.active ? n + 1 : 0;
	s = bpf_map_lookup_elem(&streams, &n);
	if (!s)
		return XDP_ABORTED;
	side = s->side & (SIDES - 1);
	progress.due += settings.interval_ns;
	progress.late_sum += late;
	if (late > progress.late_max)
		progress.late_max = late;
	put(2, late);

	__builtin_memcpy(&f->eth, settings.macs[side], 12);
	f->ip.saddr = s->saddr;
	f->ip.daddr = s->daddr;
	f->ip.ttl = 64;
	f->ip.check = 0;
	/* The rest of the header is the template's. */
	/* The header read as words, after what was just stored in it as bytes. */
	asm volatile("" ::: "memory");
	word = (void *)f + sizeof(f->eth);
	sum = (__u64)word[0] + word[1] + word[2] + word[3] + word[4];
	f->ip.check = ~fold(sum);
	f->udp.source = s->sport;
	f->udp.dest = s->dport;
	f->seq = bpf_htons((__u16)s->seq);
	f->timestamp = bpf_htonl(s->seq * 160);
	f->ssrc = bpf_htonl(SSRC_MARK | n);
	f->run = settings.run;
	f->clock_low = (__u32)now;
	f->clock_high = now >> 32;
	sum = (__u64)s->sum + f->seq + f->timestamp + f->clock_low + f->clock_high + f->run;
	f->udp.check = ~fold(sum);
	if (!f->udp.check)
		f->udp.check = 0xffff;
	s->seq++;
	s->sent++;
	progress.sent++;
	return bpf_redirect(settings.ifindex[side], 0);
}

/* In the order in which sequence numbers come. */
static __always_inline bool fresh(struct received *r, __u16 seq)
{
	__s32 ahead;

	if (!r->started) {
		r->started = 1;
		r->highest = seq;
		r->window = 1;
		return true;
	}
	ahead = (__s16)(seq - (__u16)r->highest);
	if (ahead > 0) {
		r->window = ahead < WINDOW ? r->window << ahead | 1 : 1;
		r->highest += ahead;
		return true;
	}
	if (ahead <= -WINDOW) {
		r->stale++;
		return false;
	}
	if (r->window >> -ahead & 1) {
		r->duplicates++;
		return false;
	}
	r->window |= 1ULL << -ahead;
	r->reordered++;
	return true;
}

SEC("xdp")
int receive(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	__u64 now = bpf_ktime_get_ns(), delay, variation;
	struct received *r;
	struct stream *s;
	__u32 n, *word = (void *)f + sizeof(f->eth);

	if ((void *)(f + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (f->eth.h_proto != bpf_htons(ETH_P_IP) || f->ip.protocol != IPPROTO_UDP || *((__u8 *)f + sizeof(f->eth)) != 0x45)
		return XDP_PASS;
	n = bpf_ntohl(f->ssrc);
	if ((n & 0xff000000) != SSRC_MARK)
		return XDP_PASS;
	n &= 0xffffff;
	if (f->run != settings.run)
		return XDP_DROP;
	s = bpf_map_lookup_elem(&streams, &n);
	r = bpf_map_lookup_elem(&receiveds, &n);
	if (!s || !r)
		return XDP_DROP;
	if (f->ip.daddr != s->far_addr || f->udp.dest != s->far_port) {
		r->misdelivered++;
		return XDP_DROP;
	}
	if (fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) != 0xffff) {
		r->corrupt++;
		return XDP_DROP;
	}
	if (!fresh(r, bpf_ntohs(f->seq)))
		return XDP_DROP;
	delay = now - ((__u64)f->clock_high << 32 | f->clock_low);
	put(0, delay);
	if (r->packets) {
		variation = delay > r->last_delay ? delay - r->last_delay : r->last_delay - delay;
		put(1, variation);
		r->variation_sum += variation;
	}
	r->packets++;
	r->last_delay = delay;
	r->delay_sum += delay;
	if (delay > r->delay_max)
		r->delay_max = delay;
	return XDP_DROP;
}

static __always_inline bool of_network(__u32 vector)
{
	return vector == 2 || vector == 3; /* NET_TX, NET_RX */
}

/* Softirqs run in the thread that gave rise to them, or in ksoftirqd when there are too many. Those of the generator, of
 * the relay and of ksoftirqd are the load's; what other programs' traffic costs on the same machine is not. */
static __always_inline bool of_load(bool watched)
{
	union {
		char text[16];
		__u64 word;
	} name = {}, generator = { "bench-ge" }, daemon = { "ksoftirq" };

	if (watched)
		return true;
	bpf_get_current_comm(name.text, sizeof(name.text));
	return name.word == generator.word || name.word == daemon.word;
}

SEC("raw_tp/softirq_entry")
int softirq_begins(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct softirq *mine = bpf_map_lookup_elem(&softirqs, &zero);

	if (mine && of_network(ctx->args[0]))
		mine->begun = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/softirq_exit")
int softirq_ends(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct softirq *mine = bpf_map_lookup_elem(&softirqs, &zero);
	bool watched;
	__u64 ns;

	if (!mine || !of_network(ctx->args[0]) || !mine->begun)
		return 0;
	ns = bpf_ktime_get_ns() - mine->begun;
	mine->begun = 0;
	watched = settings.watched && bpf_get_current_pid_tgid() >> 32 == settings.watched;
	if (!of_load(watched))
		return 0;
	mine->ns += ns;
	mine->count++;
	if (watched)
		mine->watched_ns += ns;
	return 0;
}

char LICENSE[] SEC("license") = "Apache-2.0";
