package datapath_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// dropped has the programs believe that Netfilter was seen to drop a packet of
// a discard just now.
func (b *bed) dropped(f flow) *datapath.Half {
	b.t.Helper()
	b.goesRegular(f.out, "composing") // and is watched
	h := b.half(f.out.enter, b.port)
	if h.Tracked == 0 {
		b.t.Fatal("the packet is not watched")
	}
	h.MaxLen = uint16(len(f.out.enter.bytes()) - ethLen)
	h.OutDev, h.LeaseEnd, h.LeaseFrom = h.InDev, 100, b.jiffies()
	h.Generation = b.Settings().Generation
	return h
}

// A discard drops what is as the packet was that Netfilter dropped; all else
// goes regular.
func TestDiscard(t *testing.T) {
	for family, f := range families(masqueraded(udp), masqueraded6(udp)) {
		t.Run(family, func(t *testing.T) { discards(t, f) })
	}
}

func discards(t *testing.T, f flow) {
	b := newBed(t)
	if err := b.table.Discard(b.port, f.out.enter.dstMAC, f.tuple, time.Now()); err != nil {
		t.Fatal(err)
	}
	h := b.dropped(f)
	for range 3 {
		if r := b.run(f.out.start, f.out.enter.bytes(), skb{Mark: f.out.inMark}); r.verdict != shot {
			t.Fatalf("verdict %d, reason %q", r.verdict, r.reason)
		}
	}
	if want := (contable.Discarded{Packets: 3, Bytes: 3 * uint64(h.MaxLen)}); b.table.Discarded() != want {
		t.Errorf("%+v, want %+v", b.table.Discarded(), want)
	}
	for reason, change := range map[string]func(*frame){
		"too_long":    func(f *frame) { f.payload = append(f.payload[:len(f.payload):len(f.payload)], 0) },
		"identity":    func(f *frame) { f.dstMAC[5] ^= 1 },
		"ttl_expires": func(f *frame) { f.ttl = 1 },
		"no_entry":    func(f *frame) { f.dst = netip.AddrPortFrom(f.dst.Addr(), 54) },
	} {
		b.goesRegular(f.out.both(change), reason)
	}
	b.Settings().Generation++
	b.goesRegular(f.out, "new_generation")
}

// A packet that goes to another MAC address is no packet of the discard: a bridge forwards
// it, past other rules. It is not watched.
func TestDiscardOtherDestination(t *testing.T) {
	for family, f := range families(masqueraded(udp), masqueraded6(udp)) {
		t.Run(family, func(t *testing.T) {
			for at := range f.out.enter.dstMAC {
				b := newBed(t)
				to := f.out.enter.dstMAC
				to[at] ^= 2
				if err := b.table.Discard(b.port, to, f.tuple, time.Now()); err != nil {
					t.Fatal(err)
				}
				b.goesRegular(f.out, "composing")
				if h := b.half(f.out.enter, b.port); h.Tracked != 0 {
					t.Errorf("a packet to %x is watched for a discard of those to %x", f.out.enter.dstMAC, to)
				}
			}
		})
	}
}

// What reaches the container from where it could not send to is a connection:
// from then on its packets go regular.
func TestDiscardIsPardoned(t *testing.T) {
	for family, f := range families(published(udp), published6(udp)) {
		t.Run(family, func(t *testing.T) { pardoned(t, f) })
	}
}

func pardoned(t *testing.T, f flow) {
	b := newBed(t)
	if err := b.table.Discard(b.port, f.out.enter.dstMAC, f.tuple, time.Now()); err != nil {
		t.Fatal(err)
	}
	b.dropped(f)
	b.leaves(f.in)
	b.goesRegular(f.out, "closed")
}
