// Package nlmsg is SCON's netlink messages, for what vishvananda/netlink does not
// do: a Socket receives without allocating, filters in the kernel and sees
// overruns; Commands sends requests in batches. Iterators take messages apart.
//
// It stands on mdlayher/netlink, as google/nftables does; no other package
// imports that.
package nlmsg

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// SizeofNfgenmsg is the size in bytes of struct nfgenmsg (linux/netfilter/nfnetlink.h), which
// begins a message of Netfilter; its first byte is the family, and attributes follow.
const SizeofNfgenmsg = 4

// openSocket opens a socket whose calls block, in the network namespace of the calling thread.
func openSocket(protocol int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := hearKernel(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// hearKernel makes the kernel refuse what other processes send to a socket: in a container's
// namespace, those with CAP_NET_ADMIN there could answer in the kernel's place, or fill the
// queue.
func hearKernel(fd int) error {
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connect netlink socket to the kernel: %w", err)
	}
	return nil
}

// Message is one netlink message.
type Message struct {
	Type     uint16
	Flags    uint16 // NLM_F_*
	Sequence uint32 // of the request that this answers; 0 in a multicast
	Data     []byte // what follows the header; valid until the next read
}

// err returns the error of an NLMSG_ERROR or NLMSG_DONE message, and nil for
// an acknowledgement and every other message.
func (m Message) err() error {
	if m.Type != unix.NLMSG_ERROR && m.Type != unix.NLMSG_DONE || len(m.Data) < 4 {
		return nil
	}
	if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno > 0 {
		return unix.Errno(errno)
	}
	return nil
}

// Encoder encodes the attributes of a request, in host byte order by
// default.
type Encoder = netlink.AttributeEncoder

// NewEncoder returns an Encoder of no attributes.
func NewEncoder() *Encoder { return netlink.NewAttributeEncoder() }

// Attr returns an attribute with its padding; parts are its payload. (Inlined, its calls
// would make bin/scon 60 KiB larger.)
//
//go:noinline
func Attr(typ uint16, parts ...[]byte) (b []byte) {
	b = make([]byte, unix.SizeofNlAttr, 64)
	for _, p := range parts {
		b = append(b, p...)
	}
	binary.NativeEndian.PutUint16(b, uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], typ)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// Nested returns an attribute of attributes.
//
//go:noinline
func Nested(typ uint16, attrs ...[]byte) []byte { return Attr(typ|unix.NLA_F_NESTED, attrs...) }

// Begin begins an attribute of attributes at the end of a message. End is called with the
// place that it returns, when these have been appended. Unlike Nested they do not allocate.
func Begin(b []byte, typ uint16) (longer []byte, at int) {
	return Append(b, typ|unix.NLA_F_NESTED), len(b)
}

// End ends the attribute that begins at a place of a message.
func End(b []byte, at int) []byte {
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at))
	return b
}

// Append appends an attribute with its padding to a message.
func Append(b []byte, typ uint16, payload ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, payload...)
	for range align(len(payload)) - len(payload) {
		b = append(b, 0)
	}
	return b
}

// Be32 returns an attribute with an integer in network byte order.
//
//go:noinline
func Be32(typ uint16, n uint32) []byte {
	return Attr(typ, binary.BigEndian.AppendUint32(nil, n))
}

// Messages iterates over the messages of one datagram. It stops at a malformed
// one.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				return
			}
			m := Message{
				Type:     binary.NativeEndian.Uint16(b[4:]),
				Flags:    binary.NativeEndian.Uint16(b[6:]),
				Sequence: binary.NativeEndian.Uint32(b[8:]),
				Data:     b[unix.NLMSG_HDRLEN:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Attributes iterates over the attributes of a message or of a nested
// attribute: the type, without the flags for nesting and byte order, and the
// payload. It stops at a malformed one.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.NLA_HDRLEN || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (netlink.Nested | netlink.NetByteOrder)
			if !yield(typ, b[unix.NLA_HDRLEN:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Find returns the value of an attribute, nil if it is missing.
func Find(b []byte, wanted uint16) []byte {
	for typ, value := range Attributes(b) {
		if typ == wanted {
			return value
		}
	}
	return nil
}

// align rounds a length up to where the next message or attribute begins.
func align(n int) int {
	return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
}
