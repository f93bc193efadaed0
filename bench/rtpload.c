/* Sends RTP on many flows, or sprays a port range, as fast as it is told; counts what it sent, and what arrives of each stream.
 *
 * Commands on standard input, one a line:
 *   add ID SRC SPORT DST DPORT SSRC     one packet of 172 bytes RTP every 20 ms from now on
 *   del ID
 *   spray SRC DST FIRST LAST PPS        packets from random ports of SRC to random ports of DST (PPS 0: stop); what follows RTP's header begins with "attack"
 *   end ID                              as del; answers "ended COUNT SEQ:TIME …": packets sent, and when the first one was, each one that was
 *                                       not 20 ms after the one before it, give or take 2, and the last (CLOCK_MONOTONIC)
 *   hear FIRST LAST                     from now on notes which packets arrive at these ports, by SSRC
 *   heard SSRC COUNT                    answers "heard UNIQUE DUPLICATES OFFLOADED FIRST-OFFLOADED OVERFLOWN A-B …": of the first COUNT packets of a
 *                                       stream so many arrived, so many more than once, so many with the data plane's TTL (the lab lowers the relay's), from this
 *                                       sequence number on; packets that this program was too slow for; and the missing sequence numbers. Forgets the stream.
 *   count                               answers "sent LOW HIGH SPRAYED": packets of flows with ids below 65536, of the others, and sprayed
 * Ends at end of input. Packets leave by a raw socket with UDP checksum 0, which IPv4 allows (RFC 768).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 20, PAYLOAD = 172, SIZE = 28 + PAYLOAD, BATCH = 64, MOST = 1 << 18, FIRST_SSRC = 0x10000, RELAYED_TTL = 60 /* tests/lab/topology.py */, MOST_GAPS = 500 };

static const double LATE = 0.002, INTERVAL = 0.020; /* seconds */

struct sent { uint32_t seq; double at; };
struct flow { struct flow *next; uint32_t id, count; double last; struct sent *marks; unsigned marked, room; uint8_t packet[SIZE]; };
/* What has arrived of a stream: a bit for each sequence number. */
struct heard { uint64_t *bits; unsigned words, unique, duplicates, offloaded, first_offloaded; };

static struct flow *slots[SLOTS];
static struct flow **by_id;
static unsigned sizes[SLOTS];
static uint64_t sent[2], sprayed;
static int raw, ear = -1;
static struct heard *heard;
static unsigned ear_first, ear_last, overflown;
static struct { uint32_t src, dst; unsigned first, last, pps; double credit; } spray;

static void fill(uint8_t *p, uint32_t src, unsigned sport, uint32_t dst, unsigned dport, uint32_t ssrc)
{
	uint16_t v;
	memset(p, 0, SIZE);
	p[0] = 0x45; v = htons(SIZE); memcpy(p + 2, &v, 2); p[8] = 64; p[9] = 17;
	memcpy(p + 12, &src, 4); memcpy(p + 16, &dst, 4);
	v = htons(sport); memcpy(p + 20, &v, 2);
	v = htons(dport); memcpy(p + 22, &v, 2);
	v = htons(8 + PAYLOAD); memcpy(p + 24, &v, 2);
	p[28] = 0x80; p[29] = 8; ssrc = htonl(ssrc); memcpy(p + 36, &ssrc, 4);
}

static uint64_t flush(struct mmsghdr *messages, unsigned count)
{
	unsigned done = 0;
	while (done < count) {
		int n = sendmmsg(raw, messages + done, count - done, 0);
		if (n < 0) {
			if (errno == ENOBUFS || errno == EAGAIN || errno == EINTR) continue;
			perror("sendmmsg");
			return done;
		}
		done += n;
	}
	return done;
}

