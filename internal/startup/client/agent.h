/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What scon-cni and scon-oci have in common: one request to the agent in the startup
 * service, and the fallback to the program scon.
 *
 * They are C because every container waits for them: a static C program starts in a
 * fifth of the time of the smallest Go program (docs/startup.md has the figures).
 * They decide nothing: the agent does, or scon where there is no agent.
 */
#ifndef SCON_AGENT_H
#define SCON_AGENT_H

#include <stddef.h>

#define DEFAULT_SOCKET "/run/scon/startup.sock"

/* A buffer of bytes that grows. */
struct text {
	char *data;
	size_t size, room;
};

/* add appends; it ends the program when there is no memory. */
void add(struct text *t, const char *data, size_t size);
void add_string(struct text *t, const char *s);

/* add_header appends an HTTP header, or nothing if value is NULL. Returns -1 if the
 * value contains a control character. */
int add_header(struct text *t, const char *name, const char *value);

/* slurp reads a file to its end; -1 with errno. */
int slurp(int fd, struct text *t);

/* ask sends a request to the agent. Returns the HTTP status and the answer's body,
 * -1 without an agent, or -2 if it does not answer; errno is ECONNRESET if it ended before
 * its answer did. */
int ask(const char *socket, const struct text *request, struct text *body);

/* has_agent returns whether a process listens at the agent's socket. */
int has_agent(const char *socket);

/* find_string finds the string value of a key of a JSON object; keys of nested
 * objects do not count. Returns 0, or -1 if there is none, it does not fit, or it
 * has escapes, which no path has. */
int find_string(const struct text *json, const char *key, char *value, size_t room);

/* run_scon executes `scon` with one argument and an input; it returns only with an
 * error in errno. It tries the program beside this one, then PATH. */
int run_scon(const char *argument, const struct text *input);

#endif
