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

func checkBPF(host) result {
	if err := features.HaveProgramType(ebpf.SchedCLS); err != nil {
		return result{fail, err.Error(), bpfRemedy(err)}
	}
	return result{ok, "a program was loaded", ""}
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

// compiled is the finding for a result of compile.
func compiled(err error) result {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return result{warn, "off: a program was not compiled", "sysctl -w net.core.bpf_jit_enable=1 in the initial network namespace, or a kernel with CONFIG_BPF_JIT"}
	case err != nil:
		return result{note, err.Error(), ""}
	}
	return result{ok, "on: a program was compiled", ""}
}

func checkRedirectPeer(host) result {
	return probed(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectPeer))
}

func checkMmapable(host) result {
	return probed(features.HaveMapFlag(features.BPF_F_MMAPABLE))
}

func checkRingBuffer(host) result {
	return probed(features.HaveMapType(ebpf.RingBuf))
}

// probed is the result of the probe of a required feature.
func probed(err error) result {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return result{fail, "not in this kernel", newerKernel}
	case err != nil:
		return result{fail, err.Error(), bpfRemedy(err)}
	default:
		return result{ok, "tried", ""}
	}
}

// checkTCX attaches a program to the loopback of a namespace of its own.
func checkTCX(host) result {
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
		return result{note, "not available: " + err.Error(), fmt.Sprintf("run Linux %v or newer", tcxSince)}
	}
	return result{ok, "tried", ""}
}

// jiffiesWatch is how long jiffies are counted to find their rate.
const jiffiesWatch = 100 * time.Millisecond

// checkJiffies counts jiffies: few kernels publish their CONFIG_HZ.
func checkJiffies(host) result {
	hz, err := jiffiesPerSecond()
	if err != nil {
		return result{note, err.Error(), ""}
	}
	return result{ok, fmt.Sprintf("HZ = %d: %.3g ms", hz, 1000/float64(hz)), ""}
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

// nearestHZ is the CONFIG_HZ nearest to a measured rate.
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

// checkNetkit makes a pair of netkit devices in a namespace of its own.
func checkNetkit(host) result {
	err := netns.Scratch(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "scon0"
		return netlink.LinkAdd(&netlink.Netkit{LinkAttrs: attrs})
	})
	if err != nil {
		return result{note, "not available: " + err.Error(), "run Linux 6.7 or newer with CONFIG_NETKIT"}
	}
	return result{ok, "tried", ""}
}
