// SPDX-License-Identifier: GPL-2.0
/* Sending and receiving. */
#include <sys/syscall.h>

#include "posix.h"

void case_echo(void)
{
	struct pair p = make_pair();
	char buf[100] = "";

	result("write", write(p.a, "hello", 5));
	result("read", read(p.b, buf, sizeof(buf)));
	say("%s", buf);
	result("send", send(p.b, "there", 5, 0));
	result("recv", recv(p.a, buf, 3, 0));
	result("recv", recv(p.a, buf, sizeof(buf), 0));
	close_pair(p);
}

#define STREAM (6 << 20)

static void *sender(void *fd)
{
	send_stream((intptr_t)fd, STREAM);
	return NULL;
}

void case_stream(void)
{
	struct pair p = make_pair();
	pthread_t t = start(sender, p.a);

	recv_stream(p.b, STREAM);
	pthread_join(t, NULL);
	say("came");
	close_pair(p);
}

void case_duplex(void)
{
	struct pair p = make_pair();
	pthread_t t = start(sender, p.a), u = start(sender, p.b);
	struct pair q = p;

	recv_stream(p.b, STREAM);
	recv_stream(q.a, STREAM);
	pthread_join(t, NULL);
	pthread_join(u, NULL);
	say("came");
	close_pair(p);
}

void case_empty(void)
{
	struct pair p = make_pair();
	char byte;

	result("send of nothing", send(p.a, "", 0, 0));
	result("recv of nothing", recv(p.b, &byte, 0, MSG_DONTWAIT));
	result("recv", recv(p.b, &byte, 1, MSG_DONTWAIT));
	close_pair(p);
}

void case_dontwait(void)
{
	struct pair p = make_pair();
	char byte;

	result("recv", recv(p.b, &byte, 1, MSG_DONTWAIT));
	nonblock(p.b, true);
	result("read", read(p.b, &byte, 1));
	write(p.a, "x", 1);
	pause_ms(20);
	result("read", read(p.b, &byte, 1));
	result("read", read(p.b, &byte, 1));
	close_pair(p);
}

void case_full(void)
{
	struct pair p = make_pair();
	static char big[1 << 20];

	fill_out(p.a);
	result("send to a full one", send(p.a, big, sizeof(big), MSG_DONTWAIT));
	nonblock(p.a, true);
	result("write to a full one", write(p.a, big, sizeof(big)));
	say("drained %d", drain(p) > 0);
	say("part of it fits: %d", write(p.a, big, 1000) == 1000);
	say("drained %zu", drain(p));
	close_pair(p);
}

void case_peek(void)
{
	struct pair p = make_pair();
	char buf[10] = "";

	write(p.a, "abcdef", 6);
	pause_ms(20);
	result("peek", recv(p.b, buf, 4, MSG_PEEK));
	result("peek", recv(p.b, buf, 10, MSG_PEEK));
	result("read", read(p.b, buf, 2));
	result("peek", recv(p.b, buf, 10, MSG_PEEK));
	say("%.4s", buf);
	result("read", read(p.b, buf, 10));
	result("peek", recv(p.b, buf, 10, MSG_PEEK | MSG_DONTWAIT));
	close_pair(p);
}

static void *pieces(void *fd)
{
	int i;

	for (i = 0; i < 5; i++) {
		pause_ms(10);
		write((intptr_t)fd, "12345678", 8);
	}
	return NULL;
}

static void *pieces_and_end(void *fd)
{
	pieces(fd);
	shutdown((intptr_t)fd, SHUT_WR);
	return NULL;
}

void case_waitall(void)
{
	struct pair p = make_pair();
	pthread_t t = start(pieces, p.a);
	char buf[100];

	result("recv", recv(p.b, buf, 40, MSG_WAITALL));
	pthread_join(t, NULL);
	t = start(pieces_and_end, p.a);
	result("recv up to the end", recv(p.b, buf, 100, MSG_WAITALL));
	result("recv", recv(p.b, buf, 100, MSG_WAITALL));
	pthread_join(t, NULL);
	close_pair(p);
}

void case_peekall(void)
{
	struct pair p = make_pair();
	pthread_t t = start(pieces, p.a);
	char buf[100];

	result("peek", recv(p.b, buf, 40, MSG_PEEK | MSG_WAITALL));
	result("recv", recv(p.b, buf, 100, 0));
	pthread_join(t, NULL);
	t = start(pieces_and_end, p.a);
	result("peek up to the end", recv(p.b, buf, 100, MSG_PEEK | MSG_WAITALL));
	pthread_join(t, NULL);
	close_pair(p);
}

