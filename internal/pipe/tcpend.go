package pipe

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type tcp_end tcpends bpf/tcp_ends.bpf.c
//go:generate llvm-objcopy --wildcard --strip-symbol LBB* tcpends_bpfel.o
//go:generate ../../scripts/pack-bpf.sh tcpends_bpfel

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

var errNoTCP = fmt.Errorf("not a socket of an established TCP connection: %w", unix.ENOTSOCK)

// of reads the addresses and sequence numbers of a socket of an established connection. It does
// not take the socket's lock, which the process may hold.
func (t *tcpEnds) of(fd int) (e tcpEnd, local, peer netip.AddrPort, err error) {
	r, err := t.read(fd)
	switch {
	case err != nil:
		return e, local, peer, err
	case r.State == 0:
		return e, local, peer, fmt.Errorf("read a TCP socket: its counters change too fast: %w", unix.EBUSY)
	case r.State != tcpEstablished:
		return e, local, peer, errNoTCP
	}
	return tcpEnd{r.Sent, r.Received}, r.name(r.Local, r.LocalPort), r.name(r.Peer, r.PeerPort), nil
}

func (r *tcpendsTcpEnd) name(address [16]uint8, port uint16) netip.AddrPort {
	if r.IsIpv6 != 0 {
		return netip.AddrPortFrom(netip.AddrFrom16(address).Unmap(), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address[:4])), port)
}

func (t *tcpEnds) read(fd int) (end tcpendsTcpEnd, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.objs.Asked.Put(int32(fd), uint32(1)); err != nil {
		return end, errors.Join(errNoTCP, err)
	}
	defer func() { _ = t.objs.Asked.Delete(int32(fd)) }()
	r, err := t.iter.Open()
	if err != nil {
		return end, fmt.Errorf("read a TCP socket: %w", err)
	}
	defer r.Close()
	content := unsafe.Slice((*byte)(unsafe.Pointer(&end)), unsafe.Sizeof(end))
	n, err := r.Read(content)
	if err != nil && !errors.Is(err, io.EOF) {
		return end, fmt.Errorf("read a TCP socket: %w", err)
	}
	if n < len(content) {
		return end, errNoTCP // not a TCP socket
	}
	return end, nil
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
