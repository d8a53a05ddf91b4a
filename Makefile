# make demo    what SCON does, on this machine      (root: by sudo, which it calls)
# make check   lint, unit tests and one end-to-end test, below 3 minutes   (root)
# make test    all tests, below 20 minutes on two cores                    (root)
# make packages   .deb, .rpm and tarballs for amd64 and arm64 in dist/
# make image   an image for both in dist/, FROM scratch, made by podman
# make test-k8s   a Kubernetes of two nodes on this machine, with the chart; test-k8s-full: four, with conformance   (root)
# make build   bin/scon, bin/scon-lab, bin/scon-cni, bin/scon-oci, bin/libsconpipe,
#              the pipe's examples and the man pages; where the CUDA driver is, also the next
# make size    how large this project is: the table of ARCHITECTURE.md
# make cuda    bin/scon-pipe-cuda, which has a GPU copy for the pipe; takes no CUDA
#
# V=1 shows the commands. TAGS=pprof has the services serve Go profiles. demo, check and test install what is missing with apt;
# scripts/install-deps.sh says what.

TAGS    ?=
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
BIN     ?= bin
CC      ?= cc

# What builds runs as the owner of these sources, also under sudo: root leaves no file
# here and no second copy of the Go modules. Elsewhere root may be the only one who can write.
SCON     ?= $(BIN)/scon
AS_OWNER := $(if $(filter bin.bin/scon,$(BIN).$(SCON)),scripts/as-owner.sh)
ifneq ($(AS_OWNER),)
OF_OWNER := scon lab startup cuda libsconpipe examples generate modules check-generated lint size man
$(OF_OWNER): SHELL := $(AS_OWNER)
endif

VERSION := $(shell $(AS_OWNER) scripts/version.sh)
COMMIT  := $(shell $(AS_OWNER) git rev-parse HEAD 2>/dev/null)

C_FLAGS := -std=gnu11 -Os -Wall -Wextra -Wvla -Werror

MAKEFLAGS += --no-print-directory
Q := $(if $(V),,@)
say = @$(if $(V),:,printf '  %-8s%s\n' '$(1)' '$(2)')

# The product, its tests with their bed, and the laboratory: each a module of its own.
MODULES := . test lab
GOTESTSUM := go tool gotestsum --format pkgname-and-test-fails
GOFLAGS_TEST := -vet=off -timeout 30m

# The tests of make check are those of packages that take some seconds.
SLOW := internal/(express|express/datapath|startup|pipe)$$|libsconpipe|lab/(startbench|pipebench|profile|cmd|test)|test/bed/vm
quick = $$(go list $(1) | grep -Ev '/scon/($(SLOW))')

# sudo forgets where Go is, and a user's PATH lacks ldconfig and nft.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
export PATH := $(shell $(AS_OWNER) scripts/toolchain.sh)$(PATH)

# These make network namespaces. A user's run of one goes on by sudo before it does anything.
NEED_ROOT := demo check test test-long test-packages test-fresh test-peers test-k8s test-k8s-full test-hostile fuzz screenshots

.PHONY: build scon lab startup cuda libsconpipe examples generate modules check-generated lint size slow test-kernels man install uninstall packages image clean $(NEED_ROOT) $(NEED_ROOT:=-as-root)

