package contable

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/conntrack"
	"github.com/scon-project/scon/internal/datapath"
)

const protoTCP = unix.IPPROTO_TCP

// KeyOf returns the programs' key for one direction of a connection. port is
// the bridge port that a container's packets enter by, 0 for the wire.
func KeyOf(t conntrack.Tuple, port int) datapath.Key {
	side := uint32(port) << 1
	if t.Proto == unix.IPPROTO_UDP {
		side |= 1
	}
	return datapath.Key{
		Addrs: packAddrs(t.Src.Addr(), t.Dst.Addr()),
		Ports: packPorts(t.Src.Port(), t.Dst.Port()),
		Side:  side,
	}
}

// TupleOf is the reverse of KeyOf.
func TupleOf(k datapath.Key) (t conntrack.Tuple, port int) {
	t.Proto = protoTCP
	if k.Side&1 != 0 {
		t.Proto = unix.IPPROTO_UDP
	}
	t.Src = netip.AddrPortFrom(fromNative(uint32(k.Addrs)), bits.ReverseBytes16(uint16(k.Ports)))
	t.Dst = netip.AddrPortFrom(fromNative(uint32(k.Addrs>>32)), bits.ReverseBytes16(uint16(k.Ports>>16)))
	return t, int(k.Side >> 1)
}

// Addresses and ports stand in keys as they stand in packets: network order,
// read by a little-endian machine.
func native(a netip.Addr) uint32 {
	b := a.As4()
	return binary.LittleEndian.Uint32(b[:])
}

func fromNative(v uint32) netip.Addr {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

func packPorts(src, dst uint16) uint32 {
	return uint32(bits.ReverseBytes16(src)) | uint32(bits.ReverseBytes16(dst))<<16
}

// hash is bpf/lib/contable.h's.
func (t *Table) hash(k datapath.Key) uint64 {
	h := (k.Addrs ^ t.settings.Seed) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h = (h + (uint64(k.Side)<<32 | uint64(k.Ports))) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// count is where the programs count the packets of a candidate: 48 bits of its
// hash, then the count.
func (t *Table) count(hash uint64) *uint64 {
	return &t.counts[hash%uint64(len(t.counts))]
}

// buckets are the two where the programs look for a key, in their order.
func (t *Table) buckets(hash uint64) [2]uint32 {
	return [2]uint32{uint32(hash) & t.settings.Mask, uint32(hash>>24) & t.settings.Mask}
}

// tag is what the programs look for in a bucket's word. It is odd, never 0.
func tag(hash uint64) uint16 {
	return uint16(hash>>48) | 1
}

// setTag publishes a slot to the programs, or takes it from them with tag 0.
func (t *Table) setTag(slot uint32, tag uint16) {
	word, shift := &t.tags[slot/datapath.BucketSlots], 16*(slot%datapath.BucketSlots)
	atomic.StoreUint64(word, *word&^(0xffff<<shift)|uint64(tag)<<shift)
}

// reserve takes a free slot for a key, of its two buckets in the one that has
// more room.
func (t *Table) reserve(k datapath.Key) (uint32, error) {
	var free [2][]uint32
	for i, bucket := range t.buckets(t.hash(k)) {
		for slot := bucket * datapath.BucketSlots; slot < (bucket+1)*datapath.BucketSlots; slot++ {
			h := &t.halves[slot]
			if h.State == datapath.SlotEmpty {
				free[i] = append(free[i], slot)
				continue
			}
			if h.Key.Addrs == k.Addrs && h.Key.Ports == k.Ports && h.Key.Side == k.Side {
				return 0, ErrExists // closed, in quarantine
			}
		}
	}
	roomier := free[0]
	if len(free[1]) > len(roomier) {
		roomier = free[1]
	}
	if len(roomier) == 0 {
		return 0, ErrFull
	}
	t.halves[roomier[0]].State = datapath.SlotClosed
	return roomier[0], nil
}

// empty makes a slot free: the tag goes first.
func (t *Table) empty(slot uint32) {
	t.setTag(slot, 0)
	t.halves[slot] = datapath.Half{}
}

// translation is what makes a packet of one tuple one of another: the new
// addresses and ports, and what the sums of the pseudo header and of the ports
// grow by, in ones' complement and network order.
func translation(from, to conntrack.Tuple) (addrs uint64, ports uint32, addrDelta, portDelta uint16) {
	was, is := KeyOf(from, 0), KeyOf(to, 0)
	return is.Addrs, is.Ports, delta(was.Addrs, is.Addrs), delta(uint64(was.Ports), uint64(is.Ports))
}

func delta(from, to uint64) uint16 {
	if from == to {
		return 0
	}
	return fold(sum(to) + sum(^from))
}

func sum(v uint64) uint64 {
	return v>>48 + v>>32&0xffff + v>>16&0xffff + v&0xffff
}

func fold(v uint64) uint16 {
	for v > 0xffff {
		v = v>>16 + v&0xffff
	}
	return uint16(v)
}
