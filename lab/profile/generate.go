package profile

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type step -type lane -type waypoint waypoint ../bpf/profile.bpf.c
