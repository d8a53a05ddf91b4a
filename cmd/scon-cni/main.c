// SPDX-License-Identifier: GPL-2.0
/*
 * scon-cni, the CNI plugin: forwards a container runtime's request to the agent and
 * prints the agent's answer.
 *
 *	runtime ──environment, configuration──▶ scon-cni ──HTTP──▶ agent
 *	                                           └─ no agent ──▶ scon cni
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../internal/startup/client/agent.h"

static const struct {
	const char *variable, *header;
} environment[] = {
	{ "CNI_COMMAND", "Cni-Command" },
	{ "CNI_CONTAINERID", "Cni-Containerid" },
	{ "CNI_NETNS", "Cni-Netns" },
	{ "CNI_IFNAME", "Cni-Ifname" },
	{ "CNI_ARGS", "Cni-Args" },
	{ "CNI_PATH", "Cni-Path" },
};

/* fail prints an error in CNI's JSON format, with the code of an I/O failure. */
static int fail(const char *what)
{
	printf("{\"cniVersion\":\"1.1.0\",\"code\":5,\"msg\":\"%s: %s\"}\n", what, strerror(errno));
	return 1;
}

/* request writes the request; -1 if a variable contains a control character. */
static int request(struct text *t, const struct text *conf)
{
	char length[32];

	add_string(t, "POST /v1/cni HTTP/1.0\r\n");
	for (size_t i = 0; i < sizeof(environment) / sizeof(*environment); i++)
		if (add_header(t, environment[i].header, getenv(environment[i].variable)) < 0)
			return -1;
	snprintf(length, sizeof(length), "%zu", conf->size);
	add_header(t, "Content-Length", length);
	add_string(t, "\r\n");
	add(t, conf->data, conf->size);
	return 0;
}

/* ask_again is ask. An agent that ends during the request is started again, as by systemd
 * after a second: until two have passed, no `scon cni`, of which there may be hundreds, is
 * in its way. */
static int ask_again(const char *socket, const struct text *request, struct text *answer)
{
	int status = ask(socket, request, answer), ended = status == -2 && errno == ECONNRESET;

	for (int i = 0; i < 40 && ended; i++) {
		usleep(50000);
		status = ask(socket, request, answer);
		ended = status == -1 || (status == -2 && errno == ECONNRESET);
	}
	return status;
}

int main(void)
{
	struct text conf = { 0 }, ours = { 0 }, answer = { 0 };
	const char *command = getenv("CNI_COMMAND");
	char socket[108] = DEFAULT_SOCKET;
	int status;

	if (command && strcmp(command, "VERSION")) {
		if (slurp(STDIN_FILENO, &conf) < 0)
			return fail("read the network configuration");
		find_string(&conf, "socket", socket, sizeof(socket));
		if (request(&ours, &conf) < 0) {
			errno = EINVAL;
			return fail("control character in a variable CNI_*");
		}
		status = ask_again(socket, &ours, &answer);
		if (status == 200 || status == 400) {
			fwrite(answer.data, 1, answer.size, stdout);
			return status != 200;
		}
		if (status > 0 && status != 404) {
			printf("{\"cniVersion\":\"1.1.0\",\"code\":5,\"msg\":\"the agent refuses the request: HTTP status %d%s\"}\n",
			       status, status == 431 ? ", CNI_ARGS and the other variables are too long" : "");
			return 1;
		}
	}
	run_scon("cni", &conf);
	return fail("no agent answers, and the program scon was not found");
}
