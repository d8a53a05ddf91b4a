// Package service is what SCON's three services have in common: where they keep
// their files, how they answer their clients, and what they tell systemd.
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

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
)

// Options say where and how a service works.
type Options struct {
	Config   config.Config
	StateDir string // of all services: see package state
	Socket   string
	Netns    string // as given by --netns, for those who read the state
	Logger   *slog.Logger
	Version  string
	// Ready is called once when the socket answers. It may be nil.
	Ready func()
}

// Server is how a service answers.
type Server struct {
	Service state.Service
	// Group is the one that may read at the socket, "" for root alone.
	Group string
	// Metrics is the address, IP:PORT, at which Prometheus may fetch metrics,
	// "" for none.
	Metrics      string
	WriteMetrics func(io.Writer) error
	Handler      http.Handler
	// Failed is called if the socket cannot be served any more.
	Failed func()
}

// Serve answers clients until ctx ends; the channel is closed afterwards. It
// returns when the service is ready, and has told systemd.
func Serve(ctx context.Context, o Options, s Server) (_ <-chan struct{}, err error) {
	metrics, err := listenMetrics(s.Metrics)
	if err != nil {
		return nil, err
	}
	l, err := listen(o, s)
	if err != nil {
		if metrics != nil {
			metrics.Close()
		}
		return nil, err
	}
	var servers sync.WaitGroup
	servers.Go(func() {
		if err := api.Serve(ctx, l, s.Handler); err != nil {
			o.Logger.Error("serving clients", "error", err)
			s.Failed()
		}
	})
	if metrics != nil {
		servers.Go(func() {
			if err := api.ServeMetrics(ctx, metrics, s.WriteMetrics); err != nil {
				o.Logger.Error("serving metrics", "error", err)
			}
		})
	}
	if o.Ready != nil {
		o.Ready()
	}
	notify(ready)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		notify(stopping) // what follows may take longer than systemd waits for a beat
		servers.Wait()
	}()
	return done, nil
}

// listen opens the socket and writes the service's state.
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

// listenMetrics opens the metrics' own address; "" is none.
func listenMetrics(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("offer metrics: %w", err)
	}
	return l, nil
}
