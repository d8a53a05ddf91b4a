// SPDX-License-Identifier: GPL-2.0
/* Sizes, addresses and flags that the kernel refuses, or that do not matter. */
#include <limits.h>

#include "posix.h"

/* Hidden from the compiler. */
static void *volatile nowhere = (void *)8;
static volatile size_t sizes[] = { INT_MAX, UINT_MAX, SSIZE_MAX, (size_t)SSIZE_MAX + 1,
				   SIZE_MAX };

void case_sizes(void)
{
	static char buf[1 << 20];
	struct pair p = make_pair();
	size_t i;

	nonblock(p.b, true);
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		say("%zx", sizes[i]);
		result("read", read(p.b, buf, sizes[i]));
		result("recv", recv(p.b, buf, sizes[i], 0));
		result("peek", recv(p.b, buf, sizes[i], MSG_PEEK));
		write(p.a, "hello", 5);
		pause_ms(20);
		result("peek", recv(p.b, buf, sizes[i], MSG_PEEK));
		result("read", read(p.b, buf, sizes[i]));
		result("recv", recv(p.b, buf, sizes[i], 0));
		if (sizes[i] >= SSIZE_MAX)
			result("write", write(p.a, buf, sizes[i]));
	}
	close_pair(p);
}

/* An address is used only if there is something to copy. */
void case_unused(void)
{
	struct pair p = make_pair();
	char byte;
	struct iovec iov[] = { { &byte, 1 }, { nowhere, 4 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

#ifdef SANITIZED
	return; /* the sanitizer ends the program */
#endif
	nonblock(p.b, true);
	result("recv", recv(p.b, nowhere, 4, 0));
	result("peek", recv(p.b, nowhere, 4, MSG_PEEK));
	result("read", read(p.b, nowhere, 4));
	result("recvmsg", recvmsg(p.b, &msg, 0));
	write(p.a, "a", 1);
	pause_ms(20);
	result("recvmsg", recvmsg(p.b, &msg, 0));
	write(p.a, "abc", 3);
	pause_ms(20);
	result("read", read(p.b, nowhere, 4));
	result("peek", recv(p.b, nowhere, 4, MSG_PEEK));
	result("discard", recv(p.b, nowhere, 4, MSG_TRUNC));
	result("sendfile", sendfile(p.a, 0, nowhere, 1));
	shutdown(p.a, SHUT_WR);
	pause_ms(20);
	result("at the end", read(p.b, nowhere, 4));
	close_pair(p);
}

void case_flags(void)
{
	struct pair p = make_pair();
	char buf[16];

	result("fast open", send(p.a, "abc", 3, MSG_FASTOPEN));
	result("read", recv(p.b, buf, 8, MSG_DONTWAIT));
	result("ignored", send(p.a, "abc", 3, MSG_CONFIRM | MSG_DONTROUTE | MSG_EOR));
	pause_ms(20);
	result("peek", recv(p.b, buf, 2, MSG_PEEK | MSG_TRUNC));
	result("peek", recv(p.b, buf, 9, MSG_PEEK | MSG_TRUNC));
	result("discard", recv(p.b, buf, 2, MSG_TRUNC | MSG_WAITALL));
	result("discard", recv(p.b, buf, 9, MSG_TRUNC));
	result("discard", recv(p.b, buf, 9, MSG_TRUNC | MSG_DONTWAIT));
	result("urgent", recv(p.b, buf, 9, MSG_OOB));
	result("errors", recv(p.b, buf, 9, MSG_ERRQUEUE));
	close_pair(p);
}

/* A call that has received a message keeps the error of the next one for the next call;
 * one that has sent a message does not. */
void case_second(void)
{
	static const char *const what[] = { "address", "name's size", "buffers" };
	struct sockaddr_in name;
	char buf[8];
	int i;

	for (i = 0; i < 3; i++) {
		struct pair p = make_pair();
		struct iovec iov[] = { { buf, 2 }, { i ? buf : nowhere, 2 } };
		struct mmsghdr all[] = {
			{ .msg_hdr = { .msg_iov = iov, .msg_iovlen = 1 } },
			{ .msg_hdr = { .msg_iov = iov + 1,
				       .msg_iovlen = i < 2 ? 1 : IOV_MAX + 1,
				       .msg_name = i == 1 ? &name : NULL,
				       .msg_namelen = i == 1 ? -1 : 0 } }
		};

		say("%s", what[i]);
		write(p.a, "abcd", 4);
		pause_ms(20);
		result("recvmmsg", recvmmsg(p.b, all, 2, 0, NULL));
		result("bytes", recv(p.b, buf, 8, MSG_DONTWAIT));
		result("error", recv(p.b, buf, 8, MSG_DONTWAIT));
		result("none", recv(p.b, buf, 8, MSG_DONTWAIT));
		result("sendmmsg", sendmmsg(p.a, all, 2, 0));
		result("send", send(p.a, "e", 1, 0));
		result("bytes", recv(p.b, buf, 3, MSG_WAITALL));
		close_pair(p);
	}
}
