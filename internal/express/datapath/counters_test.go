package datapath_test

import (
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A device that shares another's entry is refused; the error says why.
func TestTrackSharedPlace(t *testing.T) {
	b := newBed(t)
	err := b.Track(b.port+1<<16, datapath.Delivery{})
	if err == nil || !strings.Contains(err.Error(), "create one of them again") {
		t.Errorf("Track = %v", err)
	}
	b.Untrack(b.port)
	if err := b.Track(b.port+1<<16, datapath.Delivery{}); err != nil {
		t.Errorf("the entry is free: %v", err)
	}
}

// The regular packets of all devices at once are those of each.
func TestRegularPackets(t *testing.T) {
	b := newBed(t)
	f := masqueraded(tcp)
	b.goesRegular(f.out, "no_entry")
	b.goesRegular(f.in, "no_entry")
	all, err := b.RegularPackets()
	if err != nil {
		t.Fatal(err)
	}
	if all[b.port] == 0 {
		t.Error("none at the port")
	}
	for _, ifindex := range b.Tracked() {
		one, err := b.Counters(ifindex)
		if err != nil || all[ifindex] != one.Packets {
			t.Errorf("device %d: %d packets, counters %+v, %v", ifindex, all[ifindex], one, err)
		}
	}
}

// BenchmarkRegularPackets reads the counters of a thousand devices.
func BenchmarkRegularPackets(bench *testing.B) {
	b := newBed(bench)
	for i := range 1000 {
		if err := b.Track(10000+i, datapath.Delivery{}); err != nil {
			bench.Fatal(err)
		}
	}
	for bench.Loop() {
		if _, err := b.RegularPackets(); err != nil {
			bench.Fatal(err)
		}
	}
}
