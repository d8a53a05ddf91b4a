// SPDX-License-Identifier: GPL-2.0
/*
 * What is known of file descriptors, by their numbers. Entries are made when they
 * are first needed and stay; only what is in them goes.
 *
 * Processes that have come from each other by fork count together who has a
 * connection, in memory that they share: only a connection of one process is
 * attached. A process that dies without closing stays counted, and so do those
 * that exec: that keeps a connection on TCP, and harms nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "run.h"

#define FAMILY 65536
/* Above what select can have. */
#define HIGH 1024
/* Files that are the program's, where it has more than twice as many. */
#define PROGRAMS 6144

static _Atomic(struct entry *) entries[ENTRIES];
static atomic_int limit; /* no entry from here on */
static atomic_int *family;
static atomic_int hint;
static pid_t self;
static atomic_bool kept[ENTRIES];
static atomic_int files; /* that are kept */
static int from = HIGH; /* where */
static rlim_t raised; /* what this has made of the limit */
static atomic_bool tracked; /* a connection was ever known */

static void fd_begin(void);

static void after_fork_in_parent(void)
{
	arena_after_fork(false);
}

static void __attribute__((constructor)) init(void)
{
	void *counts;

	real_find();
	settings_read();
	fd_begin();
	self = getpid();
	counts = mmap(NULL, FAMILY * sizeof(*family), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (counts != MAP_FAILED)
		family = counts;
	pthread_atfork(table_before_fork, after_fork_in_parent, table_after_fork);
	arena_adopt();
}

/* table_mine: after vfork a child has the parent's memory, and only that. */
bool table_mine(void)
{
	return getpid() == self;
}

/* table_links says whether there may be connections. */
bool table_links(void)
{
	return tracked;
}

struct entry *entry_get(int fd)
{
	return fd >= 0 && fd < ENTRIES ?
		       atomic_load_explicit(&entries[fd], memory_order_acquire) :
		       NULL;
}

int entry_limit(void)
{
	return limit;
}

struct entry *entry_make(int fd)
{
	struct entry *e = entry_get(fd), *none = NULL;
	int now = limit;

	if (e || fd < 0 || fd >= ENTRIES)
		return e;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	pthread_mutex_init(&e->lock, NULL);
	e->family = e->bell = -1;
	if (!atomic_compare_exchange_strong(&entries[fd], &none, e)) {
		free(e);
		return none;
	}
	while (now <= fd && !atomic_compare_exchange_weak(&limit, &now, fd + 1))
		;
	return e;
}

/* A place in the count is taken by whoever makes it 1. */
static int family_join(void)
{
	int i, at = hint;

	for (i = 0; family && i < FAMILY; i++, at++) {
		int none = 0;

		if (!atomic_compare_exchange_strong(&family[at % FAMILY], &none, 1))
			continue;
		hint = at % FAMILY + 1;
		return at % FAMILY;
	}
	return -1;
}

static void family_leave(struct entry *e)
{
	if (e->family >= 0)
		atomic_fetch_sub(&family[e->family], 1);
	e->family = -1;
}

bool family_alone(int place)
{
	return place >= 0 && atomic_load(&family[place]) == 1;
}

static bool is_tcp(int fd)
{
	socklen_t len = sizeof(int);
	int protocol, err = errno;
	bool is = getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 &&
		  protocol == IPPROTO_TCP;

	errno = err;
	return is;
}

/* entry_fresh says whether a file that nothing is known of is a TCP socket, and has
 * that be known. */
bool entry_fresh(int fd)
{
	struct entry *e = table_mine() && is_tcp(fd) ? entry_make(fd) : NULL;

	if (!e)
		return false;
	pthread_mutex_lock(&e->lock);
	if (e->kind == OTHER)
		e->kind = FRESH;
	pthread_mutex_unlock(&e->lock);
	return e->kind == FRESH;
}

/* entry_track begins with a socket that has just been connected or accepted. */
void entry_track(int fd)
{
	struct entry *e;

	if (!table_mine() || !is_tcp(fd))
		return;
	e = entry_make(fd);
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	if (e->kind == OTHER || e->kind == FRESH) {
		e->family = family_join();
		e->bytes = 0;
		e->skip = 0;
		e->inside = (uint64_t)turn_next() << TURN;
		e->in_sets = e->kind == FRESH;
		e->cookie = cookie_of(fd);
		e->kind = TCP;
		tracked = true;
	}
	pthread_mutex_unlock(&e->lock);
}

/* entry_link makes a descriptor one of a connection that was adopted. */
bool entry_link(int fd, struct link *l)
{
	struct entry *e = entry_make(fd);

	if (!e)
		return false;
	e->link = l;
	e->cookie = l->s->cookie;
	e->kind = LINKED;
	atomic_fetch_add(&l->refs, 1);
	l->fds++;
	tracked = true;
	return true;
}

/* table_find looks for a socket by the kernel's cookie: after vfork a child has
 * other descriptors of it than this table says. */
struct entry *table_find(uint64_t cookie)
{
	int fd;

	for (fd = 0; cookie && fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (e && (e->kind == TCP || e->kind == LINKED) && e->cookie == cookie)
			return e;
	}
	return NULL;
}

/* entry_close forgets all of a file descriptor, before it is closed. */
void entry_close(int fd)
{
	struct entry *e = entry_get(fd);
	struct link *l = NULL;
	struct set *set = NULL;

	if (!e || e->kind == OTHER)
		return;
	if (e->in_sets)
		sets_forget(fd);
	pthread_mutex_lock(&e->lock);
	if (e->kind == LINKED) {
		l = e->link;
		e->link = NULL;
	} else if (e->kind == EPOLL) {
		set = e->set;
		e->set = NULL;
	}
	attach_forget(e);
	family_leave(e);
	e->in_sets = false;
	e->kind = OTHER;
	pthread_mutex_unlock(&e->lock);
	if (l) {
		link_close(l, fd);
		link_put(l);
	}
	if (set)
		set_put(set);
}

/* entry_dup: an attached connection may have several file descriptors, another
 * is not attached any more. */
void entry_dup(int from, int to)
{
	struct entry *e = entry_get(from), *copy;
	struct link *l = NULL;
	struct set *set = NULL;

	if (from == to)
		return;
	if ((!e || e->kind == OTHER) && entry_fresh(from))
		e = entry_get(from);
	if (!e || e->kind == OTHER)
		return;
	/* One that is connected later stays on TCP. */
	if (e->kind == FRESH)
		e->kind = TCP_ONLY;
	attach_never(e, from);
	copy = entry_make(to);
	if (!copy)
		return;
	pthread_mutex_lock(&e->lock);
	if (e->kind == LINKED) {
		l = e->link;
		atomic_fetch_add(&l->refs, 1);
		l->fds++;
	} else if (e->kind == EPOLL) {
		set = e->set;
	}
	pthread_mutex_unlock(&e->lock);
	pthread_mutex_lock(&copy->lock);
	copy->link = l;
	copy->cookie = e->cookie;
	copy->kind = l ? LINKED : TCP_ONLY;
	pthread_mutex_unlock(&copy->lock);
	if (l && to <= STDERR_FILENO) { /* streams are there, which know TCP alone */
		link_return(l, to);
		sets_update(from);
	}
	if (set)
		sets_copy(from, to);
}

void table_before_fork(void)
{
	static unsigned int forks;
	int fd;

	sets_before_fork();
	forks++;
	for (fd = 0; fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (!e || (e->kind != TCP && e->kind != TCP_ONLY && e->kind != LINKED))
			continue;
		pthread_mutex_lock(&e->lock);
		if (e->kind == LINKED && e->link->forks != forks) {
			e->link->forks = forks;
			link_share(e->link, 1);
		} else if (e->kind != LINKED && e->family >= 0) {
			atomic_fetch_add(&family[e->family], 1);
		}
		pthread_mutex_unlock(&e->lock);
	}
}

/* table_after_fork: in the child, other threads' locks are nobody's, and what the
 * parent asked of the broker is the parent's. */
void table_after_fork(void)
{
	int fd;

	self = getpid();
	session_forget();
	arena_after_fork(true);
	for (fd = 0; fd < limit; fd++) {
		struct entry *e = entry_get(fd);

		if (!e)
			continue;
		pthread_mutex_init(&e->lock, NULL);
		e->inside &= ~(uint64_t)UINT32_MAX;
		if (e->kind == LINKED)
			link_after_fork(e->link);
		if (e->id) {
			fd_close(e->bell);
			e->bell = -1;
			e->id = 0;
			e->skip = 0;
		}
	}
	sets_after_fork();
}

/* fd_own makes a file one of this library's. */
void fd_own(int fd)
{
	fd_inherit(fd, false);
	if (fd < ENTRIES && !atomic_exchange(&kept[fd], true))
		files++;
}

/* files_limit is what the process may have; *given, whether the program has said
 * so, and not this library. */
static struct rlimit files_limit(bool *given)
{
	struct rlimit most = { 0 };

	getrlimit(RLIMIT_NOFILE, &most);
	*given = most.rlim_cur == most.rlim_max && most.rlim_cur != raised;
	return most;
}

/* fd_begin has files kept above the program's limit, if the process may raise that:
 * then the program has as many as before. */
static void fd_begin(void)
{
	bool given;
	struct rlimit most = files_limit(&given);

	if (!given && most.rlim_cur > HIGH && most.rlim_cur < ENTRIES / 2)
		from = most.rlim_cur;
}

/* fd_keep moves a file of this library's to where programs do not look, and
 * where they do not close it. */
int fd_keep(int fd)
{
	bool given;
	struct rlimit most = files_limit(&given);
	rlim_t need = from + files + 64;
	int high;

	if (!given && most.rlim_cur < need) {
		raised = most.rlim_cur = need < most.rlim_max ? need : most.rlim_max;
		setrlimit(RLIMIT_NOFILE, &most);
	}
	high = real()->fcntl(fd, F_DUPFD_CLOEXEC, from);
	if (high >= 0) {
		real()->close(fd);
		fd = high;
	}
	fd_own(fd);
	return fd;
}

/* fd_spare says whether the process has files to spare. */
bool fd_spare(void)
{
	bool given;
	rlim_t all = files_limit(&given).rlim_max, programs = from;

	if (given)
		programs = all / 2 < PROGRAMS ? all / 2 : PROGRAMS;
	return files + LINK_FILES + programs < all;
}

void fd_close(int fd)
{
	if (fd >= 0 && fd < ENTRIES && atomic_exchange(&kept[fd], false))
		files--;
	real()->close(fd);
}

/* fd_inherit says whether the next image gets a file. */
bool fd_inherit(int fd, bool on)
{
	return real()->fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC) == 0;
}

