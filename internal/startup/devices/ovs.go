package devices

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
)

// ovs is a pair whose host end is a port of an Open vSwitch: one vPort for each
// container (Understanding Network Startup for Secure Containers, figure 4a). The
// port outlives its device in the vSwitch's database.
type ovs struct{}

// ErrNoSwitch is wrapped when no Open vSwitch answers.
var ErrNoSwitch = errors.New("no Open vSwitch answers")

func (ovs) routed() bool { return false }

func (ovs) macs(s Spec) Made { return macsOf(s.Leases) }

// prepare checks that the bridge exists. SCON does not make it: its uplinks and tunnels
// are not in a network's configuration.
func (o ovs) prepare(h *Host, c *cni.Conf) error {
	if err := findSwitch(c.Bridge); err != nil {
		return err
	}
	if c.IsGateway {
		index, err := indexOf(c.Bridge)
		if err != nil {
			return fmt.Errorf("%w: is ovs-vswitchd running in the agent's network namespace?", err)
		}
		if err := hostEndOf(c).set(c.Bridge); err != nil {
			return err
		}
		if err := h.rt.Do(append([]nlmsg.Command{setUp(c.Bridge, index)}, newGateways(index, gateways(c))...)...); err != nil {
			return err
		}
	}
	return o.sweep(h, c)
}

// findSwitch returns an error if no vSwitch has the bridge.
func findSwitch(bridge string) error {
	_, err := vsctl("br-exists", bridge)
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == 2 {
		return fmt.Errorf("bridge %s is not in Open vSwitch's database: create it with 'ovs-vsctl add-br %s'", bridge, bridge)
	}
	return err
}

func (ovs) make(h *Host, s Spec, m Made) (err error) {
	if err := h.rt.Do(vethPair(s.ends(m, 0))); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, delPort(s.Host), h.RemoveLink(s.Host))
		}
	}()
	// The user-space datapath passes frames to the host as well.
	if err := hostEndOf(s.Conf).set(s.Host); err != nil {
		return err
	}
	args := []string{"--may-exist", "add-port", s.Conf.Bridge, s.Host}
	if s.Conf.VLAN != 0 {
		args = append(args, "tag="+strconv.Itoa(s.Conf.VLAN))
	}
	args = append(args, "--", "set", "Interface", s.Host, ownerKey+"="+s.Conf.Name)
	if _, err := vsctl(args...); errors.Is(err, ErrNoSwitch) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrNotPrepared, err)
	}
	state, err := vsctl("get", "Interface", s.Host, "ofport", "error", "--", "get", "Bridge", s.Conf.Bridge, "datapath_type")
	if err != nil {
		return err
	}
	ofport, state, _ := strings.Cut(state, "\n")
	problem, datapath, _ := strings.Cut(state, "\n")
	if n, err := strconv.Atoi(ofport); err != nil || n < 0 {
		return fmt.Errorf("add port %s to Open vSwitch's bridge %s: %s; is ovs-vswitchd in the agent's network namespace?", s.Host, s.Conf.Bridge, problem)
	}
	if strings.TrimSpace(datapath) != "netdev" {
		return nil
	}
	// The user-space datapath does not complete checksums.
	return errors.Join(sumUp(s.Host), s.inside(func() error { return sumUp(s.Name) }))
}

// remove removes a container's port from the database.
func (ovs) remove(_ *Host, _ *cni.Network, host string) error { return delPort(host) }

// delPort does not wait for the vSwitch. A port that the database keeps is removed by
// the next sweep.
func delPort(host string) error {
	_, err := vsctl("--no-wait", "--if-exists", "del-port", host)
	if errors.Is(err, ErrNoSwitch) {
		return nil
	}
	return err
}

// sweep removes the network's ports whose device is gone from the database.
func (ovs) sweep(_ *Host, c *cni.Conf) error {
	out, err := vsctl("--bare", "--columns=name", "find", "Interface", ownerKey+"="+c.Name)
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(out) {
		if _, err := netlink.LinkByName(name); !errors.As(err, new(netlink.LinkNotFoundError)) {
			continue
		}
		if err := delPort(name); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if the vSwitch lacks the container's port.
func (ovs) check(_ *Host, a Attached) error {
	bridge, err := vsctl("port-to-br", a.Host)
	if err != nil {
		return fmt.Errorf("device %s is not a port of Open vSwitch's bridge %s: %w", a.Host, a.Network.Bridge, err)
	}
	if bridge = strings.TrimSpace(bridge); bridge != a.Network.Bridge {
		return fmt.Errorf("device %s is a port of bridge %s: want %s", a.Host, bridge, a.Network.Bridge)
	}
	want := "[]"
	if a.Network.VLAN != 0 {
		want = strconv.Itoa(a.Network.VLAN)
	}
	if tag, err := vsctl("get", "Port", a.Host, "tag"); err != nil || strings.TrimSpace(tag) != want {
		return errors.Join(fmt.Errorf("port %s has vlan %s: want %s", a.Host, strings.TrimSpace(tag), want), err)
	}
	return nil
}

// ownerKey is the database key with the network of a port.
const ownerKey = "external_ids:scon-network"

// vsctl runs ovs-vsctl, for the database in OVS_RUNDIR. It waits until the vSwitch has
// applied the change.
func vsctl(args ...string) (string, error) {
	const program = "ovs-vsctl"
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%w: program %s of Open vSwitch is not installed (Debian: openvswitch-switch)", ErrNoSwitch, program)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path, append([]string{"--timeout=5"}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	words := strings.TrimSpace(stderr.String())
	if strings.Contains(words, "database connection failed") {
		return "", fmt.Errorf("%w: %s: %s; are ovsdb-server and ovs-vswitchd running?", ErrNoSwitch, program, words)
	}
	exit := new(exec.ExitError)
	if errors.As(err, &exit) && exit.Sys() != nil && strings.Contains(exit.String(), unix.SIGALRM.String()) {
		return "", fmt.Errorf("%w within 5 s: is ovs-vswitchd running?", ErrNoSwitch)
	}
	return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, words)
}

// sumUp makes a device of the calling thread's namespace send complete checksums.
func sumUp(name string) error {
	if err := setEthtool(name, unix.ETHTOOL_STXCSUM, 0); err != nil {
		return fmt.Errorf("complete the checksums of %s: %w", name, err)
	}
	return nil
}

// setEthtool issues an ethtool(8) ioctl whose argument is a number.
func setEthtool(name string, command, number uint32) error {
	value := struct{ command, number uint32 }{command, number}
	request := struct { // struct ifreq
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{value: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
