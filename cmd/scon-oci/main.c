// SPDX-License-Identifier: GPL-2.0
/*
 * scon-oci, a wrapper of an OCI runtime: before the runtime creates a container, the
 * agent admits the container and writes the path of a prepared network namespace
 * into its configuration.
 *
 *	engine ──create ID──▶ scon-oci ──HTTP──▶ agent: admits, rewrites config.json
 *	                          └─ runs ──▶ runc create ID
 *	                          └─ HTTP ──▶ agent: done
 *
 * Without an agent it only executes the runtime, unless the container is to have a network
 * or a device that is still to be made: then, and where an agent is there that cannot be asked,
 * it refuses. Its own settings are options before the verb, or environment variables:
 *
 *	--scon-runtime PATH   SCON_RUNTIME   the wrapped runtime; default runc
 *	--scon-socket PATH    SCON_SOCKET    the startup service's socket
 *	--scon-network NAME   SCON_NETWORK   the network of containers that name none
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../internal/startup/client/agent.h"

/* The parsed command line. */
struct call {
	const char *runtime, *socket, *network;
	const char *verb, *id, *bundle, *pid_file, *log, *log_format;
	int detach;
	char **args; /* for the wrapped runtime */
};

/* Options of runc and crun whose value may be the next argument. */
static const char *const with_value[] = {
	"root", "log-level", "criu", "rootless", "cgroup-manager",
	"console-socket", "preserve-fds", NULL,
};

/* option returns the name of an option, NULL if the argument is none. runc accepts
 * -name and --name. */
static const char *option(const char *arg)
{
	if (arg[0] != '-' || !arg[1])
		return NULL;
	return arg + (arg[1] == '-' ? 2 : 1);
}

/* take returns the value of an option, as --name=value or in the next argument,
 * which it skips. */
static const char *take(char **args, int *i, const char *name)
{
	const char *is = option(args[*i]);
	size_t length = strlen(name);

	if (!is || strncmp(is, name, length))
		return NULL;
	if (is[length] == '=')
		return is + length + 1;
	if (is[length] || !args[*i + 1])
		return NULL;
	return args[++*i];
}

/* skip_value skips the value of an option that scon-oci does not use. */
static void skip_value(char **args, int *i)
{
	for (const char *const *name = with_value; *name; name++)
		if (take(args, i, *name))
			return;
}

/* own parses scon-oci's own options. */
static int own(struct call *c, char **argv, int *i)
{
	const char *value;

	if ((value = take(argv, i, "scon-runtime")))
		c->runtime = value;
	else if ((value = take(argv, i, "scon-socket")))
		c->socket = value;
	else if ((value = take(argv, i, "scon-network")))
		c->network = value;
	else
		return 0;
	return 1;
}

static const char *setting(const char *variable, const char *otherwise)
{
	const char *value = getenv(variable);

	return value && *value ? value : otherwise;
}

/* parse reads the command line, and copies it without scon-oci's own options. */
static void parse(struct call *c, int argc, char **argv)
{
	int n = 0;

	c->runtime = setting("SCON_RUNTIME", "runc");
	c->socket = setting("SCON_SOCKET", DEFAULT_SOCKET);
	c->network = setting("SCON_NETWORK", NULL);
	c->args = calloc(argc + 1, sizeof(*c->args));
	if (!c->args)
		_exit(1);
	n = 1;
	for (int i = 1; i < argc; i++) {
		const char *value;
		int first = i;

		if (!c->verb && own(c, argv, &i))
			continue;
		if ((value = take(argv, &i, "bundle")) || (value = take(argv, &i, "b")))
			c->bundle = value;
		else if ((value = take(argv, &i, "pid-file")))
			c->pid_file = value;
		else if ((value = take(argv, &i, "log")))
			c->log = value;
		else if ((value = take(argv, &i, "log-format")))
			c->log_format = value;
		else if (!strcmp(argv[i], "--detach") || !strcmp(argv[i], "-detach") || !strcmp(argv[i], "-d"))
			c->detach = 1;
		else if (option(argv[i]))
			skip_value(argv, &i);
		else if (!c->verb)
			c->verb = argv[i];
		else if (!c->id)
			c->id = argv[i];
		for (int j = first; j <= i; j++)
			c->args[n++] = argv[j];
	}
	c->args[0] = (char *)c->runtime;
}

/* why returns the agent's reason of a refusal, a JSON string without its quotes;
 * the answer is {"error":"..."}. */
static struct text why(const struct text *answer)
{
	static const char begin[] = "{\"error\":\"", end[] = "\"}";
	struct text said = { 0 };
	size_t size = answer->size;

	while (size && isspace((unsigned char)answer->data[size - 1]))
		size--;
	if (size < strlen(begin) + strlen(end) || memcmp(answer->data, begin, strlen(begin)))
		return said;
	said.data = answer->data + strlen(begin);
	said.size = size - strlen(begin) - strlen(end);
	return said;
}

