// SPDX-License-Identifier: GPL-2.0
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#ifndef STATX_MODE /* before musl 1.2.5 */
#include <linux/stat.h>
#endif

#include "trust.h"

#define OVERFLOW_UID 65534

#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

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

int trust_peer(int fd, uid_t owner)
{
	socklen_t size = sizeof(struct ucred);
	struct ucred cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
		return -errno;
	return cred.uid == owner ? 0 : -EACCES;
}

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
