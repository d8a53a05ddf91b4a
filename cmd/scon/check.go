package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup"
	"github.com/scon-project/scon/internal/state"
)

// check refuses settings with which a service cannot start in the network namespace of the
// calling goroutine's thread. A service checks them before it loads anything, and others
// before they end one that works. works are the settings of the one that does, whose
// addresses are in use; nil if that is not known.
func (u unit) check(o service.Options, works *config.Config) error {
	key, err := u.refused(o.Config, works)
	if err != nil && o.File != "" {
		return fmt.Errorf("%s: %w", config.Place(o.File, key), err)
	}
	return err
}

// refused is check. It returns the key of the setting that is refused.
func (u unit) refused(c config.Config, works *config.Config) (key string, err error) {
	if u.Service == state.Express {
		if key, err := refusedDevices(c); err != nil {
			return key, err
		}
		if err := api.CheckGroup(c.SocketGroup); err != nil {
			return "socket_group", err
		}
	}
	if u.Service == state.Startup && c.Startup.Enabled {
		if _, err := startup.ReadNetworks(c.Startup); err != nil {
			return "startup.networks", err
		}
	}
	for _, a := range u.addresses(c) {
		if err := a.check(works != nil && !u.has(*works, a.address)); err != nil {
			return a.key, err
		}
	}
	return "", nil
}

// refusedDevices checks the devices that the settings name.
func refusedDevices(c config.Config) (key string, err error) {
	_, err = discover.Scan(discover.Options{Bridges: c.Bridges, Uplinks: c.Uplinks})
	if err == nil {
		return "", nil
	}
	if _, bridges := discover.Scan(discover.Options{Bridges: c.Bridges}); bridges != nil {
		return "bridges", err
	}
	return "uplinks", err
}

// address is where the settings let a service listen, "" for nowhere.
type address struct{ key, what, address string }

// addresses returns those of a service.
func (u unit) addresses(c config.Config) []address {
	switch u.Service {
	case state.Startup:
		return []address{{"startup.metrics", "offer metrics", c.Startup.Metrics}}
	case state.Pipe:
		return []address{{"pipe.metrics", "offer metrics", c.Pipe.Metrics}}
	}
	all := []address{{"metrics", "offer metrics", c.Metrics}, {"health", "answer probes", c.Health}}
	if !filepath.IsAbs(c.Web) {
		all = append(all, address{"web", "serve the page", c.Web})
	}
	return all
}

// has reports whether the settings let a service listen at an address.
func (u unit) has(c config.Config, at string) bool {
	for _, a := range u.addresses(c) {
		if a.address == at {
			return true
		}
	}
	return false
}

// check tries to listen. One that has to be free may not be in use by the service that works.
func (a address) check(free bool) error {
	if a.address == "" {
		return nil
	}
	l, err := net.Listen("tcp", a.address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && !free:
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w; change the address in the settings, or set \"\" for none", a.what, err)
	}
	return l.Close()
}
