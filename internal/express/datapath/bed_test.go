package datapath_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

const (
	connections = 64
	admit       = 4
	// leasePackets is short, so that a lease can end by packets.
	leasePackets = 200
)

// bed is what most tests here lie in: a namespace with two pairs of devices,
// and the programs loaded. Nothing forwards: tests play the regular path.
//
//	inside ==== port   [SCON]   wire ==== outside
type bed struct {
	*datapath.Datapath
	t          testing.TB
	ns         string
	pins       string
	port, wire int // ifindex
	table      *contable.Table
}

func newBed(t testing.TB) *bed {
	t.Helper()
	return newBedWith(t, func(*datapath.Options) {})
}

func newBedWith(t testing.TB, change func(*datapath.Options)) *bed {
	t.Helper()
	b := &bed{t: t, ns: nstest.New(t), pins: pinDir(t)}
	b.port = addPair(t, b.ns, "port", "inside")
	b.wire = addPair(t, b.ns, "wire", "outside")
	o := options(b.pins)
	change(&o)
	b.Datapath = load(t, b.ns, o)
	for dev, how := range map[int]datapath.Delivery{b.port: {MAC: containerMAC}, b.wire: {}} {
		if err := b.Track(dev, how); err != nil {
			t.Fatal(err)
		}
	}
	b.newTable()
	return b
}

// lease does not end on a slow machine.
const lease = 10 * time.Minute

// newTable makes the daemon's side of the table.
func (b *bed) newTable() {
	b.t.Helper()
	var err error
	b.table, err = contable.New(b.Memory(), contable.Options{Connections: connections, PerContainer: connections, Lease: lease, Grace: b.Grace(), Tick: b.Tick()})
	if err != nil {
		b.t.Fatal(err)
	}
}

// release waits until slots that were closed are empty.
func (b *bed) release() {
	b.t.Helper()
	for until := b.Grace().Next(); b.Grace().Over() < until; {
		time.Sleep(time.Millisecond)
	}
	b.table.Release()
}

// options have a lease that does not end on a slow machine.
func options(pinDir string) datapath.Options {
	return datapath.Options{
		PinDir: pinDir, Connections: connections, Admit: admit,
		LeasePackets: leasePackets,
	}
}

// load loads the programs in a namespace until the test ends.
func load(t testing.TB, ns string, o datapath.Options) (d *datapath.Datapath) {
	t.Helper()
	nstest.Do(t, ns, func() {
		var err error
		if d, err = datapath.Load(o); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("closing the datapath: %v", err)
		}
	})
	return d
}

// pinDir returns a directory, not made yet, on a bpffs of the test's own.
func pinDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	mounted, err := datapath.MountBPFFS(dir)
	if err != nil || !mounted {
		t.Fatalf("MountBPFFS(%s) = %v, %v", dir, mounted, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting the bpffs: %v", err)
		}
	})
	return filepath.Join(dir, "scon")
}

// addPair makes a pair of devices, on which the kernel sends nothing of its own, and
// returns the first one's ifindex. That one comes up last, so that it can send at once.
func addPair(t testing.TB, ns, name, peer string) int {
	t.Helper()
	nstest.Run(t, ns, "ip link add "+name+" type veth peer name "+peer+`
		ip link set `+peer+` addrgenmode none
		ip link set `+name+` addrgenmode none
		ip link set `+peer+` up
		ip link set `+name+` up`)
	return indexOf(t, ns, name)
}

func indexOf(t testing.TB, ns, dev string) (index int) {
	t.Helper()
	nstest.Do(t, ns, func() {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		index = iface.Index
	})
	return index
}

// nextTick returns in a later jiffy than it was called in: a new decision is
// used only from then on.
func (b *bed) nextTick() {
	b.t.Helper()
	now := b.jiffies()
	for b.jiffies() == now {
		time.Sleep(b.Tick() / 2)
	}
}

// jiffies shows a sign of life, and returns the current jiffy, low 32 bits.
func (b *bed) jiffies() uint32 {
	b.t.Helper()
	if err := b.Beat(); err != nil {
		b.t.Fatal(err)
	}
	return uint32(b.Settings().Heartbeat)
}

// half returns the half of a connection whose packets enter as f, from the
// container behind port or, with port 0, from the wire.
func (b *bed) half(f frame, port int) *datapath.Half {
	b.t.Helper()
	key := b.table.KeyOf(f.tuple(), port)
	for i := range b.Memory().Halves[0] {
		h := &b.Memory().Halves[0][i]
		if h.State != datapath.SlotEmpty && h.Key.Addrs == key.Addrs && h.Key.Ports == key.Ports && h.Key.Side == key.Side {
			return h
		}
	}
	b.t.Fatalf("no half for %v", f.tuple())
	return nil
}

// events returns what the programs have reported since it was last called.
func (b *bed) events() (all []datapath.Event) {
	b.t.Helper()
	for {
		e, ok, err := b.NextEvent()
		if err != nil {
			b.t.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, e)
	}
}
