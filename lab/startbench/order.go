package startbench

// Names of the stages of "Understanding Network Startup for Secure Containers in
// Multi-Tenant Clouds", Fig. 6, and Ping, which ends a start.
const (
	StageNetns  = "NetNS"    // making the network namespace
	StageAdd    = "AddCNI"   // CNI ADD
	StageCgroup = "Cgroup"   // the runtime's create
	StageAttach = "AttachIf" // the tap of a microVM
	StageStart  = "StartVM"  // the runtime's start; a microVM's boot
	StagePod    = "RunPod"   // all of these, as a CRI client sees them
	StagePing   = "Ping"     // until the peer gets an answer
)

// Stages lists the stages in order.
var Stages = []string{StageNetns, StageAdd, StageCgroup, StageAttach, StageStart, StagePod, StagePing}

// Order is the launcher's input: how to start containers. The launcher is a separate
// process, the helper "startup". It reads an Order and then Commands from standard
// input and answers each with a Report.
type Order struct {
	// Prefix begins the names of all namespaces and containers.
	Prefix string `json:"prefix"`
	// Dir has bundles, state and caches.
	Dir string `json:"dir"`
	// Launcher is direct or cri; Runtime is runc, runsc or microvm.
	Launcher string `json:"launcher"`
	Runtime  string `json:"runtime"`
	// Wrapper is a command that is run instead of the runtime and runs it, such as
	// scon-oci; "" means none. Env is its environment.
	Wrapper string   `json:"wrapper,omitempty"`
	Env     []string `json:"env,omitempty"`
	// PathGiven means that the wrapper attaches the network: the launcher makes no
	// namespace and calls no plugin.
	PathGiven bool `json:"path_given,omitempty"`
	// Networks are files of CNI lists. Containers are attached to them cyclically;
	// without any, they have no network. Plugins are the folders of plugins.
	Networks []string `json:"networks,omitempty"`
	Plugins  []string `json:"plugins,omitempty"`
	// Ping means that the network's containers answer pings.
	Ping bool `json:"ping,omitempty"`
	// Cgroup is the parent of the containers' groups; CgroupRoots are the mount
	// points of the hierarchies for microVMs.
	Cgroup      string   `json:"cgroup"`
	CgroupRoots []string `json:"cgroup_roots"`
	// Root is the containers' root file system; Kernel and Initrd boot a
	// microVM.
	Root   string `json:"root"`
	Kernel string `json:"kernel,omitempty"`
	Initrd string `json:"initrd,omitempty"`
}

// Command is a request to the launcher.
type Command struct {
	Do string `json:"do"` // DoPrepare and so on
	// Count is the number of containers, Parallel how many at a time; 0 means all.
	Count    int `json:"count,omitempty"`
	Parallel int `json:"parallel,omitempty"`
}

// Values of Command.Do. An error ends the command only.
const (
	DoPrepare = "prepare" // write the files of Count containers
	DoStart   = "start"   // start them and wait until they are up
	DoAdd     = "add"     // namespaces, ADD and DEL only
	DoClear   = "clear"   // remove all containers
)

// Report is the answer to a Command.
type Report struct {
	Error string `json:"error,omitempty"`
	// Begun is the time at which the command began. All times are nanoseconds of
	// CLOCK_MONOTONIC.
	Begun      int64       `json:"begun"`
	Containers []Container `json:"containers,omitempty"`
}

// Container is a started container.
type Container struct {
	ID     string  `json:"id"`
	Stages []Stage `json:"stages"`
}

// Stage is a stage of a container's start.
type Stage struct {
	Name  string `json:"name"`
	Begin int64  `json:"begin"`
	End   int64  `json:"end"`
}
