package datapath_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Any connection's packets become exactly what a full recomputation makes of
// them: addresses, ports, TTL, DSCP, and every checksum.
func TestRewriteAnything(t *testing.T) {
	const connections, packets = 40, 25
	b := newBed(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	v6 := false
	endpoint := func(net byte) netip.AddrPort {
		b := [16]byte{net}
		for i := range b[1:] {
			b[1+i] = byte(rnd.Uint32())
		}
		ip := netip.AddrFrom16(b)
		if !v6 {
			ip = netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrPortFrom(ip, uint16(rnd.Uint32()))
	}
	for i := range connections {
		v6 = i%2 == 1
		orig := conntrack.Tuple{Proto: []uint8{tcp, udp}[rnd.IntN(2)], Src: endpoint(10), Dst: endpoint(20)}
		reply := conntrack.Tuple{Proto: orig.Proto, Src: endpoint(30), Dst: endpoint(40)}
		container := orig
		if rnd.IntN(2) == 0 {
			container = reply
		}
		f := newFlow(container, conntrack.Conn{Orig: orig, Reply: reply})
		for _, w := range []*direction{&f.out, &f.in} {
			w.enter.tos, w.leave.tos = uint8(rnd.Uint32())&0xfc, uint8(rnd.Uint32())&0xfc
			w.enter.payload = make([]byte, 1200)
			w.leave.payload = w.enter.payload
		}
		b.express(f)
		for range packets {
			for _, w := range []direction{f.out, f.in} {
				payload := make([]byte, rnd.IntN(1200))
				for i := range payload {
					payload[i] = byte(rnd.Uint32())
				}
				id, ecn, ttl := uint16(rnd.Uint32()), uint8(rnd.IntN(4)), uint8(2+rnd.IntN(254))
				seq, flags := rnd.Uint32(), flagACK|uint8(rnd.IntN(2))*flagPSH
				w = w.both(func(f *frame) {
					f.payload, f.id, f.seq, f.flags = payload, id, seq, flags
					f.tos |= ecn
				})
				w.enter.ttl, w.leave.ttl = ttl, ttl-1
				b.goesExpress(w)
			}
		}
		b.table.Clear()
	}
}

// UDP's checksum zero means none, and stays; one that would become zero is
// written as 0xffff.
func TestUDPChecksumZero(t *testing.T) {
	for _, f := range []flow{masqueraded(udp), published(udp), routed(udp), masqueraded6(udp), routed6(udp)} {
		b := newBed(t)
		b.express(f)
		for _, w := range []direction{f.out, f.in} {
			none := w.both(func(f *frame) { f.noChecksum = true })
			if w.enter.isIPv6() {
				b.goesRegular(none, "malformed")
			} else {
				b.goesExpress(none)
			}
			b.goesExpress(w.both(func(f *frame) { f.payload = nil }))

			w.leave.payload = payloadForChecksum(w.leave, 0xffff)
			w.enter.payload = w.leave.payload
			b.goesExpress(w)
		}
	}
}

// payloadForChecksum finds the payload that gives a UDP packet its checksum.
func payloadForChecksum(f frame, want uint16) []byte {
	f.payload = make([]byte, 2)
	for v := range uint16(0xffff) {
		binary.BigEndian.PutUint16(f.payload, v)
		if binary.BigEndian.Uint16(f.l4()[6:]) == want {
			return f.payload
		}
	}
	panic(fmt.Sprintf("no payload gives checksum %#x", want))
}

// A packet that is damaged arrives as damaged as it was, for its receiver to
// see.
func TestDamageIsKept(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), masqueraded(udp), masqueraded6(tcp), masqueraded6(udp)} {
		proto := f.tuple.Proto
		b := newBed(t)
		b.express(f)
		for _, w := range []direction{f.out, f.in} {
			w = w.both(func(f *frame) { f.damaged = true })
			r := b.run(w.start, w.enter.bytes(), skb{Mark: w.inMark})
			if want := w.leave.bytes(); r.verdict != redirect || !bytes.Equal(r.data, want) {
				t.Errorf("%s, protocol %d: verdict %d, packet %x, want %x", w.start, proto, r.verdict, r.data, want)
			}
		}
	}
}

// What Ethernet put behind a short packet does not go on.
func TestPaddingIsTrimmed(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), masqueraded(udp), masqueraded6(tcp), masqueraded6(udp)} {
		proto := f.tuple.Proto
		b := newBed(t)
		b.express(f)
		for _, w := range []direction{f.out, f.in} {
			for size := range 6 {
				w := w.both(func(f *frame) { f.payload = f.payload[:size] })
				data := w.enter.bytes()
				data = append(data, bytes.Repeat([]byte{0xa5}, max(60-len(data), 3))...)
				r := b.run(w.start, data, skb{Mark: w.inMark})
				if want := w.leave.bytes(); r.verdict != redirect || !bytes.Equal(r.data, want) {
					t.Errorf("%s, protocol %d: verdict %d, packet %x, want %x", w.start, proto, r.verdict, r.data, want)
				}
			}
		}
		h := b.half(f.out.enter, b.port)
		if want := uint64(6*len(f.out.enter.bytes()) - 6*ethLen - (17 + 16 + 15 + 14 + 13 + 12)); h.Bytes != want {
			t.Errorf("protocol %d: %d express bytes, want %d without padding", proto, h.Bytes, want)
		}
	}
}
