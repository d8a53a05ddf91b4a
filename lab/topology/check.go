package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/suggest"
)

// maxInterface is the maximum length of an interface name. With a VLAN the limit is
// lower, since the device below gets a name that is derived from it.
const (
	maxInterface = 15
	maxOnVLAN    = maxInterface - len(belowVLAN)
)

// belowVLAN is the prefix of the name of a VLAN's lower device.
const belowVLAN = "vf-"

// checker collects the problems that the schema cannot express.
type checker struct {
	*Topology
	problems []problem
	taken    map[string]bool // links' ends by NODE:INTERFACE
	given    map[netip.Addr]End
	moved    map[string]bool // devices of the host that a link takes
}

// check finds errors that make the topology impossible to build, and completes the
// flows' paths.
func (t *Topology) check() []problem {
	c := &checker{Topology: t, taken: map[string]bool{}, given: map[netip.Addr]End{}, moved: map[string]bool{}}
	for i, l := range t.Links {
		path := []string{"topology", "links", strconv.Itoa(i)}
		c.link(l, path)
		for j, e := range l.Ends {
			place := append(slices.Clone(path), "endpoint")
			if len(l.Ends) == 2 {
				place = append(slices.Clone(path), "endpoints", strconv.Itoa(j))
			}
			c.end(l, e, place)
		}
	}
	if len(c.problems) == 0 { // paths need valid links
		c.flows()
	}
	return c.problems
}

func (c *checker) refuse(path []string, format string, args ...any) {
	c.problems = append(c.problems, problem{slices.Clone(path), fmt.Sprintf(format, args...)})
}

func (c *checker) link(l Link, path []string) {
	switch {
	case l.Type == Veth && len(l.Ends) == 1:
		c.refuse(path, "is a veth with one endpoint: want two")
	case l.Delay > maxDelay || l.Delay > 0 && l.Delay < minDelay:
		c.refuse(append(path, "delay"), "is %v: want %v to %v", l.Delay, minDelay, maxDelay)
	case l.Jitter > l.Delay:
		c.refuse(append(path, "jitter"), "is %v: want at most the delay, %v", l.Jitter, l.Delay)
	case len(l.Ends) == 2 && l.Ends[0].IPv4.IsValid() != l.Ends[1].IPv4.IsValid():
		c.refuse(path, "has an ipv4 at one of two endpoints: want both or none")
	case len(l.Ends) == 2 && l.Ends[0].IPv4.IsValid() && l.Ends[0].IPv4.Masked() != l.Ends[1].IPv4.Masked():
		c.refuse(path, "joins %v and %v: want addresses of one network", l.Ends[0].IPv4, l.Ends[1].IPv4)
	}
}

func (c *checker) end(l Link, e End, path []string) {
	if c.index(e.Node) < 0 {
		var names []string
		for _, n := range c.Nodes {
			names = append(names, n.Name)
		}
		c.refuse(path, "is on %q, which is no node%s", e.Node, suggest.Hint(e.Node, names))
	}
	longest := maxInterface
	if l.VLAN > 0 {
		longest = maxOnVLAN
	}
	if !validInterface(e.Interface, longest) {
		c.refuse(path, "has interface %q: want 1 to %d bytes without '/', '%%' and blanks, not lo", e.Interface, longest)
	}
	if name := e.Node + ":" + e.Interface; c.taken[name] {
		c.refuse(path, "is %s, which another link has already", name)
	} else {
		c.taken[name] = true
	}
	if addr := e.IPv4.Addr(); addr.IsValid() {
		if other, taken := c.given[addr]; taken {
			c.refuse(path, "has %v, which %s:%s has already", addr, other.Node, other.Interface)
		}
		c.given[addr] = e
	}
	c.host(l, e, path)
}

// host checks the device of the host that an end takes.
func (c *checker) host(l Link, e End, path []string) {
	device := e.Host
	switch {
	case l.Type == Veth && (e.Host != "" || e.VF != noVF):
		c.refuse(path, "of a veth has host-interface or vf, which it does not need")
		return
	case l.Type != Veth && e.Host == "":
		c.refuse(path, "lacks host-interface, which type %s needs", l.Type)
		return
	case l.Type == SRIOV && e.VF == noVF:
		c.refuse(path, "lacks vf, the number of a virtual function of %s", e.Host)
		return
	case l.Type != SRIOV && e.VF != noVF:
		c.refuse(path, "has vf, which is for type sriov")
		return
	case l.Type == SRIOV:
		device = fmt.Sprintf("VF %d of %s", e.VF, e.Host)
	case l.Type != HostDevice:
		return // macvlans share their parent
	}
	if c.moved[device] {
		c.refuse(path, "takes %s, which another link has already", device)
	}
	c.moved[device] = true
}

// flows checks and completes the flows' paths.
func (c *checker) flows() {
	ports, graph := map[uint16]bool{}, c.graph()
	for i, f := range c.Flows {
		at := []string{"flows", strconv.Itoa(i)}
		if ports[f.Port] {
			c.refuse(append(at, "port"), "is %d, which another flow has already", f.Port)
		}
		ports[f.Port] = true
		at = append(at, "path")
		known := true
		for _, node := range f.Path {
			if c.index(node) < 0 {
				c.refuse(at, "leads to %q, which is no node", node)
				known = false
			}
		}
		if !known {
			continue
		}
		path, err := graph.expand(f.Path)
		if err != nil {
			c.refuse(at, "%v", err)
			continue
		}
		c.Flows[i].Path = path
	}
}

// validInterface is the kernel's dev_valid_name, with a maximum length. It refuses
// '%', which the kernel replaces by a number.
func validInterface(name string, longest int) bool {
	return name != "" && len(name) <= longest && name != "lo" && name != "." && name != ".." &&
		!strings.ContainsAny(name, "/:% \t\n\v\f\r\x00")
}
