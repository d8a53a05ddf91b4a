package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/startbench"
)

// guestUp is the console line of a guest whose network is up.
const guestUp = "guest-is-up"

// guestMemory is the guests' memory in MiB.
const guestMemory = "112"

// microVM starts a QEMU guest for each container, in its namespace. The guest has
// the address of the namespace's eth0, which redirects all frames to a tap.
type microVM struct {
	order startbench.Order

	mu     sync.Mutex
	guests map[string]*guest // by container
}

// guest is a running QEMU.
type guest struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	output bytes.Buffer // owned by the console's reader until ended is closed
	up     chan struct{}
}

func newMicroVM(o startbench.Order) *microVM {
	return &microVM{order: o, guests: map[string]*guest{}}
}

func (v *microVM) prepare(*container) error { return nil }

// groups returns the cgroup directories of a guest: one for each mounted hierarchy.
func (v *microVM) groups(c *container) (dirs []string) {
	for _, root := range v.order.CgroupRoots {
		dirs = append(dirs, filepath.Join(root, v.order.Cgroup, c.name))
	}
	return dirs
}

func (v *microVM) create(_ context.Context, c *container) error {
	for _, dir := range v.groups(c) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (v *microVM) attaches() bool { return len(v.order.Networks) > 0 }

// attach connects the tap, unless the network plugin did.
func (v *microVM) attach(_ context.Context, c *container) error {
	return netns.Do(c.netns, func() error {
		if !c.addr.IsValid() {
			return nil // the no-op plugin
		}
		inside, err := netlink.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0: %w", err)
		}
		c.mac = inside.Attrs().HardwareAddr
		if _, err := netlink.LinkByName(tapName); err == nil {
			return nil
		}
		return wireTap(inside)
	})
}

// tapName is the guest's tap device.
const tapName = "tap0"

// wireTap makes a tap and redirects packets between it and eth0, in both directions.
func wireTap(inside netlink.Link) error {
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: tapName, MTU: inside.Attrs().MTU},
		Mode:      unix.IFF_TAP, Flags: unix.IFF_NO_PI | unix.IFF_ONE_QUEUE,
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("make %s: %w", tapName, err)
	}
	outside, err := netlink.LinkByName(tapName)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(outside); err != nil {
		return fmt.Errorf("set %s up: %w", tapName, err)
	}
	return errors.Join(redirect(inside, outside), redirect(outside, inside))
}

// unwireTap removes the redirection that the network plugin made from eth0 to a tap:
// the peer is not a microVM.
func unwireTap() error {
	tap, err := netlink.LinkByName(tapName)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", tapName, err)
	}
	inside, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	if err := netlink.QdiscDel(ingressOf(inside)); err != nil {
		return fmt.Errorf("remove the redirection of eth0: %w", err)
	}
	return netlink.LinkDel(tap)
}

func ingressOf(l netlink.Link) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
}

// redirect makes a device transmit all packets that another receives.
func redirect(from, to netlink.Link) error {
	index := from.Attrs().Index
	if err := netlink.QdiscAdd(ingressOf(from)); err != nil {
		return fmt.Errorf("add an ingress qdisc to %s: %w", from.Attrs().Name, err)
	}
	all := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(to.Attrs().Index)},
	}
	if err := netlink.FilterAdd(all); err != nil {
		return fmt.Errorf("redirect %s to %s: %w", from.Attrs().Name, to.Attrs().Name, err)
	}
	return nil
}

// start boots the guest and waits until it reports that it is up.
func (v *microVM) start(ctx context.Context, c *container) error {
	words := "console=ttyS0 quiet loglevel=1 panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check"
	network := []string{"-nic", "none"}
	if c.addr.IsValid() {
		words += " addr=" + netip.PrefixFrom(c.addr, c.bits).String()
		if c.gateway.IsValid() {
			words += " gateway=" + c.gateway.String()
		}
		network = []string{
			"-netdev", "tap,id=net,ifname=" + tapName + ",script=no,downscript=no",
			"-device", "virtio-net-pci,netdev=net,romfile=,mac=" + net.HardwareAddr(c.mac).String(),
		}
	}
	g := &guest{ended: make(chan struct{}), up: make(chan struct{})}
	g.cmd = exec.Command("qemu-system-x86_64", append([]string{
		"-name", c.name, "-M", "pc", "-cpu", "max,-cx16,-erms,-fsrm", "-accel", "tcg,thread=single", "-nodefaults", "-display", "none",
		"-serial", "stdio", "-no-reboot", "-m", guestMemory, "-smp", "1",
		"-kernel", v.order.Kernel, "-initrd", v.order.Initrd, "-append", words,
	}, network...)...)
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	g.cmd.Stderr = g.cmd.Stdout
	v.mu.Lock()
	v.guests[c.name] = g
	v.mu.Unlock()
	if err := netns.Do(c.netns, g.cmd.Start); err != nil {
		close(g.ended)
		return err
	}
	go g.listen(bufio.NewScanner(out))
	for _, dir := range v.groups(c) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(g.cmd.Process.Pid)), 0); err != nil {
			return err
		}
	}
	select {
	case <-g.up:
		return nil
	case <-g.ended:
		output := g.output.String()
		return fmt.Errorf("the guest exited: %s", strings.TrimSpace(output[max(0, len(output)-300):]))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listen reads the console until the guest exits.
func (g *guest) listen(console *bufio.Scanner) {
	said := false
	for console.Scan() {
		g.output.Write(append(console.Bytes(), '\n'))
		if !said && strings.Contains(console.Text(), guestUp) {
			said = true
			close(g.up)
		}
	}
	g.cmd.Wait()
	close(g.ended)
}

func (v *microVM) remove(_ context.Context, c *container) error {
	v.mu.Lock()
	g := v.guests[c.name]
	delete(v.guests, c.name)
	v.mu.Unlock()
	if g != nil {
		if g.cmd.Process != nil {
			g.cmd.Process.Kill()
		}
		<-g.ended
	}
	var errs []error
	for _, dir := range v.groups(c) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// address fails: a microVM has no wrapper.
func (*microVM) address(*container) (netip.Addr, error) {
	return netip.Addr{}, errors.New("a microVM has no wrapper that attaches its network")
}

func (*microVM) close() error { return nil }
