package express_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// After the daemon has ended or was killed, nothing of SCON is left and
// everything of others is, with tcx and with clsact.
func TestDown(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("clsact %v, killed %v", clsact, killed), func(t *testing.T) {
				b := scontest.New(t, scontest.Layout{Containers: 2, Clsact: clsact})
				addForeign(b)
				seen, tcx := addForeignTCX(b)
				if !tcx && !clsact {
					t.Skip("no tcx: this kernel is older than Linux 6.6")
				}
				before := snapshot(b)
				b.Up()
				c := b.Outgoing("tcp", 1).GoExpress()
				earlier := seen()
				c.MustPing(20)
				if got := seen() - earlier; tcx && got < 20 {
					t.Errorf("the others' program at the container's port saw %d packets of 20", got)
				}
				if !b.BPFFSMounted() || len(b.Pins("*")) == 0 {
					t.Error("no pins")
				}
				if killed {
					b.Daemon.Kill()
					if err := b.Clean(); err != nil {
						t.Fatal(err)
					}
				} else {
					b.Daemon.Down()
				}
				if after := snapshot(b); after != before {
					t.Errorf("after:\n%s\nbefore:\n%s", after, before)
				}
				c.MustPing(1)
			})
		}
	}
}

// addForeign adds qdiscs and filters of others to the devices.
func addForeign(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, `
		tc qdisc add dev eth0 clsact
		tc filter add dev eth0 egress protocol ip prio 7 u32 match u32 0 0 classid 1:1
		tc qdisc add dev veth2 clsact
		tc filter add dev veth2 ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
}

// addForeignTCX adds tcx programs, where the kernel has tcx, and returns a
// function that counts the packets of the one at container 1's port.
func addForeignTCX(b *scontest.Bed) (seen func() uint64, ok bool) {
	b.T.Helper()
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { count.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapValue(asm.R1, count.FD(), 0),
			asm.Mov.Imm(asm.R2, 1),
			asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, -1), // on to the next one
			asm.Return(),
		},
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { program.Close() })
	err = b.Do(lab.Device, func() error {
		for dev, at := range map[string]ebpf.AttachType{
			lab.Uplink: ebpf.AttachTCXEgress, lab.Port(1): ebpf.AttachTCXIngress,
		} {
			iface, err := net.InterfaceByName(dev)
			if err != nil {
				return err
			}
			l, err := link.AttachTCX(link.TCXOptions{Interface: iface.Index, Program: program, Attach: at})
			if err != nil {
				return err
			}
			b.T.Cleanup(func() { l.Close() })
		}
		return nil
	})
	if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		b.T.Fatal(err)
	}
	return func() (n uint64) {
		if err := count.Lookup(uint32(0), &n); err != nil {
			b.T.Fatal(err)
		}
		return n
	}, err == nil
}

// snapshot describes everything that SCON changes.
func snapshot(b *scontest.Bed) string {
	b.T.Helper()
	var all strings.Builder
	show := func(command string) {
		fmt.Fprintf(&all, "%s\n%s", command, b.Sh(lab.Device, command))
	}
	show("tc qdisc show")
	for _, dev := range []string{lab.Uplink, lab.Bridge, lab.Port(1), lab.Port(2)} {
		show("tc filter show dev " + dev + " ingress")
		show("tc filter show dev " + dev + " egress")
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			fmt.Fprintf(&all, "%s %v: %d programs\n", dev, at, b.Programs(dev, at))
		}
	}
	fmt.Fprintf(&all, "bpffs %v\n", b.BPFFSMounted())
	_, err := os.Stat(b.StateDir())
	fmt.Fprintf(&all, "no state directory: %v\n", errors.Is(err, fs.ErrNotExist))
	return all.String()
}

// A second daemon is refused and does not affect the first.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("tcp", 1).GoExpress()
	other := b.Task()
	other.StateDir = filepath.Join(b.Dir, "other")
	other.Socket = filepath.Join(other.StateDir, "scon.sock")
	for name, task := range map[string]scontest.Task{"same state directory": b.Task(), "another one": other} {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			if word := b.Launch(task).Refused(); !strings.Contains(word, "another SCON is running") {
				t.Errorf("refused with %q", word)
			}
			task.Clean = true
			p := b.Launch(task)
			if word := p.Refused(); !strings.Contains(word, "another SCON is running") {
				t.Errorf("cleaning up is refused with %q", word)
			}
			c.In(b).GoExpress()
		})
	}
	if flow := c.MustFlow(); flow.ExpressPackets[0] == 0 {
		t.Errorf("%+v", flow)
	}
}

// A daemon starts with any contents of its state directory.
func TestCorruptState(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	task := b.Task()
	if err := os.Mkdir(task.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "daemon.json", "daemon.json.new"} {
		if err := os.WriteFile(filepath.Join(task.StateDir, name), []byte("}{"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: task.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	b.Up()
	b.Outgoing("tcp", 1).GoExpress()
	b.Daemon.Down()
	if _, err := os.Stat(task.StateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
}

// A namespace that ends with all its devices neither ends its daemon nor keeps
// it from ending.
func TestNamespaceGone(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		b := scontest.NewExpress(t, scontest.Layout{Containers: 2, Clsact: clsact})
		b.Outgoing("tcp", 1).GoExpress()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		scontest.Eventually(t, "all hooks are gone", func() error {
			if s := b.Status(); len(s.Hooks)+len(s.Containers)+s.Totals.Entries > 0 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		b.Daemon.Down()
		if b.BPFFSMounted() {
			t.Error("the bpffs is left")
		}
	}
}

// The error names a named device that is missing.
func TestMissingDevice(t *testing.T) {
	t.Parallel()
	for role, set := range map[string]func(*config.Config){
		"bridge": func(c *config.Config) { c.Bridges = config.Devices{"nosuch0"} },
		"uplink": func(c *config.Config) { c.Uplinks = config.Devices{lab.Uplink, "nosuch0"} },
	} {
		b := scontest.New(t, scontest.Layout{Containers: 2, Config: set})
		before := snapshot(b)
		word := b.Launch(b.Task()).Refused()
		if !strings.Contains(word, role) || !strings.Contains(word, "nosuch0") {
			t.Errorf("refused with %q", word)
		}
		if after := snapshot(b); !strings.Contains(after, "bpffs false") || strings.Count(after, "1 programs") > 0 {
			t.Errorf("after:\n%s\nbefore:\n%s", after, before)
		}
	}
}
