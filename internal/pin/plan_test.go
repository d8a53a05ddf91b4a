package pin

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/check"
)

var update = flag.Bool("update", false, "write testdata/*.plan anew")

// Every policy on every machine, with the reason for each line.
func TestPlans(t *testing.T) {
	for _, name := range fixtures {
		t.Run(name, func(t *testing.T) {
			s := capture(t, fixture(t, name))
			var b strings.Builder
			for _, o := range []Options{
				{Policy: None, Steer: Direct},
				{Policy: Spread, Steer: Direct},
				{Policy: NUMA, Steer: Direct},
				{Policy: Single, Steer: Direct},
				{Policy: Core, Steer: Direct},
				{Policy: Single, Steer: RPS},
				{Policy: Core, Steer: Threaded, Power: true},
				{Policy: None, Steer: Direct, MergeUDP: true},
			} {
				p, err := New(s, o)
				if err != nil {
					t.Fatal(err)
				}
				again, err := New(s, o)
				if err != nil || !reflect.DeepEqual(p, again) {
					t.Errorf("another plan for the same snapshot: %v", check.Diff(p, again))
				}
				fmt.Fprintf(&b, "## %s\n", o.Name())
				for _, set := range p.Settings {
					place := set.Place()
					if set.Netns != "" {
						place = set.Netns + " " + place
					}
					fmt.Fprintf(&b, "%s: %q -> %q: %s\n", place, set.Now, set.Want, set.Why)
				}
				for _, note := range p.Notes {
					fmt.Fprintf(&b, "note: %s\n", note)
				}
			}
			golden := "testdata/" + name + ".plan"
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := check.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s differs (-want +got):\n%s", golden, diff)
			}
		})
	}
}

// wanted are the CPUs that a plan gives interrupts.
func wanted(t testing.TB, s Snapshot, o Options) (all CPUs, notes string) {
	t.Helper()
	p, err := New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range p.Settings {
		if set.Kind != kindIRQ {
			continue
		}
		cpus, err := parseList(set.Want)
		if err != nil {
			t.Fatal(err)
		}
		all = newCPUs(append(all, cpus...)...)
	}
	return all, strings.Join(p.Notes, "\n")
}

// CPUs that were taken from the scheduler or the tick, and those that containers
// have to themselves, get nothing under any policy; when there are no others
// they do, and the plan says so.
func TestTakenCPUs(t *testing.T) {
	whole := capture(t, fixture(t, "twosocket"))
	for _, policy := range Policies[1:] {
		for name, take := range map[string]func(s *Snapshot, taken CPUs){
			"isolcpus":  func(s *Snapshot, taken CPUs) { s.Isolated = taken },
			"nohz_full": func(s *Snapshot, taken CPUs) { s.NohzFull = taken },
			"cpuset":    func(s *Snapshot, taken CPUs) { s.Containers = []Container{{Netns: "c", CPUs: taken}} },
		} {
			s := whole
			taken := newCPUs(0, 16, 17, 18, 19, 20, 48, 49, 50)
			take(&s, taken)
			all, notes := wanted(t, s, Options{Policy: policy, Steer: Direct})
			if hit := all.and(taken); len(all) == 0 || len(hit) > 0 {
				t.Errorf("%s, %s: work on %v", policy, name, hit)
			}
			if !strings.Contains(notes, name) {
				t.Errorf("%s, %s: the plan does not say so: %s", policy, name, notes)
			}
			take(&s, s.online())
			all, notes = wanted(t, s, Options{Policy: policy, Steer: Direct})
			if len(all) == 0 || !strings.Contains(notes, "are all the CPUs that are left") {
				t.Errorf("%s, all in %s: work on %v: %s", policy, name, all, notes)
			}
			// A node without any: the others do its work.
			take(&s, s.node(1))
			all, notes = wanted(t, s, Options{Policy: policy, Steer: Direct})
			if hit := all.and(s.node(1)); len(all) == 0 || len(hit) > 0 || !strings.Contains(notes, "has no CPU that may be used") {
				t.Errorf("%s, node 1 in %s: work on %v: %s", policy, name, hit, notes)
			}
		}
	}
}

// Under core each queue of the paper's line of three has a core of its card's
// node to itself.
func TestCoreOfPaper(t *testing.T) {
	s := capture(t, fixture(t, "epyc"))
	p, err := New(s, Options{Policy: Core, Steer: Direct})
	if err != nil {
		t.Fatal(err)
	}
	queues := make(map[string]string)
	for _, set := range p.Settings {
		if set.Kind != kindIRQ || !queueNumber.MatchString(set.Owner) {
			continue
		}
		cpus, err := parseList(set.Want)
		if err != nil || len(cpus) != 1 {
			t.Fatalf("%s on %q, %v", set.Place(), set.Want, err)
		}
		if other, taken := queues[set.Want]; taken {
			t.Errorf("CPU %s has %s and %s", set.Want, other, set.Place())
		}
		queues[set.Want] = set.Place()
		if node := s.cpu(cpus[0]).Node; node != 1 && node != 3 {
			t.Errorf("%s is at node %d", set.Place(), node)
		}
	}
	if len(queues) != 14 {
		t.Errorf("%d queues, want those of 4 ports and 10 functions", len(queues))
	}
}

func TestNoSuchDevice(t *testing.T) {
	_, err := New(capture(t, fixture(t, "vm")), Options{Policy: Core, Devices: []string{"eth9"}})
	if !errors.Is(err, ErrNoDevice) {
		t.Errorf("got %v", err)
	}
}
