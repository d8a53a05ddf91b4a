// Package service has what SCON's three services have in common: their files, their sockets
// and the notifications of systemd.
package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
)

// Options configure a service.
type Options struct {
	Config   config.Config
	File     string // that Config is of, as given; "" if flags or defaults are part of it
	StateDir string // common to all services: see package state
	Socket   string
	Netns    string // as given by --netns, recorded in the state
	Logger   *slog.Logger
	Version  string
	// Ready is called once, when the socket answers. It may be nil.
	Ready func()
	// Reload reads and checks the settings again. begin replaces the service by one that has
	// them, in the same process; it is nil if they are the same. Nil: the service cannot.
	Reload func() (begin func(), err error)
}

// Page is the live page at an address of its own.
type Page interface {
	// URL returns the page's address, which ends in its token, or a socket's path.
	URL() string
	// Serve serves the page until ctx ends, then closes it.
	Serve(ctx context.Context) error
	// Close stops listening.
	Close() error
}

// Server describes a service's sockets and handlers.
type Server struct {
	Service state.Service
	// Group is the group that may read at the socket, "" for root only.
	Group string
	// Metrics is the address, IP:PORT, at which Prometheus may scrape metrics, "" for none.
	Metrics      string
	WriteMetrics func(io.Writer) error
	// Health is the address, IP:PORT, at which Probes are answered, "" for none.
	Health  string
	Probes  api.Probes
	Page    Page // nil without one
	Handler http.Handler
	// Failed is called if serving the socket fails.
	Failed func()
}

// Serve serves clients until ctx ends, then closes the channel. It returns when the
// service is ready and systemd is notified.
func Serve(ctx context.Context, o Options, s Server) (_ <-chan struct{}, err error) {
	defer func() {
		if err != nil && s.Page != nil {
			s.Page.Close()
		}
	}()
	metrics, err := listenTCP("offer metrics", s.Metrics)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && metrics != nil {
			metrics.Close()
		}
	}()
	probes, err := listenTCP("answer probes", s.Health)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && probes != nil {
			probes.Close()
		}
	}()
	l, err := listen(o, s)
	if err != nil {
		return nil, err
	}
	var servers sync.WaitGroup
	var replaced atomic.Bool
	handler := s.Handler
	if o.Reload != nil {
		handler = api.Reloadable(handler, func() (func(), error) {
			begin, err := o.Reload()
			if begin == nil {
				return nil, err
			}
			return func() {
				if ctx.Err() != nil {
					return // nobody would end the next one
				}
				replaced.Store(true)
				notifyReloading()
				begin()
			}, nil
		})
	}
	servers.Go(func() {
		if err := api.Serve(ctx, l, api.Named(string(s.Service), handler), o.Logger); err != nil {
			o.Logger.Error("serve clients", "error", err)
			s.Failed()
		}
	})
	if metrics != nil {
		servers.Go(func() {
			if err := api.ServeMetrics(ctx, metrics, s.WriteMetrics, o.Logger); err != nil {
				o.Logger.Error("serve metrics", "error", err)
			}
		})
	}
	if probes != nil {
		servers.Go(func() {
			if err := api.ServeProbes(ctx, probes, s.Probes, o.Logger); err != nil {
				o.Logger.Error("serve probes", "error", err)
			}
		})
	}
	if s.Page != nil {
		servers.Go(func() {
			if err := s.Page.Serve(ctx); err != nil {
				o.Logger.Error("serve the page", "error", err)
			}
		})
	}
	if o.Ready != nil {
		o.Ready()
	}
	notifyReady()
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		if !replaced.Load() {
			notify(stopping) // the rest may take longer than WatchdogSec
		}
		servers.Wait()
	}()
	return done, nil
}

// listen opens the socket and writes the service's state file.
func listen(o Options, s Server) (net.Listener, error) {
	l, err := api.Listen(o.Socket, s.Group)
	if err != nil {
		return nil, err
	}
	word := state.State{PID: os.Getpid(), Netns: o.Netns, Socket: o.Socket, Version: o.Version, Config: o.Config}
	if err := word.Write(s.Service.Dir(o.StateDir)); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// listenTCP listens on an address for a purpose, unless the address is "".
func listenTCP(what, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return l, nil
}
