package scontest

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/express/datapath"
)

// Pins returns the paths of pinned objects whose names match.
func (b *Bed) Pins(pattern string) []string {
	b.T.Helper()
	paths, err := filepath.Glob(b.Seen("/sys/fs/bpf/scon/*/" + pattern))
	if err != nil {
		b.T.Fatal(err)
	}
	return paths
}

// Pinned opens a pinned map.
func (b *Bed) Pinned(name string) *ebpf.Map {
	b.T.Helper()
	paths := b.Pins(name)
	if len(paths) != 1 {
		b.T.Fatalf("pins of %s: %q", name, paths)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { m.Close() })
	return m
}

// ExpressPackets counts the packets of the express path, without a daemon.
func (b *Bed) ExpressPackets() uint64 {
	b.T.Helper()
	return ExpressIn(b.T, b.Pinned("conentries"))
}

// ExpressIn sums the express packets of a Contable.
func ExpressIn(t *testing.T, conentries *ebpf.Map) (sum uint64) {
	t.Helper()
	EachHalf(t, conentries, func(h datapath.Half) { sum += h.Packets })
	return sum
}

// EachHalf calls fn for what is in each slot of a Contable.
func EachHalf(t *testing.T, conentries *ebpf.Map, fn func(datapath.Half)) {
	t.Helper()
	for number := range conentries.MaxEntries() {
		var page *ebpf.Map
		if errors.Is(conentries.Lookup(number, &page), ebpf.ErrKeyNotExist) {
			continue
		}
		var slot uint32
		var half datapath.Half
		slots := page.Iterate()
		for slots.Next(&slot, &half) {
			fn(half)
		}
		page.Close()
		if err := slots.Err(); err != nil {
			t.Fatal(err)
		}
	}
}
