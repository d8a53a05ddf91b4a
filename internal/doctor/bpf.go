package doctor

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

const newerKernel = "run Linux 5.15 or newer"

func lookBPF(host) sight {
	if err := features.HaveProgramType(ebpf.SchedCLS); err != nil {
		return sight{fail, err.Error(), bpfRemedy(err)}
	}
	return sight{ok, "a program was loaded", ""}
}

// compile loads a program and returns ebpf.ErrNotSupported if the kernel interprets
// it.
func compile() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return fmt.Errorf("read a program's size: %w", err)
	}
	_, err = info.JitedSize()
	return err
}

// compiled tells by the result of compile whether the JIT is on.
func compiled(err error) sight {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return sight{warn, "off: a program was not compiled", "sysctl -w net.core.bpf_jit_enable=1 in the initial network namespace, or a kernel with CONFIG_BPF_JIT"}
	case err != nil:
		return sight{note, err.Error(), ""}
	}
	return sight{ok, "on: a program was compiled", ""}
}

func lookRedirectPeer(host) sight {
	return probed(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer))
}

func lookMmapable(host) sight {
	return probed(features.HaveMapFlag(features.BPF_F_MMAPABLE))
}

func lookRingBuffer(host) sight {
	return probed(features.HaveMapType(ebpf.RingBuf))
}

// probed is the result of a feature's probe that SCON cannot do without.
func probed(err error) sight {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return sight{fail, "the kernel has none", newerKernel}
	case err != nil:
		return sight{fail, err.Error(), bpfRemedy(err)}
	default:
		return sight{ok, "tried", ""}
	}
}

// lookTCX attaches a program to the loopback of a namespace of its own.
func lookTCX(host) sight {
	err := netns.Scratch(func() error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SchedCLS,
			Instructions: asm.Instructions{
				asm.Mov.Imm(asm.R0, -1), // TCX_NEXT
				asm.Return(),
			},
			License: "GPL",
		})
		if err != nil {
			return err
		}
		defer prog.Close()
		l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		return l.Close()
	})
	if err != nil {
		return sight{note, "none: " + err.Error(), fmt.Sprintf("run Linux %v or newer", tcxSince)}
	}
	return sight{ok, "tried", ""}
}

// jiffiesWatch is how long the kernel's clock is watched to find its rate.
const jiffiesWatch = 100 * time.Millisecond

// lookJiffies counts jiffies over a moment: few kernels show their CONFIG_HZ.
func lookJiffies(host) sight {
	hz, err := jiffiesPerSecond()
	if err != nil {
		return sight{note, err.Error(), ""}
	}
	return sight{ok, fmt.Sprintf("HZ = %d: %v", hz, time.Second/time.Duration(hz)), ""}
}

func jiffiesPerSecond() (int, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.FnJiffies64.Call(), // the low 32 bits are returned
			asm.Return(),
		},
		License: "GPL",
	})
	if err != nil {
		return 0, fmt.Errorf("load a program that reads jiffies: %w", err)
	}
	defer prog.Close()
	read := func() (uint32, time.Time, error) {
		j, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
		return j, time.Now(), err
	}
	first, start, err := read()
	if err != nil {
		return 0, fmt.Errorf("read jiffies: %w", err)
	}
	time.Sleep(jiffiesWatch)
	last, end, err := read()
	if err != nil {
		return 0, fmt.Errorf("read jiffies: %w", err)
	}
	return nearestHZ(float64(last-first) / end.Sub(start).Seconds()), nil
}

// nearestHZ is the CONFIG_HZ that a measured rate is nearest to.
func nearestHZ(rate float64) int {
	best := 100
	for _, hz := range []int{250, 300, 1000} {
		if distance(rate, hz) < distance(rate, best) {
			best = hz
		}
	}
	return best
}

func distance(rate float64, hz int) float64 {
	return max(rate-float64(hz), float64(hz)-rate)
}

// lookNetkit makes a pair of netkit devices in a namespace of its own.
func lookNetkit(host) sight {
	err := netns.Scratch(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "scon0"
		return netlink.LinkAdd(&netlink.Netkit{LinkAttrs: attrs})
	})
	if err != nil {
		return sight{note, "none: " + err.Error(), "run Linux 6.7 or newer with CONFIG_NETKIT"}
	}
	return sight{ok, "tried", ""}
}
