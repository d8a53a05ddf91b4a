package datapath_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/cores"
	"github.com/scon-project/scon/internal/host/netns"
)

// BenchmarkCPUs runs the programs on packets of unknown connections, which stay regular: the
// host's own, and a container's first ones. Each CPU has a connection of its own. A
// packet takes the same time on one CPU and on all of them, unless they write the same
// cache lines, or share more than memory: that a program which does nothing shows. go test -bench CPUs ./internal/express/datapath
func BenchmarkCPUs(b *testing.B) {
	bed := newBed(b)
	f := masqueraded(udp)
	nothing, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		b.Fatal(err)
	}
	defer nothing.Close()
	for _, c := range []struct {
		name    string
		program *ebpf.Program
		frame   frame
		dev     int
	}{
		{"nothing", nothing, f.in.enter, bed.wire},
		{datapath.FromWire.String(), bed.Program(datapath.FromWire), f.in.enter, bed.wire},
		{datapath.ToWire.String(), bed.Program(datapath.ToWire), f.out.leave, bed.wire},
		{datapath.FromContainer.String(), bed.Program(datapath.FromContainer), f.out.enter, bed.port},
	} {
		for _, cpus := range []int{1, runtime.NumCPU()} {
			b.Run(fmt.Sprintf("%s/%d", c.name, cpus), func(b *testing.B) { bed.onCPUs(b, cpus, c.program, c.frame, c.dev) })
		}
	}
}

// onCPUs runs a program on b.N packets at each of several CPUs.
func (b *bed) onCPUs(bench *testing.B, cpus int, program *ebpf.Program, f frame, dev int) {
	const each = 1000 // runs of a system call
	done := make(chan struct{})
	defer close(done)
	go func() { // signs of life
		for {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
				_ = b.Beat()
			}
		}
	}()
	if err := b.Beat(); err != nil {
		bench.Fatal(err)
	}
	bench.ResetTimer()
	var all sync.WaitGroup
	failed := make(chan error, cpus)
	for cpu := range cpus {
		own := f
		own.src = netip.AddrPortFrom(f.src.Addr(), f.src.Port()+uint16(cpu))
		data := own.bytes()
		all.Go(func() {
			failed <- netns.Do(b.ns, func() error {
				unpin, err := cores.Pin(cpu)
				if err != nil {
					return err
				}
				defer unpin()
				for n := 0; n < bench.N; n += each {
					_, err := program.Run(&ebpf.RunOptions{Data: data, Context: skb{Ifindex: uint32(dev)}, Repeat: each})
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			bench.Fatal(err)
		}
	}
}
