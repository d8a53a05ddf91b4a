package devices

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type place route ../bpf/route.bpf.c

// tcRouting is a pair whose host end is connected, by programs at both, with a port of
// the host that all containers share: one vPort for all tenants (Understanding Network
// Startup for Secure Containers, figure 4d). It uses no bridge and bypasses the host's
// stack.
type tcRouting struct{}

func (tcRouting) routed() bool { return false }

func (tcRouting) macs(s Spec) Made { return macsOf(s.Leases) }

// prepare attaches the program that forwards frames to containers to the port, and
// removes entries of containers that are gone.
func (tcRouting) prepare(h *Host, c *cni.Conf) error {
	port, err := netlink.LinkByName(c.Master)
	if err != nil {
		return fmt.Errorf("master: find device %s: %w", c.Master, err)
	}
	if err := h.rt.Do(setUp(c.Master, port.Attrs().Index)); err != nil {
		return err
	}
	// Frames for containers have the containers' MAC addresses.
	if err := netlink.SetPromiscOn(port); err != nil {
		return fmt.Errorf("master: set device %s promiscuous: %w", c.Master, err)
	}
	r, err := h.routes.ensure(port.Attrs().Index)
	if err != nil {
		return err
	}
	return r.sweep()
}

func (tcRouting) make(h *Host, s Spec, m Made) (err error) {
	index, err := indexOf(s.Conf.Master)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotPrepared, err)
	}
	r, err := h.routes.of(index)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotPrepared, err)
	}
	if err := h.rt.Do(vethPair(s.ends(m, 0))); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.RemoveLink(s.Host))
		}
	}()
	end, err := indexOf(s.Host)
	if err != nil {
		return err
	}
	// Before the container has its address: it must be able to reply from then on.
	if err := attachTC(end, routeOut, r.objects.SconRouteOut); err != nil {
		return err
	}
	return r.put(s, m, end)
}

// remove removes a container's addresses from its port's table.
func (tcRouting) remove(h *Host, n *cni.Network, host string) error {
	port, err := indexOf(n.Master)
	if err != nil {
		return nil // the table ended with the port
	}
	end, err := indexOf(host)
	if err != nil {
		return nil // prepare sweeps
	}
	r, err := h.routes.of(port)
	if err != nil {
		return err
	}
	return r.evict(func(p routePlace) bool { return p.Ifindex == uint32(end) })
}

// sweep removes the entries of containers that are gone from the table.
func (tcRouting) sweep(h *Host, c *cni.Conf) error {
	port, err := indexOf(c.Master)
	if err != nil {
		return nil // the table ended with the port
	}
	if id, err := routeProgram(port); err != nil || id == 0 {
		return err
	}
	r, err := h.routes.of(port)
	if err != nil {
		return err
	}
	return r.sweep()
}

// check returns an error if frames cannot reach a container or leave it.
func (tcRouting) check(h *Host, a Attached) error {
	port, err := netlink.LinkByName(a.Network.Master)
	if err != nil {
		return fmt.Errorf("master: find device %s: %w", a.Network.Master, err)
	}
	if port.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("master: device %s is down", a.Network.Master)
	}
	end, err := indexOf(a.Host)
	if err != nil {
		return err
	}
	for index, name := range map[int]string{port.Attrs().Index: routeIn, end: routeOut} {
		f, err := filterNamed(index, name)
		if err != nil {
			return err
		}
		if f == nil {
			return fmt.Errorf("device %d of the host lacks its program %s", index, name)
		}
	}
	r, err := h.routes.of(port.Attrs().Index)
	if err != nil {
		return err
	}
	for _, l := range a.Leases {
		var at routePlace
		if err := r.objects.Places.Lookup(placeKey(l), &at); err != nil || at.Ifindex != uint32(end) {
			return fmt.Errorf("device %s does not lead to %v", a.Network.Master, l.Address.Addr())
		}
	}
	return nil
}

