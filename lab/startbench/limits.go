package startbench

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/suggest"
)

// Limits are the maximum numbers of containers in a stage at a time, by the stage's
// name in the settings: add_cni, cgroup and start_vm. A launcher without an engine
// gets admission to them from the agent. 0 means no limit.
type Limits map[string]int

// LimitNames in the order of the stages.
var LimitNames = []string{"add_cni", "cgroup", "start_vm"}

// mostInStage is the largest limit that the agent accepts.
const mostInStage = 4096

// DefaultLimits are four for each CPU in every stage.
func DefaultLimits() Limits {
	l := Limits{}
	for _, name := range LimitNames {
		l[name] = 4 * runtime.NumCPU()
	}
	return l
}

// Check refuses unknown stages and values out of range.
func (l Limits) Check() error {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if !slices.Contains(LimitNames, name) {
			return fmt.Errorf("no stage %q%s", name, suggest.Hint(name, LimitNames))
		}
		if l[name] < 0 || l[name] > mostInStage {
			return fmt.Errorf("%s=%d: want 0 (no limit) to %d containers", name, l[name], mostInStage)
		}
	}
	return nil
}

func (l Limits) String() string {
	var words []string
	for _, name := range LimitNames {
		words = append(words, fmt.Sprintf("%s=%d", name, l[name]))
	}
	return strings.Join(words, " ")
}

// settings returns the agent's settings. The timeout is so long that no container
// proceeds without admission.
func (l Limits) settings() object {
	all := object{"timeout": "20s"}
	for name, n := range l {
		all[name] = n
	}
	return all
}

// set sets the limits of a running agent.
func (l Limits) set(a *agent) error {
	return a.client.SetStartupLimits(control.StartupLimits{
		AddCNI: l["add_cni"], Cgroup: l["cgroup"], StartVM: l["start_vm"], TimeoutMS: 20_000,
	})
}
