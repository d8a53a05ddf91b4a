// Package profile measures where the time of a packet's way goes, layer by
// layer (the paper's Fig. 4 and 13).
//
// The way of a profile:
//
//  1. readSpans lists what is registered at Netfilter's hooks of the host, and
//     so where waypoints can stand between its rules.
//  2. A set of waypoints (internal/lab/bpf/profile.bpf.c) is attached: netfilter links at
//     these places and tracepoints at the devices. Nothing is pinned: however
//     this process ends, the kernel removes them.
//  3. The kernel side follows some packets, one at a time on each CPU, and
//     hands over their ways: a list of steps with the time at each.
//  4. A map of the namespaces turns steps into points ("bridge received"), and
//     the stretch between two points into a layer ("bridge").
//  5. summarize takes the ways that most packets go, and of these the middle
//     half by their total time; each layer is its mean over them. So the layers
//     of a way add up to its total.
//
// Lab profiles native, container and express in a lab of its own, Live one
// container of this machine.
package profile

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/scon-project/scon/internal/lab/output"
)

// Profile is what was measured, and the file that it writes. All times are in
// nanoseconds.
type Profile struct {
	Kernel  string `json:"kernel"`
	Machine string `json:"machine"`
	// Container is the one that Live watched, "" in the lab.
	Container string `json:"container,omitempty"`
	// MessageBytes and Rounds of the lab's traffic, 0 for Live.
	MessageBytes int `json:"message_bytes,omitempty"`
	Rounds       int `json:"rounds,omitempty"`
	// Ways side by side: the lab's modes, or a container's directions.
	Ways []Way `json:"ways"`
	// Rules are what the packet filter of the host costs, the dearest first.
	Rules []RuleCost `json:"rules"`
	// Cost of a waypoint, and of the whole measurement.
	Cost        Cost      `json:"cost"`
	Errors      []string  `json:"errors"`
	Interrupted bool      `json:"interrupted"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"`
}

// Way is what most packets of a mode or a direction have in common.
type Way struct {
	Name string `json:"name"`
	// Packets that were followed to the end, and the share of them, 0 to 1,
	// that went exactly this way.
	Packets int     `json:"packets"`
	Share   float64 `json:"share"`
	// TotalNS is the sum of the layers.
	TotalNS float64 `json:"total_ns"`
	// Spread is the distance of the quartiles of the totals over their median.
	Spread float64 `json:"spread"`
	// EndToEndNS is the same by two waypoints alone, one at either end: what
	// the layers have to add up to. 0 where it was not measured.
	EndToEndNS float64 `json:"end_to_end_ns,omitempty"`
	// CallNS is the processor time of the whole call that sends a message,
	// without any waypoint: what the layers leave to the system call, the
	// socket and waking the receiver is in it. 0 where it was not measured.
	CallNS float64 `json:"call_ns,omitempty"`
	Layers []Layer `json:"layers"`
}

// Layer is a stretch of a way.
type Layer struct {
	Name string  `json:"name"`
	NS   float64 `json:"ns"`
	// Hook and Chains say which rules of the host it is: the hook's name, and
	// the base chains as "ip filter FORWARD".
	Hook   string   `json:"hook,omitempty"`
	Chains []string `json:"chains,omitempty"`
}

// RuleCost is what a packet spends in chains that stand at one place of a hook.
type RuleCost struct {
	Hook   string   `json:"hook"`
	Chains []string `json:"chains"`
	Way    string   `json:"way"` // where it was measured
	NS     float64  `json:"ns"`
	Share  float64  `json:"share"` // of the way's total
}

// Cost is what measuring costs.
type Cost struct {
	// HookNS and TracepointNS of the time between two waypoints are the
	// waypoints' own, although each leaves out its body. Layers are less this.
	HookNS       float64 `json:"hook_ns"`
	TracepointNS float64 `json:"tracepoint_ns"`
	// PassNS is what a waypoint costs a packet that is not followed.
	PassNS float64 `json:"pass_ns"`
	// FollowedNS is what a followed packet is held up by, all waypoints
	// together.
	FollowedNS float64 `json:"followed_ns"`
	// Runs of waypoints, and of what was followed: Begun, and Ended where a
	// way ends (others were dropped, went elsewhere or changed the CPU), Lost
	// for want of memory.
	Runs  uint64 `json:"runs"`
	Begun uint64 `json:"begun"`
	Ended uint64 `json:"ended"`
	Lost  uint64 `json:"lost"`
	// CPUShare is the part of one CPU that the waypoints took, 0 to 1.
	CPUShare float64 `json:"cpu_share"`
	// AttachedShare of the time the waypoints were there, 0 to 1.
	AttachedShare float64 `json:"attached_share"`
}

// WriteFile writes the profile as JSON.
func (p *Profile) WriteFile(path string) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	return output.Write(path, append(text, '\n'))
}

// ReadFile reads a profile that WriteFile wrote.
func ReadFile(path string) (*Profile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a profile: %w", err)
	}
	var p Profile
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("read a profile from %s: %w", path, err)
	}
	if p.Ways == nil {
		return nil, fmt.Errorf("read a profile from %s: it is none of scon profile", path)
	}
	return &p, nil
}
