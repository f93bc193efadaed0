/* A conference server in plain user space, as a peer for benches: every packet is read from a socket and written once for each receiver.
 *
 * Commands on standard input, a line each, answered by a line on standard output:
 *   join CONFERENCE PARTICIPANT MEDIUM ADDRESS PORT    bind a socket; numbers but for the address (IPv4)
 *   leave CONFERENCE PARTICIPANT                       close all of a participant's sockets
 *   refuse CONFERENCE RECEIVER SENDER MEDIUM           the receiver gets no more of this medium and those above it from the sender
 * A participant is where its last RTP packet came from; copies leave from the socket that the receiver sends to. One
 * thread, epoll, packets read and written in batches: what such a server can do without tricks. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 32
#define SIZE 2048
#define MOST 65536 /* file descriptors */
#define BUFFER (4 << 20)

struct leg {
	int fd;
	unsigned conference, participant, medium;
	struct sockaddr_in peer;
	bool heard;
	uint8_t *refused; /* a bit for each sender, or nobody's */
	struct leg *next; /* of the same conference and medium */
};

static struct leg *legs[MOST]; /* by file descriptor */
static struct leg *groups[4096]; /* conferences and media, hashed */
static uint8_t data[BATCH][SIZE];

static struct leg **group(unsigned conference, unsigned medium)
{
	return &groups[(conference * 31 + medium) % 4096];
}

static bool together(const struct leg *a, const struct leg *b)
{
	return a->conference == b->conference && a->medium == b->medium && a->participant != b->participant;
}

static void say(const char *words)
{
	puts(words);
	fflush(stdout);
}

static void join(int epoll, unsigned conference, unsigned participant, unsigned medium, const char *address, unsigned port)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), size = BUFFER;
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	struct leg *leg;

	if (fd < 0 || fd >= MOST || inet_pton(AF_INET, address, &here.sin_addr) != 1 || bind(fd, (void *)&here, sizeof(here)) || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) {
		say(strerror(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	leg = calloc(1, sizeof(*leg));
	if (!leg)
		abort();
	*leg = (struct leg){ .fd = fd, .conference = conference, .participant = participant, .medium = medium, .next = *group(conference, medium) };
	*group(conference, medium) = legs[fd] = leg;
	say("ok");
}

static void leave(unsigned conference, unsigned participant)
{
	for (unsigned i = 0; i < 4096; i++) {
		for (struct leg **at = &groups[i]; *at;) {
			struct leg *leg = *at;

			if (leg->conference != conference || leg->participant != participant) {
				at = &leg->next;
				continue;
			}
			*at = leg->next;
			legs[leg->fd] = NULL;
			close(leg->fd);
			free(leg->refused);
			free(leg);
		}
	}
	say("ok");
}

static void refuse(unsigned conference, unsigned receiver, unsigned sender, unsigned medium)
{
	for (unsigned i = 0; i < 4096; i++) {
		for (struct leg *leg = groups[i]; leg; leg = leg->next) {
			if (leg->conference != conference || leg->participant != receiver || leg->medium < medium)
				continue;
			if (!leg->refused)
				leg->refused = calloc(MOST / 8, 1);
			if (!leg->refused)
				abort();
			leg->refused[sender / 8] |= 1 << sender % 8;
		}
	}
	say("ok");
}

/* Returns false at the end of the input. */
static bool command(int epoll)
{
	static char line[512];
	static size_t have;
	ssize_t got = read(0, line + have, sizeof(line) - 1 - have);
	char *end, address[64];
	unsigned a, b, c, port;

	if (got <= 0)
		return false;
	have += got;
	line[have] = 0;
	while ((end = strchr(line, '\n'))) {
		*end = 0;
		if (sscanf(line, "join %u %u %u %63s %u", &a, &b, &c, address, &port) == 5)
			join(epoll, a, b, c, address, port);
		else if (sscanf(line, "leave %u %u", &a, &b) == 2)
			leave(a, b);
		else if (sscanf(line, "refuse %u %u %u %u", &a, &b, &c, &port) == 4 && c < MOST)
			refuse(a, b, c, port);
		else
			say("what?");
		have -= end + 1 - line;
		memmove(line, end + 1, have + 1);
	}
	if (have == sizeof(line) - 1)
		have = 0;
	return true;
}

/* Packets of one batch to one receiver. */
static void copy(const struct leg *to, const struct mmsghdr *got, int count)
{
	struct mmsghdr out[BATCH];
	struct iovec parts[BATCH];

	for (int i = 0; i < count; i++) {
		parts[i] = (struct iovec){ .iov_base = got[i].msg_hdr.msg_iov->iov_base, .iov_len = got[i].msg_len };
		out[i] = (struct mmsghdr){ .msg_hdr = { .msg_name = (void *)&to->peer, .msg_namelen = sizeof(to->peer), .msg_iov = &parts[i], .msg_iovlen = 1 } };
	}
	sendmmsg(to->fd, out, count, MSG_DONTWAIT);
}

static void forward(struct leg *from)
{
	struct sockaddr_in sources[BATCH];
	struct iovec parts[BATCH];
	struct mmsghdr got[BATCH];
	int count, kept = 0;

	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){ .iov_base = data[i], .iov_len = SIZE };
		got[i] = (struct mmsghdr){ .msg_hdr = { .msg_name = &sources[i], .msg_namelen = sizeof(sources[i]), .msg_iov = &parts[i], .msg_iovlen = 1 } };
	}
	count = recvmmsg(from->fd, got, BATCH, MSG_DONTWAIT, NULL);
	for (int i = 0; i < count; i++) {
		uint8_t *packet = data[i];

		/* RTP alone: version 2, and no RTCP packet type. */
		if (got[i].msg_len < 12 || packet[0] >> 6 != 2 || (packet[1] >= 192 && packet[1] <= 223))
			continue;
		from->peer = sources[i];
		from->heard = true;
		got[kept++] = got[i];
	}
	if (!kept)
		return;
	for (const struct leg *to = *group(from->conference, from->medium); to; to = to->next)
		if (to->heard && together(to, from) && !(to->refused && to->refused[from->participant / 8] >> from->participant % 8 & 1))
			copy(to, got, kept);
}

int main(void)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ready[BATCH], input = { .events = EPOLLIN, .data.fd = 0 };

	fcntl(0, F_SETFL, O_NONBLOCK);
	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &input)) {
		perror("epoll");
		return 1;
	}
	for (;;) {
		int count = epoll_wait(epoll, ready, BATCH, -1);

		for (int i = 0; i < count; i++) {
			if (ready[i].data.fd == 0) {
				if (!command(epoll))
					return 0;
			} else if (legs[ready[i].data.fd]) {
				forward(legs[ready[i].data.fd]);
			}
		}
	}
}
