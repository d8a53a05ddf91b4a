package discover

import (
	"cmp"
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Container is the container behind a port.
type Container struct {
	Name    string // namespace/pod/container; as its runtime calls it; else the namespace's; else the port's
	Pod     string // "namespace/pod" in Kubernetes, else ""
	ID      string // 64 hexadecimal digits, or LXC's name; "" if it is not known
	Runtime string // "docker", "podman", "containerd", "cri-o", "lxc", "netns"; "" if none is known
	Netns   string // path of the network namespace, "" if it was not found
	PID     int    // of a process in the container, 0 if there is none
	Origin
	// Overlays are networks of Docker Swarm whose connections of it another daemon sees.
	Overlays []Overlay
	// Labels are those of its engine; of containerd and CRI-O the annotations.
	Labels map[string]string
	// Unknown means that there is a container whose engine did not answer: its
	// name may be another one, and it may have labels.
	Unknown bool
}

// Namer identifies the containers behind ports. It is safe for concurrent use.
type Namer struct {
	at       places
	followed followed

	mu      sync.Mutex
	numbers numbering
	seen    map[int]*namespace // by the number that the calling thread's namespace gives them
	listed  pace               // of reading seen
	renewed pace               // of asking for all numbers anew
}

// pace is when something was last done, and how long that took.
type pace struct {
	end  time.Time
	took time.Duration
}

// due reports whether a tenth of the time may go into doing it again.
func (p *pace) due() bool { return time.Since(p.end) > max(fresh, 9*p.took) }

func (p *pace) do(fn func()) {
	start := time.Now()
	fn()
	p.end = time.Now()
	p.took = p.end.Sub(start)
}

// places are where to search for containers.
type places struct {
	proc       string
	netns      []string // directories with names of namespaces
	docker     string   // unix sockets of Docker's API
	podman     string
	containerd string // directory with a folder per namespace and task
}

// namedNamespaces is where ip(8) and CNI plugins keep named namespaces.
const namedNamespaces = "/run/netns"

// usualPlaces are those of this machine.
func usualPlaces() places {
	return places{
		proc:       "/proc",
		netns:      []string{namedNamespaces, "/run/docker/netns"},
		docker:     "/var/run/docker.sock",
		podman:     "/run/podman/podman.sock",
		containerd: "/run/containerd/io.containerd.runtime.v2.task",
	}
}

// NewNamer returns a namer for this machine; Close is its end.
func NewNamer() *Namer { return &Namer{at: usualPlaces()} }

// Close closes what Name has opened. No Name may run.
func (n *Namer) Close() error {
	if n.numbers.socket == nil {
		return nil
	}
	return n.numbers.socket.Close()
}

const (
	// settle is how long Name waits for a container that is about to start:
	// its port exists before its processes.
	settle = 4 * time.Second
	// firstWait is the first of the increasing pauses until then.
	firstWait = 50 * time.Millisecond
	// fresh is how old a list of all namespaces may be at least to answer again, when
	// many ports are named at a time.
	fresh = 20 * time.Millisecond
)

// Name identifies the container behind a port. It takes up to some seconds if
// it finds no container: call it in a goroutine of its own. When ctx ends, it
// returns what it knows.
func (n *Namer) Name(ctx context.Context, p Port) Container {
	for wait, end := firstWait, time.Now().Add(settle); ; wait *= 2 {
		c := n.identify(p)
		if c.Runtime != "" || time.Now().Add(wait).After(end) {
			return c
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return c
		}
	}
}

// identify returns what is known of a port now.
func (n *Namer) identify(p Port) Container {
	c := Container{Name: p.Name}
	ns := n.namespace(p.PeerNSID)
	if ns == nil {
		return c
	}
	c.Netns = ns.path
	if len(ns.pids) > 0 {
		c.PID = ns.pids[0]
	}
	groups := n.cgroups()
	for _, pid := range ns.pids {
		runtime, id := groups.containerOf(strconv.Itoa(pid))
		if id == "" {
			continue
		}
		found, by := n.ask(id)
		c = Container{
			Name:     cmp.Or(found.name, groups.monitorsName(pid, id), Short(id)),
			ID:       id,
			Runtime:  cmp.Or(by, runtime),
			Netns:    c.Netns,
			PID:      pid,
			Labels:   found.labels,
			Overlays: n.overlays(found.networks),
			Origin:   originOf(found.image, found.labels),
			Unknown:  by == "" && runtime != "lxc",
		}
		if podOf(c.Labels) != "" {
			c = n.pod(ns, c, groups)
		}
		return c
	}
	// A name that a user gave with ip(8) counts as a container's; one that a
	// CNI plugin made up does not.
	name := filepath.Base(ns.name)
	switch dir := filepath.Dir(ns.name); {
	case dir == n.at.netns[0] && !isCNIName(name), dir == n.at.netns[1] && isBalancer(name):
		c.Name, c.Runtime = name, "netns"
	}
	return c
}

// namespace returns the one with an ID, nil if none is known to have it.
func (n *Namer) namespace(nsid int) *namespace {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.numbers.socket == nil {
		socket, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
		if err != nil {
			return nil
		}
		n.numbers.socket = socket
	}
	list := func() { n.seen = n.numbers.scan(n.at) }
	if n.listed.due() {
		n.listed.do(list)
	}
	if ns := n.seen[nsid]; ns != nil && n.numbers.has(ns, nsid) {
		return ns
	}
	if !n.renewed.due() {
		return nil
	}
	n.renewed.do(func() {
		n.numbers.ids = nil
		list()
	})
	return n.seen[nsid]
}

// Short is an identifier as it is usually printed.
func Short(id string) string {
	const digits = 12
	if containerID.MatchString(id) {
		return id[:digits]
	}
	return id
}