static void *raw_pieces(void *fd)
{
	int i;

	for (i = 0; i < 5; i++) {
		pause_ms(10);
		syscall(SYS_write, (intptr_t)fd, "12345678", 8);
	}
	return NULL;
}

/* The other end makes no calls that the library sees, so the connection begins to move,
 * and does not go on. */
void case_peekmove(void)
{
	struct pair p = cold_pair(-1);
	pthread_t t;
	char buf[100];
	int i;

	write(p.a, "x", 1);
	read(p.b, buf, 1);
	for (i = 0; i < 80; i++) {
		recv(p.b, buf, 1, MSG_PEEK | MSG_DONTWAIT);
		pause_ms(1);
	}
	t = start(raw_pieces, p.a);
	result("peek", recv(p.b, buf, 40, MSG_PEEK | MSG_WAITALL));
	result("recv", recv(p.b, buf, 100, 0));
	pthread_join(t, NULL);
	close_pair(p);
}

/* Nothing is read while the connection moves: a token and the ring come behind bytes that
 * are peeked at. */
void case_peekover(void)
{
	static const char *ways[] = { "all", "some", "in pieces" };
	char in[1600], out[1600];
	size_t i, way, peeked;

	for (i = 0; i < sizeof(out); i++)
		out[i] = byte_at(i);
	for (way = 0; way < 3; way++) {
		struct pair p = cold_pair(-1);

		write(p.a, "x", 1);
		read(p.b, in, 1);
		for (i = 8, peeked = 0; i <= sizeof(out); i += 8) {
			struct iovec iov[] = { { in, i / 3 }, { in + i / 3, i - i / 3 } };
			struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
			int flags = MSG_PEEK | (way == 1 ? 0 : MSG_WAITALL);
			ssize_t n;

			write(p.a, out + i - 8, 8);
			write(p.b, "y", 1);
			pause_ms(1);
			memset(in, 0, sizeof(in));
			n = way == 2 ? recvmsg(p.b, &msg, flags) :
				       recv(p.b, in, i, flags);
			peeked += n > 0 && !memcmp(in, out, n) && n == (ssize_t)i;
		}
		say("%s: %zu whole peeks", ways[way], peeked);
		result("read", recv(p.b, in, sizeof(in), MSG_WAITALL));
		say("same %d", !memcmp(in, out, sizeof(in)));
		close_pair(p);
	}
}

void case_truncate(void)
{
	struct pair p = make_pair();
	char buf[10] = "";

	write(p.a, "abcdef", 6);
	pause_ms(20);
	result("discard", recv(p.b, NULL, 2, MSG_TRUNC));
	result("recv", recv(p.b, buf, 10, 0));
	say("%s", buf);
	close_pair(p);
}

void case_vectors(void)
{
	struct pair p = make_pair();
	char one[3], two[5], three[100];
	struct iovec out[] = { { "abc", 3 }, { NULL, 0 }, { "defgh", 5 }, { "ij", 2 } };
	struct iovec in[] = { { one, 3 }, { two, 5 }, { three, 100 } };

	result("writev", writev(p.a, out, 4));
	pause_ms(20);
	result("readv", readv(p.b, in, 3));
	say("%.3s %.5s %.2s", one, two, three);
	close_pair(p);
}

void case_messages(void)
{
	struct pair p = make_pair();
	char buf[100], control[100];
	struct sockaddr_in from;
	struct iovec out[] = { { "abc", 3 }, { "def", 3 } };
	struct iovec in[] = { { buf, 4 }, { buf + 4, 96 } };
	struct msghdr o = { .msg_iov = out, .msg_iovlen = 2 };
	struct msghdr i = { .msg_iov = in,
			    .msg_iovlen = 2,
			    .msg_name = &from,
			    .msg_namelen = sizeof(from),
			    .msg_control = control,
			    .msg_controllen = sizeof(control),
			    .msg_flags = 77 };

	result("sendmsg", sendmsg(p.a, &o, 0));
	pause_ms(20);
	result("recvmsg", recvmsg(p.b, &i, 0));
	say("%.6s, name %u, control %zu, flags %x", buf, i.msg_namelen,
	    (size_t)i.msg_controllen, i.msg_flags);
	close_pair(p);
}

