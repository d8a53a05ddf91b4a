package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxSize is the maximum size of the file in bytes.
const maxSize = 1 << 20

// Load reads a file. Each error begins with FILE:LINE:COLUMN and the field.
func Load(path string) (*Topology, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the topology: %w", err)
	}
	defer f.Close()
	return Read(path, f)
}

// Read is Load for an open file; errors begin with name.
func Read(name string, r io.Reader) (*Topology, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read the topology %s: %w", name, err)
	}
	if len(content) > maxSize {
		return nil, fmt.Errorf("%s: is larger than %d bytes: this is no topology", name, maxSize)
	}
	doc, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	problems := doc.validate()
	var t *Topology
	if len(problems) == 0 {
		if t, err = doc.decode(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		problems = doc.problems
	}
	if len(problems) == 0 {
		problems = t.check()
	}
	if len(problems) > 0 {
		return nil, doc.report(name, problems)
	}
	t.number()
	return t, nil
}

// problem is an error in a field.
type problem struct {
	path []string // keys and indices from the root
	what string
}

// report formats the problems with their positions, in the file's order.
func (d *document) report(name string, problems []problem) error {
	slices.SortStableFunc(problems, func(a, b problem) int { return d.place(a.path).compare(d.place(b.path)) })
	var errs []error
	for _, p := range problems {
		at := d.place(p.path)
		errs = append(errs, fmt.Errorf("%s:%d:%d: %s%s", name, at.line, at.column, field(p.path), p.what))
	}
	return errors.Join(errs...)
}

// field formats a path: "topology.links[2].delay ".
func field(path []string) string {
	if len(path) == 0 {
		return ""
	}
	var b strings.Builder
	for i, step := range path {
		if _, err := strconv.Atoi(step); err == nil && i > 0 && (path[i-1] == "links" || path[i-1] == "endpoints" || path[i-1] == "flows" || path[i-1] == "path") {
			fmt.Fprintf(&b, "[%s]", step)
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(step)
	}
	return b.String() + " "
}

// The file's fields, validated by the schema.
type (
	file struct {
		Name     string `json:"name"`
		Topology struct {
			Nodes map[string]fileNode `json:"nodes"`
			Links []fileLink          `json:"links"`
		} `json:"topology"`
		Flows []Flow `json:"flows"`
	}
	fileNode struct {
		Kind  string          `json:"kind"`
		Image string          `json:"image"`
		Cmd   string          `json:"cmd"`
		CPUs  json.RawMessage `json:"cpu-set"`
	}
	fileLink struct {
		Type      string    `json:"type"`
		Endpoints []fileEnd `json:"endpoints"`
		Endpoint  *fileEnd  `json:"endpoint"`
		Host      string    `json:"host-interface"`
		Mode      string    `json:"mode"`
		VLAN      int       `json:"vlan"`
		MTU       int       `json:"mtu"`
		Delay     string    `json:"delay"`
		Jitter    string    `json:"jitter"`
		Loss      float64   `json:"loss"`
	}
	fileEnd struct {
		Node      string `json:"node"`
		Interface string `json:"interface"`
		IPv4      string `json:"ipv4"`
		Host      string `json:"host-interface"`
		VF        *int   `json:"vf"`
	}
)

// UnmarshalJSON also accepts NODE:INTERFACE.
func (e *fileEnd) UnmarshalJSON(text []byte) error {
	var short string
	if json.Unmarshal(text, &short) == nil {
		e.Node, e.Interface, _ = strings.Cut(short, ":")
		return nil
	}
	type fields fileEnd
	return json.Unmarshal(text, (*fields)(e))
}

// decode converts a file that the schema has accepted to a topology. It records
// invalid values as problems.
func (d *document) decode() (*Topology, error) {
	text, err := json.Marshal(d.value)
	if err != nil {
		return nil, fmt.Errorf("read the fields: %w", err)
	}
	var f file
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&f); err != nil {
		return nil, fmt.Errorf("read the fields: %w", err)
	}
	t := &Topology{Name: f.Name, Flows: f.Flows}
	for _, name := range d.keys("topology", "nodes") {
		n := f.Topology.Nodes[name]
		node := Node{Name: name, Kind: n.Kind, Image: n.Image, Cmd: n.Cmd}
		if node.Kind == "" {
			node.Kind = Netns
		}
		if n.CPUs != nil {
			list := strings.Trim(string(n.CPUs), `"`)
			if node.CPUs, err = parseCPUs(list); err != nil {
				d.refuse(err, "topology", "nodes", name, "cpu-set")
			}
		}
		t.Nodes = append(t.Nodes, node)
	}
	for i, l := range f.Topology.Links {
		t.Links = append(t.Links, d.link(l, "topology", "links", strconv.Itoa(i)))
	}
	return t, nil
}