// unprepare detaches the program from the port if no container needs it.
func (tcRouting) unprepare(h *Host, c *cni.Conf) error {
	port, err := netlink.LinkByName(c.Master)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find device %s: %w", c.Master, err)
	}
	id, err := routeProgram(port.Attrs().Index)
	if err != nil || id == 0 {
		return err
	}
	r, err := h.routes.of(port.Attrs().Index)
	if err != nil {
		return err
	}
	if err := r.sweep(); err != nil {
		return err
	}
	if used, err := r.used(); err != nil || used {
		return err
	}
	h.routes.forget(port.Attrs().Index)
	if err := netlink.SetPromiscOff(port); err != nil {
		return fmt.Errorf("end promiscuous mode of device %s: %w", c.Master, err)
	}
	return detachTC(port.Attrs().Index, routeIn)
}

// Names of the filters, those of their programs.
const (
	routeOut = "scon_route_out"
	routeIn  = "scon_route_in"
)

// routes are the shared ports with their programs. The filters keep the programs
// loaded; another process finds them by the port's filter.
type routes struct {
	mu    sync.Mutex
	ports map[int]*route // by ifindex
}

// route holds the programs of one shared port.
type route struct{ objects routeObjects }

// of returns the port with an ifindex, whichever process prepared it.
func (all *routes) of(port int) (*route, error) {
	all.mu.Lock()
	r := all.ports[port]
	all.mu.Unlock()
	if r != nil {
		return r, nil
	}
	return all.ensure(port)
}

// ensure attaches the program to the port if it is missing.
func (all *routes) ensure(port int) (*route, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	id, err := routeProgram(port)
	if err != nil {
		return nil, err
	}
	if r := all.ports[port]; r != nil && id != 0 {
		return r, nil
	}
	r, err := loadRoutes(port, id)
	if err != nil {
		return nil, err
	}
	if id == 0 {
		if err := attachTC(port, routeIn, r.objects.SconRouteIn); err != nil {
			return nil, errors.Join(err, r.objects.Close())
		}
	}
	if all.ports == nil {
		all.ports = make(map[int]*route)
	}
	if old := all.ports[port]; old != nil {
		_ = old.objects.Close()
	}
	all.ports[port] = r
	return r, nil
}

func (all *routes) forget(port int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if r := all.ports[port]; r != nil {
		_ = r.objects.Close()
		delete(all.ports, port)
	}
}

func (all *routes) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	for port, r := range all.ports {
		_ = r.objects.Close()
		delete(all.ports, port)
	}
}

// loadRoutes loads the programs of a port. If id is not 0, they use the table of that
// attached program.
func loadRoutes(port int, id ebpf.ProgramID) (_ *route, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}
	spec, err := loadRoute()
	if err != nil {
		return nil, fmt.Errorf("read the routing programs: %w", err)
	}
	if err := spec.Variables["port"].Set(uint32(port)); err != nil {
		return nil, fmt.Errorf("set the routing programs' port: %w", err)
	}
	opts := ebpf.CollectionOptions{}
	if id != 0 {
		places, err := placesOf(id)
		if err != nil {
			return nil, fmt.Errorf("find the routing table of device %d: %w", port, err)
		}
		defer places.Close()
		opts.MapReplacements = map[string]*ebpf.Map{"places": places}
	}
	r := new(route)
	if err := bpfload.LoadAndAssign(spec, &r.objects, &opts); err != nil {
		return nil, fmt.Errorf("load the routing programs: %w", err)
	}
	return r, nil
}

// placesOf returns the table that a program uses.
func placesOf(id ebpf.ProgramID) (*ebpf.Map, error) {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, err
		}
		if info, err := m.Info(); err == nil && info.Name == "places" {
			return m, nil
		}
		m.Close()
	}
	return nil, fmt.Errorf("program %d has no routing table", id)
}

// routeProgram returns the program attached to a shared port, 0 for none.
func routeProgram(port int) (ebpf.ProgramID, error) {
	f, err := filterNamed(port, routeIn)
	if err != nil || f == nil {
		return 0, err
	}
	return ebpf.ProgramID(f.Id), nil
}

