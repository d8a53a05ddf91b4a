package differential

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/scontest"
)

// pairs is the number of pairs of worlds that run cases concurrently: they
// mostly wait.
const pairs = 11

// variants are the settings of daemons and worlds. A case's seed selects one.
var variants = []settings{
	{lease: time.Second, leasePackets: 65536},
	{lease: 50 * time.Millisecond, leasePackets: 16, pageSlots: 4, makeup: makeup{spread: true}},
	{lease: time.Second, leasePackets: 65536, makeup: makeup{ipv6: true, spread: true}},
	{lease: 50 * time.Millisecond, leasePackets: 16, makeup: makeup{ipv6: true}},
	{lease: 50 * time.Millisecond, leasePackets: 16, makeup: makeup{bare: true}},
	{lease: time.Second, leasePackets: 65536, pageSlots: 4, makeup: makeup{ipv6: true, bare: true}},
	{lease: time.Second, leasePackets: 65536, pageSlots: 4, makeup: makeup{overlay: true}},
	{lease: 50 * time.Millisecond, leasePackets: 16, makeup: makeup{bridged: true}},
	{lease: time.Second, leasePackets: 65536, makeup: makeup{routed: true}},
	{lease: 50 * time.Millisecond, leasePackets: 16, makeup: makeup{port: true}},
	{lease: time.Second, leasePackets: 65536, makeup: makeup{ipv6: true, port: true}},
}

func variantOf(seed uint64, among []settings) int { return int(seed % uint64(len(among))) }

// Every packet has the same fate with and without SCON, and the same bytes
// where it arrives.
func TestDifferential(t *testing.T) { compareFates(t, variants, everything, *cases) }

// The same with netkit pairs as the containers' devices.
func TestDifferentialNetkit(t *testing.T) {
	scontest.NeedNetkit(t)
	with := slices.Clone(variants)
	for i := range with {
		with[i].netkit = true
	}
	compareFates(t, with, everything, *cases)
}

// The same with an IPIP device as the uplink: one with a remote end, one that sends each packet
// where its route says, as Calico has it.
func TestDifferentialIPIP(t *testing.T) {
	needIPIP(t)
	compareFates(t, overIPIP, everything, *cases)
}

// compareFates runs cases about a topic in worlds of the given variants.
func compareFates(t *testing.T, among []settings, about topic, cases int) {
	t.Helper()
	first := *seed
	if first == 0 {
		first = uint64(time.Now().Truncate(time.Hour).Unix()) * 1e6
	}
	t.Logf("%d cases from -seed %d", cases, first)
	done := make([]atomic.Uint64, len(among))
	var failed atomic.Bool
	var group errgroup.Group
	var all []*pair
	for n := range min(pairs, cases) {
		variant := variantOf(first+uint64(n), among)
		with := among[variant]
		with.leaseMax = drawLease(first, n)
		p := &pair{plain: newWorld(t, false, with), scon: newWorld(t, true, with)}
		all = append(all, p)
		t.Cleanup(func() {
			for _, l := range p.function {
				l.Close()
			}
		})
		group.Go(func() error {
			if err := pin(n); err != nil {
				return err
			}
			for !failed.Load() {
				at := (done[variant].Add(1)-1)*uint64(len(among)) + uint64(n%len(among))
				if at >= uint64(cases) {
					break
				}
				if err := p.check(generate(first+at, among, about), &failed); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	wantExpress(t, all, about)
}

// drawLease draws the longest lease of the n-th pair of worlds: as short as it may be,
// longer than a case, or the usual one.
func drawLease(first uint64, n int) time.Duration {
	leases := []time.Duration{10 * time.Millisecond, 5 * time.Second, config.Default().LeaseMax}
	return leases[rand.New(rand.NewPCG(first, uint64(n))).IntN(len(leases))]
}

// check runs a case, and shrinks it if there is a difference.
func (p *pair) check(c *Case, failed *atomic.Bool) error {
	p.cases++
	d, err := p.run(c)
	if err == nil {
		err = p.count()
	}
	if d != nil || err != nil {
		failed.Store(true) // one difference is enough
	}
	first := d
	if d != nil {
		c, d, err = p.shrink(c, d)
	}
	if err != nil {
		return fmt.Errorf("%w\n%v", err, c)
	}
	if d != nil && d.what != first.what {
		return fmt.Errorf("%v\nin the shrunk case of %v\nbefore it was shrunk: %v", d, c, first)
	}
	if d != nil {
		return fmt.Errorf("%v\nin the shrunk case of %v", d, c)
	}
	return nil
}

// wantExpress checks the share of express packets in the worlds of each makeup, and in all.
func wantExpress(t *testing.T, all []*pair, about topic) {
	t.Helper()
	cases := make(map[makeup][]share)
	var ofAll []share
	for _, p := range all {
		cases[p.scon.makeup] = append(cases[p.scon.makeup], p.shares...)
		ofAll = append(ofAll, p.shares...)
	}
	for f, list := range cases {
		got, deviation := shareOf(list)
		t.Logf("%+v: %.3f of the packets of %d cases went express, standard error %.3f", f, got, len(list), deviation)
		if tooFew(list, about.leastExpress) {
			t.Errorf("%+v: only %.3f of the packets of %d cases went express, standard error %.3f", f, got, len(list), deviation)
		}
	}
	if tooFew(ofAll, about.leastOfAll) {
		got, deviation := shareOf(ofAll)
		t.Errorf("only %.3f of the packets of all cases went express, standard error %.3f", got, deviation)
	}
}

// pin binds the calling goroutine to one CPU, so that its packets are not
// reordered. Its thread ends with it.
func pin(n int) error {
	runtime.LockOSThread()
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("list the CPUs: %w", err)
	}
	var list []int
	for cpu := 0; len(list) < cpus.Count(); cpu++ {
		if cpus.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	cpus.Zero()
	cpus.Set(list[n%len(list)])
	if err := unix.SchedSetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("pin to a CPU: %w", err)
	}
	return nil
}
