package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Port is a port of the host that is forwarded to a container.
type Port struct {
	Proto uint8      `json:"proto"` // IPPROTO_TCP or IPPROTO_UDP
	Host  netip.Addr `json:"host"`  // unspecified: every address of the family
	Port  uint16     `json:"port"`  // of the host
	To    uint16     `json:"to"`    // of the container
}

// binding is a requested port, in Docker's form.
type binding struct {
	Proto       uint8
	Port        uint16
	HostIP      string
	HostPort    uint16
	HostPortEnd uint16
}

// holder reserves a port of the host.
type holder interface{ Close() error }

func bindingsOf(option any) (bindings []binding, err error) {
	if option == nil {
		return nil, nil
	}
	b, err := json.Marshal(option)
	if err == nil {
		err = json.Unmarshal(b, &bindings)
	}
	if err != nil {
		return nil, fmt.Errorf("parse the ports to publish: %w", err)
	}
	return bindings, nil
}

// publish forwards ports of the host to an endpoint: all of them, or none.
func (d *Driver) publish(n *Network, id string, e *Endpoint, bindings []binding) (err error) {
	if len(bindings) == 0 || n.Internal {
		return nil
	}
	if err := d.unpublish(id, e); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.unpublish(id, e))
		}
	}()
	for _, b := range bindings {
		hosts, err := n.hosts(e, b)
		if err != nil {
			return err
		}
		if err := d.take(id, e, hosts, b); err != nil {
			return err
		}
	}
	if err := d.store.put(n); err != nil {
		return err
	}
	return d.putPorts(e.Ports)
}

// putPorts writes the rules after a change of these ports.
func (d *Driver) putPorts(ports []Port) error {
	if err := d.putRules(); err != nil {
		return err
	}
	if err := forgetUDP(ports); err != nil {
		d.log.Warn("docker driver: peers of a UDP port may reach it when they have paused only", "error", err)
	}
	return nil
}

// hosts returns the host's addresses at which a port is published.
func (n *Network) hosts(e *Endpoint, b binding) (hosts []netip.Addr, err error) {
	if b.Proto != unix.IPPROTO_TCP && b.Proto != unix.IPPROTO_UDP {
		return nil, fmt.Errorf("publish port %d: protocol %d: want tcp or udp", b.Port, b.Proto)
	}
	if b.HostIP != "" && b.HostIP != "0.0.0.0" {
		host, err := netip.ParseAddr(b.HostIP)
		if err != nil {
			return nil, fmt.Errorf("publish port %d: %w", b.Port, err)
		}
		if _, ok := e.addr(host.Is6()); !ok {
			return nil, fmt.Errorf("publish port %d at %v: the container has no address of that family", b.Port, host)
		}
		return []netip.Addr{host}, nil
	}
	if _, ok := e.addr(false); ok {
		host := netip.IPv4Unspecified()
		if n.HostIP.IsValid() && b.HostIP == "" {
			host = n.HostIP
		}
		hosts = append(hosts, host)
	}
	if _, ok := e.addr(true); ok && b.HostIP == "" && !n.HostIP.IsValid() {
		hosts = append(hosts, netip.IPv6Unspecified())
	}
	return hosts, nil
}

// take reserves a port that is free at all of these addresses.
func (d *Driver) take(id string, e *Endpoint, hosts []netip.Addr, b binding) error {
	const tries = 16 // a port chosen by the kernel may be in use at the next address
	first, last := b.HostPort, max(b.HostPort, b.HostPortEnd)
	if first == 0 {
		last = tries
	}
	var err error
	for try := int(first); try <= int(last); try++ {
		port := uint16(try)
		if first == 0 {
			port = 0
		}
		var ports []Port
		var holders []holder
		for _, host := range hosts {
			var h holder
			if h, port, err = reserve(b.Proto, host, port); err != nil {
				break
			}
			holders = append(holders, h)
			ports = append(ports, Port{Proto: b.Proto, Host: host, Port: port, To: b.Port})
		}
		if err == nil {
			e.Ports, d.held[id] = append(e.Ports, ports...), append(d.held[id], holders...)
			return nil
		}
		for _, h := range holders {
			h.Close()
		}
		if errors.Is(err, unix.EADDRINUSE) {
			dropped, failed := d.dropDead()
			if failed != nil {
				return failed
			}
			if dropped {
				try-- // it may be free now
			}
		}
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("publish port %d: %w: port is already allocated", b.Port, err)
	}
	return fmt.Errorf("publish port %d: %w", b.Port, err)
}

// hold reserves ports that were published before.
func (d *Driver) hold(id string, ports []Port) (err error) {
	for _, p := range ports {
		h, _, e := reserve(p.Proto, p.Host, p.Port)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		d.held[id] = append(d.held[id], h)
	}
	return err
}

// reserve binds a port of the host, 0 for any free one. No packet reaches that socket:
// the rules forward packets before.
func reserve(proto uint8, host netip.Addr, port uint16) (holder, uint16, error) {
	var family int
	var sa unix.Sockaddr
	if host.Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: host.As4(), Port: int(port)}
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: host.As16(), Port: int(port)}
	}
	kind := unix.SOCK_STREAM
	if proto == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("reserve a port: %w", err)
	}
	s := socket(fd)
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil && kind == unix.SOCK_STREAM { // connections of a program that listened before may linger
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 0) // a port that is only bound can be bound again
	}
	if err == nil {
		sa, err = unix.Getsockname(fd)
	}
	if err != nil {
		s.Close()
		return nil, 0, fmt.Errorf("reserve %s: %w", net.JoinHostPort(host.String(), fmt.Sprint(port)), err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		port = uint16(sa.Port)
	case *unix.SockaddrInet6:
		port = uint16(sa.Port)
	}
	return s, port, nil
}

// socket is a file descriptor without the runtime's poller.
type socket int

func (s socket) Close() error { return unix.Close(int(s)) }

// unpublish releases an endpoint's ports.
func (d *Driver) unpublish(id string, e *Endpoint) error {
	d.letGo(id)
	if len(e.Ports) == 0 {
		return nil
	}
	ports := e.Ports
	e.Ports = nil
	return d.putPorts(ports)
}

func (d *Driver) letGo(id string) {
	for _, h := range d.held[id] {
		h.Close()
	}
	delete(d.held, id)
}
