package express

// clang finds no source in /bpf, and leaves its lines out of the types.
//go:generate sh -c "go tool bpf2go -output-dir datapath -go-package datapath -target bpfel -cc clang -cflags \"-O2 -g -Wall -Werror -mcpu=v3 -fdebug-prefix-map=${DOLLAR}(cd ../../bpf && pwd)=/bpf\" -type half -type outer -type event -type event6 -type event_kind express ../../bpf/express.bpf.c"
// Where the lines belong, and the labels of jumps, are most of the object. Only the log of a verifier that refuses it has
// the lines, and nothing has the labels.
//go:generate llvm-objcopy --remove-section .BTF.ext --remove-section .rel.BTF.ext --wildcard --strip-symbol LBB* datapath/express_bpfel.o
//go:generate ../../scripts/pack-bpf.sh datapath/express_bpfel
//go:generate sh -c "go tool bpf2go -output-dir datapath -go-package datapath -no-global-types -target bpfel -type spare_slots -cc clang -cflags \"-O2 -g -Wall -Werror -mcpu=v3 -fdebug-prefix-map=${DOLLAR}(cd ../../bpf && pwd)=/bpf\" traced ../../bpf/traced.bpf.c"
//go:generate llvm-objcopy --remove-section .rel.BTF.ext --wildcard --strip-symbol LBB* --dump-section .BTF.ext=lines.tmp datapath/traced_bpfel.o
//go:generate go run ./nolines lines.tmp
//go:generate llvm-objcopy --update-section .BTF.ext=lines.tmp datapath/traced_bpfel.o
//go:generate rm lines.tmp
//go:generate ../../scripts/pack-bpf.sh datapath/traced_bpfel
