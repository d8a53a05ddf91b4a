/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The proof that precedes a connection's rings: a token of each end crosses its TCP
 * (docs/run.md).
 *
 * 1. An end that has a channel looks for the peer's token: once the notice says that the
 *    peer sends it, its receives end before the mark, or what may be its beginning.
 * 2. An end whose peer looks has the broker tell the peer, and sends the token by TCP.
 * The program's next bytes follow by TCP. The second end to look has told it by that
 * request.
 * 3. When the token is next in the stream, it is removed. Before, the broker reads it
 * from the socket. The position is no news of the broker: it would be a way past the
 *    network.
 * 4. When the notice says that both tokens have arrived, the end gets doorbell, page and
 *    ring.
 */
#ifndef PROOF_H
#define PROOF_H

#include "channel.h"

/* proof_await waits for an announced token that is next, and removes it: if it were
 * unread, a close would reset the connection, and other programs would read it. */
#define AWAIT_NS INT64_C(200000000) /* how long a call waits */
void proof_await(struct channel *ch, int fd, int64_t until_ns);
/* proof_stop ends a proof of this process: no token of the peer is announced after it. */
void proof_stop(struct channel *ch);
/* proof_has_room says whether the socket has room for the token. proof_announced sends
 * the token of a new proof, of which the broker has told the peer. */
bool proof_has_room(int fd);
void proof_announced(struct channel *ch, int fd);
/* proof_step does steps 2 and 4 if they are due. No lock is held. It returns true if
 * the channel has just got its rings. */
bool proof_step(struct channel *ch, int fd);
/* proof_due says whether proof_step may have to do something. */
bool proof_due(struct channel *ch);

/* With rx_lock held: */
/* proof_cut is how many of the n bytes to receive next are before the peer's token, or
 * what may be its beginning. */
size_t proof_cut(struct channel *ch, int fd, size_t n);
/* proof_take removes the peer's token, which is next in the stream. It returns 0, or
 * -EAGAIN if a part has not arrived. The first part stays for the broker, and may keep
 * the window closed; once the broker has ended the proof it is removed, too. */
int proof_take(struct channel *ch, int fd);
/* proof_rest is how many bytes of the peer's token have not been removed. */
static inline size_t proof_rest(const struct channel *ch)
{
	return sizeof(ch->s->token) - ch->s->token_gone;
}
/* proof_settle does so if the token is next, and returns whether it has. */
bool proof_settle(struct channel *ch, int fd);
/* proof_next says whether an announced token is next, as far as bytes have arrived. */
bool proof_next(struct channel *ch, int fd);
/* proof_pending says whether a token was announced and not removed; proof_clear, whether
 * none is in the stream and none will be. */
bool proof_pending(struct channel *ch);
bool proof_clear(struct channel *ch);

/* proof_flush sends the rest of the own token, which precedes all other bytes by TCP. It
 * returns 0 or -errno. With tx_lock held. */
int proof_flush(struct channel *ch, int fd, int flags);

/* proof_push has the kernel send the program's bytes that Nagle's algorithm holds back
 * until the peer has acknowledged the token, of which the program does not know. It keeps
 * errno; tx_lock may be held or not. */
void proof_push(struct channel *ch, int fd);

#endif