static void advance(uint8_t *p)
{
	uint16_t seq; uint32_t stamp;
	memcpy(&seq, p + 30, 2); seq = htons(ntohs(seq) + 1); memcpy(p + 30, &seq, 2);
	memcpy(&stamp, p + 32, 4); stamp = htonl(ntohl(stamp) + 160); memcpy(p + 32, &stamp, 4);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void mark(struct flow *f, double at)
{
	if (f->marked == f->room) {
		f->room = f->room ? 2 * f->room : 16;
		f->marks = realloc(f->marks, f->room * sizeof *f->marks);
		if (!f->marks) { perror("marks"); exit(1); }
	}
	f->marks[f->marked++] = (struct sent){ f->count, at };
}

static void send_slot(unsigned slot)
{
	double t = now();
	static struct mmsghdr messages[BATCH]; static struct iovec vectors[BATCH]; static struct sockaddr_in to[BATCH];
	unsigned n = 0;
	for (struct flow *f = slots[slot]; f; f = f->next) {
		advance(f->packet);
		if (!f->count++ || t - f->last > INTERVAL + LATE || t - f->last < INTERVAL - LATE) mark(f, t);
		f->last = t;
		sent[f->id >= 65536]++; /* flush() sends all or says why not */
		vectors[n] = (struct iovec){ f->packet, SIZE };
		to[n].sin_family = AF_INET; memcpy(&to[n].sin_addr, f->packet + 16, 4);
		messages[n].msg_hdr = (struct msghdr){ .msg_name = &to[n], .msg_namelen = sizeof to[n], .msg_iov = &vectors[n], .msg_iovlen = 1 };
		if (++n == BATCH) { flush(messages, n); n = 0; }
	}
	if (n) flush(messages, n);
}

static void send_spray(double seconds)
{
	static uint8_t packets[BATCH][SIZE]; static struct mmsghdr messages[BATCH]; static struct iovec vectors[BATCH]; static struct sockaddr_in to[BATCH];
	spray.credit += spray.pps * seconds;
	if (spray.credit > spray.pps / 20.0) spray.credit = spray.pps / 20.0; /* what a busy machine missed is not made up for in one burst */
	while (spray.credit >= BATCH) {
		for (unsigned i = 0; i < BATCH; i++) {
			unsigned r = random();
			fill(packets[i], spray.src, 1024 + r % 60000, spray.dst, spray.first + random() % (spray.last - spray.first + 1), r);
			memcpy(packets[i] + 40, "attack", 6);
			vectors[i] = (struct iovec){ packets[i], SIZE };
			to[i].sin_family = AF_INET; to[i].sin_addr.s_addr = spray.dst;
			messages[i].msg_hdr = (struct msghdr){ .msg_name = &to[i], .msg_namelen = sizeof to[i], .msg_iov = &vectors[i], .msg_iovlen = 1 };
		}
		sprayed += flush(messages, BATCH);
		spray.credit -= BATCH;
	}
}

static void open_ear(void)
{
	int size = 64 << 20;
	ear = socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK, htons(ETH_P_IP));
	heard = calloc(2 * MOST, sizeof *heard);
	if (ear < 0 || !heard) { perror("packet socket"); exit(1); }
	setsockopt(ear, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
}

static void note(const uint8_t *p, size_t length)
{
	unsigned at = (p[0] & 15) * 4, dport, seq; uint32_t ssrc;
	if (length < at + 20 || p[9] != 17 || p[at + 8] >> 6 != 2 || (p[at + 9] & 127) != 8) return;
	dport = p[at + 2] << 8 | p[at + 3];
	seq = p[at + 10] << 8 | p[at + 11];
	memcpy(&ssrc, p + at + 16, 4); ssrc = ntohl(ssrc) - FIRST_SSRC;
	if (dport < ear_first || dport > ear_last || ssrc >= 2 * MOST) return;
	struct heard *h = &heard[ssrc];
	if (seq / 64 >= h->words) {
		unsigned words = seq / 64 + 16;
		h->bits = realloc(h->bits, words * sizeof *h->bits);
		if (!h->bits) { perror("realloc"); exit(1); }
		memset(h->bits + h->words, 0, (words - h->words) * sizeof *h->bits);
		h->words = words;
	}
	if (h->bits[seq / 64] >> seq % 64 & 1) { h->duplicates++; return; }
	h->bits[seq / 64] |= 1ull << seq % 64;
	h->unique++;
	if (p[8] > RELAYED_TTL) {
		if (!h->offloaded++ || seq < h->first_offloaded) h->first_offloaded = seq;
	}
}

static void listen_on(void)
{
	static uint8_t packets[BATCH][96]; static struct mmsghdr messages[BATCH]; static struct iovec vectors[BATCH]; static struct sockaddr_ll from[BATCH];
	int n;
	do {
		for (unsigned i = 0; i < BATCH; i++) {
			vectors[i] = (struct iovec){ packets[i], sizeof packets[i] };
			messages[i].msg_hdr = (struct msghdr){ .msg_name = &from[i], .msg_namelen = sizeof from[i], .msg_iov = &vectors[i], .msg_iovlen = 1 };
		}
		n = recvmmsg(ear, messages, BATCH, 0, NULL);
		for (int i = 0; i < n; i++)
			if (from[i].sll_pkttype == PACKET_HOST && messages[i].msg_len >= 20) note(packets[i], messages[i].msg_len);
	} while (n == BATCH);
}

static void answer_heard(uint32_t ssrc, unsigned count)
{
	struct tpacket_stats s = { 0 }; socklen_t size = sizeof s;
	struct heard *h = &heard[ssrc - FIRST_SSRC];
	if (!getsockopt(ear, SOL_PACKET, PACKET_STATISTICS, &s, &size)) overflown += s.tp_drops;
	printf("heard %u %u %u %u %u", h->unique, h->duplicates, h->offloaded, h->first_offloaded, overflown);
	for (unsigned seq = 1, begin = 0, gaps = 0; seq <= count + 1 && gaps < MOST_GAPS; seq++) {
		int here = seq > count || (seq / 64 < h->words && h->bits[seq / 64] >> seq % 64 & 1);
		if (!here && !begin) begin = seq;
		if (here && begin) { printf(" %u-%u", begin, seq - 1); begin = 0; gaps++; }
	}
	printf("\n");
	fflush(stdout);
	free(h->bits);
	memset(h, 0, sizeof *h);
}

static void forget(unsigned id)
{
	struct flow **at = &slots[id % SLOTS];
	while (*at && *at != by_id[id]) at = &(*at)->next;
	if (*at) *at = by_id[id]->next;
	free(by_id[id]->marks); free(by_id[id]); by_id[id] = NULL; sizes[id % SLOTS]--;
}

static void command(char *line)
{
	unsigned id, sport, dport, first, last, pps; char src[64], dst[64]; uint32_t ssrc;
	if (sscanf(line, "add %u %63s %u %63s %u %u", &id, src, &sport, dst, &dport, &ssrc) == 6 && id < MOST && !by_id[id]) {
		struct flow *f = calloc(1, sizeof *f);
		unsigned slot = id % SLOTS;
		fill(f->packet, inet_addr(src), sport, inet_addr(dst), dport, ssrc);
		f->id = id; f->next = slots[slot]; slots[slot] = f; by_id[id] = f; sizes[slot]++;
	} else if (sscanf(line, "del %u", &id) == 1 && id < MOST && by_id[id]) {
		forget(id);
	} else if (sscanf(line, "end %u", &id) == 1) {
		struct flow *f = id < MOST ? by_id[id] : NULL;
		printf("ended %u", f ? f->count : 0);
		for (unsigned n = 0; f && n < f->marked; n++) printf(" %u:%.6f", f->marks[n].seq, f->marks[n].at);
		if (f && f->count > 1) printf(" %u:%.6f", f->count, f->last);
		printf("\n");
		fflush(stdout);
		if (f) forget(id);
	} else if (sscanf(line, "hear %u %u", &ear_first, &ear_last) == 2) {
		if (ear < 0) open_ear();
	} else if (sscanf(line, "heard %u %u", &ssrc, &first) == 2 && ear >= 0 && ssrc - FIRST_SSRC < 2 * MOST) {
		listen_on();
		answer_heard(ssrc, first);
	} else if (sscanf(line, "spray %63s %63s %u %u %u", src, dst, &first, &last, &pps) == 5) {
		spray.src = inet_addr(src); spray.dst = inet_addr(dst);
		spray.first = first; spray.last = last; spray.pps = pps; spray.credit = 0;
	} else if (!strncmp(line, "count", 5)) {
		printf("sent %llu %llu %llu\n", (unsigned long long)sent[0], (unsigned long long)sent[1], (unsigned long long)sprayed);
		fflush(stdout);
	} else {
		fprintf(stderr, "not understood: %s\n", line);
	}
}

int main(void)
{
	static char buffer[1 << 16];
	size_t held = 0;
	by_id = calloc(MOST, sizeof *by_id);
	raw = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
	if (raw < 0 || !by_id) { perror("raw socket"); return 1; }
	int size = 8 << 20;
	setsockopt(raw, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
	double tick = now(), before = tick;
	for (unsigned slot = 0;; slot = (slot + 1) % SLOTS) {
		send_slot(slot);
		double t = now();
		if (spray.pps) send_spray(t - before);
		if (ear >= 0) listen_on();
		before = t;
		tick += 0.001;
		for (;;) {
			double left = tick - now();
			struct pollfd in = { .fd = 0, .events = POLLIN };
			struct timespec wait = { 0, left > 0 ? (long)(left * 1e9) : 0 };
			if (ppoll(&in, 1, &wait, NULL) > 0) {
				ssize_t n = read(0, buffer + held, sizeof buffer - held - 1);
				if (n <= 0) return 0;
				held += n;
				buffer[held] = 0;
				char *at = buffer, *end;
				while ((end = strchr(at, '\n'))) { *end = 0; command(at); at = end + 1; }
				held -= at - buffer;
				memmove(buffer, at, held);
			}
			if (tick - now() <= 0) break;
		}
		/* Phones that a busy machine kept waiting send later, and not all at once what they have missed: no link of a lab holds that. */
		if (now() - tick > LATE) tick = now();
	}
}
