package contable_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Adding the deltas to the sum of what a packet had gives the sum of what it
// gets, whatever the addresses and ports are.
func FuzzDeltas(f *testing.F) {
	f.Add(uint32(0xac110002), uint32(0xcb007109), uint16(40000), uint16(443), uint32(0xc0000201), uint16(61001))
	f.Add(uint32(0), uint32(0), uint16(0), uint16(0), uint32(0xffffffff), uint16(0xffff))
	f.Add(uint32(0xffffffff), uint32(0xffffffff), uint16(0xffff), uint16(0xffff), uint32(0), uint16(0))
	f.Add(uint32(0x12345678), uint32(1), uint16(7), uint16(8), uint32(0x56781234), uint16(7))
	f.Add(uint32(0x0a000001), uint32(0x0a000002), uint16(1), uint16(2), uint32(0x0a000001), uint16(1))
	f.Fuzz(func(t *testing.T, src, dst uint32, sport, dport uint16, gateway uint32, nat uint16) {
		orig := conntrack.Tuple{Proto: tcp, Src: endpoint(src, sport), Dst: endpoint(dst, dport)}
		reply := conntrack.Tuple{Proto: tcp, Src: endpoint(dst, dport), Dst: endpoint(gateway, nat)}
		b := newBed(t, options())
		if _, err := b.Compose(endOf(7), orig, conntrack.Conn{Orig: orig, Reply: reply}, start); err != nil {
			t.Fatal(err)
		}
		for i := range b.halves {
			h := &b.halves[i]
			if h.State != datapath.SlotOpen {
				continue
			}
			was, _ := contable.TupleOf(datapath.Key{Addrs: h.Key.Addrs, Ports: h.Key.Ports}, [4]uint64{})
			is := b.outTuple(h)
			is.Proto = was.Proto
			if got, want := plus(addrSum(was), h.AddrDelta), addrSum(is); got%0xffff != want%0xffff {
				t.Errorf("addresses of %v to %v: sum %#x, want %#x", was, is, got, want)
			}
			if got, want := plus(portSum(was), h.PortDelta), portSum(is); got%0xffff != want%0xffff {
				t.Errorf("ports of %v to %v: sum %#x, want %#x", was, is, got, want)
			}
			if same := h.Key.Addrs == h.OutAddrs; same != (h.AddrDelta == 0) {
				t.Errorf("%v to %v: delta of the addresses is %#x", was, is, h.AddrDelta)
			}
			if same := h.Key.Ports == h.OutPorts; same != (h.PortDelta == 0) {
				t.Errorf("%v to %v: delta of the ports is %#x", was, is, h.PortDelta)
			}
		}
	})
}

func endpoint(ip uint32, port uint16) netip.AddrPort {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ip)
	return netip.AddrPortFrom(netip.AddrFrom4(b), port)
}

// plus adds a delta, which is in network order, to a sum that is not.
func plus(sum uint32, delta uint16) uint32 {
	return sum + uint32(delta>>8|delta<<8)
}

func addrSum(t conntrack.Tuple) (sum uint32) {
	for _, a := range []netip.Addr{t.Src.Addr(), t.Dst.Addr()} {
		b := a.As4()
		sum += uint32(binary.BigEndian.Uint16(b[:])) + uint32(binary.BigEndian.Uint16(b[2:]))
	}
	return sum
}

func portSum(t conntrack.Tuple) uint32 {
	return uint32(t.Src.Port()) + uint32(t.Dst.Port())
}
