package docker

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/scon-project/scon/internal/pipe/control"
)

const (
	// pipeConfig are the settings with the pipe's broker.
	pipeConfig = "pipe: {enabled: true, engines: [bpf, copier, sealed]}\n"
	// pipeMount is the container's mount from docs/pipe.md, with the state directory of
	// these tests.
	pipeMount = "/run/scon/pipe:/run/scon/pipe:ro"
	pipePort  = 7000
)

// pipeEngines are the engines that both ends have to request, and the default.
var pipeEngines = []string{"bpf", "copier", "sealed"}

// buildPipeLoad builds the pipe's load program and returns its path.
func buildPipeLoad(t *testing.T) string {
	t.Helper()
	if out, err := exec.Command("make", "-C", "../..", "examples").CombinedOutput(); err != nil {
		t.Fatalf("build the examples: %v: %s", err, out)
	}
	path, err := filepath.Abs("../../bin/scon-pipe-load")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// writeConfig writes a daemon's settings and returns their path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scon.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pipe returns the output of `scon pipe stat --json`.
func (s *SCON) pipe(t *testing.T) (p control.Pipe) {
	t.Helper()
	if err := s.read(&p, "pipe", "stat"); err != nil {
		t.Fatal(err)
	}
	return p
}

// metric returns the sum of a metric's values, over all labels or for one.
func (s *SCON) metric(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	socket := fmt.Sprintf("/proc/%d/root/run/scon/pipe.sock", s.machine.PID())
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	page, err := client.Get("http://scon/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(page.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[name].GetMetric() {
		if label == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}

// In TestPipe containers with Docker's default seccomp profile, one of them not root,
// exchange bytes through the pipe.
func TestPipe(t *testing.T) {
	e := Start(t)
	s := newSCON(t, e.Machine, "--config", writeConfig(t, pipeConfig))
	e.Import(t, Image{Name: "load", Programs: []string{buildPipeLoad(t)}})
	// load runs one end until it exits.
	load := func(engine, verb, address string, more ...string) []string {
		return append([]string{"scon-pipe-load", verb, fmt.Sprintf("%s:%s:%d", engine, address, pipePort)}, more...)
	}
	short := []string{"--warm", "0.01", "--seconds", "0.05"}

	mode := e.Docker(t, "run", "--rm", "load", "sh", "-c", "busybox grep -E '^(Seccomp|CapEff):' /proc/self/status")
	if !strings.Contains(mode, "Seccomp:\t2") || strings.Contains(mode, "CapEff:\t000001ffffffffff") {
		t.Fatalf("a container has no seccomp profile, or all capabilities: %s", mode)
	}
	for i, engine := range pipeEngines {
		t.Run(engine, func(t *testing.T) {
			server := e.Run(t, Spec{Name: "server-" + engine, Image: "load", Options: []string{"--volume", pipeMount},
				Command: load(engine, "listen", "0.0.0.0", short...)})
			report := e.Docker(t, append([]string{"run", "--rm", "--user", "65534", "--volume", pipeMount, "load"},
				load(engine, "connect", server.Address, short...)...)...)
			if !strings.Contains(report, `"bytes": `) {
				t.Errorf("the client printed %q", report)
			}
			if status := e.Docker(t, "wait", server.Name); status != "0" {
				t.Errorf("the server ended with %s", status)
			}
			p := s.pipe(t)
			if p.Made != uint64(i+1) || p.SentBytes == 0 || p.MemoryBytes != 0 {
				t.Errorf("%+v", p)
			}
		})
	}

	// Running streams are counted, and streams of killed processes are removed.
	server := e.Run(t, Spec{Name: "server", Image: "load", Options: []string{"--volume", pipeMount},
		Command: load("bpf", "listen", "0.0.0.0", "--seconds", "600")})
	client := e.Run(t, Spec{Name: "client", Image: "load", Options: []string{"--volume", pipeMount},
		Command: load("bpf", "connect", server.Address, "--seconds", "600")})
	begun := s.metric(t, "scon_pipe_sent_bytes_total", "")
	eventually(t, "a stream in the metrics", func() error {
		for _, m := range []struct {
			name, label string
			want        float64
		}{
			{"scon_pipe_processes", "", 2},
			{"scon_pipe_connections", "bpf", 1},
			{"scon_pipe_connections_made_total", "", float64(len(pipeEngines) + 1)},
			{"scon_pipe_memory_limit_bytes", "", 256 << 20},
		} {
			if got := s.metric(t, m.name, m.label); got != m.want {
				return fmt.Errorf("%s is %v, want %v", m.name, got, m.want)
			}
		}
		if got := s.metric(t, "scon_pipe_memory_bytes", ""); got < 128<<10 {
			return fmt.Errorf("rings have %v bytes", got)
		}
		if got := s.metric(t, "scon_pipe_sent_bytes_total", ""); got < begun+1<<20 {
			return fmt.Errorf("%v bytes were sent, %v before", got, begun)
		}
		return nil
	})
	e.Docker(t, "kill", client.Name)
	if status := e.Docker(t, "wait", server.Name); status != "1" {
		t.Errorf("the server ended with %s when its client was killed", status)
	}
	for _, name := range []string{"scon_pipe_connections", "scon_pipe_memory_bytes", "scon_pipe_processes"} {
		eventually(t, "end of "+name, func() error {
			if got := s.metric(t, name, ""); got != 0 {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}

	// Docker isolates its networks from each other, and so does the pipe.
	e.Docker(t, "network", "create", "other")
	server = e.Run(t, Spec{Name: "alone", Image: "load", Options: []string{"--volume", pipeMount},
		Command: load("bpf", "listen", "0.0.0.0")})
	eventually(t, "a name", func() error {
		if n := len(s.pipe(t).Names); n != 1 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	out, err := e.Command("docker", append([]string{"run", "--rm", "--network", "other", "--volume", pipeMount, "load"},
		load("bpf", "connect", server.Address)...)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "connect: Connection timed out") {
		t.Errorf("a container of another network connected: %v: %s", err, out)
	}
	// Its own TCP does not get through, so it does not ask the broker.
	if p := s.pipe(t); len(p.Connections) != 0 || len(p.Refused) != 0 {
		t.Errorf("the broker has seen connections: %+v", p)
	}
}
