package express

//go:generate go tool bpf2go -output-dir datapath -go-package datapath -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -type event -type event6 -type event_kind express ../../bpf/express.bpf.c
//go:generate go tool bpf2go -output-dir datapath -go-package datapath -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" traced ../../bpf/traced.bpf.c
