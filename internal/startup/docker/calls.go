package docker

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// Messages of libnetwork's remote drivers, with the fields that this driver reads or fills.
type (
	createNetworkRequest struct {
		NetworkID          string
		Options            map[string]any
		IPv4Data, IPv6Data []*ipamData
	}
	ipamData struct {
		Pool, Gateway string
		AuxAddresses  map[string]any
	}
	networkRequest struct{ NetworkID string }

	createEndpointRequest struct {
		NetworkID, EndpointID string
		Interface             *endpointInterface
	}
	createEndpointResponse struct{ Interface *endpointInterface }
	endpointInterface      struct{ Address, AddressIPv6, MacAddress string }
	endpointRequest        struct{ NetworkID, EndpointID string }

	joinResponse struct {
		InterfaceName         interfaceName
		Gateway, GatewayIPv6  string
		DisableGatewayService bool
	}
	interfaceName  struct{ SrcName, DstPrefix string }
	publishRequest struct {
		NetworkID, EndpointID string
		Options               map[string]any
	}
)

// handler answers Docker's calls.
func (d *Driver) handler() http.Handler {
	m := http.NewServeMux()
	fixed(m, "/Plugin.Activate", map[string][]string{"Implements": {"NetworkDriver"}})
	fixed(m, "/NetworkDriver.GetCapabilities", map[string]string{"Scope": "local", "ConnectivityScope": "local"})
	call(m, "CreateNetwork", nothing(d.CreateNetwork))
	call(m, "DeleteNetwork", nothing(d.DeleteNetwork))
	call(m, "CreateEndpoint", d.CreateEndpoint)
	call(m, "DeleteEndpoint", nothing(d.DeleteEndpoint))
	call(m, "Join", d.Join)
	call(m, "Leave", nothing(d.Leave))
	call(m, "ProgramExternalConnectivity", nothing(d.ProgramExternalConnectivity))
	call(m, "RevokeExternalConnectivity", nothing(d.RevokeExternalConnectivity))
	// Docker does not show what it is told here.
	fixed(m, "/NetworkDriver.EndpointOperInfo", map[string]struct{}{"Value": {}})
	// For drivers of a swarm, and for its other hosts.
	call(m, "AllocateNetwork", nothing(func(*struct{}) error {
		return errors.New("networks of scon are local to a host: want --scope local")
	}))
	for _, name := range []string{"FreeNetwork", "DiscoverNew", "DiscoverDelete"} {
		fixed(m, "/NetworkDriver."+name, struct{}{})
	}
	return m
}

// fixed answers a call that says nothing.
func fixed(m *http.ServeMux, path string, document any) {
	m.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, document) })
}

// call answers a call by fn.
func call[Q, A any](m *http.ServeMux, name string, fn func(*Q) (A, error)) {
	m.HandleFunc("/NetworkDriver."+name, func(w http.ResponseWriter, r *http.Request) {
		request := new(Q)
		if err := json.NewDecoder(r.Body).Decode(request); err != nil && !errors.Is(err, io.EOF) {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		document, err := fn(request)
		if err != nil {
			answer(w, http.StatusInternalServerError, map[string]string{"Err": err.Error()})
			return
		}
		answer(w, http.StatusOK, document)
	})
}

// nothing makes a call of one that has no answer but its error.
func nothing[Q any](fn func(*Q) error) func(*Q) (struct{}, error) {
	return func(q *Q) (struct{}, error) { return struct{}{}, fn(q) }
}

// answer answers Docker, which may have gone.
func answer(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/vnd.docker.plugins.v1.1+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document)
}
