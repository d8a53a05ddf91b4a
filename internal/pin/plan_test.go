package pin

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
			} {
				p, err := New(s, o)
				if err != nil {
					t.Fatal(err)
				}
				again, err := New(s, o)
				if err != nil || !reflect.DeepEqual(p, again) {
					t.Errorf("another plan for the same snapshot: %v", cmp.Diff(p, again))
				}
				fmt.Fprintf(&b, "## %s, steer %s, power %v\n", o.Policy, o.Steer, o.Power)
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
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s differs (-want +got):\n%s", golden, diff)
			}
		})
	}
}