/* is_internal: a program that closes all it does not know shall not meet these. */
bool is_internal(int fd)
{
	return fd >= 0 && ((fd < ENTRIES && kept[fd]) || session_file() == fd);
}

/* cookie_of a socket is its number in the kernel, 0 of other files. */
uint64_t cookie_of(int fd)
{
	socklen_t len = sizeof(uint64_t);
	uint64_t cookie = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return 0;
	return cookie;
}

/* file_hide puts a socket in a descriptor's place that is connected to nobody:
 * who uses it shall see that, and not a part of a stream. */
void file_hide(int fd)
{
	int none = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (none < 0) {
		real()->close(fd);
		return;
	}
	real()->dup2(none, fd);
	real()->close(none);
}

/* each_file calls fn for all files that are open. It allocates nothing: after
 * vfork a child's memory is its parent's. */
void each_file(void (*fn)(int fd, void *arg), void *arg)
{
	_Alignas(struct dirent64) char buf[4096];
	int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
	ssize_t n, at;

	if (dir < 0) {
		for (fd = 0; fd < (int)ENTRIES; fd++)
			if (real()->fcntl(fd, F_GETFD, 0) >= 0)
				fn(fd, arg);
		return;
	}
	while ((n = getdents64(dir, buf, sizeof(buf))) > 0) {
		for (at = 0; at < n;) {
			struct dirent64 *d = (struct dirent64 *)(buf + at);

			at += d->d_reclen;
			fd = atoi(d->d_name);
			if (d->d_name[0] != '.' && fd != dir)
				fn(fd, arg);
		}
	}
	real()->close(dir);
}
