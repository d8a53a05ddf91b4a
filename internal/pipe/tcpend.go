package pipe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type tcp_end tcpends bpf/tcp_ends.bpf.c

// tcpEnd identifies one end of a TCP connection by its initial sequence numbers,
// independent of addresses and their translation.
type tcpEnd struct {
	sent, received uint32
}

// asClient returns the other end of a client's end, asServer that of a server's. The kernel
// counts the client's SYN as an acknowledged byte.
func (e tcpEnd) asClient() tcpEnd { return tcpEnd{e.received, e.sent + 1} }
func (e tcpEnd) asServer() tcpEnd { return tcpEnd{e.received - 1, e.sent} }

// tcpEnds reads sequence numbers of sockets by a BPF iterator.
type tcpEnds struct {
	mu   sync.Mutex // one at a time
	objs tcpendsObjects
	iter *link.Iter
}

func newTCPEnds() (*tcpEnds, error) {
	t := &tcpEnds{}
	spec, err := loadTcpends()
	if err == nil {
		err = bpfload.LoadAndAssign(spec, &t.objs, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("load the program that reads TCP sockets: %w", err)
	}
	if t.iter, err = link.AttachIter(link.IterOptions{Program: t.objs.TcpEnds, Map: t.objs.Asked}); err != nil {
		return nil, errors.Join(fmt.Errorf("attach the program that reads TCP sockets: %w", err), t.objs.Close())
	}
	return t, nil
}

func (t *tcpEnds) close() error { return errors.Join(t.iter.Close(), t.objs.Close()) }

// readings bounds how often a socket's counters are read until two successive results are
// equal.
const readings = 16

var errNoTCP = fmt.Errorf("not a socket of an established TCP connection: %w", unix.ENOTSOCK)

// of reads a socket's sequence numbers.
func (t *tcpEnds) of(fd int) (tcpEnd, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.objs.Asked.Put(int32(fd), uint32(1)); err != nil {
		return tcpEnd{}, errors.Join(errNoTCP, err)
	}
	defer func() { _ = t.objs.Asked.Delete(int32(fd)) }()
	var last tcpEnd
	for i := range readings {
		now, err := t.read()
		if err != nil {
			return tcpEnd{}, err
		}
		if i > 0 && now == last {
			return now, nil
		}
		last = now
	}
	return tcpEnd{}, fmt.Errorf("read a TCP socket: its counters change too fast: %w", unix.EBUSY)
}

func (t *tcpEnds) read() (tcpEnd, error) {
	r, err := t.iter.Open()
	if err != nil {
		return tcpEnd{}, fmt.Errorf("read a TCP socket: %w", err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		return tcpEnd{}, fmt.Errorf("read a TCP socket: %w", err)
	}
	var e tcpendsTcpEnd
	if err := binary.Read(bytes.NewReader(content), binary.NativeEndian, &e); err != nil {
		return tcpEnd{}, errNoTCP // not a TCP socket
	}
	return tcpEnd{e.Sent, e.Received}, nil
}

// tcpNames returns the addresses of an established TCP socket, errNoTCP for other files.
func tcpNames(fd int) (local, peer netip.AddrPort, err error) {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return local, peer, errNoTCP
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != tcpEstablished {
		return local, peer, errNoTCP
	}
	a, err := unix.Getsockname(fd)
	if err != nil {
		return local, peer, errNoTCP
	}
	b, err := unix.Getpeername(fd)
	if err != nil {
		return local, peer, errNoTCP
	}
	return addrPort(a), addrPort(b), nil
}

// tcpEstablished is TCP_ESTABLISHED of the kernel's tcp_states.h.
const tcpEstablished = 1

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
