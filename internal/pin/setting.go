package pin

import (
	"fmt"
	"strings"
)

// Kind of a setting.
type Kind string

const (
	kindIrqbalance Kind = "irqbalance" // Item: its file; the value: IRQBALANCE_ARGS
	kindGRO        Kind = "gro"        // "on" or "off"
	kindTSO        Kind = "tso"        // "on" or "off"
	kindMergeUDP   Kind = "merge-udp"  // "on" or "off"
	kindThreaded   Kind = "threaded"   // "0" or "1"
	kindThreads    Kind = "threads"    // see threadsOf
	kindIRQ        Kind = "irq"        // Item: its number; the value: a list of CPUs
	kindXPS        Kind = "xps"        // Item: the queue; the value: a list of CPUs
	kindRPS        Kind = "rps"        // Item: the queue; the value: a list of CPUs
	kindGovernor   Kind = "governor"   // Item: the CPU
	kindIdle       Kind = "idle"       // Item: the CPU and the state; "1": not used
)

// kinds are in the order in which they are applied: first those that would undo
// or prevent the others.
var kinds = []Kind{
	kindIrqbalance, kindGRO, kindTSO, kindMergeUDP, kindThreaded, kindThreads, kindIRQ, kindXPS, kindRPS, kindGovernor, kindIdle,
}

// Setting is one thing that is set.
type Setting struct {
	Kind   Kind   `json:"kind"`
	Netns  string `json:"netns,omitempty"`  // path of the device's, "" for this one
	Device string `json:"device,omitempty"` // a name, or the address of hardware
	Item   string `json:"item,omitempty"`   // what of it, by kind
	// Owner is who had the place when the plan was made: the interrupt's name,
	// the device's number. Another's place is not touched.
	Owner string `json:"owner,omitempty"`
	Now   string `json:"now"` // when the plan was made
	Want  string `json:"want"`
	Why   string `json:"why"`
}

// Place names what is set, without the value.
func (s Setting) Place() string {
	switch s.Kind {
	case kindIRQ:
		return fmt.Sprintf("irq %s (%s)", s.Item, s.Owner)
	case kindGovernor, kindIdle, kindIrqbalance:
		return fmt.Sprintf("%s %s", s.Kind, s.Item)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", s.Kind, s.Device, s.Item))
}

// threadsOf is the value of threads' places in the order of their queues, and
// their priority: "fifo 50 on 1/2/3", without "on" where they run anywhere.
func threadsOf(placed []CPUs) string {
	var lists []string
	for _, cpus := range placed {
		if cpus != nil {
			lists = append(lists, cpus.String())
		}
	}
	value := fmt.Sprintf("fifo %d", fifo)
	if len(lists) > 0 {
		value += " on " + strings.Join(lists, "/")
	}
	return value
}
