package services

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The services need these capabilities of their systemd units: without one, a service does
// not start. TestServicesAreIndependent shows that all together suffice.
func TestNeededCapabilities(t *testing.T) {
	t.Parallel()
	for service, needed := range map[state.Service][]string{
		state.Express: {"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"},
		state.Startup: {"CAP_NET_ADMIN"},
		state.Pipe:    {"CAP_NET_ADMIN"},
	} {
		for _, c := range needed {
			t.Run(string(service)+" without "+c, func(t *testing.T) {
				b := scontest.New(t, scontest.Layout{Service: true, Config: func(c *config.Config) {
					c.Startup.Enabled, c.Startup.Pool = true, config.Pool{MemoryLimit: 1 << 20, Cooldown: time.Second}
					c.Pipe.Enabled = true
				}})
				o := b.Task()
				o.Service, o.Socket = service, service.Socket(o.StateDir)
				b.Without = c
				b.Launch(o).WantFailure()
			})
		}
	}
}
