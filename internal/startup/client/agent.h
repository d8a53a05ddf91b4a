/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What scon-cni and scon-oci share: one request to the agent in the startup service, and
 * the way to the program scon.
 *
 * They are C because a container waits for each of them: a static program is
 * there in a fifth of the time that the smallest Go program takes
 * (docs/startup.md has the figures). So they decide nothing: the agent does, or
 * scon where there is no agent.
 */
#ifndef SCON_AGENT_H
#define SCON_AGENT_H

#include <stddef.h>

#define DEFAULT_SOCKET "/run/scon/startup.sock"

/* Bytes that grow as they are added to. */
struct text {
	char *data;
	size_t size, room;
};

/* add appends; it ends the program when there is no memory. */
void add(struct text *t, const char *data, size_t size);
void add_string(struct text *t, const char *s);

/* add_header appends a header of HTTP, and returns -1 for a value that cannot
 * be one. A NULL value is none. */
int add_header(struct text *t, const char *name, const char *value);

/* slurp reads a file to its end; -1 with errno. */
int slurp(int fd, struct text *t);

/* ask sends a request to the agent. Returns HTTP's status with the answer's
 * body, or -1 if there is no agent, or it ended before it had answered. */
int ask(const char *socket, const struct text *request, struct text *body);

/* find_string finds the string that a key of a JSON object has; keys of objects
 * within it do not count. Returns 0, or -1 if there is none, it does not fit,
 * or has escapes, which no path has. */
int find_string(const struct text *json, const char *key, char *value, size_t room);

/* run_scon becomes `scon` with one argument and an input; it returns only with
 * an error in errno. The program is looked for beside this one, then in PATH. */
int run_scon(const char *argument, const struct text *input);

#endif
