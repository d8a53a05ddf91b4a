/* SPDX-License-Identifier: GPL-2.0 */
/* Included before the files of src/ that libsconrun is built of: their calls go to the
 * C library, not to the interposed ones. */
#include <unistd.h>

#include "real.h"

/* Seconds to wait for the broker's answer; the program continues on TCP. */
#define ANSWER_S 1

#define close(fd) (real()->close(fd))
#define connect(...) (real()->connect(__VA_ARGS__))
#define recvmsg(...) (real()->recvmsg(__VA_ARGS__))
#define sendmsg(...) (real()->sendmsg(__VA_ARGS__))
#define setsockopt(...) (real()->setsockopt(__VA_ARGS__))
#define shutdown(...) (real()->shutdown(__VA_ARGS__))
#define syscall(...) (real()->syscall(__VA_ARGS__))
