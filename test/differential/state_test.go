package differential

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// state is what a case may change in device, except rules and connections: links,
// routes, routing rules, permanent neighbours, and SCON's hooks. Each case must
// start in the state in which the world was built: with leftovers of an earlier case,
// packets would stay regular and prove nothing.
type state map[string]bool

// networkState reads the kernel's state.
func (w *world) networkState() (state, error) {
	s := make(state)
	err := netns.Do(w.bed.Node(lab.Device), func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, l := range links {
			a := l.Attrs()
			s[fmt.Sprintf("link %s %v mtu %d txqlen %d master %d %v", a.Name, a.HardwareAddr, a.MTU, a.TxQLen, a.MasterIndex, a.Flags&net.FlagUp)] = true
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := s.addRouting(family); err != nil {
				return err
			}
		}
		return nil
	})
	return s, err
}

// addRouting adds a family's routes, routing rules and permanent neighbours. It leaves
// out the local table, which follows from the addresses: no case changes those.
func (s state) addRouting(family int) error {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Table != unix.RT_TABLE_LOCAL {
			s["route "+r.String()] = true
		}
	}
	if err := s.addRules(family); err != nil {
		return fmt.Errorf("list routing rules: %w", err)
	}
	neighbours, err := netlink.NeighList(0, family)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		if n.State&netlink.NUD_PERMANENT != 0 {
			s[fmt.Sprintf("neighbour %v lladdr %v dev %d", n.IP, n.HardwareAddr, n.LinkIndex)] = true
		}
	}
	return nil
}

// addRules adds a family's routing rules as the kernel lists them. The library does not read
// what a rule does.
func (s state) addRules(family int) error {
	sock, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer sock.Close()
	const header = 12 // struct fib_rule_hdr
	request := nlmsg.Request{Type: unix.RTM_GETRULE, Flags: unix.NLM_F_DUMP, Data: append([]byte{byte(family)}, make([]byte, header-1)...)}
	return sock.Request(request, func(m nlmsg.Message) {
		line := fmt.Sprintf("rule %x", m.Data[:header])
		for typ, value := range nlmsg.Attributes(m.Data[header:]) {
			line += fmt.Sprintf(" %d:%x", typ, value)
		}
		s[line] = true
	})
}

// hooks returns the daemon's hooks, none in the world without SCON.
func (w *world) hooks() (state, error) {
	s := make(state)
	if !w.scon {
		return s, nil
	}
	status, err := w.bed.Daemon.Status()
	if err != nil {
		return nil, err
	}
	for _, h := range status.Hooks {
		s[fmt.Sprintf("hook %s at %s", h.Hook, h.Dev)] = true
	}
	return s, nil
}

// current returns the whole state.
func (w *world) current() (state, error) {
	network, err := w.networkState()
	if err != nil {
		return nil, err
	}
	hooks, err := w.hooks()
	if err != nil {
		return nil, err
	}
	maps.Copy(network, hooks)
	return network, nil
}

// restored waits until the world is in its initial state: the daemon takes a moment
// to hook a device again whose routes are restored.
func (w *world) restored() error {
	for deadline := time.Now().Add(scontest.Patience); ; time.Sleep(2 * time.Millisecond) {
		now, err := w.current()
		if err != nil {
			return err
		}
		if maps.Equal(now, w.built) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("an earlier case left the world in another state\n%v", now.differences(w.built))
		}
	}
}

// differences lists the entries that s has in excess of built, and those it lacks.
func (s state) differences(built state) string {
	var lines []string
	for line := range s {
		if !built[line] {
			lines = append(lines, "left over: "+line)
		}
	}
	for line := range built {
		if !s[line] {
			lines = append(lines, "missing: "+line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