void case_mmessages(void)
{
	struct pair p = make_pair();
	char buf[2][3];
	struct iovec out[] = { { "abc", 3 }, { "def", 3 } };
	struct iovec in[] = { { buf[0], 3 }, { buf[1], 3 } };
	struct mmsghdr o[2] = { 0 }, i[2] = { 0 };
	int k;

	for (k = 0; k < 2; k++) {
		o[k].msg_hdr = (struct msghdr){ .msg_iov = &out[k], .msg_iovlen = 1 };
		i[k].msg_hdr = (struct msghdr){ .msg_iov = &in[k], .msg_iovlen = 1 };
	}
	result("sendmmsg", sendmmsg(p.a, o, 2, 0));
	pause_ms(20);
	result("recvmmsg", recvmmsg(p.b, i, 2, MSG_DONTWAIT, NULL));
	say("%.3s %.3s", buf[0], buf[1]);
	result("recvmmsg", recvmmsg(p.b, i, 2, MSG_DONTWAIT, NULL));
	close_pair(p);
}

#define BUFFERS 100

/* Each thread has little room on its stack for lists of buffers. */
static void *many_buffers(void *arg)
{
	struct pair *p = arg;
	char out[2 * BUFFERS], in[2 * BUFFERS];
	struct iovec from[BUFFERS], to[BUFFERS];
	struct msghdr msg = { .msg_iov = to, .msg_iovlen = BUFFERS };
	int i;

	for (i = 0; i < BUFFERS; i++) {
		out[2 * i] = 'a' + i % 26;
		out[2 * i + 1] = 'A' + i % 26;
		from[i] = (struct iovec){ out + 2 * i, 2 };
		to[i] = (struct iovec){ in + 2 * i, 2 };
	}
	result("writev", writev(p->a, from, BUFFERS));
	pause_ms(20);
	result("recvmsg", recvmsg(p->b, &msg, MSG_PEEK));
	say("%s", memcmp(in, out, sizeof(in)) ? "differs" : "equals");
	memset(in, 0, sizeof(in));
	result("readv", readv(p->b, to, BUFFERS));
	say("%s", memcmp(in, out, sizeof(in)) ? "differs" : "equals");
	return NULL;
}

void case_manyvectors(void)
{
	struct pair p = make_pair();
	pthread_attr_t small;
	pthread_t t;

	need(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 32 << 10) &&
		     !pthread_create(&t, &small, many_buffers, &p) &&
		     !pthread_join(t, NULL),
	     "a thread");
	close_pair(p);
}

void case_from(void)
{
	struct pair p = make_pair();
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	char buf[10];

	result("sendto", sendto(p.a, "abc", 3, 0, NULL, 0));
	result("recvfrom", recvfrom(p.b, buf, 10, 0, (struct sockaddr *)&from, &len));
	say("name %u", len);
	close_pair(p);
}

/* A size without an address, and addresses of impossible sizes. */
void case_from_nobody(void)
{
	struct pair p = make_pair();
	struct sockaddr_in from;
	char buf[10];
	struct iovec iov = { buf, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_namelen = 77 };
	socklen_t len = 77;
	int file = open("/dev/null", O_RDONLY);

	result("send", send(p.a, "abcdefg", 7, 0));
	result("recvfrom", recvfrom(p.b, buf, 1, 0, NULL, &len));
	say("size %u", len);
	result("recvmsg", recvmsg(p.b, &msg, 0));
	say("size %u", msg.msg_namelen);
	msg.msg_name = &from;
	result("recvmsg", recvmsg(p.b, &msg, 0));
	say("size %u", msg.msg_namelen);
	result("recvfrom", recvfrom(p.b, buf, 1, 0, (struct sockaddr *)&from, NULL));
	len = -1;
	result("recvfrom", recvfrom(p.b, buf, 1, 0, (struct sockaddr *)&from, &len));
	result("recv", recv(p.b, buf, 10, 0));
	say("%.1s", buf);
	len = 77;
	result("recvfrom", recvfrom(file, buf, 1, 0, NULL, &len));
	say("size %u", len);
	close(file);
	result("datagram", file = socket(AF_INET, SOCK_DGRAM, 0));
	result("recvfrom", recvfrom(file, buf, 0, MSG_DONTWAIT, NULL, &len));
	say("size %u", len);
	close(file);
	close_pair(p);
}

