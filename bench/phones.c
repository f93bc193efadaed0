/* The participants of conferences as a load: sends RTP by the clock on sockets that it is handed, and notes when each packet arrives at which.
 *
 * Commands on standard input, one a line, each answered by a line on standard output:
 *   leg FD                                    a socket, numbered from 0: what comes there is noted
 *   stream LEG SSRC TYPE RATE SIZE IP PORT    RTP from that leg, numbered from 0: packets/s (0: only in talk), bytes of payload, payload type
 *   talk MS                                   all streams send, those without a rate 20 a second; answers "pairs N": streams with a rate and legs at which they were heard
 *   measure MS FILE                           streams with a rate send; answers "measured SKIPPED LATE SECONDS OTHER SENT …", SENT for each stream
 * FILE gets 16 bytes for each packet that arrived: leg and stream (16 bits each), the packet's number in its stream (32), ns on the way
 * (64), from just before the sending to the kernel's time stamp on arrival. LATE is the most that a packet was sent after it was due, in
 * us; SKIPPED are packets given up because they were 20 ms late; OTHER is what came and is none of its packets. The first 16 bytes
 * of a packet's payload are its time, its stream and its number, so a server may change all of its header. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LEGS = 4096, STREAMS = 4096, BATCH = 64, SIZE = 1600, HEADER = 12, STAMP = 16, QUEUE = 16 << 20 };
static const int64_t GIVE_UP = 20000000, SETTLE = 200000000; /* ns */
static const double TALK = 20; /* packets/s */

struct stamp { int64_t at; uint32_t stream, number; };
struct stream { int fd; struct sockaddr_in to; double rate; size_t size; uint16_t sequence; uint32_t number; int64_t due; uint8_t packet[SIZE]; };
struct record { uint16_t leg, stream; uint32_t number; int64_t ns; };

static struct stream *streams;
static int legs[LEGS];
static unsigned leg_count, stream_count;
static struct record *records;
static size_t recorded, room;
static uint64_t *heard; /* a bit for each leg and stream */
static uint64_t other;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static int epoll;

static int64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void note(unsigned leg, const struct stamp *stamp, int64_t arrived)
{
	size_t bit = (size_t)leg * STREAMS + stamp->stream;

	heard[bit / 64] |= 1ull << bit % 64;
	if (recorded == room) {
		room = room ? 2 * room : 1 << 16;
		records = realloc(records, room * sizeof(*records));
		if (!records)
			abort();
	}
	records[recorded++] = (struct record){ leg, stamp->stream, stamp->number, arrived - stamp->at };
}

static void receive(unsigned leg)
{
	static uint8_t data[BATCH][HEADER + 64 * 4 + STAMP];
	static uint8_t control[BATCH][64];
	struct mmsghdr got[BATCH];
	struct iovec parts[BATCH];
	int count;

	do {
		for (int i = 0; i < BATCH; i++) {
			parts[i] = (struct iovec){ data[i], sizeof(data[i]) };
			got[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof(control[i]) };
		}
		count = recvmmsg(legs[leg], got, BATCH, MSG_DONTWAIT, NULL);
		pthread_mutex_lock(&held);
		for (int i = 0; i < count; i++) {
			const uint8_t *p = data[i];
			size_t at = HEADER + (p[0] & 15) * 4, length = got[i].msg_len;
			struct cmsghdr *c = CMSG_FIRSTHDR(&got[i].msg_hdr);
			struct timespec stamped;
			struct stamp stamp;

			if (length > at + 4 && p[0] & 16) /* a header extension that a server put in */
				at += 4 + 4 * (p[at + 2] << 8 | p[at + 3]);
			if (length < HEADER || p[0] >> 6 != 2 || (p[1] >= 192 && p[1] <= 223) || at + STAMP > length || at + STAMP > sizeof(data[i]) || !c) {
				other++;
				continue;
			}
			memcpy(&stamp, p + at, STAMP);
			memcpy(&stamped, CMSG_DATA(c), sizeof(stamped));
			if (stamp.stream < stream_count)
				note(leg, &stamp, stamped.tv_sec * 1000000000ll + stamped.tv_nsec);
			else
				other++;
		}
		pthread_mutex_unlock(&held);
	} while (count == BATCH);
}

static void *listen_on(void *nothing)
{
	struct epoll_event ready[BATCH];

	for (;;) {
		int count = epoll_wait(epoll, ready, BATCH, -1);

		for (int i = 0; i < count; i++)
			receive(ready[i].data.u32);
	}
	return nothing;
}

static void send_one(unsigned n)
{
	struct stream *s = &streams[n];
	struct stamp stamp = { .stream = n, .number = s->number };
	uint16_t sequence = htons(s->sequence);
	uint32_t when = htonl(s->sequence * 960);

	memcpy(s->packet + 2, &sequence, 2);
	memcpy(s->packet + 4, &when, 4);
	stamp.at = now(CLOCK_REALTIME);
	memcpy(s->packet + HEADER, &stamp, STAMP);
	while (sendto(s->fd, s->packet, HEADER + s->size, 0, (void *)&s->to, sizeof(s->to)) < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR))
		;
	s->number++;
	s->sequence++;
}

