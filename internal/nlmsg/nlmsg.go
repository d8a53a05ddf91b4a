// Package nlmsg reads netlink messages without allocating: multicast groups
// through a Listener, and the messages and attributes in what was read through
// iterators. Requests and their replies are the business of mdlayher/netlink.
package nlmsg

import (
	"encoding/binary"
	"iter"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Message is one netlink message.
type Message struct {
	Type uint16
	Data []byte // what follows the header; valid until the next read
}

// Messages walks the messages of one datagram. It ends at the first one that
// is malformed.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				return
			}
			if !yield(Message{binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:n]}) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Attributes walks the attributes of a message or of a nested attribute and
// gives each one's type, without the flags for nesting and byte order, and its
// payload. It ends at the first one that is malformed.
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

// align rounds a length up to where the next message or attribute begins.
func align(n int) int {
	return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
}
