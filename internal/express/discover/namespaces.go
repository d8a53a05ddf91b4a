package discover

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// namespace is a network namespace that has a name or a process.
type namespace struct {
	name string // path of the file that names it, or ""
	path string // of a file that stands for it: name, or of a process
	pids []int  // of the processes in it, ascending
}

// inode identifies a namespace.
type inode struct{ dev, ino uint64 }

// Namespaces returns the network namespaces of this machine except the calling
// thread's, by their paths, each with a process in it or 0.
func Namespaces() map[string]int {
	at := usualPlaces()
	var own unix.Stat_t
	_ = unix.Stat("/proc/thread-self/ns/net", &own)
	paths := make(map[string]int)
	for key, ns := range all(at) {
		switch {
		case key == inode{own.Dev, own.Ino}:
		case len(ns.pids) > 0:
			paths[ns.path] = ns.pids[0]
		default:
			paths[ns.path] = 0
		}
	}
	return paths
}

// numbering knows the IDs that the namespace it was opened in gives others.
type numbering struct {
	socket *nlmsg.Requests
	ids    map[inode]int // as last asked, of those that have one
}

// scan returns the namespaces of this machine that have an ID, by that ID. It asks
// the kernel only about those that had none: an inode may stand for another namespace
// meanwhile, so whoever uses one asks again (has).
func (n *numbering) scan(at places) map[int]*namespace {
	numbered := make(map[int]*namespace)
	ids := make(map[inode]int, len(n.ids))
	for key, ns := range all(at) {
		id, known := n.ids[key]
		if !known {
			id, known = n.id(ns.path)
		}
		if known {
			ids[key], numbered[id] = id, ns
		}
	}
	n.ids = ids
	return numbered
}

// has reports whether a namespace has an ID now.
func (n *numbering) has(ns *namespace, id int) bool {
	is, ok := n.id(ns.path)
	return ok && is == id
}

// id asks for the ID of the namespace with a path, false if it has none.
func (n *numbering) id(path string) (id int, ok bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	const header = 4 // struct rtgenmsg with padding
	data := append(make([]byte, header), nlmsg.Attr(unix.NETNSA_FD, binary.NativeEndian.AppendUint32(nil, uint32(fd)))...)
	err = n.socket.Request(nlmsg.Request{Type: unix.RTM_GETNSID, Data: data}, func(m nlmsg.Message) {
		for typ, value := range nlmsg.Attributes(m.Data[min(header, len(m.Data)):]) {
			if typ == unix.NETNSA_NSID && len(value) == 4 {
				id = int(int32(binary.NativeEndian.Uint32(value)))
				ok = id >= 0 // -1: none
			}
		}
	})
	return id, ok && err == nil
}

// all returns the namespaces of this machine. It reads every process, but
// opens each namespace only once.
func all(at places) map[inode]*namespace {
	all := make(map[inode]*namespace)
	find := func(path string) *namespace {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			return nil // gone meanwhile
		}
		key := inode{st.Dev, st.Ino}
		if all[key] == nil {
			all[key] = new(namespace)
		}
		return all[key]
	}
	for _, dir := range at.netns {
		for _, name := range entries(dir) {
			path := filepath.Join(dir, name)
			if ns := find(path); ns != nil && ns.name == "" {
				ns.name = path
			}
		}
	}
	for _, name := range entries(at.proc) {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if ns := find(netnsOf(at.proc, pid)); ns != nil {
			ns.pids = append(ns.pids, pid)
		}
	}
	for _, ns := range all {
		slices.Sort(ns.pids)
		if ns.path = ns.name; ns.path == "" {
			ns.path = netnsOf(at.proc, ns.pids[0])
		}
	}
	return all
}

// entries lists a directory. A missing one is empty.
func entries(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	list, _ := f.Readdirnames(-1) // what could be read will do
	return list
}

// netnsOf returns the network namespace of a process.
func netnsOf(proc string, pid int) string {
	return filepath.Join(proc, strconv.Itoa(pid), "ns/net")
}

// isCNIName reports whether a namespace's name was generated for a container.
func isCNIName(name string) bool {
	return strings.HasPrefix(name, "cni-") || strings.HasPrefix(name, "netns-")
}
