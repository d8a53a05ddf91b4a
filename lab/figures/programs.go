package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/needs"
)

// program is a program that experiments run.
type program needs.Program

var (
	nginx     = program{Name: "nginx", Package: "nginx-light"}
	mosquitto = program{Name: "mosquitto", Package: "mosquitto"}
	iperf3    = program{Name: "iperf3", Package: "iperf3"}
)

// self is this executable, which also is the helper.
var self = program{Name: "/proc/self/exe"}

// HelperArgs are the arguments, before the order's verb, with which this executable
// calls helper.Main.
var HelperArgs = []string{"bench", "helper"}

// Check returns an error that names the programs missing for some figures; no
// figures means all.
func Check(ids []string) error {
	chosen, _, err := sourcesOf(ids)
	if err != nil {
		return err
	}
	var needed []needs.Program
	for _, s := range chosen {
		for _, p := range s.programs {
			needed = append(needed, needs.Program(p))
		}
	}
	return needs.Check(needed...)
}

// patience is the time limit for a program to listen, or to exit.
const patience = 5 * time.Second

// process is a running program in a node.
type process struct {
	*exec.Cmd
	program program
	output  bytes.Buffer // standard error
}

// start starts a program in a node on one CPU. It is killed when ctx ends.
func (p program) start(ctx context.Context, s *bench.Site, node string, cpu int, stdin io.Reader, stdout io.Writer, args ...string) (*process, error) {
	path, err := needs.Program(p).Path()
	if err != nil {
		return nil, err
	}
	running := &process{Cmd: exec.CommandContext(ctx, path, args...), program: p}
	running.WaitDelay = patience
	running.Stdin, running.Stdout, running.Stderr = stdin, stdout, &running.output
	if stdout == nil {
		running.Stdout = &running.output
	}
	if err := s.Start(node, cpu, running.Cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", p.Name, node, err)
	}
	return running, nil
}

// end waits until the program exits.
func (p *process) end() error {
	if err := p.Wait(); err != nil {
		return fmt.Errorf("run %s: %w: %s", p.program.Name, err, bytes.TrimSpace(p.output.Bytes()))
	}
	return nil
}

// stop terminates a server.
func (p *process) stop() {
	p.Process.Signal(syscall.SIGTERM)
	defer time.AfterFunc(patience, func() { p.Process.Kill() }).Stop()
	p.Wait()
}

// waitListening waits until a server in a node listens. It opens no connection,
// which iperf3 would treat as a client.
func (p *process) waitListening(ctx context.Context, s *bench.Site, node string, port uint16) error {
	deadline := time.Now().Add(patience)
	for {
		var sockets []byte
		err := s.Do(node, func() (err error) {
			sockets, err = os.ReadFile("/proc/thread-self/net/tcp")
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("wait for %s: %w", p.program.Name, err)
		case isListening(string(sockets), port):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("wait for %s: it does not listen on port %d after %v", p.program.Name, port, patience)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// isListening reports whether the text of /proc/net/tcp has a listening socket on
// the port.
func isListening(sockets string, port uint16) bool {
	const listen = "0A"
	for line := range strings.Lines(sockets) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == listen && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// order starts the helper with an order.
func order(ctx context.Context, s *bench.Site, node string, cpu int, verb string, what any, stdout io.Writer) (p *process, err error) {
	line, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	return self.start(ctx, s, node, cpu, strings.NewReader(string(line)), stdout, append(slices.Clone(HelperArgs), verb)...)
}

// carryOut has the helper execute an order and returns its report.
func carryOut(ctx context.Context, s *bench.Site, node string, cpu int, verb string, what any) (r Report, err error) {
	var out bytes.Buffer
	p, err := order(ctx, s, node, cpu, verb, what, &out)
	if err != nil {
		return Report{}, err
	}
	if err := p.end(); err != nil {
		return Report{}, err
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return Report{}, fmt.Errorf("read the report of the helper's %s: %w", verb, err)
	}
	return r, nil
}

// microseconds converts a duration.
func microseconds(d time.Duration) float64 { return d.Seconds() * 1e6 }

// percent returns a time as a percentage of one CPU.
func percent(used, elapsed time.Duration) float64 { return 100 * float64(used) / float64(elapsed) }
