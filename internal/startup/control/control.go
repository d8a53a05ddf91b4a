package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/httpconn"
	"github.com/scon-project/scon/internal/startup/cni"
)

// Agent is the agent behind the service's socket.
type Agent interface {
	// CNI executes a plugin's request of the process pid. It returns the document to
	// print; failed sets the exit status.
	CNI(pid int, r cni.Request) (document []byte, failed bool)
	OCI(OCI) error

	Startup() (Startup, error)
	StartupEvents(from uint64) (StartupEvents, error)
	SetStartupLimits(StartupLimits) error
	FillStartupPool(ctx context.Context, f StartupFill) error

	// Owners returns the owners of the host's devices and a channel of later changes,
	// which ends with ctx or the agent.
	Owners(ctx context.Context) (now []api.Owner, changes <-chan []api.Owner)
}

// maxConf limits a network configuration, in bytes: a GC lists all attachments.
const maxConf = 1 << 20

// Handler is the HTTP handler of the startup service. Without an agent it serves only
// the routes of every service.
//
//	GET  /v1/status          api.Process
//	POST /v1/cni             a plugin's environment in headers, its input as the
//	                         body: 200 and a result, or 400 and CNI's error
//	POST /v1/oci             an OCI in headers: {}
//	GET  /v1/startup         Startup
//	GET  /v1/startup/stages?from=N   StartupEvents
//	POST /v1/startup/limits  StartupLimits: {}
//	POST /v1/startup/fill    StartupFill: {} when the pool is full
//	GET  /v1/startup/owners  lines of [api.Owner]
func Handler(c api.Control, p api.Process, a Agent) http.Handler {
	m := api.NewMux(c)
	m.Get(api.StatusPath, "", func(*http.Request, string) (any, error) { return p, nil })
	if a == nil {
		return m
	}
	m.HandleFunc(cniPath, func(w http.ResponseWriter, r *http.Request) { handleCNI(w, r, a) })
	m.HandleFunc("/v1/oci", func(w http.ResponseWriter, r *http.Request) { handleOCI(w, r, a) })
	m.Get(statusPath, "", func(*http.Request, string) (any, error) { return a.Startup() })
	m.Get(stagesPath, "from", func(_ *http.Request, text string) (any, error) {
		from, err := strconv.ParseUint("0"+text, 10, 64)
		if err != nil {
			return nil, &api.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("from is %q: want a whole number", text)}
		}
		return a.StartupEvents(from)
	})
	api.Post(m, limitsPath, func(_ *http.Request, l StartupLimits) (any, error) {
		return struct{}{}, a.SetStartupLimits(l)
	})
	api.Post(m, fillPath, func(r *http.Request, f StartupFill) (any, error) {
		return struct{}{}, a.FillStartupPool(r.Context(), f)
	})
	m.HandleFunc(api.OwnersPath, func(w http.ResponseWriter, r *http.Request) { streamOwners(w, r, a) })
	return m
}

const (
	cniPath    = "/v1/cni"
	statusPath = "/v1/startup"
	stagesPath = "/v1/startup/stages"
	limitsPath = "/v1/startup/limits"
	fillPath   = "/v1/startup/fill"
)

func handleOCI(w http.ResponseWriter, r *http.Request, a Agent) {
	if api.RefuseMethod(w, r, http.MethodPost) {
		return
	}
	h := r.Header
	err := a.OCI(OCI{
		Verb: h.Get("Oci-Verb"), Outcome: h.Get("Oci-Outcome"), ID: h.Get("Oci-Id"),
		Bundle: h.Get("Oci-Bundle"), PidFile: h.Get("Oci-Pidfile"), Network: h.Get("Oci-Network"),
		PID: api.PeerPID(r),
	})
	if err != nil {
		api.Refuse(w, err)
		return
	}
	api.Reply(w, http.StatusOK, struct{}{})
}

