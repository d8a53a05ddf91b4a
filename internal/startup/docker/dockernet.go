// Package docker is a network driver for Docker: `docker network create -d scon`. A
// network is a bridge, as with Docker's bridge driver; a container's device is a netkit
// pair on Linux 6.7 and newer, else a veth pair.
//
// Docker calls the driver over a unix socket (the protocol of libnetwork's
// remote drivers), chooses addresses, moves the container's end into its
// namespace and gives it addresses and routes. The driver makes devices, rules
// and published ports:
//
//	CreateNetwork                 options.go: the network's options; devices.go: the bridge
//	CreateEndpoint                a MAC address, unless the user set one
//	Join                          devices.go: the pair, its end on the host a port of the bridge
//	ProgramExternalConnectivity   publish.go: ports of the host
//	rules.go, iptables.go         isolation of networks
//	guard.go                      rules that another program removes are restored
//	store.go                      the records of networks, for restarts of either side
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/httpconn"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup/devices"
)

// Options configure a driver. All fields are required.
type Options struct {
	// Socket is the path where Docker finds the driver. Its file name without .sock is the
	// driver's name.
	Socket string
	// Dir holds the records of networks, which survive a reboot as in Docker.
	Dir    string
	Logger *slog.Logger
}

// Driver makes networks in the network namespace of the process.
type Driver struct {
	log    *slog.Logger
	host   *devices.Host
	store  *store
	served sync.WaitGroup
	close  func() error // of the listener

	mu       sync.Mutex // guards the fields below: one request at a time
	networks map[string]*Network
	held     map[string][]holder // host ports, by endpoint
	written  string              // fingerprint of the rules as last written

	pulse   *service.Pulse // of guard
	changed chan struct{}  // signals that the host's rules may have changed
	stop    chan struct{}
}

const (
	mostHeader = 8 << 10          // bytes, of a request
	grace      = 30 * time.Second // for the requests under way when the driver ends
)

// New loads the networks of an earlier driver, restores missing devices and rules, and
// serves Docker until Close.
func New(o Options) (*Driver, error) {
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("docker driver: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(o.Socket), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("docker driver: make the directory of its socket: %w", err), d.Close())
	}
	l, err := api.Listen(o.Socket, "")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("docker driver: %w", err), d.Close())
	}
	ctx, end := context.WithCancel(context.Background())
	d.close = func() error { end(); return l.Close() }
	d.served.Go(d.guard)
	d.served.Go(func() {
		server := httpconn.Server{Handler: d.handler(), MaxHeader: mostHeader, Grace: grace, Log: d.log}
		if err := server.Serve(ctx, l); err != nil {
			d.log.Error("docker driver: serve Docker", "error", err)
		}
	})
	return d, nil
}

// open is New without a socket.
func open(o Options) (_ *Driver, err error) {
	d := &Driver{log: o.Logger, held: make(map[string][]holder), close: func() error { return nil },
		pulse: service.NewPulse(), changed: make(chan struct{}, 1), stop: make(chan struct{})}
	if d.store, err = openStore(o.Dir); err != nil {
		return nil, err
	}
	if d.host, err = devices.Open(); err != nil {
		return nil, errors.Join(err, d.store.close())
	}
	defer func() {
		if err != nil {
			d.host.Close()
			d.store.close()
		}
	}()
	if d.networks, err = d.store.read(); err != nil {
		return nil, err
	}
	return d, d.reconcile()
}

// Pulse is that of the loop that restores rules.
func (d *Driver) Pulse() *service.Pulse { return d.pulse }

// Close ends the driver after the request under way; later ones are refused. Networks stay
// and containers communicate, but Docker cannot start containers in them until the driver
// runs again. Until then no published port answers at the host's 127.0.0.1, as nothing
// guards the rules.
func (d *Driver) Close() error {
	err := d.close()
	close(d.stop)
	d.served.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.held {
		d.letGo(id)
	}
	d.host.Close()
	return errors.Join(err, closeLoopback(d.sorted()), d.store.close())
}

// reconcile makes the host's state match the records.
func (d *Driver) reconcile() error {
	if len(d.networks) == 0 {
		return d.enforce() // remove rules of a deleted network
	}
	for _, n := range d.networks {
		foreign, err := d.hasForeign(n)
		if err == nil && !foreign {
			err = d.makeBridge(n, false)
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.dropDead(); err != nil {
		return err
	}
	for _, n := range d.networks {
		for id, e := range n.Endpoints {
			if err := d.hold(id, e.Ports); err != nil {
				d.log.Error("docker driver: another program has taken a published port", "network", n.Bridge, "error", err)
			}
		}
	}
	if err := d.removeStrays(); err != nil {
		return err
	}
	return d.enforce()
}

// enforce writes the rules of all networks.
func (d *Driver) enforce() error {
	if err := d.putRules(); err != nil {
		return err
	}
	return admit(context.Background(), d.sorted())
}
