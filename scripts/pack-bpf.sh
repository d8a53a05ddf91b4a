#!/bin/sh
# pack-bpf.sh NAME: compresses the BPF object NAME.o into NAME.o.gz, and has bpf2go's NAME.go
# embed and read that. Programs are a fifth as long.
set -eu

gzip --best --no-name --force "$1.o"
sed -i \
	-e '/^\t"bytes"$/d' \
	-e 's,^\t"github.com/cilium/ebpf"$,&\n\n\t"github.com/scon-project/scon/internal/host/bpfload",' \
	-e '/^\treader := /{N;s/.*(\(_[A-Za-z]*\))\n\(.*\)ebpf\.LoadCollectionSpecFromReader(reader)/\2bpfload.Read(\1)/}' \
	-e 's,^//go:embed .*\.o$,&.gz,' \
	"$1.go"