func handleCNI(w http.ResponseWriter, r *http.Request, a Agent) {
	if api.RefuseMethod(w, r, http.MethodPost) {
		return
	}
	input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxConf))
	if err != nil {
		api.Reply(w, http.StatusBadRequest, types.NewError(types.ErrIOFailure, fmt.Sprintf("read the network configuration: %v", err), ""))
		return
	}
	request := cni.Request{Input: input}
	for name, value := range variables(&request) {
		*value = r.Header.Get(name)
	}
	document, failed := a.CNI(api.PeerPID(r), request)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(document)))
	if failed {
		w.WriteHeader(http.StatusBadRequest)
	}
	_, _ = w.Write(document)
	if err := http.NewResponseController(w).Flush(); err != nil && !failed && request.Command == "ADD" {
		// The client gave up, and may have sent its DEL before this ADD ended.
		request.Command = "DEL"
		a.CNI(api.PeerPID(r), request)
	}
}

// variables are the headers of a plugin's environment.
func variables(r *cni.Request) map[string]*string {
	return map[string]*string{
		"Cni-Command": &r.Command, "Cni-Containerid": &r.ContainerID, "Cni-Netns": &r.Netns,
		"Cni-Ifname": &r.IfName, "Cni-Args": &r.Args, "Cni-Path": &r.Path,
	}
}

// Forward has the agent at a socket answer a plugin's request.
func Forward(ctx context.Context, socket string, r cni.Request) (document []byte, failed bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://scon"+cniPath, bytes.NewReader(r.Input))
	if err != nil {
		return nil, false, err
	}
	for name, value := range variables(&r) {
		request.Header.Set(name, *value)
	}
	conn, err := httpconn.Dial(socket)
	if err != nil {
		return nil, false, err
	}
	answer, err := httpconn.Ask(conn, request)
	if err != nil {
		return nil, false, err
	}
	defer answer.Body.Close()
	failed = answer.StatusCode == http.StatusBadRequest
	if !failed && answer.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("the agent at %s answers %s: see its log", socket, answer.Status)
	}
	document, err = io.ReadAll(answer.Body)
	return document, failed, err
}

// streamTimeout is how long a client of a stream may stop reading.
const streamTimeout = 5 * time.Second

func streamOwners(w http.ResponseWriter, r *http.Request, a Agent) {
	if api.RefuseMethod(w, r, http.MethodGet) {
		return
	}
	control, lines := http.NewResponseController(w), json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/jsonl")
	now, changes := a.Owners(r.Context())
	for line, more := now, true; more; line, more = <-changes {
		if control.SetWriteDeadline(time.Now().Add(streamTimeout)) != nil || lines.Encode(line) != nil || control.Flush() != nil {
			return
		}
	}
}

// Client is a client of the startup service.
type Client struct{ *api.Service }

// Dial returns a client of the startup service at the unix socket.
func Dial(socket string) *Client {
	return &Client{api.Connect(api.Identity{
		Service: "startup", Name: "startup service", Start: "set startup.enabled in the configuration, then start it with 'scon up'",
	}, socket)}
}

// Startup returns the state of the agent.
func (c *Client) Startup() (s Startup, err error) {
	err = c.Get(statusPath, nil, &s)
	if refused := new(api.Error); errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return s, errors.New("the startup service runs for Docker's network driver only; set startup.enabled in the configuration for networks of its own")
	}
	return s, err
}

// StartupEvents returns finished stages, from a number on.
func (c *Client) StartupEvents(from uint64) (e StartupEvents, err error) {
	return e, c.Get(stagesPath, url.Values{"from": {strconv.FormatUint(from, 10)}}, &e)
}

// SetStartupLimits sets the limits of the stages until the service ends.
func (c *Client) SetStartupLimits(l StartupLimits) error {
	return c.Post(limitsPath, l, &struct{}{})
}

// FillStartupPool returns when the pool has that many ready namespaces.
func (c *Client) FillStartupPool(f StartupFill) error {
	return c.Post(fillPath, f, &struct{}{})
}