# Go does not notice changes of the library's C sources, but those of the flags.
export CGO_CFLAGS := -O2 -g -DSOURCES=$(shell cat libsconpipe/src/* libsconpipe/include/* | cksum | cut -d' ' -f1)

# What waits for the kernel, reads settings and types once, only commands run, or nothing runs (net/http starts cryptography
# for TLS, which no socket has) is not inlined: by 1 MB less. The ways of packets, connections and rules are.
NOT_INLINED := archive/... compress/... crypto/... debug/... encoding/asn1/... internal/zstd log/... math/big mime/... net/... os/exec os/signal path/... regexp/... text/... vendor/... \
	$(addprefix github.com/,cilium/ebpf/... containernetworking/... coreos/... goccy/... google/nftables/... mdlayher/socket/... safchain/... spf13/... vishvananda/...) \
	$(addprefix github.com/scon-project/scon/,cmd/... $(addprefix internal/,api cli config doctor express/discover express/liberal express/metrics express/nfhooks host/bpfload \
	host/cores host/netdev host/netns host/programs host/sysctl host/tcfilter httpconn live metrics numbers pin pipe pipe/bpf pipe/control pipe/engine pipe/quota pipe/sealed pipe/unix redact report service startup startup/cni startup/control startup/devices startup/docker startup/ipam startup/nft startup/pool \
	state suggest top web))
SCONFLAGS := -trimpath -tags "$(TAGS)" $(NOT_INLINED:%=-gcflags=%=-l)

# Without a C compiler, or the C library's archive, the Go programs are built.
build:
	$(Q)$(AS_OWNER) sh -c 'command -v go >/dev/null' || { echo "no Go: install golang-go, or put Go into PATH" >&2; exit 1; }
	$(Q)scripts/install-deps.sh build || echo "building without them" >&2
	$(Q)$(AS_OWNER) $(MAKE) $$(CC="$(CC)" $(AS_OWNER) scripts/buildable.sh)

$(NEED_ROOT):
	$(Q)scripts/as-root.sh $@

lab:
	$(call say,GO,$(BIN)/scon-lab)
	$(Q)CGO_ENABLED=0 go build -C lab -trimpath -ldflags "-s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)" -o $(abspath $(BIN))/scon-lab ./cmd/scon-lab

scon:
	$(call say,GO,$(SCON))
	$(Q)CGO_ENABLED=0 go build $(SCONFLAGS) -ldflags "-s -w -funcalign=8 -X main.release=$(VERSION) -X main.commit=$(COMMIT)" -o $(SCON) ./cmd/scon

startup: $(BIN)/scon-cni $(BIN)/scon-oci
	@:

# Static: a container waits until they have started.
$(BIN)/scon-cni $(BIN)/scon-oci: $(BIN)/%: cmd/%/main.c internal/startup/client/agent.c internal/startup/client/agent.h
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(C_FLAGS) -static -s -o $@ $(filter %.c,$^)

# It looks for the driver when it runs.
CUDA ?= $(BIN)/scon-pipe-cuda
cuda: $(CUDA)

$(CUDA): $(wildcard internal/pipe/copier/cuda/*)
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(C_FLAGS) -D_GNU_SOURCE -s -o $@ $(filter %.c,$^) -ldl

# What applications link to.
libsconpipe:
	$(Q)$(MAKE) -C libsconpipe OUT=$(abspath $(BIN))

# Programs that use it, which "scon pipe bench" runs.
examples: libsconpipe
	$(Q)$(MAKE) -C examples OUT=$(abspath $(BIN))

# BPF objects and their types by Debian 12's clang 14, since others make other objects;
# packaging/scon.yaml and docs/json.md from the comments of Go types.
generate:
	$(call say,GENERATE,internal lab)
	$(Q)scripts/clang14.sh go generate ./internal/...
	$(Q)scripts/clang14.sh go generate -C lab ./...

# The modules of Go that all three need.
modules:
	$(Q)for m in $(MODULES); do (cd $$m && go mod download) || exit 1; done

check-generated:
	$(call say,CHECK,generated files)
	$(Q)scripts/check-generated.sh

# Another Go formats otherwise.
GO_MINOR := $(shell sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)
lint:
	$(call say,LINT,./...)
	$(Q)for m in $(MODULES); do (cd $$m && go vet ./... && go tool staticcheck ./...) || exit 1; done
	$(Q)go vet -tags pprof ./cmd/scon
	$(Q)scripts/check-layers.sh
	$(Q)scripts/check-commits.sh
	$(Q)case $$(go env GOVERSION) in \
	go$(GO_MINOR)*) bad=$$("$$(go env GOROOT)/bin/gofmt" -l .) && [ -z "$$bad" ] || { echo "gofmt: $$bad" >&2; exit 1; } ;; \
	*) echo "left out: gofmt, of which Go $(GO_MINOR)'s is needed" >&2 ;; esac
	$(Q)scripts/clang14.sh clang-format --dry-run -Werror bpf/*.c bpf/lib/*.h internal/*/bpf/*.c lab/bpf/*.c libsconpipe/*/*.[ch] test/posix/*.[ch] test/posix/own/*.c examples/*.[ch] internal/pipe/copier/cuda/*.[ch] || \
		{ [ $$? = 3 ] && echo "left out: clang-format, of which Debian 12's version 14 is needed" >&2; }

# Lines, modules, words, and bytes of scon.
size: scon
	$(Q)scripts/size.sh $(SCON)

# The end-to-end test sends real traffic in the lab, and fails where packets do not
# go by the expected path.
check-as-root:
	$(Q)scripts/install-deps.sh build demo test
	$(Q)$(MAKE) build
	$(Q)$(AS_OWNER) $(MAKE) modules
	$(Q)$(MAKE) lint
	$(Q)scripts/with-own-mounts.sh $(GOTESTSUM) -- $(GOFLAGS_TEST) -p 2 $(call quick,./...)
	$(Q)cd test && ../scripts/with-own-mounts.sh $(GOTESTSUM) -- $(GOFLAGS_TEST) -p 2 $(call quick,./bed/...)
	$(Q)cd lab && ../scripts/with-own-mounts.sh $(GOTESTSUM) -- $(GOFLAGS_TEST) -p 2 $(call quick,./...)
	$(call say,TEST,scon bench quick)
	$(Q)scripts/with-own-mounts.sh bin/scon bench quick --rounds 1 --modes native,container,express

# Real traffic on a machine that others may keep busy: a test that fails has to
# fail twice, and the summary tells of both.
test-as-root:
	$(Q)scripts/install-deps.sh build demo test startup kernels prometheus web
	$(Q)$(MAKE) build
	$(Q)$(AS_OWNER) $(MAKE) modules
	$(Q)$(MAKE) check-generated lint
	$(Q)$(AS_OWNER) go build -C test -o ../bin/lanes ./lanes
	$(Q)$(AS_OWNER) touch bin/test.json
	$(Q)$(GOTESTSUM) --jsonfile bin/test.json --rerun-fails=1 --raw-command -- bin/lanes $(GOFLAGS_TEST) ./...

# The table of slow test packages in CONTRIBUTING.md, from the last "make test".
slow:
	$(Q)scripts/slow-tests.sh bin/test.json

# The pictures of docs/web.md, of real traffic in the lab.
screenshots-as-root:
	$(Q)scripts/install-deps.sh web
	$(Q)SCON_SCREENSHOTS=$(CURDIR)/docs scripts/with-own-mounts.sh go test -C test -vet=off -count=1 ./page -run TestScreenshots

# Three times in changing order, with the race detector.
test-long-as-root:
	$(Q)scripts/install-deps.sh build demo test startup kernels prometheus race
	$(Q)$(MAKE) build
	$(Q)for m in $(MODULES); do (cd $$m && SCON_LONG=1 $(CURDIR)/scripts/with-own-mounts.sh $(GOTESTSUM) -- $(GOFLAGS_TEST) -p 1 -race -shuffle=on -count=3 ./...) || exit 1; done
	$(Q)scripts/with-own-mounts.sh go test -C test -vet=off -timeout 2h ./differential -cases 10000

# All tests of what depends on the kernel, in guests with Debian's kernels.
test-kernels: build
	$(Q)scripts/install-deps.sh kernels arm64
	$(Q)go test -C test -timeout 6h -v ./kernels -full
	$(Q)go test -C lab -timeout 1h -v ./test/kernels

# Packages in Debian's systems with Docker: installed, upgraded under traffic, removed; the image; the chart.
test-packages-as-root: build
	$(Q)scripts/install-deps.sh build packages image kernels arm64
	$(Q)go test -C test -vet=off -count=1 -timeout 4h -p 1 -v ./packages ./image ./helm -full

# README's lines in systems with nothing but what README names. FRESH chooses, such as "-systems trixie -steps build,demo".
FRESH ?=
test-fresh-as-root:
	$(Q)scripts/install-deps.sh packages
	$(Q)$(AS_OWNER) mkdir -p dist/fresh
	$(Q)go test -C test -vet=off -count=1 -timeout 12h -v ./fresh -full $(FRESH)

# Incus' and LXC's containers as machines of the network, by the clock. INCUS chooses, such as "-rounds 12".
INCUS ?=
test-incus-as-root: build
	$(Q)scripts/install-deps.sh packages
	$(Q)$(AS_OWNER) mkdir -p dist/incus
	$(Q)go test -C test -vet=off -count=1 -timeout 1h -v ./incus -full $(INCUS)

# Tests that others wrote, without and with SCON. PEERS chooses, such as "-suites netavark,wrk".
PEERS ?=
test-peers-as-root: build
	$(Q)scripts/install-deps.sh test kernels k8s peers
	$(Q)$(AS_OWNER) mkdir -p dist/peers
	$(Q)scripts/with-own-mounts.sh go test -C test -vet=off -count=1 -timeout 12h -v ./peers -full $(PEERS)

# A Kubernetes of two nodes with the chart; the first run builds Kubernetes for some 15 minutes. CLUSTER is one of
# nftables, iptables (kube-proxy), scon-cni, flannel (networks of pods).
CLUSTER ?= nftables
K8S_TEST := scripts/with-own-mounts.sh go test -C test -vet=off -count=1 -timeout 4h -v ./k8s
test-k8s-as-root: build
	$(Q)scripts/install-deps.sh test k8s
	$(Q)$(K8S_TEST) -cluster $(CLUSTER)

# All clusters, hundreds of pods, a thousand Services, and Kubernetes' own conformance specs of the network.
test-k8s-full-as-root: build
	$(Q)scripts/install-deps.sh test k8s packages
	$(Q)$(K8S_TEST) -cluster nftables,iptables,scon-cni,flannel -full

# Each attack that test/hostile/attacks.md lists; ends in a table with bounds.
test-hostile-as-root: build
	$(Q)scripts/install-deps.sh demo test
	$(Q)SCON_HOSTILE=1 scripts/with-own-mounts.sh go test -C test -vet=off -count=1 -timeout 2h -v ./hostile

# Every fuzz test; FUZZTIME, in seconds, is for all of them together.
FUZZTIME ?= 3600
fuzz-as-root:
	$(Q)scripts/fuzz.sh $(FUZZTIME)

demo-as-root:
	$(Q)scripts/install-deps.sh build demo
	$(Q)$(MAKE) build
	$(Q)bin/scon bench quick
	$(Q)scripts/demo-docker.sh

# Man pages, from the same texts as --help and the settings; with the flags of the programs, so that Go builds no package twice.
man: $(BIN)/man/scon.8
	@:
$(BIN)/man/scon.8: $(shell find cmd internal lab -name '*.go')
	$(call say,MAN,$(BIN)/man)
	$(Q)rm -rf $(BIN)/man && mkdir -p $(BIN)/man
	$(Q)env -u GOARCH CGO_ENABLED=0 go run -C lab -trimpath -tags man ./cmd/scon-lab $(abspath $(BIN))/man
	$(Q)env -u GOARCH CGO_ENABLED=0 go run $(SCONFLAGS) -tags man ./cmd/scon $(BIN)/man

# It builds nothing of Go: root may have none, and would fetch the modules again.
# HOST_SCON is a scon that this machine can run.
HOST_SCON ?= $(BIN)/scon
install:
	$(Q)test -e $(BIN)/man/scon.8 -a -e $(BIN)/scon-lab || { echo "make install: nothing is built: run 'make build' first, as yourself" >&2; exit 1; }
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/share/scon \
		$(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(Q)install -m 755 $(wildcard $(BIN)/scon $(addprefix $(BIN)/scon-,lab cni oci pipe-cuda)) $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 644 packaging/scon.service packaging/scon-startup.service packaging/scon-pipe.service $(DESTDIR)$(PREFIX)/lib/systemd/system
	$(Q)sed -i 's,^ExecStart=,&$(PREFIX)/bin/,' $(DESTDIR)$(PREFIX)/lib/systemd/system/scon*.service
	$(Q)if [ -e $(BIN)/libsconpipe.a ]; then \
		$(MAKE) libsconpipe examples && \
		$(MAKE) -C libsconpipe OUT=$(abspath $(BIN)) PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) install && \
		$(MAKE) -C examples OUT=$(abspath $(BIN)) PREFIX=$(PREFIX) install; \
	fi
	$(Q)install -m 644 packaging/10-scon.conflist $(DESTDIR)$(PREFIX)/share/scon/10-scon.conflist
	$(Q)install -m 644 packaging/grafana/scon.json $(DESTDIR)$(PREFIX)/share/scon/grafana.json
	$(Q)install -m 644 packaging/prometheus/rules.yaml $(DESTDIR)$(PREFIX)/share/scon/prometheus-rules.yaml
	$(Q)install -m 644 packaging/prometheus/fleet.yaml $(DESTDIR)$(PREFIX)/share/scon/prometheus-fleet-rules.yaml
	$(Q)install -m 644 packaging/prometheus/agent.yml $(DESTDIR)$(PREFIX)/share/scon/prometheus-agent.yml
	$(Q)install -m 644 lab/topology/schema.json $(DESTDIR)$(PREFIX)/share/scon/topology.schema.json
	$(Q)test -e $(DESTDIR)/etc/scon/scon.yaml || install -D -m 644 packaging/scon.yaml $(DESTDIR)/etc/scon/scon.yaml
	$(Q)install -m 644 $(BIN)/man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5
	$(Q)install -m 644 $(BIN)/man/*.8 packaging/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8
	$(Q)$(HOST_SCON) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/scon
	$(Q)$(HOST_SCON) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_scon
	$(Q)$(HOST_SCON) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/scon.fish

# Removes what install has put below PREFIX; the settings stay.
uninstall:
	$(call say,UNINSTALL,$(PREFIX))
	$(Q)all=$$(mktemp -d) && trap 'rm -rf "$$all"' EXIT && $(MAKE) Q=$(Q) DESTDIR="$$all" install >/dev/null && \
		(cd "$$all$(PREFIX)" && find . ! -type d -print0) | (cd $(PREFIX) && xargs -0 rm -f)

# .deb, .rpm and tarballs for amd64 and arm64 in dist/, with checksums and lists of what they contain (SBOM).
packages:
	$(Q)scripts/install-deps.sh build packages
	$(Q)$(AS_OWNER) scripts/packages.sh dist

# FROM scratch, for amd64 and arm64: in podman's storage, and as an archive in dist/.
image:
	$(Q)scripts/install-deps.sh image
	$(Q)$(AS_OWNER) mkdir -p dist
	$(Q)scripts/image.sh dist

clean:
	$(Q)rm -rf bin dist
