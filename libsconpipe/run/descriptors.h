/* SPDX-License-Identifier: GPL-2.0 */
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

/* descriptor_forget drops all state of a descriptor before it is closed. */
void descriptor_forget(int fd);

#endif
