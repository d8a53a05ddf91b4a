// Package profile measures the time that a packet spends in each layer of its path
// ("Intelligent Packet Processing for Performant Containers in IoT", sections IV
// and VI, Fig. 4 and 13).
//
// A profile takes these steps:
//
//  1. readSpans lists the functions registered at the host's Netfilter hooks,
//     and so the places between its rules where waypoints fit.
//  2. A set of waypoints (lab/bpf/profile.bpf.c) is attached:
//     netfilter links at these places and tracepoints at the devices. Nothing
//     is pinned: the kernel removes them however this process ends.
//  3. The BPF programs follow some packets, one at a time on each CPU, and
//     report their paths: a list of steps with the time of each.
//  4. A map of the namespaces translates steps into points ("bridge received"), and
//     the stretch between two points into a layer ("bridge").
//  5. summarize selects the most frequent path, and of its packets the middle
//     half by total time. Each layer is its mean over these packets, so that
//     the layers of a path add up to its total.
//
// Lab profiles native, container and express in a lab of its own. Live profiles one
// container of this machine.
package profile

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/scon-project/scon/lab/output"
)

// Profile is the outcome of a measurement, and the content of its file. All times
// are in nanoseconds.
type Profile struct {
	Kernel  string `json:"kernel"`
	Machine string `json:"machine"`
	// Container that Live watched, "" in the lab.
	Container string `json:"container,omitempty"`
	// MessageBytes and Rounds of the lab's traffic, 0 for Live.
	MessageBytes int `json:"message_bytes,omitempty"`
	Rounds       int `json:"rounds,omitempty"`
	// Paths are the lab's modes or a container's directions.
	Paths []Path `json:"ways"`
	// Rules are the costs of the host's packet filter, the highest first.
	Rules []RuleCost `json:"rules"`
	// Cost of a waypoint, and of the whole measurement.
	Cost Cost `json:"cost"`
	// Few are the paths that are left out because too few packets took them.
	Few         []string  `json:"too_few,omitempty"`
	Errors      []string  `json:"errors"`
	Interrupted bool      `json:"interrupted"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"`
}

// Path is the most frequent path of a mode or a direction.
type Path struct {
	Name string `json:"name"`
	// Packets that were followed to the end, and the share of them, 0 to 1, that
	// took exactly this path.
	Packets int     `json:"packets"`
	Share   float64 `json:"share"`
	// TotalNS is the sum of the layers.
	TotalNS float64 `json:"total_ns"`
	// Spread is the interquartile range of the totals divided by their median.
	Spread float64 `json:"spread"`
	// EndToEndNS is the total measured with two waypoints alone, one at each end,
	// which the layers must add up to. 0 if it was not measured.
	EndToEndNS float64 `json:"end_to_end_ns,omitempty"`
	// CallNS is the processor time of the whole call that sends a message, without
	// waypoints. In addition to the layers it includes the system call, the socket
	// and waking the receiver. 0 if it was not measured.
	CallNS float64 `json:"call_ns,omitempty"`
	Layers []Layer `json:"layers"`
}

// Layer is a section of a path.
type Layer struct {
	Name string  `json:"name"`
	NS   float64 `json:"ns"`
	// Hook and Chains identify rules of the host: the hook's name, and the base
	// chains as "ip filter FORWARD".
	Hook   string   `json:"hook,omitempty"`
	Chains []string `json:"chains,omitempty"`
}

// RuleCost is the time that a packet spends in the chains at one place of a hook.
type RuleCost struct {
	Hook   string   `json:"hook"`
	Chains []string `json:"chains"`
	Path   string   `json:"way"` // the path it was measured on
	NS     float64  `json:"ns"`
	Share  float64  `json:"share"` // of the path's total
}

// Cost is the cost of measuring.
type Cost struct {
	// HookNS and TracepointNS are the waypoints' own share of the time between two
	// waypoints, which does not include their bodies. It is subtracted from the
	// layers.
	HookNS       float64 `json:"hook_ns"`
	TracepointNS float64 `json:"tracepoint_ns"`
	// PassNS is the cost of a waypoint for a packet that is not followed.
	PassNS float64 `json:"pass_ns"`
	// FollowedNS is the time by which all waypoints together delay a followed
	// packet.
	FollowedNS float64 `json:"followed_ns"`
	// Runs of waypoints, and followed packets: Begun; Ended at the end of a path
	// (the others were dropped, left to another destination or changed the CPU);
	// Lost for lack of memory.
	Runs  uint64 `json:"runs"`
	Begun uint64 `json:"begun"`
	Ended uint64 `json:"ended"`
	Lost  uint64 `json:"lost"`
	// CPUShare is the share of one CPU that the waypoints used, 0 to 1.
	CPUShare float64 `json:"cpu_share"`
	// AttachedShare is the share of the time in which the waypoints were attached,
	// 0 to 1.
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
	if p.Paths == nil {
		return nil, fmt.Errorf("read a profile from %s: it is not a result of scon profile", path)
	}
	return &p, nil
}
