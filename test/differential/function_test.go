package differential

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	bpffeatures "github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// function is a BPF program at a hook of Netfilter that drops packets by their length,
// which is no rule.
type function struct {
	IPv6     bool
	Hook     link.NetfilterInetHook
	Priority int32
	Mask     int32 // packets whose length has none of these bits are dropped
}

func (f *function) String() string {
	if f == nil {
		return ""
	}
	return fmt.Sprintf("function at hook %d of IPv6 %v, priority %d, drops lengths without %#x\n", f.Hook, f.IPv6, f.Priority, f.Mask)
}

// needFunctions skips a test where the kernel has no such functions.
func needFunctions(t *testing.T) {
	t.Helper()
	if err := bpffeatures.HaveProgramType(ebpf.Netfilter); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this kernel has no BPF programs at Netfilter's hooks (Linux 6.4)")
	}
	if _, err := lenOffset(); err != nil {
		t.Skipf("a function needs the kernel's types: %v", err)
	}
}

// function generates one, in every third case of a variant for the other family: it sees
// nothing, and all goes express.
func (g *generator) function() *function {
	hooks := []link.NetfilterInetHook{link.NetfilterInetPreRouting, link.NetfilterInetForward, link.NetfilterInetForward, link.NetfilterInetPostRouting}
	f := &function{IPv6: g.ipv6, Hook: hooks[g.r.IntN(len(hooks))]}
	if g.Seed/uint64(len(variants))%3 == 0 {
		f.IPv6 = !g.ipv6
	}
	if g.overlay { // elsewhere it would drop sentinels, which the tunnel carries
		f.Hook = link.NetfilterInetForward
	}
	// Not those of chains: the kernel refuses a program there.
	f.Priority = []int32{-290, -160, -20, 10, 110}[g.r.IntN(5)]
	f.Mask = []int32{1, 2, 3, 7}[g.r.IntN(4)]
	return f
}

// lenOffset is the offset of struct sk_buff's len in the running kernel.
func lenOffset() (int16, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, fmt.Errorf("read the kernel's types: %w", err)
	}
	var skb *btf.Struct
	if err := spec.TypeByName("sk_buff", &skb); err != nil {
		return 0, fmt.Errorf("find struct sk_buff: %w", err)
	}
	for _, m := range skb.Members {
		if m.Name == "len" {
			return int16(m.Offset.Bytes()), nil
		}
	}
	return 0, errors.New("struct sk_buff has no len")
}

// attach attaches the function in device.
func (f *function) attach(w *world) (link.Link, error) {
	at, err := lenOffset()
	if err != nil {
		return nil, err
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "by_length", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R1, asm.R1, 8, asm.DWord), // struct bpf_nf_ctx: state, skb
			asm.LoadMem(asm.R1, asm.R1, at, asm.Word),
			asm.Mov.Imm(asm.R0, 0), // NF_DROP
			asm.And.Imm(asm.R1, f.Mask),
			asm.JEq.Imm(asm.R1, 0, "out"),
			asm.Mov.Imm(asm.R0, 1), // NF_ACCEPT
			asm.Return().WithSymbol("out"),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("load the function: %w", err)
	}
	defer prog.Close()
	family := link.NetfilterProtoIPv4
	if f.IPv6 {
		family = link.NetfilterProtoIPv6
	}
	var l link.Link
	err = w.bed.Do(lab.Device, func() (err error) {
		l, err = link.AttachNetfilter(link.NetfilterOptions{Program: prog, ProtocolFamily: family, Hook: f.Hook, Priority: f.Priority})
		return err
	})
	return l, err
}

// setFunction attaches a case's function in both worlds, nil for none, in place of an
// earlier case's, and waits until the daemon has seen that.
func (p *pair) setFunction(f *function) error {
	if f == nil && p.function == nil {
		return nil
	}
	before, err := p.scon.generation()
	if err != nil {
		return err
	}
	// A daemon that lists links holds a closed one for as long as it lists.
	for _, l := range p.function {
		err = errors.Join(err, l.Detach(), l.Close())
	}
	p.function = nil
	for _, w := range []*world{p.plain, p.scon} {
		if f == nil || err != nil {
			break
		}
		var l link.Link
		if l, err = f.attach(w); err == nil {
			p.function = append(p.function, l)
		}
	}
	for deadline := time.Now().Add(scontest.Patience); err == nil; time.Sleep(5 * time.Millisecond) {
		now, statusErr := p.scon.generation()
		if now != before || statusErr != nil {
			return statusErr
		}
		if time.Now().After(deadline) {
			err = errors.New("the daemon does not see a function at a hook")
		}
	}
	return err
}
