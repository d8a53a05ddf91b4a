package datapath_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// A new daemon finds the connections of the earlier one on the express path, and
// leaves them there.
func TestAdoption(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.express(f)
	b.goesExpress(f.out)
	if b.Adopted() {
		t.Error("adopted what was never there")
	}
	settings, counters := *b.Settings(), b.counters(b.port)

	b.reload(options(b.pins))
	if !b.Adopted() || b.Settings().Seed != settings.Seed || b.Settings().Generation != settings.Generation {
		t.Fatalf("adopted: %v, settings %+v, were %+v", b.Adopted(), *b.Settings(), settings)
	}
	if n := b.table.Adopt(func(int) bool { return true }, func(conntrack.Tuple) (conntrack.Conn, error) { return f.conn, nil }, time.Now()); n != 1 {
		t.Fatalf("adopted %d Conentries", n)
	}
	if err := b.Track(b.port, datapath.Delivery{}); err != nil {
		t.Fatal(err)
	}
	if got := b.counters(b.port); got.Packets != counters.Packets {
		t.Errorf("%d regular packets, were %d", got.Packets, counters.Packets)
	}
	b.goesExpress(f.out)
	b.goesExpress(f.in)
}

// What does not fit is not taken over: the table is fresh.
func TestFreshTable(t *testing.T) {
	for name, change := range map[string]func(*bed, *datapath.Options){
		"another layout":       func(b *bed, _ *datapath.Options) { b.Settings().Layout++ },
		"another size":         func(_ *bed, o *datapath.Options) { o.Connections *= 1024 },
		"a pin is missing":     func(b *bed, _ *datapath.Options) { b.unpin("candidates") },
		"a pin is another map": func(b *bed, _ *datapath.Options) { b.unpin("devices"); b.move("events", "devices") },
	} {
		t.Run(name, func(t *testing.T) {
			f := masqueraded(tcp)
			b := newBed(t)
			b.express(f)
			o := options(b.pins)
			change(b, &o)
			b.reload(o)
			if b.Adopted() {
				t.Fatal("adopted")
			}
			if n := uint32(len(b.Memory().Buckets)); n != o.Connections || b.Settings().Layout != datapath.LayoutVersion {
				t.Errorf("%d buckets, settings %+v", n, *b.Settings())
			}
			for i, h := range b.Memory().Halves[0] {
				if h.State != datapath.SlotEmpty {
					t.Errorf("slot %d is in use", i)
				}
			}
			b.goesRegular(f.out, "")
			b.reload(o)
			if !b.Adopted() {
				t.Error("the fresh one was not adopted after it")
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := pinDir(t)
	for name, change := range map[string]func(*datapath.Options){
		"no connections":       func(o *datapath.Options) { o.Connections = 0 },
		"too many connections": func(o *datapath.Options) { o.Connections = 1<<20 + 1 },
		"not on a bpffs":       func(o *datapath.Options) { o.PinDir = filepath.Join(t.TempDir(), "scon") },
	} {
		o := options(dir)
		change(&o)
		if d, err := datapath.Load(o); err == nil {
			d.Close()
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestMountBPFFS(t *testing.T) {
	dir := filepath.Dir(pinDir(t))
	if mounted, err := datapath.MountBPFFS(dir); mounted || err != nil {
		t.Errorf("a second time: %v, %v", mounted, err)
	}
	if _, err := datapath.MountBPFFS(filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where nothing is: %v", err)
	}
}

// reload is the next daemon's start.
func (b *bed) reload(o datapath.Options) {
	b.t.Helper()
	b.Datapath = load(b.t, b.ns, o)
	b.newTable()
}

func (b *bed) unpin(name string) {
	b.t.Helper()
	if err := os.Remove(filepath.Join(b.pins, name)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) move(from, to string) {
	b.t.Helper()
	if err := os.Rename(filepath.Join(b.pins, from), filepath.Join(b.pins, to)); err != nil {
		b.t.Fatal(err)
	}
}
