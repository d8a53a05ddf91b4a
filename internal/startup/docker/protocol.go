package docker

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Docker's calls. A change is recorded before it is made, and its record is removed after
// it is undone: a restarted driver finds what a killed one left.

// errClosed is returned to requests that come, or are under way, when the driver ends.
var errClosed = errors.New("the driver ends: try again when it runs")

// begin locks the driver for a request, which unlocks it. After its end the driver has no
// socket for devices any more, and the records may be those of the next one.
func (d *Driver) begin() error {
	d.mu.Lock()
	if d.ends() {
		d.mu.Unlock()
		return errClosed
	}
	return nil
}

// ends reports whether Close was called.
func (d *Driver) ends() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

// CreateNetwork makes a network, or nothing on error.
func (d *Driver) CreateNetwork(r *createNetworkRequest) (err error) {
	n, err := networkOf(r)
	if err != nil {
		return err
	}
	if err := d.begin(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if err := d.makeRoom(n); err != nil {
		return err
	}
	if err := d.store.put(n); err != nil {
		return err
	}
	d.networks[n.ID] = n
	defer func() {
		if err != nil {
			err = errors.Join(err, d.forget(n))
		}
	}()
	if err := d.makeBridge(n, true); err != nil {
		return err
	}
	if err := d.enforce(); err != nil {
		return err
	}
	d.log.Info("docker network created", "bridge", n.Bridge, "subnets", n.Pools)
	return nil
}

// makeRoom refuses a network whose subnet another one has. Docker assigns a subnet once, so a
// conflicting network without containers is one that Docker has forgotten: it is removed.
func (d *Driver) makeRoom(n *Network) error {
	for _, other := range d.sorted() {
		taken := other.ID == n.ID || slices.ContainsFunc(other.Pools, func(p netip.Prefix) bool {
			return slices.ContainsFunc(n.Pools, p.Overlaps)
		})
		switch {
		case !taken:
		case len(other.Endpoints) == 0:
			if err := d.forget(other); err != nil {
				return err
			}
		default:
			return fmt.Errorf("conflict with network %.12s, bridge %s, subnets %v, which has containers", other.ID, other.Bridge, other.Pools)
		}
	}
	return nil
}

// DeleteNetwork removes a network with its endpoints.
func (d *Driver) DeleteNetwork(r *networkRequest) error {
	if err := d.begin(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	n := d.networks[r.NetworkID]
	if n == nil {
		return nil
	}
	return d.forget(n)
}

// forget removes a network, its record last.
func (d *Driver) forget(n *Network) error {
	for id, e := range n.Endpoints {
		if err := d.unplug(id, e); err != nil {
			return err
		}
	}
	if err := d.removeBridge(n); err != nil {
		return err
	}
	if err := d.store.remove(n); err != nil {
		return err
	}
	delete(d.networks, n.ID)
	return d.enforce()
}

// CreateEndpoint records a container's addresses.
func (d *Driver) CreateEndpoint(r *createEndpointRequest) (*createEndpointResponse, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	n, err := d.network(r.NetworkID)
	if err != nil {
		return nil, err
	}
	if r.Interface == nil || len(r.EndpointID) < maxDeviceName {
		return nil, fmt.Errorf("endpoint %q: want an identifier of at least %d characters, and addresses", r.EndpointID, maxDeviceName)
	}
	e := &Endpoint{MAC: r.Interface.MacAddress}
	for _, text := range []string{r.Interface.Address, r.Interface.AddressIPv6} {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", text, err)
		}
		e.Addrs = append(e.Addrs, p.Addr())
	}
	answer := &createEndpointResponse{}
	if e.MAC == "" {
		e.MAC = macOf(e)
		answer.Interface = &endpointInterface{MacAddress: e.MAC}
	}
	// If Docker leases an address again, the endpoint that had it is gone.
	for id, old := range n.Endpoints {
		if slices.ContainsFunc(old.Addrs, func(a netip.Addr) bool { return slices.Contains(e.Addrs, a) }) {
			if err := d.drop(n, id); err != nil {
				return nil, err
			}
		}
	}
	n.Endpoints[r.EndpointID] = e
	if err := d.store.put(n); err != nil {
		delete(n.Endpoints, r.EndpointID)
		return nil, err
	}
	return answer, nil
}

// DeleteEndpoint removes an endpoint; an unknown one is no error.
func (d *Driver) DeleteEndpoint(r *endpointRequest) error {
	if err := d.begin(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	n := d.networks[r.NetworkID]
	if n == nil || n.Endpoints[r.EndpointID] == nil {
		return nil
	}
	return d.drop(n, r.EndpointID)
}

// drop removes an endpoint, its record last.
func (d *Driver) drop(n *Network, id string) error {
	e := n.Endpoints[id]
	if err := d.unplug(id, e); err != nil {
		return err
	}
	delete(n.Endpoints, id)
	if err := d.store.put(n); err != nil {
		n.Endpoints[id] = e
		return err
	}
	return nil
}

// unplug removes an endpoint's devices and ports.
func (d *Driver) unplug(id string, e *Endpoint) error {
	if err := d.unpublish(id, e); err != nil {
		return err
	}
	if e.Host == "" {
		return nil
	}
	if err := d.host.RemoveLink(e.Host); err != nil {
		return err
	}
	e.Host = ""
	return nil
}

// Join makes the container's device, which Docker moves into its namespace.
func (d *Driver) Join(r *endpointRequest) (*joinResponse, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	n, e, err := d.endpoint(r.NetworkID, r.EndpointID)
	if err != nil {
		return nil, err
	}
	if e.Host != "" { // left by an earlier Join
		if err := d.unplug(r.EndpointID, e); err != nil {
			return nil, err
		}
	}
	prefix := hostPrefix
	if n.sifts() {
		prefix = siftedPrefix
	}
	e.Host = prefix + r.EndpointID[:maxDeviceName-len(prefix)]
	if err := d.store.put(n); err != nil {
		e.Host = ""
		return nil, err
	}
	inner, err := d.makePair(n, r.EndpointID, e)
	if err != nil {
		return nil, err
	}
	return &joinResponse{
		InterfaceName: interfaceName{SrcName: inner, DstPrefix: n.IfPrefix},
		Gateway:       n.gateway(false), GatewayIPv6: n.gateway(true),
		// Without this, Docker adds a device of its own to containers without a gateway.
		DisableGatewayService: true,
	}, nil
}

// Leave removes the device, in whichever namespace it is.
func (d *Driver) Leave(r *endpointRequest) error {
	if err := d.begin(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	n, e, err := d.endpoint(r.NetworkID, r.EndpointID)
	if err != nil {
		return nil // Docker may call twice
	}
	if err := d.unplug(r.EndpointID, e); err != nil {
		return err
	}
	return d.store.put(n)
}

// ProgramExternalConnectivity publishes a container's ports.
func (d *Driver) ProgramExternalConnectivity(r *publishRequest) error {
	bindings, err := bindingsOf(r.Options[labelPorts])
	if err != nil {
		return err
	}
	if err := d.begin(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	n, e, err := d.endpoint(r.NetworkID, r.EndpointID)
	if err != nil {
		return err
	}
	return d.publish(n, r.EndpointID, e, bindings)
}

// RevokeExternalConnectivity unpublishes them.
func (d *Driver) RevokeExternalConnectivity(r *endpointRequest) error {
	if err := d.begin(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	n, e, err := d.endpoint(r.NetworkID, r.EndpointID)
	if err != nil {
		return nil
	}
	if err := d.unpublish(r.EndpointID, e); err != nil {
		return err
	}
	return d.store.put(n)
}

func (d *Driver) network(id string) (*Network, error) {
	n := d.networks[id]
	if id == "" {
		return nil, errors.New("the request came again without its content, as the driver had ended: try again")
	}
	if n == nil {
		return nil, fmt.Errorf("network %.12s is unknown: remove it with 'docker network rm' and create it again", id)
	}
	return n, nil
}

func (d *Driver) endpoint(network, id string) (*Network, *Endpoint, error) {
	n, err := d.network(network)
	if err != nil {
		return nil, nil, err
	}
	e := n.Endpoints[id]
	if e == nil {
		return nil, nil, fmt.Errorf("network %s has no endpoint %.12s", n.Bridge, id)
	}
	return n, e, nil
}
