package startbench

// Names of stages, as the paper's Fig. 6 has them, and Ping, which ends a start.
const (
	StageNetns  = "NetNS"    // making the network namespace
	StageAdd    = "AddCNI"   // CNI ADD
	StageCgroup = "Cgroup"   // the runtime's create
	StageAttach = "AttachIf" // the tap of a microVM
	StageStart  = "StartVM"  // the runtime's start; a microVM's boot
	StagePod    = "RunPod"   // all of these, seen from a client of CRI
	StagePing   = "Ping"     // until the peer has an answer
)

// Stages in their order.
var Stages = []string{StageNetns, StageAdd, StageCgroup, StageAttach, StageStart, StagePod, StagePing}

// Order is what the launcher is told first: how it starts containers. It is a
// process of its own, the helper "startup", which reads an Order and Commands
// from standard input and answers each with a Report.
type Order struct {
	// Prefix of the names of all namespaces and containers.
	Prefix string `json:"prefix"`
	// Dir is for bundles, state and caches.
	Dir string `json:"dir"`
	// Launcher is direct or cri, Runtime runc, runsc or microvm.
	Launcher string `json:"launcher"`
	Runtime  string `json:"runtime"`
	// Wrapper is run instead of the runtime and runs it, as scon-oci does; ""
	// for none. Env is for it.
	Wrapper string   `json:"wrapper,omitempty"`
	Env     []string `json:"env,omitempty"`
	// PathGiven says that the wrapper finds the network: no namespace is made
	// and no plugin called.
	PathGiven bool `json:"path_given,omitempty"`
	// Networks are files of CNI lists, which containers are attached to in
	// turns, none for no network; Plugins are the folders of plugins.
	Networks []string `json:"networks,omitempty"`
	Plugins  []string `json:"plugins,omitempty"`
	// Ping says that the network's containers answer pings.
	Ping bool `json:"ping,omitempty"`
	// Cgroup is the parent of the containers' groups; CgroupRoots are where the
	// hierarchies are mounted that microVMs are put under.
	Cgroup      string   `json:"cgroup"`
	CgroupRoots []string `json:"cgroup_roots"`
	// Root is the containers' root file system; Kernel and Initrd boot a
	// microVM.
	Root   string `json:"root"`
	Kernel string `json:"kernel,omitempty"`
	Initrd string `json:"initrd,omitempty"`
}

// Command is one thing to do.
type Command struct {
	Do string `json:"do"` // one of the constants below
	// Count of containers, Parallel of them at a time; 0 for all.
	Count    int `json:"count,omitempty"`
	Parallel int `json:"parallel,omitempty"`
}

// What a Command can be. An error ends only the command.
const (
	DoPrepare = "prepare" // write what Count containers need
	DoStart   = "start"   // start them and wait until they are up
	DoAdd     = "add"     // only namespaces, ADD and DEL
	DoClear   = "clear"   // remove all containers
)

// Report is the answer to a Command.
type Report struct {
	Error string `json:"error,omitempty"`
	// Begun is when the command began; all times are of CLOCK_MONOTONIC, in
	// nanoseconds.
	Begun      int64       `json:"begun"`
	Containers []Container `json:"containers,omitempty"`
}

// Container is one that was started.
type Container struct {
	ID     string  `json:"id"`
	Stages []Stage `json:"stages"`
}

// Stage of a container's start.
type Stage struct {
	Name  string `json:"name"`
	Begin int64  `json:"begin"`
	End   int64  `json:"end"`
}
