package datapath_test

import (
	"testing"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A SYN that begins a connection anew, before conntrack has been told of FINs of the one
// before, is dropped by whatever uplink it comes.
func TestTooSoon(t *testing.T) {
	for name, how := range wires {
		if how.Bare { // of a test's packet the kernel always has the MAC header
			continue
		}
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			f := published(tcp)
			b.compose(f)
			if err := b.Track(b.wire, how); err != nil {
				t.Fatal(err)
			}
			b.half(f.out.enter, b.port).Proto.NoReply = datapath.Early | datapath.EarlyFIN
			b.half(f.in.enter, 0).Proto.NoReply = datapath.Early
			syn := f.in.enter
			syn.flags = flagSYN
			if r := b.run(datapath.FromWire, syn.bytes(), skb{}); r.verdict != shot {
				t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
			}
		})
	}
}

// The first FIN of a direction goes express. Another one is for conntrack to see, which counts
// them.
func TestSecondFIN(t *testing.T) {
	b := newBed(t)
	f := published(tcp)
	b.express(f)
	b.half(f.out.enter, b.port).Proto.NoReply = datapath.Early
	b.half(f.in.enter, 0).Proto.NoReply = datapath.Early
	fin := f.out.enter
	fin.flags |= flagFIN
	for i, want := range []int{redirect, unspec} {
		if r := b.run(datapath.FromContainer, fin.bytes(), skb{Mark: f.out.inMark}); r.verdict != want {
			t.Errorf("FIN %d: verdict %d, reason %q, want %d", i+1, r.verdict, r.reason, want)
		}
	}
}
