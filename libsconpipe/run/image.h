/* SPDX-License-Identifier: GPL-2.0 */
/* Whether the loader will preload this library into the next image of a program. */
#ifndef IMAGE_H
#define IMAGE_H

#include <stdbool.h>

/* image_preloads says whether a program's loader honours LD_PRELOAD. If in doubt, it
 * does not. */
bool image_preloads(const char *program);
/* env_preloads says whether an environment names this library. */
bool env_preloads(char *const *env);
/* library_path returns this library's file. */
const char *library_path(void);

#endif
