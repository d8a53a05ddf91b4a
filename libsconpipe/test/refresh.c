// SPDX-License-Identifier: GPL-2.0
/* Buffers of pd_malloc: sent, refreshed, overwritten. */
#include "pipetest.h"

void test_refresh(void)
{
	struct pair p = make_pair();
	void *bufs[3], *foreign = &p;
	uint64_t pos = 0;
	int round, i;

	for (i = 0; i < 3; i++) {
		bufs[i] = pd_malloc(i == 2 ? 3 << 20 : 5000);
		check(bufs[i]);
	}
	for (round = 0; round < 20; round++) {
		check(pd_buf_refresh(p.client, bufs, 3) == 3);
		for (i = 0; i < 2; i++) {
			fill(bufs[i], pos, 5000);
			check(pd_send(p.client, bufs[i], 5000) == 5000);
			pos += 5000;
		}
		memset(bufs[0], 0, 5000); /* the engine has read it */
		recv_all(p.server, pos - 10000, 10000);
	}
	fails(pd_buf_refresh(p.client, &foreign, 1), EINVAL);
	fails(pd_buf_refresh(p.client, bufs, -1), EINVAL);
	for (i = 0; i < 3; i++)
		pd_free(bufs[i]);
	pd_free(NULL);
	fails(pd_buf_refresh(p.client, bufs, 1), EINVAL);
	close_pair(p);
}
