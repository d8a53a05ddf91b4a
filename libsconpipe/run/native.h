/* SPDX-License-Identifier: GPL-2.0 */
/* Included before the library's files that libsconrun shares: their calls are not
 * a program's. */
#include <unistd.h>

#include "real.h"

/* A program whose connections are TCP's does not wait long for a broker. */
#define ANSWER_S 1

#define close(fd) (real()->close(fd))
#define connect(...) (real()->connect(__VA_ARGS__))
#define recvmsg(...) (real()->recvmsg(__VA_ARGS__))
#define sendmsg(...) (real()->sendmsg(__VA_ARGS__))
#define setsockopt(...) (real()->setsockopt(__VA_ARGS__))
#define shutdown(...) (real()->shutdown(__VA_ARGS__))
