// Package control defines the interface between the startup service and its clients:
// JSON documents, and HTTP routes on the service's unix socket.
package control

// Startup is the output of `scon startup status --json`.
type Startup struct {
	Networks []StartupNetwork `json:"networks"` // those that it serves
	// Stages by name: netns, add_cni, cgroup, attach_if and start_vm.
	Stages map[string]StartupStage `json:"stages"`
	// TimeoutMS is how long a container waits for admission to a stage.
	TimeoutMS   int64               `json:"timeout_ms"`
	HandedOver  uint64              `json:"handed_over"` // containers with a pooled namespace
	InPlace     map[string]uint64   `json:"in_place"`    // devices that were made without the pool, by reason
	Attachments []StartupAttachment `json:"attachments"` // containers with a network of it
}

// StartupNetwork is a network that the agent knows.
type StartupNetwork struct {
	Name      string       `json:"name"`           // of the network
	Kind      string       `json:"kind"`           // of its devices
	Addresses int          `json:"addresses"`      // leased, including those of the pool
	Pool      *StartupPool `json:"pool,omitempty"` // absent without a pool
}

// StartupPool is a pool of prepared namespaces.
type StartupPool struct {
	Ready   int    `json:"ready"`             // namespaces that are wired
	Target  int    `json:"target"`            // how many shall be
	Taken   uint64 `json:"taken"`             // namespaces given to containers
	Missed  uint64 `json:"missed"`            // containers that came while it was empty
	Made    uint64 `json:"made"`              // namespaces wired
	Failure string `json:"failure,omitempty"` // the latest error of wiring
	Bytes   int64  `json:"bytes"`             // kernel memory of the ready ones, estimated
}

// StartupStage is one stage of containers' starts.
type StartupStage struct {
	Limit   int    `json:"limit"`   // 0 is no limit
	Inside  int    `json:"inside"`  // containers in the stage
	Waiting int    `json:"waiting"` // containers that wait for it
	Late    uint64 `json:"late"`    // admitted by the timeout
	Ended   uint64 `json:"ended"`   // containers that have left it
}

// StartupAttachment is a container's device.
type StartupAttachment struct {
	Network   string   `json:"network"`   // name of the network
	Container string   `json:"container"` // "" after its record was lost
	IfName    string   `json:"ifname"`    // device in the container
	Netns     string   `json:"netns"`     // path of the container's namespace
	Host      string   `json:"host"`      // device on the host, "" if there is none
	Addresses []string `json:"addresses"` // with prefix lengths
	Pooled    bool     `json:"pooled"`    // whether its device came from the pool
}

// StartupEvent is one stage of one container. Times are of CLOCK_MONOTONIC.
type StartupEvent struct {
	Container string `json:"container"`
	Stage     string `json:"stage"`
	BeginNS   int64  `json:"begin_ns"`
	EndNS     int64  `json:"end_ns"`
	WaitNS    int64  `json:"wait_ns"` // of it, waiting for admission
}

// StartupEvents are the events from a number on that are still in memory.
type StartupEvents struct {
	Events []StartupEvent `json:"events"`
	Next   uint64         `json:"next"` // the number for the next request
}

// StartupLimits are the numbers of containers that may be in a stage at a time; 0 is no
// limit.
type StartupLimits struct {
	NetNS     int   `json:"netns"`
	AddCNI    int   `json:"add_cni"`
	Cgroup    int   `json:"cgroup"`
	AttachIf  int   `json:"attach_if"`
	StartVM   int   `json:"start_vm"`
	TimeoutMS int64 `json:"timeout_ms"` // 0 leaves it unchanged
}

// StartupFill requests a pool with at least Count ready namespaces.
type StartupFill struct {
	Network string `json:"network"`
	Count   int    `json:"count"`
}

// OCI is a verb that scon-oci is about to execute, or has executed.
type OCI struct {
	Verb    string `json:"verb"`     // create, start or delete
	Outcome string `json:"outcome"`  // "" before, "done" or "failed" after it
	ID      string `json:"id"`       // of the container
	Bundle  string `json:"bundle"`   // of create: an absolute path
	PidFile string `json:"pid_file"` // of create: where the runtime will write the container's process
	Network string `json:"network"`  // of create: the network of a container that names none
	PID     int    `json:"-"`        // of scon-oci, 0 if unknown
}
