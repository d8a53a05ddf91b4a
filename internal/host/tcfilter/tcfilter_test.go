package tcfilter

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

func TestIngressFindsOwnFilters(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "tc qdisc add dev lo clsact")
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	nstest.Do(t, ns, func() {
		for pref, name := range map[uint16]string{4: "scon_from_wire", 5: "other"} {
			if err := netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{
					LinkIndex: 1,
					Parent:    netlink.HANDLE_MIN_INGRESS,
					Priority:  pref,
					Protocol:  unix.ETH_P_ALL,
				},
				Fd: prog.FD(), Name: name, DirectAction: true,
			}); err != nil {
				t.Fatal(err)
			}
		}
		filters, err := Ingress(1)
		if err != nil {
			t.Fatal(err)
		}
		own := make(map[string]bool)
		for _, f := range filters {
			if f.Ifindex != 1 || f.Parent != netlink.HANDLE_MIN_INGRESS {
				t.Errorf("filter %+v", f)
			}
			own[f.String()] = f.Own()
		}
		if got, want := fmt.Sprint(own), "map[bpf filter, pref 4 scon_from_wire:true bpf filter, pref 5 other:false]"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, sizeofTcmsg))
	f.Fuzz(func(t *testing.T, b []byte) {
		if filter, ok := Parse(b); ok && filter.Own() && filter.Name == "" {
			t.Errorf("%+v is SCON's", filter)
		}
	})
}
