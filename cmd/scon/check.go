package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// check refuses settings with which a service cannot start in the network namespace of the
// calling goroutine's thread. A service checks them before it loads anything, and others
// before they end one that works.
func (u unit) check(o service.Options) error {
	c := o.Config
	addresses := make(map[string]string) // by what they are for
	switch u.Service {
	case state.Express:
		if _, err := discover.Scan(discover.Options{Bridges: c.Bridges, Uplinks: c.Uplinks}); err != nil {
			return err
		}
		if err := api.CheckGroup(c.SocketGroup); err != nil {
			return err
		}
		addresses["offer metrics"], addresses["answer probes"] = c.Metrics, c.Health
		if !filepath.IsAbs(c.Web) {
			addresses["serve the page"] = c.Web
		}
	case state.Startup:
		addresses["offer metrics"] = c.Startup.Metrics
	case state.Pipe:
		addresses["offer metrics"] = c.Pipe.Metrics
	}
	for what, address := range addresses {
		if err := checkAddress(what, address); err != nil {
			return err
		}
	}
	return nil
}

// checkAddress tries to listen at an address; "" is none. The service that works may have it.
func checkAddress(what, address string) error {
	if address == "" {
		return nil
	}
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w; change the address in the settings, or set \"\" for none", what, err)
	}
	return l.Close()
}