/* complain reports why a container is refused, on standard error and in the wrapped
 * runtime's log, which engines read; said is a JSON string without its quotes. */
static void complain(const struct call *c, struct text said)
{
	int json = c->log_format && !strcmp(c->log_format, "json");
	time_t now = time(NULL);
	char when[32];
	FILE *log;

	fprintf(stderr, "scon-oci: ");
	for (size_t i = 0; i < said.size; i++)
		if (said.data[i] != '\\' || ++i < said.size)
			fputc(said.data[i], stderr);
	fprintf(stderr, "\n");
	if (!c->log || !(log = fopen(c->log, "a")))
		return;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
	fprintf(log, json ? "{\"level\":\"error\",\"msg\":\"scon-oci: %2$.*1$s\",\"time\":\"%3$s\"}\n"
			  : "time=\"%3$s\" level=error msg=\"scon-oci: %2$.*1$s\"\n",
		(int)said.size, said.data, when);
	fclose(log);
}

/* refuse complains and returns the exit status. */
static int refuse(const struct call *c, const char *reason)
{
	complain(c, (struct text){ .data = (char *)reason, .size = strlen(reason) });
	return 1;
}

/* add_value appends a header whose value HTTP leaves as it is: no control characters,
 * no space at an end. Returns -1 for another value. */
static int add_value(struct text *t, const char *name, const char *value)
{
	size_t size = value ? strlen(value) : 0;

	if (size && (value[0] == ' ' || value[size - 1] == ' '))
		return -1;
	return add_header(t, name, value);
}

/* notify sends a request to the agent. Returns the HTTP status, -1 without an agent, or
 * -2 if the agent cannot be asked; it reports errors that the agent returns. */
static int notify(const struct call *c, const char *verb, const char *outcome)
{
	struct text request = { 0 }, answer = { 0 };
	char bundle[PATH_MAX], pid_file[PATH_MAX + NAME_MAX];
	int status;

	if (!realpath(c->bundle ? c->bundle : ".", bundle))
		bundle[0] = 0;
	pid_file[0] = 0;
	if (c->pid_file && c->pid_file[0] != '/' && getcwd(pid_file, PATH_MAX))
		strncat(pid_file, "/", 2);
	if (c->pid_file)
		strncat(pid_file, c->pid_file, sizeof(pid_file) - strlen(pid_file) - 1);

	add_string(&request, "POST /v1/oci HTTP/1.0\r\n");
	if (add_value(&request, "Oci-Verb", verb) < 0 ||
	    add_value(&request, "Oci-Outcome", outcome) < 0 ||
	    add_value(&request, "Oci-Id", c->id) < 0 ||
	    add_value(&request, "Oci-Bundle", bundle) < 0 ||
	    add_value(&request, "Oci-Pidfile", pid_file) < 0 ||
	    add_value(&request, "Oci-Network", c->network) < 0)
		return has_agent(c->socket) ? -2 : -1;
	add_string(&request, "Content-Length: 0\r\n\r\n");
	status = ask(c->socket, &request, &answer);
	if (status >= 400 && status != 404)
		complain(c, why(&answer));
	free(request.data);
	free(answer.data);
	return status;
}

/* open_dir opens a directory. *missing tells why not: 1 if there is none for this user,
 * or else 0. */
static DIR *open_dir(int at, const char *path, int *missing)
{
	int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	*missing = fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES);
	return dir;
}

/* is_pending returns whether an agent's directory has a file HASH@ID below pending, which it
 * can remove. */
static int is_pending(int agent, const char *id, int remove)
{
	const size_t id_at = 13;
	int found = 0, missing;
	DIR *dir = open_dir(agent, "pending", &missing);
	struct dirent *file;

	if (!dir)
		return !missing;
	while ((file = readdir(dir))) {
		if (strlen(file->d_name) <= id_at || file->d_name[id_at - 1] != '@' ||
		    strcmp(file->d_name + id_at, id))
			continue;
		found = 1;
		if (remove)
			unlinkat(dirfd(dir), file->d_name, 0);
	}
	closedir(dir);
	return found;
}

/* awaits_device returns whether an agent has still to make the container's device, or that
 * cannot be told. Its files say so, also when it has ended; remove removes them. */
static int awaits_device(const struct call *c, int remove)
{
	char link[PATH_MAX], path[PATH_MAX + sizeof("/startup")];
	int found = 0, missing;
	struct dirent *agent;
	ssize_t size;
	DIR *dir;

	if (snprintf(link, sizeof(link), "%s.state", c->socket) >= (int)sizeof(link))
		return 0; /* no socket has such a path */
	size = readlink(link, path, PATH_MAX - 1);
	if (size >= 0)
		path[size] = 0;
	else
		strcpy(path, dirname(link));
	strcat(path, "/startup");
	dir = open_dir(AT_FDCWD, path, &missing);
	if (!dir)
		return !missing;
	while (!found && (agent = readdir(dir))) {
		int fd;

		if (agent->d_name[0] == '.')
			continue;
		fd = openat(dirfd(dir), agent->d_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0) {
			found = errno != ENOTDIR && errno != ENOENT;
			continue;
		}
		found = is_pending(fd, c->id, remove);
		close(fd);
	}
	closedir(dir);
	return found;
}

