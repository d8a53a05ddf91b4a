// SPDX-License-Identifier: GPL-2.0
/*
 * Who is behind the broker's socket. The process passes its sockets to the broker, so
 * another program at that name could read its bytes. The process passes nothing, and
 * calls fail with EACCES, unless
 *
 * 1. the socket's directory belongs to root or to this user, and no other user may write
 *    to it. In a user namespace, root of the host appears as the overflow user;
 * 2. if the directory is a mount, as a container has it, it is read-only: the
 *    container's root could replace the socket otherwise;
 * 3. the process that listens has the user ID of the directory's owner;
 * 4. it shows a file of this process's network namespace in its first reply. Another
 *    container can open that only with CAP_NET_ADMIN.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#ifndef STATX_MODE /* before musl 1.2.5 */
#include <linux/stat.h>
#endif

#include "pipe.h"

#define OVERFLOW_UID 65534

#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

/* trust_directory checks 1 and 2 of a socket's directory, and returns its owner. */
int trust_directory(const char *socket, uid_t *owner)
{
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)];
	const char *slash = strrchr(socket, '/');
	struct statvfs fs;
	struct statx st;

	if (!slash)
		strcpy(dir, ".");
	else if (slash == socket)
		strcpy(dir, "/");
	else
		*(char *)mempcpy(dir, socket, slash - socket) = 0;
	if (syscall(SYS_statx, AT_FDCWD, dir, 0, STATX_MODE | STATX_UID, &st) < 0)
		return -errno;
	if (st.stx_mode & (S_IWGRP | S_IWOTH))
		return -EACCES;
	if (st.stx_uid != 0 && st.stx_uid != OVERFLOW_UID && st.stx_uid != geteuid())
		return -EACCES;
	if (st.stx_attributes & STATX_ATTR_MOUNT_ROOT &&
	    (statvfs(dir, &fs) < 0 || !(fs.f_flag & ST_RDONLY)))
		return -EACCES;
	*owner = st.stx_uid;
	return 0;
}

/* trust_peer checks 3. */
int trust_peer(int fd, uid_t owner)
{
	socklen_t size = sizeof(struct ucred);
	struct ucred cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
		return -errno;
	return cred.uid == owner ? 0 : -EACCES;
}

/* trust_proof checks 4, of a file that came with the first reply. It closes the file. */
int trust_proof(int file)
{
	struct stat shown, own;
	int err = 0;

	if (fstat(file, &shown) < 0 || stat("/proc/thread-self/ns/net", &own) < 0 ||
	    shown.st_dev != own.st_dev || shown.st_ino != own.st_ino)
		err = -EACCES;
	close(file);
	return err;
}