// tenantNumber hashes a tenant's name.
func tenantNumber(tenant string) uint64 {
	sum := sha256.Sum256([]byte(tenant))
	return binary.NativeEndian.Uint64(sum[:])
}

// put enters a container's addresses into the table.
func (r *route) put(s Spec, m Made, end int) error {
	at := routePlace{Tenant: tenantNumber(s.Conf.Tenant), Ifindex: uint32(end)}
	copy(at.Mac[:], m.MAC)
	for _, l := range s.Leases {
		if !l.Address.Addr().Is4() {
			return fmt.Errorf("route to %v: kind %s routes IPv4 only", l.Address.Addr(), cni.TCRouting)
		}
		if err := r.objects.Places.Put(placeKey(l), at); err != nil {
			return fmt.Errorf("route to %v: %w", l.Address.Addr(), err)
		}
	}
	return nil
}

// placeKey returns the address in network order.
func placeKey(l ipam.Lease) [4]byte { return l.Address.Addr().As4() }

// evict removes the entries for which doomed returns true.
func (r *route) evict(doomed func(routePlace) bool) error {
	var key [4]byte
	var at routePlace
	var keys [][4]byte
	all := r.objects.Places.Iterate()
	for all.Next(&key, &at) {
		if doomed(at) {
			keys = append(keys, key)
		}
	}
	// Concurrent changes may end the iteration early; prepare sweeps the rest.
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read the routing table: %w", err)
	}
	for _, key := range keys {
		if err := r.objects.Places.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("change the routing table: %w", err)
		}
	}
	return nil
}

// sweep removes the entries of devices that are gone.
func (r *route) sweep() error {
	return r.evict(func(p routePlace) bool {
		_, err := netlink.LinkByIndex(int(p.Ifindex))
		return errors.As(err, new(netlink.LinkNotFoundError))
	})
}

func (r *route) used() (bool, error) {
	var key [4]byte
	err := r.objects.Places.NextKey(nil, &key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the routing table: %w", err)
	}
	return true, nil
}

// attachTC attaches a program to a device's ingress.
func attachTC(index int, name string, program *ebpf.Program) error {
	if err := netlink.QdiscAdd(clsact(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to device %d: %w", index, err)
	}
	err := netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: filterAttrs(index), Fd: program.FD(), Name: name, DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach %s to device %d: %w", name, index, err)
	}
	return nil
}

// detachTC detaches a program, and removes the qdisc if it has no other filter.
func detachTC(index int, name string) error {
	f, err := filterNamed(index, name)
	if err != nil || f == nil {
		return err
	}
	if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("detach %s from device %d: %w", name, index, err)
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		left, err := filtersOf(index, parent)
		if err != nil || len(left) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(clsact(index)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove clsact from device %d: %w", index, err)
	}
	return nil
}

func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)},
		QdiscType:  "clsact",
	}
}

// filterPlace is the priority and handle of the routing programs' filters; no other
// program uses it.
const filterPlace = 0x5c1

func filterAttrs(index int) netlink.FilterAttrs {
	return netlink.FilterAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: filterPlace, Protocol: unix.ETH_P_ALL, Priority: filterPlace,
	}
}

// filterNamed finds a filter by its program's name, nil if missing.
func filterNamed(index int, name string) (*netlink.BpfFilter, error) {
	all, err := filtersOf(index, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		// The kernel appends the program's tag in brackets.
		if b, ok := f.(*netlink.BpfFilter); ok && (b.Name == name || strings.HasPrefix(b.Name, name+":[")) {
			return b, nil
		}
	}
	return nil, nil
}

func filtersOf(index int, parent uint32) ([]netlink.Filter, error) {
	at := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	all, err := netlink.FilterList(at, parent)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list filters of device %d: %w", index, err)
	}
	return all, nil
}