// link reads a link; path is the link's path.
func (d *document) link(f fileLink, path ...string) Link {
	l := Link{Type: f.Type, Mode: f.Mode, VLAN: f.VLAN, MTU: f.MTU, Loss: f.Loss}
	if l.Type == "" {
		l.Type = Veth
	}
	duration := func(key, text string) (v time.Duration) {
		if text == "" {
			return 0
		}
		v, err := time.ParseDuration(text)
		if err != nil || v < 0 {
			d.refuse(fmt.Errorf("is %q: want %s", text, wantTime), append(path, key)...)
		}
		return v
	}
	l.Delay, l.Jitter = duration("delay", f.Delay), duration("jitter", f.Jitter)
	switch {
	case f.Endpoint != nil && f.Endpoints != nil:
		d.refuse(errors.New("has endpoint and endpoints: want one of them"), path...)
	case f.Endpoint != nil:
		l.Ends = append(l.Ends, d.end(*f.Endpoint, f.Host, append(path, "endpoint")...))
	case f.Endpoints == nil:
		d.refuse(errors.New(`lacks endpoints: want two such as "a:eth1", or endpoint where the other end is outside`), path...)
	}
	for i, e := range f.Endpoints {
		l.Ends = append(l.Ends, d.end(e, f.Host, append(path, "endpoints", strconv.Itoa(i))...))
	}
	return l
}

// end reads an endpoint; path is the endpoint's path, host the link's device of the
// host.
func (d *document) end(f fileEnd, host string, path ...string) End {
	e := End{Node: f.Node, Interface: f.Interface, Host: f.Host, VF: noVF}
	if e.Host == "" {
		e.Host = host
	}
	if f.VF != nil {
		e.VF = *f.VF
	}
	if f.IPv4 != "" {
		var err error
		switch e.IPv4, err = netip.ParsePrefix(f.IPv4); {
		case err != nil || !isHost(e.IPv4):
			d.refuse(fmt.Errorf("is %q: want a machine's IPv4 address with the length of its prefix, such as 192.0.2.1/24", f.IPv4), append(path, "ipv4")...)
		case ownNets.Contains(e.IPv4.Addr()):
			d.refuse(fmt.Errorf("is %q: addresses in %v are those of nodes, and of links without any", f.IPv4, ownNets), append(path, "ipv4")...)
		}
	}
	return e
}

// isHost reports whether a host can have an IPv4 address.
func isHost(p netip.Prefix) bool {
	a := p.Addr()
	if !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || p.Bits() < 1 {
		return false
	}
	// The first and the last address of a network are reserved, except in /31 and /32.
	return p.Bits() >= 31 || a != p.Masked().Addr() && p.Contains(a.Next())
}

// parseCPUs parses a list in the kernel's format: 0-1,3.
func parseCPUs(list string) (cpus []int, err error) {
	want := fmt.Errorf("is %q: want numbers of CPUs such as 0-1,3", list)
	for item := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(item, "-")
		first, err := strconv.Atoi(low)
		if err != nil || first < 0 {
			return nil, want
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(high); err != nil || last < first {
				return nil, want
			}
		}
		if last >= 1<<13 {
			return nil, want
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}
