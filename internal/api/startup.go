package api

import (
	"fmt"
	"io"
	"net/http"

	"github.com/scon-project/scon/internal/cni"
)

// Starter is a Backend with an agent that gives containers their network.
type Starter interface {
	// CNI answers a plugin's request of the process pid with what it is to
	// print; failed is for its exit status.
	CNI(pid int, r cni.Request) (document []byte, failed bool)
}

// maxConf bounds a network configuration, in bytes: a GC lists all attachments.
const maxConf = 1 << 20

// handleStartup adds the routes of the agent.
//
//	POST /v1/cni    a plugin's environment in headers, its input as the body:
//	                200 and a result, or 400 and CNI's error
func handleStartup(mux *http.ServeMux, s Starter) {
	mux.HandleFunc("/v1/cni", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			refuseMethod(w, r, http.MethodPost)
			return
		}
		input, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxConf))
		if err != nil {
			reply(w, http.StatusBadRequest, refusal{fmt.Sprintf("read body: %v", err)})
			return
		}
		document, failed := s.CNI(peer(r), cni.Request{
			Command:     r.Header.Get("Cni-Command"),
			ContainerID: r.Header.Get("Cni-Containerid"),
			Netns:       r.Header.Get("Cni-Netns"),
			IfName:      r.Header.Get("Cni-Ifname"),
			Args:        r.Header.Get("Cni-Args"),
			Path:        r.Header.Get("Cni-Path"),
			Input:       input,
		})
		w.Header().Set("Content-Type", "application/json")
		if failed {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write(document)
	})
}

// peer is the process at the other end of a request's connection, 0 if it is
// not known.
func peer(r *http.Request) int {
	if c, ok := r.Context().Value(clientKey{}).(*client); ok {
		return c.pid
	}
	return 0
}
