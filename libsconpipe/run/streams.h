/* SPDX-License-Identifier: GPL-2.0 */
#ifndef STREAMS_H
#define STREAMS_H

/* stream_input makes stdin a stream that reads the channel at descriptor 0. */
void stream_input(void);

#endif
