// Package control is the contract between the startup service and its clients:
// JSON documents, and the HTTP routes that carry them over the service's unix
// socket.
package control

// Startup is what `scon startup status --json` prints.
type Startup struct {
	Networks []StartupNetwork `json:"networks"`
	// Stages are netns, add_cni, cgroup, attach_if and start_vm.
	Stages map[string]StartupStage `json:"stages"`
	// TimeoutMS is how long a container waits for its turn in a stage.
	TimeoutMS int64 `json:"timeout_ms"`
	// HandedOver counts pooled namespaces that containers got, InPlace the
	// others by their reason.
	HandedOver  uint64              `json:"handed_over"`
	InPlace     map[string]uint64   `json:"in_place"`
	Attachments []StartupAttachment `json:"attachments"`
}

// StartupNetwork is a network that the agent knows.
type StartupNetwork struct {
	Name      string       `json:"name"`
	Kind      string       `json:"kind"`
	Addresses int          `json:"addresses"`      // leased, those of the pool among them
	Pool      *StartupPool `json:"pool,omitempty"` // absent without one
}

// StartupPool is a pool of wired namespaces.
type StartupPool struct {
	Ready     int    `json:"ready"`
	Target    int    `json:"target"`
	Displaced int    `json:"displaced"` // empty namespaces that wait to be wired
	Taken     uint64 `json:"taken"`
	Missed    uint64 `json:"missed"` // containers that came while it was empty
	Made      uint64 `json:"made"`
	Recycled  uint64 `json:"recycled"` // of those made, out of displaced ones
	Failure   string `json:"failure,omitempty"`
	Bytes     int64  `json:"bytes"` // what those ready take of the kernel's memory, estimated
}

// StartupStage is one stage of containers' starts.
type StartupStage struct {
	Limit   int    `json:"limit"` // 0 is none
	Inside  int    `json:"inside"`
	Waiting int    `json:"waiting"`
	Late    uint64 `json:"late"` // proceeded after the timeout
	Ended   uint64 `json:"ended"`
}

// StartupAttachment is a container's device.
type StartupAttachment struct {
	Network   string   `json:"network"`
	Container string   `json:"container"` // "" after its record was lost
	IfName    string   `json:"ifname"`
	Netns     string   `json:"netns"`
	Host      string   `json:"host"` // device on the host, "" if there is none
	Addresses []string `json:"addresses"`
	Pooled    bool     `json:"pooled"`
}

// StartupEvent is one stage of one container. Times are of CLOCK_MONOTONIC.
type StartupEvent struct {
	Container string `json:"container"`
	Stage     string `json:"stage"`
	BeginNS   int64  `json:"begin_ns"`
	EndNS     int64  `json:"end_ns"`
	WaitNS    int64  `json:"wait_ns"` // of it, waiting for a turn
}

// StartupEvents are those from a number on that are still in memory.
type StartupEvents struct {
	Events []StartupEvent `json:"events"`
	Next   uint64         `json:"next"` // what to ask for next time
}

// StartupLimits are how many containers may be in a stage at a time; 0 is no
// limit.
type StartupLimits struct {
	NetNS     int   `json:"netns"`
	AddCNI    int   `json:"add_cni"`
	Cgroup    int   `json:"cgroup"`
	AttachIf  int   `json:"attach_if"`
	StartVM   int   `json:"start_vm"`
	TimeoutMS int64 `json:"timeout_ms"` // 0 leaves it as it is
}

// StartupFill asks for a pool of at least so many namespaces.
type StartupFill struct {
	Network string `json:"network"`
	Count   int    `json:"count"`
}

// OCI is what scon-oci is about to do, or has done.
type OCI struct {
	Verb    string `json:"verb"`     // create, start or delete
	Outcome string `json:"outcome"`  // "" before, "done" or "failed" after it
	ID      string `json:"id"`       // of the container
	Bundle  string `json:"bundle"`   // of create: an absolute path
	PidFile string `json:"pid_file"` // of create: where the runtime will write the container's process
	Network string `json:"network"`  // of create: for a container that names none
}
