package nfhooks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// open opens a reader in a namespace.
func open(t *testing.T, ns string) (r *Reader) {
	t.Helper()
	var err error
	nstest.Do(t, ns, func() { r, err = Open() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func foreign(t *testing.T, r *Reader) []Hook {
	t.Helper()
	all, err := r.Foreign()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// attach has a program accept all packets at a hook of a namespace.
func attach(t *testing.T, ns, name string, hook link.NetfilterInetHook, priority int32) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	var l link.Link
	nstest.Do(t, ns, func() {
		l, err = link.AttachNetfilter(link.NetfilterOptions{Program: program, ProtocolFamily: link.NetfilterProtoIPv4, Hook: hook, Priority: priority})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// Programs of others are found where forwarded packets pass them, in their
// namespace alone; SCON's own are not foreign.
func TestPrograms(t *testing.T) {
	if err := features.HaveProgramType(ebpf.Netfilter); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this kernel has no BPF programs at Netfilter's hooks (Linux 6.4)")
	}
	here, there := nstest.New(t), nstest.New(t)
	r, other := open(t, here), open(t, there)
	if got := foreign(t, r); len(got) != 0 {
		t.Errorf("foreign before any: %v", got)
	}
	attach(t, here, "scon_at_hook", link.NetfilterInetForward, 1)
	attach(t, here, "local", link.NetfilterInetLocalIn, 1)
	attach(t, here, "half", link.NetfilterInetForward, 100)
	got := foreign(t, r)
	if len(got) != 1 || got[0].Name != "half" || got[0].Point != unix.NF_INET_FORWARD || got[0].Priority != 100 {
		t.Errorf("foreign: %v, want the program half alone", got)
	}
	if got := foreign(t, other); len(got) != 0 {
		t.Errorf("foreign of another namespace: %v", got)
	}
}

// Rules, conntrack, NAT and br_netfilter are known.
func TestOwnOfTheKernel(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		nft add table inet t
		nft add chain inet t c { type filter hook forward priority 0 ; }
		nft add chain inet t n { type nat hook postrouting priority 100 ; }
		nft add rule inet t c ct state established accept
		ip link add br0 type bridge`)
	if got := foreign(t, open(t, ns)); len(got) != 0 {
		t.Errorf("foreign: %v", got)
	}
}

// message builds one function of a dump.
func message(priority int32, function, module string, info ...byte) []byte {
	b := []byte{unix.NFPROTO_IPV4, 0, 0, 0}
	add := func(typ uint16, data []byte) {
		b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
		b = append(binary.NativeEndian.AppendUint16(b, typ), data...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	add(attrPriority, binary.BigEndian.AppendUint32(nil, uint32(priority)))
	add(attrFunction, append([]byte(function), 0))
	if module != "" {
		add(attrModule, append([]byte(module), 0))
	}
	if len(info) > 0 {
		add(attrChainInfo, info)
	}
	return b
}

func TestParse(t *testing.T) {
	kind := func(n byte) []byte { return []byte{8, 0, infoType, 0, 0, 0, 0, n} }
	desc := []byte{12, 0, infoDesc, 0, 8, 0, bpfID, 0, 0, 0, 0, 7}
	for name, c := range map[string]struct {
		message []byte
		want    string
	}{
		"a module's":         {message(-10, "ip_vs_in_hook", "ip_vs"), "ip_vs_in_hook [ip_vs] at ip forward (priority -10) true false"},
		"conntrack":          {message(-200, "ipv4_conntrack_in", "nf_conntrack"), "ipv4_conntrack_in [nf_conntrack] at ip forward (priority -200) true true"},
		"a chain":            {message(0, "nft_do_chain_inet", "nf_tables", kind(typeNFTables)...), "nft_do_chain_inet [nf_tables] at ip forward (priority 0) false true"},
		"a program":          {message(1, "nf_hook_run_bpf", "", append(kind(typeBPF), desc...)...), "BPF program 7 at ip forward (priority 1) true false"},
		"nothing":            {nil, " at ip forward (priority 0) false false"},
		"an attribute cut":   {message(1, "f", "")[:9], " at ip forward (priority 0) false false"},
		"a chain without it": {message(0, "nft_do_chain_ipv4", "nf_tables"), "nft_do_chain_ipv4 [nf_tables] at ip forward (priority 0) true true"},
	} {
		h, ok := parse(c.message)
		h.Family, h.Point = unix.NFPROTO_IPV4, unix.NF_INET_FORWARD
		if got := fmt.Sprint(h, " ", ok, " ", h.isKnown()); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(1, "nf_hook_run_bpf", "", 8, 0, infoType, 0, 0, 0, 0, typeBPF))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, _ := parse(b)
		_ = h.String()
	})
}

func TestGuess(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const heading = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	for path, want := range map[string]bool{
		write("none", heading):                          false,
		write("one", heading+"TCP  0A000001:0050 rr\n"): true,
		filepath.Join(dir, "absent"):                    false,
	} {
		if got, err := hasServices(path); got != want || err != nil {
			t.Errorf("%s: services %v, %v", path, got, err)
		}
	}
	list := write("modules", "ebtable_filter 16384 1 - Live 0x0\nebtables 49152 1 ebtable_filter, Live 0x0\next4 1 2 - Live 0x0\n")
	if got, err := loaded(list, "ebtable_"); len(got) != 1 || got[0] != "ebtable_filter" || err != nil {
		t.Errorf("modules %v, %v", got, err)
	}
}

// What the kernel lists tells of which families conntrack sees packets.
func TestTracked(t *testing.T) {
	const v4, v6 = unix.NFPROTO_IPV4, unix.NFPROTO_IPV6
	for _, c := range []struct {
		hooks  []Hook
		v4, v6 bool
	}{
		{nil, false, false},
		{[]Hook{{Family: v4, Function: "ipv4_conntrack_defrag"}, {Family: v6, Function: "nft_do_chain_ipv6"}}, false, false},
		{[]Hook{{Family: v4, Function: "ipv4_conntrack_in"}}, true, false},
		{[]Hook{{Family: v6, Function: "ipv6_conntrack_in"}}, false, true},
		{[]Hook{{Family: unix.NFPROTO_BRIDGE, Function: "nf_ct_bridge_pre"}}, true, true},
	} {
		if got := trackedBy(c.hooks); got[v4] != c.v4 || got[v6] != c.v6 || got == nil {
			t.Errorf("%v: tracked %v", c.hooks, got)
		}
	}
}
