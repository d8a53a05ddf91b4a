package rules

import "encoding/binary"

// octet is what is known of a byte in all packets of a connection: bits that
// are known, bits that are unknown but the same in every packet, and bits that
// vary between packets.
type octet struct {
	value, known, varies uint8
}

// truth is the result of a condition over all packets of a connection.
type truth uint8

const (
	no     truth = iota // no packet fulfils it
	yes                 // every packet does
	maybe               // every packet, or none
	varies              // some packets, others not: it judges single packets
)

// and is the truth of both conditions together.
func (t truth) and(u truth) truth {
	if t == no || u == no {
		return no
	}
	return max(t, u)
}

// invert negates a condition if is.
func (t truth) invert(is bool) truth {
	if is && t <= yes {
		return yes - t
	}
	return t
}

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// doubt is the truth of a condition that depends on the unknown bits of
// octets: yes if all are known.
func doubt(octets []octet) truth {
	t := yes
	for _, o := range octets {
		if o.varies != 0 {
			return varies
		}
		if o.known != 0xff {
			t = maybe
		}
	}
	return t
}

// equal compares octets with bytes, in the bits of mask; nil is all bits.
func equal(octets []octet, want, mask []byte) truth {
	t := yes
	for i, o := range octets {
		bits := uint8(0xff)
		if mask != nil {
			bits = mask[i]
		}
		switch {
		case (o.value^want[i])&o.known&bits != 0:
			return no
		case o.varies&bits != 0:
			t = varies
		case o.known&bits != bits && t == yes:
			t = maybe
		}
	}
	return t
}

// compare is bytes.Compare, for octets that are known; else ok is false.
func compare(octets []octet, with []byte) (order int, ok bool) {
	for i, o := range octets {
		if o.known != 0xff {
			return 0, false
		}
		if o.value != with[i] && order == 0 {
			order = int(o.value) - int(with[i])
		}
	}
	return order, true
}

// leastTo and mostTo are compare for the least and the greatest value that octets may
// have, in network order.
func leastTo(octets []octet, with []byte) int {
	for i, o := range octets {
		if least := o.value & o.known; least != with[i] {
			return int(least) - int(with[i])
		}
	}
	return 0
}

func mostTo(octets []octet, with []byte) int {
	for i, o := range octets {
		if most := o.value | ^o.known; most != with[i] {
			return int(most) - int(with[i])
		}
	}
	return 0
}

// between compares octets in network order with two bounds, both included.
func between(octets []octet, low, high []byte) truth {
	switch {
	case mostTo(octets, low) < 0 || leastTo(octets, high) > 0:
		return no
	case leastTo(octets, low) >= 0 && mostTo(octets, high) <= 0:
		return yes
	default:
		return doubt(octets)
	}
}

// portBetween compares a port with two bounds in host order.
func portBetween(port []octet, low, high uint16) truth {
	if low == 0 && high == 0xffff {
		return yes
	}
	return between(port, binary.BigEndian.AppendUint16(nil, low), binary.BigEndian.AppendUint16(nil, high))
}

// known returns octets that are fully known.
func known(value ...byte) []octet {
	octets := make([]octet, len(value))
	setKnown(octets, value)
	return octets
}

func setKnown(octets []octet, value []byte) {
	for i, b := range value {
		octets[i] = octet{value: b, known: 0xff}
	}
}

// setLeading makes a number of leading bits known.
func setLeading(octets []octet, value []byte, bits uint8) {
	for i, b := range value {
		if bits < 8 {
			known := ^uint8(0xff >> bits)
			octets[i] = octet{value: b & known, known: known}
			return
		}
		octets[i] = octet{value: b, known: 0xff}
		bits -= 8
	}
}

// or is the truth of one condition or the other.
func (t truth) or(u truth) truth {
	if t == yes || u == yes {
		return yes
	}
	return max(t, u)
}
