// SPDX-License-Identifier: GPL-2.0
#include <sys/prctl.h>

#include "pipetest.h"

/* clang-format off */
#define TOPICS(X) \
	X(connect) X(backlog) X(partial) X(zerocopy) X(refresh) X(fullring) X(halfclose) \
	X(peerdeath) X(forks) X(epoll_level) X(epoll_edge) X(options) X(many) X(threads) \
	X(memory) X(hold) X(reach) X(ruled) X(files) X(victim) X(stream) X(stress) X(loan) \
	X(absent) X(altered) X(fallback) X(silent) X(orphans) X(halfway) \
	X(sizes) X(pooled) X(listed) X(follower)
/* clang-format on */

#define DECLARE(name) void test_##name(void);
TOPICS(DECLARE)

#define ENTRY(name) { #name, test_##name },
static const struct {
	const char *name;
	void (*run)(void);
} topics[] = { TOPICS(ENTRY) };

int engine(void)
{
	const char *name = getenv("ENGINE");

	if (name && !strcmp(name, "sealed"))
		return PD_ENGINE_SEALED;
	if (name && !strcmp(name, "copier"))
		return PD_ENGINE_COPIER;
	if (name && !strcmp(name, "unix"))
		return PD_ENGINE_UNIX;
	return PD_ENGINE_BPF;
}

void set(int sid, int option, int value)
{
	check(pd_setsockopt(sid, SOL_PD, option, &value, sizeof(value)) == 0);
}

int get(int sid, int option)
{
	socklen_t len = sizeof(int);
	int value;

	check(pd_getsockopt(sid, SOL_PD, option, &value, &len) == 0 &&
	      len == sizeof(value));
	return value;
}

int make_socket(void)
{
	int sid = pd_socket(AF_INET, SOCK_STREAM, 0);

	check(sid >= 0);
	set(sid, PD_ENGINES, 1 << engine());
	return sid;
}

int make_listener(struct sockaddr_in *name, int backlog)
{
	socklen_t len = sizeof(*name);
	int sid = make_socket();

	*name = (struct sockaddr_in){ .sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	check(pd_bind(sid, (struct sockaddr *)name, sizeof(*name)) == 0);
	check(pd_listen(sid, backlog) == 0);
	check(pd_getsockname(sid, (struct sockaddr *)name, &len) == 0);
	check(name->sin_port != 0);
	return sid;
}

int make_client(const struct sockaddr_in *name)
{
	int sid = make_socket();

	check(pd_connect(sid, (const struct sockaddr *)name, sizeof(*name)) == 0);
	return sid;
}

struct pair make_pair(void)
{
	struct sockaddr_in name;
	int listener = make_listener(&name, 1);
	struct pair p;

	p.client = make_client(&name);
	p.server = pd_accept(listener, NULL, NULL);
	check(p.server >= 0);
	check(pd_close(listener) == 0);
	return p;
}

void close_pair(struct pair p)
{
	check(pd_close(p.client) == 0);
	check(pd_close(p.server) == 0);
}

void fill(void *buf, uint64_t pos, size_t len)
{
	unsigned char *b = buf;
	size_t i;

	for (i = 0; i < len; i++)
		b[i] = byte_at(pos + i);
}

void verify(const void *buf, uint64_t pos, size_t len)
{
	const unsigned char *b = buf;
	size_t i;

	for (i = 0; i < len; i++) {
		if (b[i] == byte_at(pos + i))
			continue;
		fprintf(stderr, "byte %llu is %02x, want %02x\n",
			(unsigned long long)(pos + i), b[i], byte_at(pos + i));
		exit(1);
	}
}

void send_all(int sid, uint64_t pos, size_t len)
{
	char buf[65536];

	while (len) {
		size_t n = len < sizeof(buf) ? len : sizeof(buf);

		fill(buf, pos, n);
		check(pd_send(sid, buf, n) == (ssize_t)n);
		pos += n;
		len -= n;
	}
}

void recv_all(int sid, uint64_t pos, size_t len)
{
	char buf[65536];

	while (len) {
		ssize_t n = pd_recv_copy(sid, buf, len < sizeof(buf) ? len : sizeof(buf));

		check(n > 0);
		verify(buf, pos, n);
		pos += n;
		len -= n;
	}
}

pid_t fork_test(void)
{
	pid_t child = fork();

	check(child >= 0);
	if (!child) { /* fork has cleared the alarm */
		alarm(MOST_SECONDS);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	return child;
}

pid_t start(void (*fn)(void *), void *arg)
{
	pid_t child = fork_test();

	if (!child) {
		fn(arg);
		_exit(0); /* the sanitizer must not report the parent's memory as leaked
			   */
	}
	return child;
}

void wait_for(pid_t child)
{
	int status;

	check(waitpid(child, &status, 0) == child);
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* mapped returns how many mappings of BPF maps the process has. */
static int mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	check(maps);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "bpf-map") != NULL;
	fclose(maps);
	return n;
}

/* fill_process makes connections until this process has a pool of rings, which is mapped
 * when the first one of it has bytes. */
static void fill_process(void)
{
	const int chunk = 2 * 64, few = 16; /* mappings of a chunk; see fewestPooled */
	int i, before;

	for (i = 0; i < few; i++)
		make_pair();
	do {
		struct pair p = make_pair();

		before = mapped();
		send_all(p.client, 0, 1);
		recv_all(p.server, 0, 1);
		close_pair(p);
	} while (mapped() - before < chunk / 2);
}

int main(int argc, char **argv)
{
	size_t i;

	alarm(MOST_SECONDS);
	for (i = 0; argc == 2 && i < sizeof(topics) / sizeof(*topics); i++) {
		if (strcmp(argv[1], topics[i].name))
			continue;
		if (getenv("POOLED"))
			fill_process();
		topics[i].run();
		return 0;
	}
	fprintf(stderr, "usage: pipetest TOPIC\n");
	return 2;
}