void case_fault(void)
{
	struct pair p = make_pair();
	char byte;

	result("write", write(p.a, (void *)4096, 100));
	result("write", write(p.a, "x", 1));
	result("read", read(p.b, &byte, 1));
	close_pair(p);
}

static int make_file(void)
{
	char name[] = "/tmp/posixtest.XXXXXX", buf[4096];
	int fd = mkstemp(name), i;

	need(fd >= 0, "mkstemp");
	unlink(name);
	for (i = 0; i < 50; i++) {
		memset(buf, 'a' + i % 26, sizeof(buf));
		need(write(fd, buf, sizeof(buf)) == sizeof(buf), "write");
	}
	return fd;
}

static void *reader(void *fd)
{
	static char buf[50 * 4096]; /* musl's threads have 128 KiB of stack */
	ssize_t n = recv((intptr_t)fd, buf, sizeof(buf), MSG_WAITALL);

	return (void *)(intptr_t)(n == sizeof(buf) && buf[0] == 'a' &&
				  buf[n - 1] == 'a' + 49 % 26);
}

/* Bytes before the urgent mark are unread. */
void case_atmark(void)
{
	struct pair p = make_pair();
	char buf[10];
	int at = -1;

	write(p.a, "abc", 3);
	send(p.a, "!", 1, MSG_OOB);
	write(p.a, "d", 1);
	pause_ms(20);
	result("before", sockatmark(p.b));
	ioctl(p.b, SIOCATMARK, &at);
	result("before", at);
	result("read", read(p.b, buf, sizeof(buf)));
	result("at", sockatmark(p.b));
	result("read", read(p.b, buf, sizeof(buf)));
	result("after", sockatmark(p.b));
	close_pair(p);
}

void case_sendfile(void)
{
	struct pair p = make_pair();
	int file = make_file();
	off_t at = 10;
	void *whole;
	char buf[100];
	pthread_t t = start(reader, p.b);

	lseek(file, 0, SEEK_SET);
	result("sendfile", sendfile(p.a, file, NULL, 1 << 20));
	pthread_join(t, &whole);
	say("came %ld, file at %ld", (long)whole, (long)lseek(file, 0, SEEK_CUR));
	result("at the end", sendfile(p.a, file, NULL, 10));
	result("from an offset", sendfile(p.a, file, &at, 20));
	say("offset %ld, file at %ld", (long)at, (long)lseek(file, 0, SEEK_CUR));
	result("recv", recv(p.b, buf, sizeof(buf), 0));
	at = -1;
	result("from before the file", sendfile(p.a, file, &at, 1));
	close(file);
	result("from no file", sendfile(p.a, file, NULL, 1));
	close_pair(p);
}

void case_splice(void)
{
	struct pair p = make_pair();
	int pipes[2];
	char buf[100] = "";

	need(pipe(pipes) == 0, "pipe");
	write(p.a, "abcdef", 6);
	pause_ms(20);
	result("to a pipe", splice(p.b, NULL, pipes[1], NULL, 4, 0));
	result("to a pipe", splice(p.b, NULL, pipes[1], NULL, 100, 0));
	nonblock(p.b, true);
	result("to a pipe", splice(p.b, NULL, pipes[1], NULL, 100, 0));
	nonblock(p.b, false);
	result("from a pipe", splice(pipes[0], NULL, p.b, NULL, 100, 0));
	result("recv", recv(p.a, buf, 100, 0));
	say("%s", buf);
	result("from a pipe", splice(pipes[0], NULL, p.b, NULL, 100, SPLICE_F_NONBLOCK));
	close(pipes[0]);
	close(pipes[1]);
	close_pair(p);
}

void case_fionread(void)
{
	struct pair p = make_pair();
	int n = -1;

	result("ioctl", ioctl(p.b, FIONREAD, &n));
	say("%d", n);
	write(p.a, "abcdef", 6);
	pause_ms(20);
	result("ioctl", ioctl(p.b, FIONREAD, &n));
	say("%d", n);
	close_pair(p);
}

void case_stdio(void)
{
	struct pair p = make_pair();
	FILE *f = fdopen(p.a, "r+");
	char line[100] = "";

	dprintf(p.b, "line %d\n", 1);
	need(fgets(line, sizeof(line), f) != NULL, "fgets");
	say("%.6s", line);
	fprintf(f, "answer\n");
	fflush(f);
	result("read", read(p.b, line, sizeof(line)));
	fclose(f);
	result("read", read(p.b, line, sizeof(line)));
	close(p.b);
}
