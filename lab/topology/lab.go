package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
)

// DefaultDir has the records of the topologies that are up.
const DefaultDir = "/run/scon-lab"

var (
	// ErrUp is wrapped if a topology of that name is up already.
	ErrUp = errors.New("is up already")
	// ErrDown is wrapped if no topology of that name is up.
	ErrDown = errors.New("is not up")
)

// Lab is a topology that is up.
type Lab struct {
	*Topology
	dir   string
	moves []move
}

// record is the content of a lab's file.
type record struct {
	Topology *Topology `json:"topology"`
	Moves    []move    `json:"moves"`
}

func withDefault(dir string) string {
	if dir == "" {
		return DefaultDir
	}
	return dir
}

// Open returns the lab of that name. The error wraps ErrDown if it is not up. dir is
// Options.Dir.
func Open(name, dir string) (*Lab, error) {
	l := &Lab{Topology: &Topology{Name: name}, dir: withDefault(dir)}
	text, err := os.ReadFile(l.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("topology %q %w", name, ErrDown)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of topology %q: %w", name, err)
	}
	r := record{Topology: l.Topology}
	if len(text) > 0 { // empty: Up was interrupted before it built anything
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("read the record of topology %q, %s: %w", name, l.file(), err)
		}
	}
	l.moves = r.Moves
	return l, nil
}

// List returns the labs that are up, sorted by name.
func List(dir string) ([]*Lab, error) {
	files, err := filepath.Glob(filepath.Join(withDefault(dir), "*"+suffix))
	if err != nil {
		return nil, err
	}
	var labs []*Lab
	for _, file := range files {
		l, err := Open(strings.TrimSuffix(filepath.Base(file), suffix), dir)
		if errors.Is(err, ErrDown) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		labs = append(labs, l)
	}
	return labs, nil
}

// suffix is the suffix of the records' file names.
const suffix = ".json"

func (l *Lab) file() string { return filepath.Join(l.dir, l.Name+suffix) }

// claim creates the record exclusively.
func (l *Lab) claim() error {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("keep a record of the topology: %w", err)
	}
	f, err := os.OpenFile(l.file(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf(`topology %q %w; "scon lab down" removes it`, l.Name, ErrUp)
	}
	if err != nil {
		return fmt.Errorf("keep a record of the topology: %w", err)
	}
	f.Close()
	if err := l.checkNames(); err != nil {
		return errors.Join(err, l.forget())
	}
	return l.write()
}

// checkNames refuses namespaces that exist already: Close would remove them.
func (l *Lab) checkNames() error {
	for _, n := range l.Nodes {
		switch _, err := netns.Inode(l.Path(n.Name)); {
		case errors.Is(err, netns.ErrNotExist):
		case err == nil, errors.Is(err, netns.ErrNotNetns):
			return fmt.Errorf("node %s: namespace %s is another's already; \"ip netns delete %[2]s\" removes it",
				n.Name, l.namespace(n.Name))
		default:
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

// forget removes the record.
func (l *Lab) forget() error {
	os.Remove(l.file() + ".new")
	if err := os.Remove(l.file()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	os.Remove(l.dir) // fails if there are other records
	return nil
}

// write writes the record atomically.
func (l *Lab) write() error {
	text, err := json.MarshalIndent(record{l.Topology, l.moves}, "", "  ")
	if err != nil {
		return fmt.Errorf("keep a record of the topology: %w", err)
	}
	next := l.file() + ".new"
	if err := os.WriteFile(next, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("keep a record of the topology: %w", err)
	}
	return os.Rename(next, l.file())
}

// Close removes the lab, also a partly built one, and moves devices of the host back
// to the caller's namespace. Processes in a node continue without links. A node
// whose device cannot be moved back stays until another Close.
func (l *Lab) Close() error {
	var errs []error
	keep := map[string]bool{}
	for _, m := range slices.Backward(l.moves) {
		if err := l.bringBack(m); err != nil {
			errs = append(errs, err)
			keep[m.Node] = true
		}
	}
	if l.hasContainers() {
		errs = append(errs, l.removeContainers())
	}
	held := l.held()
	for _, n := range l.Nodes {
		if keep[n.Name] {
			continue
		}
		if held[n.Name] {
			errs = append(errs, netns.Do(l.Path(n.Name), removeLinks))
		}
		err := netns.Delete(l.namespace(n.Name))
		if err != nil && !errors.Is(err, netns.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove topology %q: %w", l.Name, err)
	}
	if err := l.forget(); err != nil {
		return fmt.Errorf("remove topology %q: %w", l.Name, err)
	}
	return nil
}

// held returns the namespaces that processes keep alive without their names.
func (l *Lab) held() map[string]bool {
	byInode := map[uint64]string{}
	for _, n := range l.Nodes {
		if inode, err := netns.Inode(l.Path(n.Name)); err == nil {
			byInode[inode] = n.Name
		}
	}
	held := map[string]bool{}
	spaces, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range spaces {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && byInode[st.Ino] != "" {
			held[byInode[st.Ino]] = true
		}
	}
	return held
}

// removeLinks removes the links of the calling thread's namespace.
func removeLinks() error {
	links, err := netdev.List()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, link := range links {
		switch link.(type) {
		case *netlink.Veth, *netlink.Macvlan, *netlink.Vlan:
			if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("delete %s: %w", link.Attrs().Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// namespace returns the name of a node's namespace.
func (l *Lab) namespace(node string) string { return "scon-" + l.Name + "-" + node }

// Path returns the path of a node's network namespace.
func (l *Lab) Path(node string) string { return netns.Path(l.namespace(node)) }

// node returns a node. The error lists the nodes that exist.
func (l *Lab) node(name string) (Node, error) {
	if i := l.index(name); i >= 0 {
		return l.Nodes[i], nil
	}
	var names []string
	for _, n := range l.Nodes {
		names = append(names, n.Name)
	}
	return Node{}, fmt.Errorf("topology %q has no node %q, but %s", l.Name, name, strings.Join(names, ", "))
}

// Do calls fn in a node; see netns.Do.
func (l *Lab) Do(node string, fn func() error) error {
	if _, err := l.node(node); err != nil {
		return err
	}
	return netns.Do(l.Path(node), fn)
}

// Enter moves the calling thread, which must be locked, into a node's namespace and
// onto its CPUs, permanently.
func (l *Lab) Enter(node string) error {
	n, err := l.node(node)
	if err != nil {
		return err
	}
	if len(n.CPUs) > 0 {
		var set unix.CPUSet
		for _, cpu := range n.CPUs {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("put %s on CPUs %v: %w", node, n.CPUs, err)
		}
	}
	return netns.Enter(l.Path(node))
}
