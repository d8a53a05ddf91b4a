package daemon_test

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
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
)

// After its end nothing of SCON is left, and all of other people's is: whether
// the daemon ended or was killed, and however it hooks.
func TestDown(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("clsact %v, killed %v", clsact, killed), func(t *testing.T) {
				b := newBed(t, layout{containers: 2, clsact: clsact})
				seen := b.addForeign()
				before := b.look()
				b.up()
				c := b.outgoing("tcp", 1).goExpress()
				met := seen()
				c.mustPing(20)
				if got := seen() - met; got < 20 {
					t.Errorf("the others' program at the container's port saw %d packets of 20", got)
				}
				if !b.bpffsMounted() || len(b.pins("*")) == 0 {
					t.Error("no pins")
				}
				if killed {
					b.daemon.kill()
					if err := b.clean(); err != nil {
						t.Fatal(err)
					}
				} else {
					b.daemon.down()
				}
				if after := b.look(); after != before {
					t.Errorf("after:\n%s\nbefore:\n%s", after, before)
				}
				c.mustPing(1)
			})
		}
	}
}

// addForeign gives the devices filters and programs that are not SCON's, and
// returns a count of what the one at container 1's port has seen.
func (b *bed) addForeign() (seen func() uint64) {
	b.t.Helper()
	b.sh(lab.Device, `
		tc qdisc add dev eth0 clsact
		tc filter add dev eth0 egress protocol ip prio 7 u32 match u32 0 0 classid 1:1
		tc qdisc add dev veth2 clsact
		tc filter add dev veth2 ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { count.Close() })
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
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { program.Close() })
	err = b.Do(lab.Device, func() error {
		for dev, at := range map[string]ebpf.AttachType{
			lab.Uplink: ebpf.AttachTCXEgress, lab.Port(1): ebpf.AttachTCXIngress,
		} {
			iface, err := net.InterfaceByName(dev)
			if err != nil {
				return err
			}
			l, err := link.AttachTCX(link.TCXOptions{Interface: iface.Index, Program: program, Attach: at})
			if errors.Is(err, ebpf.ErrNotSupported) {
				b.t.Skip("no tcx: this kernel is older than Linux 6.6")
			}
			if err != nil {
				return err
			}
			b.t.Cleanup(func() { l.Close() })
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return func() (n uint64) {
		if err := count.Lookup(uint32(0), &n); err != nil {
			b.t.Fatal(err)
		}
		return n
	}
}

// look describes all that SCON touches.
func (b *bed) look() string {
	b.t.Helper()
	var all strings.Builder
	show := func(command string) {
		fmt.Fprintf(&all, "%s\n%s", command, b.sh(lab.Device, command))
	}
	show("tc qdisc show")
	for _, dev := range []string{lab.Uplink, lab.Bridge, lab.Port(1), lab.Port(2)} {
		show("tc filter show dev " + dev + " ingress")
		show("tc filter show dev " + dev + " egress")
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			fmt.Fprintf(&all, "%s %v: %d programs\n", dev, at, b.programs(dev, at))
		}
	}
	fmt.Fprintf(&all, "bpffs %v\n", b.bpffsMounted())
	_, err := os.Stat(b.stateDir())
	fmt.Fprintf(&all, "no state directory: %v\n", errors.Is(err, fs.ErrNotExist))
	return all.String()
}

// programs counts the tcx programs of a device.
func (b *bed) programs(dev string, at ebpf.AttachType) (n int) {
	b.t.Helper()
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		r, err := link.QueryPrograms(link.QueryOptions{Target: iface.Index, Attach: at})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
			return nil // no tcx, before Linux 6.6
		}
		if err != nil {
			return err
		}
		n = len(r.Programs)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// A second daemon is refused and does no harm to the first.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("tcp", 1).goExpress()
	other := b.task()
	other.StateDir = filepath.Join(b.dir, "other")
	other.Socket = filepath.Join(other.StateDir, "scon.sock")
	for name, task := range map[string]task{"same state directory": b.task(), "another one": other} {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			if word := b.launch(task).refused(); !strings.Contains(word, "another SCON is running") {
				t.Errorf("refused with %q", word)
			}
			task.Clean = true
			p := b.launch(task)
			if word := p.refused(); !strings.Contains(word, "another SCON is running") {
				t.Errorf("cleaning up is refused with %q", word)
			}
			c.in(b).goExpress()
		})
	}
	if flow := c.mustFlow(); flow.ExpressPackets[0] == 0 {
		t.Errorf("%+v", flow)
	}
}

// A state directory in any state is good enough to start in.
func TestCorruptState(t *testing.T) {
	t.Parallel()
	b := newBed(t, layout{})
	task := b.task()
	if err := os.Mkdir(task.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "daemon.json", "daemon.json.new", "scon.sock.new"} {
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
	b.up()
	b.outgoing("tcp", 1).goExpress()
	b.daemon.down()
	if _, err := os.Stat(task.StateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
}

// A namespace that goes with all its devices takes no daemon along, and keeps
// none from ending.
func TestNamespaceGone(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		b := newExpress(t, layout{containers: 2, clsact: clsact})
		b.outgoing("tcp", 1).goExpress()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all hooks are gone", func() error {
			if s := b.status(); len(s.Hooks)+len(s.Containers)+s.Totals.Entries > 0 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		b.daemon.down()
		if b.bpffsMounted() {
			t.Error("the bpffs is left")
		}
	}
}

// A device that is named and missing is named in the refusal, too.
func TestMissingDevice(t *testing.T) {
	t.Parallel()
	for role, set := range map[string]func(*config.Config){
		"bridge": func(c *config.Config) { c.Bridges = config.Devices{"nosuch0"} },
		"uplink": func(c *config.Config) { c.Uplinks = config.Devices{lab.Uplink, "nosuch0"} },
	} {
		b := newBed(t, layout{containers: 2, config: set})
		before := b.look()
		word := b.launch(b.task()).refused()
		if !strings.Contains(word, role) || !strings.Contains(word, "nosuch0") {
			t.Errorf("refused with %q", word)
		}
		if after := b.look(); !strings.Contains(after, "bpffs false") || strings.Count(after, "1 programs") > 0 {
			t.Errorf("after:\n%s\nbefore:\n%s", after, before)
		}
	}
}