/* wants_netns returns whether the runtime has to make a network namespace: the configuration
 * has an object of the type network without a path. */
static int wants_netns(const struct text *conf)
{
	const char *end = conf->data + conf->size, *last;
	char value[PATH_MAX];

	for (const char *c = conf->data; c < end; c++) {
		if (*c != '{' || !(last = memchr(c, '}', end - c)))
			continue;
		struct text object = { .data = (char *)c, .size = last + 1 - c };
		if (!find_string(&object, "type", value, sizeof(value)) && !strcmp(value, "network") &&
		    (find_string(&object, "path", value, sizeof(value)) < 0 || !*value))
			return 1;
	}
	return 0;
}

/* wants_network returns whether an agent would make the container's network, if it served the one
 * that the container, or the command line, names. */
static int wants_network(const struct call *c)
{
	static const char annotation[] = "\"scon.network\"", variable[] = "\"SCON_NETWORK=";
	struct text conf = { 0 };
	char path[PATH_MAX];
	int fd, wants = 0;

	snprintf(path, sizeof(path), "%s/config.json", c->bundle ? c->bundle : ".");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0; /* the runtime says so */
	if (!slurp(fd, &conf) &&
	    ((c->network && *c->network) || memmem(conf.data, conf.size, annotation, strlen(annotation)) ||
	     memmem(conf.data, conf.size, variable, strlen(variable))))
		wants = wants_netns(&conf);
	free(conf.data);
	close(fd);
	return wants;
}

/* prepare asks the agent before a verb. Returns 0, or the exit status if it is refused. */
static int prepare(const struct call *c, const char *verb)
{
	int start = !strcmp(verb, "start"), answer;

	if (!strcmp(verb, "delete"))
		return 0;
	answer = notify(c, start ? "start" : "create", NULL);
	if (answer >= 400 && answer != 404)
		return 1;
	if (start && answer != 200 && awaits_device(c, 0))
		return refuse(c, "the startup service, which has to make the container's device, does not "
				 "answer: start it with 'scon up'");
	if (!start && answer == -2)
		return refuse(c, "the startup service does not answer, or a path has a control character or "
				 "a space at its end");
	if (!start && (answer == -1 || answer == 404) && wants_network(c))
		return refuse(c, "no agent makes the container's network: set startup.enabled in the configuration, "
				 "then start the service with 'scon up'");
	/* The runtime would start the container without asking. */
	if (!strcmp(verb, "run") && answer == 200 && awaits_device(c, 0)) {
		notify(c, "create", "failed");
		return refuse(c, "a container with a user namespace gets its device between create and "
				 "start: use these instead of run");
	}
	return 0;
}

static pid_t child;

static void forward(int sig)
{
	kill(child, sig);
}

/* run runs the wrapped runtime and returns its wait status. */
static int run(const struct call *c)
{
	static const int passed_on[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH };
	struct sigaction action = { .sa_handler = forward };
	pid_t self = getpid();
	int status;

	child = fork();
	if (child < 0) {
		perror("scon-oci: start a process");
		exit(1);
	}
	if (!child) {
		/* Killing scon-oci also kills the runtime. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != self)
			_exit(1);
		execvp(c->runtime, c->args);
		fprintf(stderr, "scon-oci: start %s: %s\n", c->runtime, strerror(errno));
		_exit(127);
	}
	for (size_t i = 0; i < sizeof(passed_on) / sizeof(*passed_on); i++)
		sigaction(passed_on[i], &action, NULL);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			exit(1);
	return status;
}

int main(int argc, char **argv)
{
	struct call c = { 0 };
	const char *verb;
	int status;

	parse(&c, argc, argv);
	verb = c.verb && c.id ? c.verb : "";
	if (strcmp(verb, "create") && strcmp(verb, "start") && strcmp(verb, "delete") && strcmp(verb, "run")) {
		execvp(c.runtime, c.args);
		fprintf(stderr, "scon-oci: start %s: %s\n", c.runtime, strerror(errno));
		return 127;
	}
	if (prepare(&c, verb))
		return 1;
	status = run(&c);
	/* The container of a run has ended, or never was: what was made for it goes. */
	if (!strcmp(verb, "run") && !c.detach)
		notify(&c, "create", "failed");
	else if (!strcmp(verb, "run"))
		notify(&c, "create", status ? "failed" : "done");
	else if (notify(&c, verb, status ? "failed" : "done") < 0 && !strcmp(verb, "delete") && !status)
		awaits_device(&c, 1);
	if (WIFSIGNALED(status))
		return 128 + WTERMSIG(status);
	return WEXITSTATUS(status);
}
