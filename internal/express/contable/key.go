package contable

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

const protoTCP = unix.IPPROTO_TCP

// KeyOf returns the programs' key for one direction of a connection. port is
// the bridge port that a container's packets enter by, 0 for the wire.
func (t *Table) KeyOf(tuple conntrack.Tuple, port int) datapath.Key {
	k := datapath.Key{
		Ports: packPorts(tuple.Src.Port(), tuple.Dst.Port()),
		Side:  uint32(port) << datapath.SideShift,
	}
	if tuple.Proto == unix.IPPROTO_UDP {
		k.Side |= datapath.SideUDP
	}
	if src, dst := tuple.Src.Addr(), tuple.Dst.Addr(); src.Is4() {
		k.Addrs = packAddrs(src, dst)
	} else {
		k.Side |= datapath.SideIPv6
		k.Addrs = t.digest(native6(tuple))
	}
	return k
}

// TupleOf is the reverse of KeyOf; addrs are those of an IPv6 connection.
func TupleOf(k datapath.Key, addrs [4]uint64) (t conntrack.Tuple, port int) {
	t.Proto = protoTCP
	if k.Side&datapath.SideUDP != 0 {
		t.Proto = unix.IPPROTO_UDP
	}
	src, dst := fromNative(uint32(k.Addrs)), fromNative(uint32(k.Addrs>>32))
	if k.Side&datapath.SideIPv6 != 0 {
		src, dst = fromNative6(addrs[0], addrs[1]), fromNative6(addrs[2], addrs[3])
	}
	t.Src = netip.AddrPortFrom(src, bits.ReverseBytes16(uint16(k.Ports)))
	t.Dst = netip.AddrPortFrom(dst, bits.ReverseBytes16(uint16(k.Ports>>16)))
	return t, int(k.Side >> datapath.SideShift)
}

// tupleAt returns the tuple and the port of packets that match a slot.
func (t *Table) tupleAt(slot uint32) (tuple conntrack.Tuple, port int) {
	return TupleOf(t.keyOf(slot), t.half(slot).Addrs6)
}

// Addresses and ports are in keys as in packets: network byte order, loaded as
// little-endian integers.
func native(a netip.Addr) uint32 {
	b := a.As4()
	return binary.LittleEndian.Uint32(b[:])
}

func fromNative(v uint32) netip.Addr {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

func packAddrs(src, dst netip.Addr) uint64 {
	return uint64(native(src)) | uint64(native(dst))<<32
}

// native6 returns source and destination, zero if they are not IPv6.
func native6(t conntrack.Tuple) (addrs [4]uint64) {
	if t.Src.Addr().Is4() {
		return addrs
	}
	for i, a := range []netip.Addr{t.Src.Addr(), t.Dst.Addr()} {
		b := a.As16()
		addrs[2*i] = binary.LittleEndian.Uint64(b[:])
		addrs[2*i+1] = binary.LittleEndian.Uint64(b[8:])
	}
	return addrs
}

func fromNative6(high, low uint64) netip.Addr {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], high)
	binary.LittleEndian.PutUint64(b[8:], low)
	return netip.AddrFrom16(b)
}

func packPorts(src, dst uint16) uint32 {
	return uint32(bits.ReverseBytes16(src)) | uint32(bits.ReverseBytes16(dst))<<16
}

// hash is the same function as in bpf/lib/contable.h.
func (t *Table) hash(k datapath.Key) uint64 {
	h := (k.Addrs ^ t.settings.Seed) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h = (h + (uint64(k.Side)<<32 | uint64(k.Ports))) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// digest is the same function as in bpf/lib/packet.h.
func (t *Table) digest(addrs [4]uint64) uint64 {
	d := addrs[0] ^ t.settings.Seed
	for i, next := range addrs {
		factor := uint64(0x9e3779b97f4a7c15)
		if i%2 == 1 {
			factor = 0xd6e8feb86659fd93
		}
		if i > 0 {
			d += next
		}
		d *= factor
		d ^= d >> 32
	}
	return d
}

// count returns the word in which the programs count a candidate's packets: its
// signature, judged, the time of the first one, then the count.
func (t *Table) count(hash uint64) *uint64 {
	return &t.counts[hash%uint64(len(t.counts))]
}

// signature is the part of a hash that identifies a candidate; judged is set if a rule
// that judges single packets keeps it regular.
const (
	signature = 1<<64 - 1<<33
	judged    = 1 << 32
)

// Judged says that a rule that judges single packets keeps a connection regular of which
// packets of tuple enter at a port. The programs count its packets accordingly until it
// gets a Conentry or begins anew. A program that counts one right now may miss it.
func (t *Table) Judged(tuple conntrack.Tuple, port int) {
	h := t.hash(t.KeyOf(tuple, port))
	word := t.count(h)
	was := atomic.LoadUint64(word)
	is := h&signature | judged
	if was&signature == h&signature {
		is |= was
	}
	atomic.CompareAndSwapUint64(word, was, is)
}

// JudgeAnew has the programs announce again, after their next few packets, all connections
// that a rule was found to keep regular (Judged): the rules have changed. Otherwise they
// announce one when its packets have doubled, which may take hours.
func (t *Table) JudgeAnew() {
	for i := range t.counts {
		word := &t.counts[i]
		if was := atomic.LoadUint64(word); was&judged != 0 {
			atomic.CompareAndSwapUint64(word, was, was&(signature|judged))
		}
	}
}

// CountAnew has the programs announce again, after their next few packets, all connections
// without a Conentry: what they were refused for may have gone.
func (t *Table) CountAnew() {
	for i := range t.counts {
		atomic.StoreUint64(&t.counts[i], 0)
	}
}

// takeCount clears a candidate's count, so that it becomes one as soon as the first
// time if it goes idle and returns. It returns the time since its first packet, 0
// if that is not known: the connection has been silent for no longer.
func (t *Table) takeCount(k datapath.Key) time.Duration {
	h := t.hash(k)
	word := atomic.SwapUint64(t.count(h), 0)
	if word&signature != h&signature {
		return 0
	}
	shift := datapath.AgeShift(t.opts.Tick)
	age := uint16(t.jiffies()>>shift) - uint16(word>>16)
	if age > 1<<15 { // the heartbeat is older
		return 0
	}
	return time.Duration(age) * t.opts.Tick << shift
}

// translation makes a packet of one tuple into one of another, as a half
// stores it: the new ports and, for IPv4, the new addresses; and how much the
// sums of the pseudo header and of the ports change, in ones' complement and
// network byte order.
type translation struct {
	addrs                uint64
	ports                uint32
	addrDelta, portDelta uint16
}

func translate(from, to conntrack.Tuple) (t translation) {
	wasPorts := packPorts(from.Src.Port(), from.Dst.Port())
	t.ports = packPorts(to.Src.Port(), to.Dst.Port())
	t.portDelta = delta([]uint64{uint64(wasPorts)}, []uint64{uint64(t.ports)})
	if from.Src.Addr().Is4() {
		was := packAddrs(from.Src.Addr(), from.Dst.Addr())
		t.addrs = packAddrs(to.Src.Addr(), to.Dst.Addr())
		t.addrDelta = delta([]uint64{was}, []uint64{t.addrs})
		return t
	}
	was, is := native6(from), native6(to)
	t.addrDelta = delta(was[:], is[:])
	return t
}

// delta is 0 only if nothing changes.
func delta(from, to []uint64) uint16 {
	if slices.Equal(from, to) {
		return 0
	}
	var all uint64
	for i := range from {
		all += sum(to[i]) + sum(^from[i])
	}
	return fold(all)
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
