package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is a network of Docker Swarm that a container is in. The engine keeps the network's
// bridge, and the container's port, in a namespace of its own.
type Overlay struct {
	Name      string // of the network, without control characters
	Netns     string // path of the namespace
	Encrypted bool   // its VXLAN packets, by IPsec
}

// overlayName is the length of the names of these namespaces: the number of times that the
// engine has made one for the network, a dash, and the beginning of the network's ID.
const overlayName = 12

// overlays returns those of a container's networks whose namespace is another one than this.
// networks are their IDs by their names.
func (n *Namer) overlays(networks map[string]string) (all []Overlay) {
	if len(networks) == 0 {
		return nil
	}
	dir := n.at.netns[len(n.at.netns)-1]
	for _, file := range entries(dir) {
		_, begins, ok := strings.Cut(file, "-")
		if !ok || begins == "" || len(file) != overlayName {
			continue
		}
		for name, id := range networks {
			if path := filepath.Join(dir, file); strings.HasPrefix(id, begins) && !isOwn(path) {
				all = append(all, Overlay{clean(name), path, n.encrypted(id)})
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// isBalancer reports whether a namespace's name is that of one in which IPVS distributes what
// is sent to a Swarm's services: of a network, or what arrives at published ports.
func isBalancer(name string) bool { return name == "ingress_sbox" || strings.HasPrefix(name, "lb_") }

// isOwn reports whether a path stands for the calling thread's namespace.
func isOwn(path string) bool {
	var own, other unix.Stat_t
	return unix.Stat("/proc/thread-self/ns/net", &own) == nil && unix.Stat(path, &other) == nil &&
		inode{own.Dev, own.Ino} == inode{other.Dev, other.Ino}
}

// encrypted asks Docker whether a network is.
func (n *Namer) encrypted(id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	resp, err := askEngine(ctx, n.at.docker, "/networks/"+id)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var network struct{ Options map[string]string }
	if json.NewDecoder(io.LimitReader(resp.Body, mostAnswer)).Decode(&network) != nil {
		return false
	}
	_, is := network.Options["encrypted"]
	return is
}

// String says which network it is, and where.
func (o Overlay) String() string {
	kind := ""
	if o.Encrypted {
		kind = "encrypted "
	}
	return fmt.Sprintf("Docker's %soverlay network %s, whose bridge the engine keeps in the namespace %s", kind, o.Name, o.Netns)
}
