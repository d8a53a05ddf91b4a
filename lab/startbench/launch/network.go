package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/startbench"
)

// network is a CNI list, with its peer container.
type network struct {
	order   startbench.Order
	peer    string // the container that pings the others
	cni     *libcni.CNIConfig
	list    *libcni.NetworkConfigList
	pings   *pinger // nil if containers do not answer pings
	hasPeer bool
}

// openNetwork opens the i-th network of an order.
func openNetwork(o startbench.Order, i int) (*network, error) {
	list, err := libcni.NetworkConfFromFile(o.Networks[i])
	if err != nil {
		return nil, err
	}
	return &network{
		order: o,
		peer:  fmt.Sprintf("%s-p%05d", o.Prefix, i),
		cni:   libcni.NewCNIConfigWithCacheDir(o.Plugins, filepath.Join(o.Dir, "cni"), nil),
		list:  list,
	}, nil
}

// attachment returns the CNI arguments for a container.
func (n *network) attachment(name string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: name, NetNS: netns.Path(name), IfName: "eth0"}
}

// address is the address that a plugin gave a container; invalid if it gave none.
type address struct {
	addr    netip.Addr
	bits    int
	gateway netip.Addr
}

// add calls ADD for a namespace.
func (n *network) add(ctx context.Context, name string) (address, error) {
	answer, err := n.cni.AddNetworkList(ctx, n.list, n.attachment(name))
	if err != nil {
		return address{}, err
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil || !n.order.Ping {
		return address{}, err
	}
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP.To4()); ok {
			bits, _ := ip.Address.Mask.Size()
			gateway, _ := netip.AddrFromSlice(ip.Gateway.To4())
			return address{addr, bits, gateway}, nil
		}
	}
	return address{}, nil
}

// del calls DEL.
func (n *network) del(ctx context.Context, name string) error {
	if err := n.cni.DelNetworkList(ctx, n.list, n.attachment(name)); err != nil {
		return fmt.Errorf("DEL of %s: %w", name, err)
	}
	return nil
}

// openPeer attaches the peer.
func (n *network) openPeer(ctx context.Context) error {
	if !n.order.Ping {
		return nil
	}
	if err := netns.Create(n.peer); err != nil {
		return err
	}
	n.hasPeer = true
	if _, err := n.add(ctx, n.peer); err != nil {
		return fmt.Errorf("attach the peer: %w", err)
	}
	// Repeat unanswered neighbour requests soon.
	return netns.Do(n.peer, func() (err error) {
		if err := unwireTap(); err != nil {
			return err
		}
		for _, dev := range []string{"default", "eth0"} {
			if err := askSoon(dev); err != nil {
				return err
			}
		}
		n.pings, err = openPinger()
		return err
	})
}

// askSoon makes a device repeat neighbour requests every 10 ms instead of every
// second.
func askSoon(dev string) error {
	err := os.WriteFile("/proc/sys/net/ipv4/neigh/"+dev+"/retrans_time_ms", []byte("10"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (n *network) close() error {
	var errs []error
	if n.pings != nil {
		errs = append(errs, n.pings.close())
	}
	if n.hasPeer {
		ctx, cancel := context.WithTimeout(context.Background(), removePatience)
		defer cancel()
		errs = append(errs, n.del(ctx, n.peer), deleteNetns(n.peer))
	}
	return errors.Join(errs...)
}

// deleteNetns removes a namespace, which may be gone already.
func deleteNetns(name string) error {
	if err := netns.Delete(name); err != nil && !errors.Is(err, netns.ErrNotExist) {
		return err
	}
	return nil
}

// of returns the network of the i-th container.
func (s *session) of(i int) *network { return s.networks[i%len(s.networks)] }

// add carries out DoAdd: ADD for existing namespaces, then DEL.
func (s *session) add(ctx context.Context, c startbench.Command) startbench.Report {
	if len(s.networks) == 0 {
		return report(0, nil, errors.New("no network to add"))
	}
	names := make([]string, c.Count)
	for i := range names {
		s.adds++
		names[i] = fmt.Sprintf("%s-a%05d", s.prefix, s.adds)
		if err := netns.Create(names[i]); err != nil {
			return report(0, nil, err)
		}
	}
	begun, done, err := together(c, func(i int, t *timeline) error {
		return t.stage(startbench.StageAdd, func() error {
			_, err := s.of(i).add(ctx, names[i])
			return err
		})
	})
	undo, cancel := context.WithTimeout(context.Background(), removePatience*time.Duration(1+c.Count))
	defer cancel()
	for i, name := range names {
		err = errors.Join(err, s.of(i).del(undo, name), deleteNetns(name))
	}
	return report(begun, done, err)
}
