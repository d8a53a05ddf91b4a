package pin

import (
	"fmt"
	"slices"
	"strings"
)

// Policy is where a device's work goes.
type Policy string

// The policies, from the least to the most that is changed.
const (
	None   Policy = "none"   // where it is
	Spread Policy = "spread" // queue after queue over all CPUs, the near ones first
	NUMA   Policy = "numa"   // all CPUs of the device's NUMA node
	Single Policy = "single" // one CPU of the device's node for everything
	Core   Policy = "core"   // a core of the device's node for each queue
)

// Policies are in the order of the list above.
var Policies = []Policy{None, Spread, NUMA, Single, Core}

// Steer is where packets are processed after the interrupt.
type Steer string

// The steering methods.
const (
	Direct   Steer = "none"     // the CPU that got the interrupt, or sent into the veth, does it all
	RPS      Steer = "rps"      // it hands them to the others of the policy
	Threaded Steer = "threaded" // threads of a real-time priority poll
)

// Steers are in the order of the list above.
var Steers = []Steer{Direct, RPS, Threaded}

// ParsePolicy finds a policy by its name.
func ParsePolicy(name string) (Policy, error) { return parse("policy", name, Policies) }

// ParseSteer finds a steering method by its name.
func ParseSteer(name string) (Steer, error) { return parse("steering method", name, Steers) }

func parse[T ~string](what, name string, all []T) (T, error) {
	if slices.Contains(all, T(name)) {
		return T(name), nil
	}
	var names []string
	for _, t := range all {
		names = append(names, string(t))
	}
	return "", fmt.Errorf("no %s %q: want %s", what, name, strings.Join(names, ", "))
}
