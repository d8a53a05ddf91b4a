package pin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// linux is the Kernel of this machine.
type linux struct{}

// Veths finds the peers by namespace IDs.
func (l linux) Veths(ns string, others []Namespace) (map[string]Veth, error) {
	veths := make(map[string]Veth)
	type end struct {
		name        string
		peer, peers int // the peer's number, and its namespace's
	}
	var ends []end
	numbered := make(map[int]string) // namespaces, by the numbers that this one gives them
	err := netns.Do(ns, func() error {
		links, err := netdev.List()
		if err != nil {
			return err
		}
		for _, link := range links {
			if link.Type() == "veth" {
				a := link.Attrs()
				ends = append(ends, end{a.Name, a.ParentIndex, a.NetNsID})
			}
		}
		if len(ends) == 0 {
			return nil
		}
		for _, other := range append([]Namespace{{Path: ns}}, others...) {
			f, err := netns.Open(other.Path)
			if err != nil {
				continue // gone meanwhile
			}
			if id, err := netlink.GetNetNsIdByFd(int(f.Fd())); err == nil && id >= 0 {
				numbered[id] = other.Path
			}
			f.Close()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the devices of namespace %q: %w", ns, err)
	}
	for _, e := range ends {
		v := Veth{}
		if features, err := l.Features(ns, e.name); err == nil {
			v.GRO = features[featureOf[kindGRO]]
		}
		other, found := numbered[e.peers]
		if e.peers < 0 {
			other, found = ns, true
		}
		if found {
			l.addPeer(&v, other, e.peer)
		}
		veths[e.name] = v
	}
	return veths, nil
}

// addPeer adds what is known of a veth's peer.
func (l linux) addPeer(v *Veth, ns string, index int) {
	_ = netns.Do(ns, func() error {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return err // gone meanwhile
		}
		inode, err := netns.Inode("")
		if err != nil {
			return err
		}
		v.Peer, v.PeerNetns, v.PeerOwner = link.Attrs().Name, ns, fmt.Sprintf("%d@%d", index, inode)
		return nil
	})
	if v.Peer == "" {
		return
	}
	if features, err := l.Features(ns, v.Peer); err == nil {
		v.PeerTSO = tsoOn(features) != "off"
	}
}

// Features of a device, by their names in the kernel.
func (linux) Features(ns, device string) (features map[string]bool, err error) {
	err = withEthtool(ns, func(e *ethtool.Ethtool) error {
		features, err = e.Features(device)
		return err
	})
	return features, err
}

func (linux) SetFeatures(ns, device string, features map[string]bool) error {
	return withEthtool(ns, func(e *ethtool.Ethtool) error { return e.Change(device, features) })
}

func withEthtool(ns string, fn func(*ethtool.Ethtool) error) error {
	return netns.Do(ns, func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return fn(e)
	})
}

// Thread is a kernel thread that polls a queue.
type Thread struct {
	PID      int
	Name     string
	Policy   uint32 // of the scheduler
	Priority int    // of a real-time policy
	Nice     int
	CPUs     CPUs
}

// The family "netdev" of generic netlink, as in linux/netdev.h.
const (
	netdevNAPIGet = 11 // NETDEV_CMD_NAPI_GET
	napiIfindex   = 1  // NETDEV_A_NAPI_IFINDEX
	napiID        = 2
	napiPID       = 4
)

// Threads asks the kernel; before Linux 6.8 it finds the threads by their names.
func (linux) Threads(ns, device string) (threads []Thread, err error) {
	var pids []int
	err = netns.Do(ns, func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		pids, err = pollers(link.Index)
		return err
	})
	if err != nil {
		if pids, err = pollersByName(device); err != nil {
			return nil, err
		}
	}
	for _, pid := range pids {
		t, err := readThread(pid)
		if err != nil {
			return nil, fmt.Errorf("read thread %d of %s: %w", pid, device, err)
		}
		threads = append(threads, t)
	}
	return threads, nil
}

// pollers are the threads of a device in the calling thread's namespace, in the
// order of their NAPIs.
func pollers(ifindex int) ([]int, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return nil, err
	}
	e := nlmsg.NewEncoder()
	e.Uint32(napiIfindex, uint32(ifindex))
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	// Not nl.Genlmsg, which leaves the reserved bytes to chance: genl_header_check refuses them.
	request.AddRawData(append([]byte{netdevNAPIGet, byte(family.Version), 0, 0}, attrs...))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	type napi struct{ id, pid uint32 }
	var all []napi
	for _, m := range answers {
		var n napi
		for typ, data := range nlmsg.Attributes(m[nl.SizeofGenlmsg:]) {
			switch {
			case len(data) != 4:
			case typ == napiID:
				n.id = binary.NativeEndian.Uint32(data)
			case typ == napiPID:
				n.pid = binary.NativeEndian.Uint32(data)
			}
		}
		if n.pid != 0 {
			all = append(all, n)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].id < all[j].id })
	var pids []int
	for _, n := range all {
		pids = append(pids, int(n.pid))
	}
	return pids, nil
}

// pollersByName finds threads named napi/DEVICE-NUMBER. It cannot distinguish devices of
// one name in several namespaces.
func pollersByName(device string) ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	numbers := make(map[int]int) // by PID
	var pids []int
	for _, name := range names {
		comm, err := readFile(name)
		if err != nil {
			continue
		}
		rest, ok := strings.CutPrefix(comm, "napi/"+device+"-")
		number, err := strconv.Atoi(rest)
		if !ok || err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		numbers[pid] = number
		pids = append(pids, pid)
	}
	slices.SortStableFunc(pids, func(a, b int) int { return numbers[a] - numbers[b] })
	return pids, nil
}

func readThread(pid int) (Thread, error) {
	name, err := readFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return Thread{}, err
	}
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		return Thread{}, fmt.Errorf("read the thread's priority: %w", err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		return Thread{}, fmt.Errorf("read the thread's CPUs: %w", err)
	}
	cpus := CPUs{}
	for id := range len(set) * 64 {
		if set.IsSet(id) {
			cpus = append(cpus, id)
		}
	}
	return Thread{
		PID: pid, Name: name, Policy: attr.Policy, Priority: int(attr.Priority), Nice: int(attr.Nice), CPUs: cpus,
	}, nil
}

func (linux) SetThread(t Thread) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: t.Policy, Priority: uint32(t.Priority), Nice: int32(t.Nice)}
	if err := unix.SchedSetAttr(t.PID, &attr, 0); err != nil {
		return fmt.Errorf("set the priority of %s: %w", t.Name, err)
	}
	var set unix.CPUSet
	for _, id := range t.CPUs {
		set.Set(id)
	}
	if err := unix.SchedSetaffinity(t.PID, &set); err != nil {
		return fmt.Errorf("set the CPUs of %s to %v: %w", t.Name, t.CPUs, err)
	}
	return nil
}

// RestartIrqbalance asks systemd. Without systemd the plan's notes ask the user to
// restart it.
func (linux) RestartIrqbalance() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	out, err := exec.Command("systemctl", "try-restart", "irqbalance.service").CombinedOutput()
	if err != nil {
		return errors.New("restart irqbalance: " + strings.TrimSpace(string(out)))
	}
	return nil
}
