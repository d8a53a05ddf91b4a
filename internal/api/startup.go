package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/scon-project/scon/internal/startup/cni"
)

// Startup is what `scon startup status --json` prints.
type Startup struct {
	Networks []StartupNetwork `json:"networks"`
	// Stages are netns, add_cni, cgroup, attach_if and start_vm.
	Stages map[string]StartupStage `json:"stages"`
	// TimeoutMS is how long a container waits for its turn in a stage.
	TimeoutMS int64 `json:"timeout_ms"`
	// HandedOver counts pooled namespaces that containers got, InPlace the
	// others by their reason.
	HandedOver  uint64              `json:"handed_over"`
	InPlace     map[string]uint64   `json:"in_place"`
	Attachments []StartupAttachment `json:"attachments"`
}

// StartupNetwork is a network that the agent knows.
type StartupNetwork struct {
	Name      string       `json:"name"`
	Kind      string       `json:"kind"`
	Addresses int          `json:"addresses"`      // leased, those of the pool among them
	Pool      *StartupPool `json:"pool,omitempty"` // absent without one
}

// StartupPool is a pool of wired namespaces.
type StartupPool struct {
	Ready     int    `json:"ready"`
	Target    int    `json:"target"`
	Displaced int    `json:"displaced"` // empty namespaces that wait to be wired
	Taken     uint64 `json:"taken"`
	Missed    uint64 `json:"missed"` // containers that came while it was empty
	Made      uint64 `json:"made"`
	Recycled  uint64 `json:"recycled"` // of those made, out of displaced ones
	Failure   string `json:"failure,omitempty"`
	Bytes     int64  `json:"bytes"` // what those ready take of the kernel's memory, estimated
}

// StartupStage is one stage of containers' starts.
type StartupStage struct {
	Limit   int    `json:"limit"` // 0 is none
	Inside  int    `json:"inside"`
	Waiting int    `json:"waiting"`
	Late    uint64 `json:"late"` // proceeded after the timeout
	Ended   uint64 `json:"ended"`
}

// StartupAttachment is a container's device.
type StartupAttachment struct {
	Network   string   `json:"network"`
	Container string   `json:"container"` // "" after its record was lost
	IfName    string   `json:"ifname"`
	Netns     string   `json:"netns"`
	Host      string   `json:"host"` // device on the host, "" if there is none
	Addresses []string `json:"addresses"`
	Pooled    bool     `json:"pooled"`
}

// StartupEvent is one stage of one container. Times are of CLOCK_MONOTONIC.
type StartupEvent struct {
	Container string `json:"container"`
	Stage     string `json:"stage"`
	BeginNS   int64  `json:"begin_ns"`
	EndNS     int64  `json:"end_ns"`
	WaitNS    int64  `json:"wait_ns"` // of it, waiting for a turn
}

// StartupEvents are those from a number on that are still in memory.
type StartupEvents struct {
	Events []StartupEvent `json:"events"`
	Next   uint64         `json:"next"` // what to ask for next time
}

// StartupLimits are how many containers may be in a stage at a time; 0 is no
// limit.
type StartupLimits struct {
	NetNS     int   `json:"netns"`
	AddCNI    int   `json:"add_cni"`
	Cgroup    int   `json:"cgroup"`
	AttachIf  int   `json:"attach_if"`
	StartVM   int   `json:"start_vm"`
	TimeoutMS int64 `json:"timeout_ms"` // 0 leaves it as it is
}

// StartupFill asks for a pool of at least so many namespaces.
type StartupFill struct {
	Network string `json:"network"`
	Count   int    `json:"count"`
}

// OCI is what scon-oci is about to do, or has done.
type OCI struct {
	Verb    string `json:"verb"`     // create, start or delete
	Outcome string `json:"outcome"`  // "" before, "done" or "failed" after it
	ID      string `json:"id"`       // of the container
	Bundle  string `json:"bundle"`   // of create: an absolute path
	PidFile string `json:"pid_file"` // of create: where the runtime will write the container's process
	Network string `json:"network"`  // of create: for a container that names none
}

// Starter is a Backend with an agent that gives containers their network.
type Starter interface {
	// CNI answers a plugin's request of the process pid with what it is to
	// print; failed is for its exit status.
	CNI(pid int, r cni.Request) (document []byte, failed bool)
	OCI(OCI) error

	Startup() (Startup, error)
	StartupEvents(from uint64) (StartupEvents, error)
	SetStartupLimits(StartupLimits) error
	FillStartupPool(ctx context.Context, f StartupFill) error
}

// maxConf bounds a network configuration, in bytes: a GC lists all attachments.
const maxConf = 1 << 20