/* Sends for so long, streams evenly apart. *skipped and *late as above. */
static void send_all(int64_t ns, bool talking, uint64_t *skipped, int64_t *late)
{
	int64_t begun = now(CLOCK_MONOTONIC), over = begun + ns;

	*skipped = 0;
	*late = 0;
	for (unsigned i = 0; i < stream_count; i++)
		streams[i].due = begun + (int64_t)(1e9 / (streams[i].rate ? streams[i].rate : TALK) * i / stream_count);
	for (;;) {
		int64_t at = now(CLOCK_MONOTONIC), next = over;

		if (at >= over)
			return;
		for (unsigned i = 0; i < stream_count; i++) {
			struct stream *s = &streams[i];
			double rate = s->rate ? s->rate : TALK;

			if (!s->rate && !talking)
				continue;
			if (s->due <= at) {
				if (at - s->due > GIVE_UP) {
					uint64_t missed = (at - s->due) * rate / 1e9;

					*skipped += missed;
					s->due += missed * 1e9 / rate;
				}
				if (at - s->due > *late)
					*late = at - s->due;
				send_one(i);
				s->due += 1e9 / rate;
			}
			if (s->due < next)
				next = s->due;
		}
		if (next > now(CLOCK_MONOTONIC))
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &(struct timespec){ next / 1000000000, next % 1000000000 }, NULL);
	}
}

static void leg(int fd)
{
	int on = 1, size = QUEUE;
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = leg_count };

	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	if (leg_count == LEGS || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) {
		printf("%s\n", leg_count == LEGS ? "too many legs" : strerror(errno));
		return;
	}
	legs[leg_count++] = fd;
	puts("ok");
}

static void stream(unsigned from, uint32_t ssrc, unsigned type, double rate, unsigned size, const char *ip, unsigned port)
{
	struct stream *s = &streams[stream_count];

	if (from >= leg_count || stream_count == STREAMS || size < STAMP || HEADER + size > SIZE || inet_pton(AF_INET, ip, &s->to.sin_addr) != 1) {
		puts("no such stream");
		return;
	}
	s->to.sin_family = AF_INET;
	s->to.sin_port = htons(port);
	s->fd = legs[from];
	s->rate = rate;
	s->size = size;
	s->packet[0] = 0x80;
	s->packet[1] = type;
	ssrc = htonl(ssrc);
	memcpy(s->packet + 8, &ssrc, 4);
	stream_count++;
	puts("ok");
}

static void talk(unsigned ms)
{
	uint64_t skipped;
	int64_t late;
	unsigned pairs = 0;

	send_all(ms * 1000000ll, true, &skipped, &late);
	usleep(20000);
	pthread_mutex_lock(&held);
	for (size_t i = 0; i < leg_count; i++)
		for (unsigned j = 0; j < stream_count; j++)
			pairs += streams[j].rate && heard[(i * STREAMS + j) / 64] >> j % 64 & 1;
	pthread_mutex_unlock(&held);
	printf("pairs %u\n", pairs);
}

static void measure(unsigned ms, const char *path)
{
	uint64_t skipped;
	int64_t late, begun;
	FILE *file = fopen(path, "w");

	if (!file) {
		printf("%s: %s\n", path, strerror(errno));
		return;
	}
	usleep(SETTLE / 1000);
	pthread_mutex_lock(&held);
	recorded = 0;
	other = 0;
	for (unsigned i = 0; i < stream_count; i++)
		streams[i].number = 0;
	pthread_mutex_unlock(&held);
	begun = now(CLOCK_MONOTONIC);
	send_all(ms * 1000000ll, false, &skipped, &late);
	begun = now(CLOCK_MONOTONIC) - begun;
	usleep(SETTLE / 1000);
	pthread_mutex_lock(&held);
	fwrite(records, sizeof(*records), recorded, file);
	pthread_mutex_unlock(&held);
	fclose(file);
	printf("measured %llu %lld %.6f %llu", (unsigned long long)skipped, (long long)late / 1000, begun / 1e9, (unsigned long long)other);
	for (unsigned i = 0; i < stream_count; i++)
		printf(" %u", streams[i].number);
	puts("");
}

int main(void)
{
	char *line = NULL, ip[64], path[2048];
	size_t capacity = 0;
	unsigned a, b, c, size, port;
	pthread_t thread;
	double rate;

	streams = calloc(STREAMS, sizeof(*streams));
	heard = calloc((size_t)LEGS * STREAMS / 64, sizeof(*heard));
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!streams || !heard || epoll < 0 || pthread_create(&thread, NULL, listen_on, NULL)) {
		perror("phones");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (getline(&line, &capacity, stdin) > 0) {
		if (sscanf(line, "leg %u", &a) == 1)
			leg(a);
		else if (sscanf(line, "stream %u %u %u %lf %u %63s %u", &a, &b, &c, &rate, &size, ip, &port) == 7)
			stream(a, b, c, rate, size, ip, port);
		else if (sscanf(line, "talk %u", &a) == 1)
			talk(a);
		else if (sscanf(line, "measure %u %2047[^\n]", &a, path) == 2)
			measure(a, path);
		else
			puts("what?");
	}
	return 0;
}
