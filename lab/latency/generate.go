package latency

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type sample taps ../bpf/taps.bpf.c