// handleStartup adds the routes of the agent.
//
//	POST /v1/cni             a plugin's environment in headers, its input as the
//	                         body: 200 and a result, or 400 and CNI's error
//	POST /v1/oci             an OCI in headers: {}
//	GET  /v1/startup         Startup
//	GET  /v1/startup/stages?from=N   StartupEvents
//	POST /v1/startup/limits  StartupLimits: {}
//	POST /v1/startup/fill    StartupFill: {} when it is full
func handleStartup(mux *http.ServeMux, s Starter) {
	mux.HandleFunc("/v1/cni", func(w http.ResponseWriter, r *http.Request) { handleCNI(w, r, s) })
	mux.Handle("/v1/oci", method{http.MethodPost, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		h := r.Header
		return struct{}{}, s.OCI(OCI{
			Verb: h.Get("Oci-Verb"), Outcome: h.Get("Oci-Outcome"), ID: h.Get("Oci-Id"),
			Bundle: h.Get("Oci-Bundle"), PidFile: h.Get("Oci-Pidfile"), Network: h.Get("Oci-Network"),
		})
	}})
	mux.Handle("/v1/startup", method{http.MethodGet, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		if _, err := query(r, ""); err != nil {
			return nil, err
		}
		return s.Startup()
	}})
	mux.Handle("/v1/startup/stages", method{http.MethodGet, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		text, err := query(r, "from")
		if err != nil {
			return nil, err
		}
		from, err := strconv.ParseUint("0"+text, 10, 64)
		if err != nil {
			return nil, &Error{http.StatusBadRequest, fmt.Sprintf("from is %q: want a whole number", text)}
		}
		return s.StartupEvents(from)
	}})
	mux.Handle("/v1/startup/limits", method{http.MethodPost, func(w http.ResponseWriter, r *http.Request) (any, error) {
		l, err := decode[StartupLimits](w, r)
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.SetStartupLimits(l)
	}})
	mux.Handle("/v1/startup/fill", method{http.MethodPost, func(w http.ResponseWriter, r *http.Request) (any, error) {
		f, err := decode[StartupFill](w, r)
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.FillStartupPool(r.Context(), f)
	}})
}

func handleCNI(w http.ResponseWriter, r *http.Request, s Starter) {
	if r.Method != http.MethodPost {
		refuseMethod(w, r, http.MethodPost)
		return
	}
	input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxConf))
	if err != nil {
		reply(w, http.StatusBadRequest, types.NewError(types.ErrIOFailure, fmt.Sprintf("read the network configuration: %v", err), ""))
		return
	}
	request := cni.Request{
		Command:     r.Header.Get("Cni-Command"),
		ContainerID: r.Header.Get("Cni-Containerid"),
		Netns:       r.Header.Get("Cni-Netns"),
		IfName:      r.Header.Get("Cni-Ifname"),
		Args:        r.Header.Get("Cni-Args"),
		Path:        r.Header.Get("Cni-Path"),
		Input:       input,
	}
	document, failed := s.CNI(peer(r), request)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(document)))
	if failed {
		w.WriteHeader(http.StatusBadRequest)
	}
	_, _ = w.Write(document)
	if err := http.NewResponseController(w).Flush(); err != nil && !failed && request.Command == "ADD" {
		// Who asked has given up, and has perhaps said DEL before this was done.
		request.Command = "DEL"
		s.CNI(peer(r), request)
	}
}

// decode reads one JSON document of known fields.
func decode[T any](w http.ResponseWriter, r *http.Request) (document T, err error) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&document); err != nil {
		return document, &Error{http.StatusBadRequest, fmt.Sprintf("read body: %v", err)}
	}
	return document, nil
}

// peer is the process at the other end of a request's connection, 0 if it is
// not known.
func peer(r *http.Request) int {
	if c, ok := r.Context().Value(clientKey{}).(*client); ok {
		return c.pid
	}
	return 0
}

// Startup is the state of the agent that gives containers their network.
func (c *Client) Startup() (s Startup, err error) {
	return s, c.get("/v1/startup", nil, &s)
}

// StartupEvents are stages of containers' starts, from a number on.
func (c *Client) StartupEvents(from uint64) (e StartupEvents, err error) {
	return e, c.get("/v1/startup/stages", url.Values{"from": {strconv.FormatUint(from, 10)}}, &e)
}

// SetStartupLimits changes how many containers may be in a stage at a time,
// until the daemon ends.
func (c *Client) SetStartupLimits(l StartupLimits) error {
	return c.send("/v1/startup/limits", l, &struct{}{})
}

// FillStartupPool returns when so many namespaces are ready.
func (c *Client) FillStartupPool(f StartupFill) error {
	return c.send("/v1/startup/fill", f, &struct{}{})
}
