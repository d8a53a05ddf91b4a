# make demo    what SCON does, on this machine      (root)
# make test    all tests                            (root)
# make build   bin/scon, bin/scon-lab, bin/scon-cni, bin/scon-oci, bin/libsconpipe,
#              and the pipe's examples; where the CUDA driver is, also the next
# make cuda    bin/scon-pipe-cuda, which has a GPU copy for the pipe; takes no CUDA
#
# demo and test install what is missing with apt; scripts/install-deps.sh says what.

PREFIX  ?= /usr/local
DESTDIR ?=
CC      ?= cc
CFLAGS  := -std=gnu11 -Os -Wall -Wextra -Werror
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)

# One package at a time: they share the kernel.
GOTESTSUM := scripts/with-own-mounts.sh go tool gotestsum --format pkgname-and-test-fails
GOFLAGS_TEST := -vet=off -p 1 -timeout 30m

# sudo forgets where Go is.
export PATH := $(PATH):/usr/local/go/bin

.PHONY: build cuda libsconpipe examples generate check-generated lint test test-long test-kernels demo install clean root

build:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.release=$(VERSION)" -o bin/scon ./cmd/scon
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/scon-lab ./cmd/scon-lab
	$(MAKE) bin/scon-cni bin/scon-oci examples
	if ldconfig -p | grep -q libcuda.so.1; then $(MAKE) cuda; fi

# Static: a container waits until they have started.
bin/scon-cni bin/scon-oci: bin/%: cmd/%/main.c internal/startup/client/agent.c internal/startup/client/agent.h
	@mkdir -p bin; command -v $(CC) >/dev/null || scripts/install-deps.sh build
	$(CC) $(CFLAGS) -static -s -o $@ $(filter %.c,$^)

# It looks for the driver when it runs.
CUDA ?= bin/scon-pipe-cuda
cuda: $(CUDA)

$(CUDA): $(wildcard internal/pipe/copier/cuda/*)
	@mkdir -p $(@D); command -v $(CC) >/dev/null || scripts/install-deps.sh build
	$(CC) $(CFLAGS) -D_GNU_SOURCE -o $@ $(filter %.c,$^) -ldl

# What applications link to.
libsconpipe:
	@command -v $(CC) >/dev/null || scripts/install-deps.sh build
	$(MAKE) --no-print-directory -C libsconpipe OUT=$(CURDIR)/bin

# Programs that use it, which "scon pipe bench" runs.
examples: libsconpipe
	@test -e /usr/include/openssl/evp.h || scripts/install-deps.sh build
	$(MAKE) --no-print-directory -C examples OUT=$(CURDIR)/bin

# Debian 12's clang 14: others make other objects.
generate:
	go generate ./internal/...

check-generated:
	scripts/check-generated.sh

lint:
	go vet ./...
	go tool staticcheck ./...
	scripts/check-run-layers.sh
	test -z "$$(gofmt -l . | tee /dev/stderr)"
	clang-format --dry-run -Werror bpf/*.c bpf/lib/*.h internal/*/bpf/*.c libsconpipe/*/*.[ch] libsconpipe/posix/own/*.c examples/*.[ch] internal/pipe/copier/cuda/*.[ch]

# Real traffic on a machine that others may keep busy: a test that fails has to
# fail twice, and the summary tells of both.
test: root build
	scripts/install-deps.sh demo test startup kernels
	$(MAKE) check-generated lint
	$(GOTESTSUM) --rerun-fails=1 --packages ./... -- $(GOFLAGS_TEST)

# Three times in changing order, with the race detector.
test-long: root build
	scripts/install-deps.sh demo test startup kernels race
	SCON_LONG=1 $(GOTESTSUM) -- $(GOFLAGS_TEST) -race -shuffle=on -count=3 ./...
	scripts/with-own-mounts.sh go test -vet=off -timeout 2h ./test/differential -cases 10000

# All tests of what depends on the kernel, in guests with Debian's kernels.
test-kernels:
	scripts/install-deps.sh kernels arm64
	go test -timeout 6h -v ./test/kernels -full

demo: root build
	scripts/install-deps.sh demo
	bin/scon bench quick
	scripts/demo-docker.sh

install: build
	install -D -m 755 bin/scon $(DESTDIR)$(PREFIX)/bin/scon
	install -D -m 755 bin/scon-lab $(DESTDIR)$(PREFIX)/bin/scon-lab
	install -D -m 755 bin/scon-cni $(DESTDIR)$(PREFIX)/bin/scon-cni
	install -D -m 755 bin/scon-oci $(DESTDIR)$(PREFIX)/bin/scon-oci
	test ! -e bin/scon-pipe-cuda || install -D -m 755 bin/scon-pipe-cuda $(DESTDIR)$(PREFIX)/bin/scon-pipe-cuda
	install -D -m 644 packaging/scon.service $(DESTDIR)$(PREFIX)/lib/systemd/system/scon.service
	$(MAKE) -C libsconpipe OUT=$(CURDIR)/bin install
	$(MAKE) -C examples OUT=$(CURDIR)/bin install
	install -D -m 644 packaging/scon-pipe.conf $(DESTDIR)$(PREFIX)/share/scon/scon-pipe.conf
	install -D -m 644 packaging/scon-docker.conf $(DESTDIR)$(PREFIX)/share/scon/scon-docker.conf
	install -D -m 644 packaging/scon-startup.conf $(DESTDIR)$(PREFIX)/share/scon/scon-startup.conf
	install -D -m 644 packaging/10-scon.conflist $(DESTDIR)$(PREFIX)/share/scon/10-scon.conflist
	test -e $(DESTDIR)/etc/scon/scon.yaml || install -D -m 644 packaging/scon.yaml $(DESTDIR)/etc/scon/scon.yaml
	install -D -m 644 internal/lab/topology/schema.json $(DESTDIR)$(PREFIX)/share/scon/topology.schema.json
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	bin/scon completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/scon
	bin/scon completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_scon
	bin/scon completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/scon.fish

clean:
	rm -rf bin

root:
	@test "$$(id -u)" = 0 || { echo "this makes network namespaces: run it with sudo" >&2; exit 1; }
