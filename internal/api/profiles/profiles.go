// Package profiles serves a service's Go profiles at its control socket. It adds half a
// megabyte to a program, so "scon" links it only with the tag pprof.
package profiles

import (
	"net/http"
	"net/http/pprof"

	"github.com/scon-project/scon/internal/api"
)

// Add adds the routes of net/http/pprof, /debug/pprof/..., for clients that may change
// state: profiles reveal the service's work and cost processor time.
func Add(m *api.Mux) {
	for name, handler := range map[string]http.HandlerFunc{
		"":        pprof.Index,
		"cmdline": pprof.Cmdline,
		"profile": pprof.Profile,
		"symbol":  pprof.Symbol,
		"trace":   pprof.Trace,
	} {
		m.HandleFunc("/debug/pprof/"+name, func(w http.ResponseWriter, r *http.Request) {
			if !api.MayChange(r) {
				api.Refuse(w, &api.Error{Status: http.StatusForbidden, Message: "only root may read profiles"})
				return
			}
			handler(w, r)
		})
	}
}
