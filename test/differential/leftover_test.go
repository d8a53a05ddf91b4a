package differential

import (
	"maps"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// TestStateOfRules holds that a routing rule that a case has left over is noticed by what it
// does, too.
func TestStateOfRules(t *testing.T) {
	ns := nstest.New(t)
	seen := make([]state, 2)
	for i, does := range []string{"blackhole", "prohibit"} {
		nstest.Run(t, ns, "ip rule add priority 51 from 172.17.0.2 "+does)
		seen[i] = make(state)
		nstest.Do(t, ns, func() {
			if err := seen[i].addRules(unix.AF_INET); err != nil {
				t.Fatal(err)
			}
		})
		nstest.Run(t, ns, "ip rule del priority 51")
	}
	if len(seen[0]) == 0 || maps.Equal(seen[0], seen[1]) {
		t.Errorf("%v and %v", seen[0], seen[1])
	}
}
