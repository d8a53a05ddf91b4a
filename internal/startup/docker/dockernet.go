// Package docker is a network driver of Docker's: `docker network create -d
// scon`. A network is a bridge, as with Docker's own driver; a container's
// device is a netkit pair where the kernel has it (Linux 6.7), else a veth pair.
//
// Docker calls the driver over a unix socket (the protocol of libnetwork's
// remote drivers), chooses addresses, moves the container's end into its
// namespace and gives it addresses and routes. The driver makes devices, rules
// and published ports:
//
//	CreateNetwork                 options.go: what the user asked for; devices.go: the bridge
//	CreateEndpoint                a MAC address, if the user named none
//	Join                          devices.go: the pair, its end on the host a port of the bridge
//	ProgramExternalConnectivity   publish.go: ports of the host
//	rules.go, iptables.go         who may talk to whom
//	guard.go                      rules that another program removes are restored
//	store.go                      what a restart of either side needs
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/docker/go-plugins-helpers/network"

	"github.com/scon-project/scon/internal/api"
)

// Options say where the driver works. All are needed.
type Options struct {
	// Socket is where Docker looks for the driver. Its file name, without
	// .sock, is the driver's name.
	Socket string
	// Dir keeps the networks, also over a reboot: Docker does.
	Dir    string
	Logger *slog.Logger
}

// Driver makes networks in the network namespace of the process.
type Driver struct {
	log    *slog.Logger
	store  *store
	served sync.WaitGroup
	close  func() error // of the listener

	mu       sync.Mutex // of everything below: one request at a time
	networks map[string]*Network
	held     map[string][]holder // host ports, by endpoint
	written  string              // fingerprint of the rules as they were written last

	changed chan struct{} // something is in it when the host's rules may have changed
	stop    chan struct{}
}

// New takes over the networks of an earlier driver, makes what of them is
// missing, and answers Docker until Close.
func New(o Options) (*Driver, error) {
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("docker driver: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(o.Socket), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("docker driver: make the folder of its socket: %w", err), d.Close())
	}
	l, err := api.Listen(o.Socket, "")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("docker driver: %w", err), d.Close())
	}
	d.close = l.Close
	d.served.Go(d.guard)
	d.served.Go(func() {
		if err := network.NewHandler(d).Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			d.log.Debug("docker driver: its socket is closed", "reason", err)
		}
	})
	return d, nil
}

// open is New without a socket.
func open(o Options) (_ *Driver, err error) {
	d := &Driver{log: o.Logger, held: make(map[string][]holder), close: func() error { return nil },
		changed: make(chan struct{}, 1), stop: make(chan struct{})}
	if d.store, err = openStore(o.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.store.close()
		}
	}()
	if d.networks, err = d.store.read(); err != nil {
		return nil, err
	}
	return d, d.reconcile()
}

// Close ends the driver. Networks stay, and containers talk; Docker can start
// none in them before the driver is back.
func (d *Driver) Close() error {
	err := d.close()
	close(d.stop)
	d.served.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.held {
		d.letGo(id)
	}
	return errors.Join(err, d.store.close())
}

// reconcile makes the host have what is written down, and nothing else.
func (d *Driver) reconcile() error {
	if len(d.networks) == 0 {
		return d.enforce() // what was left of the last one
	}
	for _, n := range d.networks {
		if err := makeBridge(n); err != nil {
			return err
		}
		for id, e := range n.Endpoints {
			if err := d.hold(id, e.Ports); err != nil {
				d.log.Error("docker driver: a published port has been taken by somebody else meanwhile", "network", n.Bridge, "error", err)
			}
		}
	}
	if err := d.removeStrays(); err != nil {
		return err
	}
	return d.enforce()
}

// enforce puts the rules of all networks in force.
func (d *Driver) enforce() error {
	if err := d.putRules(); err != nil {
		return err
	}
	return admit(context.Background(), d.sorted())
}
