package latency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/topology"
)

// port is the destination port in a line without flows.
const port = 7000

// line is a path through nodes of a lab, with a generator in the first and a
// listener in the last.
type line struct {
	in, out   place // where the taps are
	generator *generator
	sink      *net.UDPConn
	to        netip.AddrPort
	settle    time.Duration // time for the last packets to arrive
}

// openLine prepares a line along a path of a lab, with at least one node between
// its ends.
func openLine(l *topology.Lab, path []string, port uint16) (*line, error) {
	if len(path) < 3 {
		return nil, fmt.Errorf("the path from %s to %s has no node in between: want at least one", path[0], path[len(path)-1])
	}
	end, before := path[len(path)-1], path[len(path)-2]
	ln, err := newLine(
		place{netns: l.Path(path[0]), dev: l.Egress(path[0], path[1])},
		place{netns: l.Path(before), dev: l.Egress(before, end)},
		l.Path(end), netip.AddrPortFrom(l.Addr(end), port))
	if err != nil {
		return nil, err
	}
	ln.settle += l.Delay(path)
	return ln, nil
}

// newLine prepares a line between taps, to an address in a namespace.
func newLine(in, out place, end string, to netip.AddrPort) (ln *line, err error) {
	ln = &line{in: in, out: out, to: to, settle: settle}
	// The socket is never read: it drops the warm-up packets that the taps pass,
	// without an ICMP answer.
	err = netns.Do(end, func() (err error) {
		ln.sink, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen at the end of the line: %w", err)
	}
	if ln.generator, err = startGenerator(in.netns); err != nil {
		return nil, errors.Join(err, ln.sink.Close())
	}
	return ln, nil
}

func (ln *line) close() error {
	return errors.Join(ln.generator.close(), ln.sink.Close())
}

// measure sends the packets of a schedule along the line.
func (ln *line) measure(ctx context.Context, t *taps, run uint32, s Schedule, cpus []int) (Samples, answer, error) {
	if err := t.attach(ln.in, ln.out); err != nil {
		return Samples{}, answer{}, err
	}
	samples, a, err := ln.send(ctx, t, run, s, cpus)
	return samples, a, errors.Join(err, t.detach())
}

func (ln *line) send(ctx context.Context, t *taps, run uint32, s Schedule, cpus []int) (Samples, answer, error) {
	if err := t.begin(run, s.Packets); err != nil {
		return Samples{}, answer{}, err
	}
	o := order{To: ln.to, CPUs: cpus, Schedule: Schedule{Rate: 1000, Packets: warmUp}}
	if _, err := ln.generator.carryOut(ctx, o); err != nil {
		return Samples{}, answer{}, err
	}
	o.Run, o.Schedule = run, s
	a, err := ln.generator.carryOut(ctx, o)
	if err != nil {
		return Samples{}, answer{}, err
	}
	time.Sleep(ln.settle)
	raw, err := t.read(s.Packets)
	if err != nil {
		return Samples{}, answer{}, err
	}
	return evaluate(a.Schedule, a.Sent, raw, softirqdThreads()), a, nil
}

// generator is a generator process.
type generator struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
	stderr  bytes.Buffer
}

// startGenerator starts a generator in a namespace.
func startGenerator(namespace string) (*generator, error) {
	g := &generator{cmd: exec.Command("/proc/self/exe", generatorArgs...)}
	g.cmd.Args[0] = os.Args[0] // the name under which this process was called
	g.cmd.Stderr = &g.stderr
	// Ctrl-C must only reach the measurement, which ends the generator. The
	// scheduler weighs sessions against each other, so the generator has its own.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the generator: %w", err)
	}
	stdout, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the generator: %w", err)
	}
	g.stdin, g.answers = stdin, json.NewDecoder(stdout)
	if err := netns.Do(namespace, g.cmd.Start); err != nil {
		return nil, fmt.Errorf("start the generator: %w", err)
	}
	return g, nil
}

// carryOut has the generator execute an order. When ctx ends, the generator is
// killed.
func (g *generator) carryOut(ctx context.Context, o order) (a answer, err error) {
	stop := context.AfterFunc(ctx, func() { g.cmd.Process.Kill() })
	defer stop()
	if err = json.NewEncoder(g.stdin).Encode(o); err == nil {
		err = g.answers.Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return a, ctx.Err()
	case err != nil:
		return a, fmt.Errorf("the generator exited:  %w: %s", err, bytes.TrimSpace(g.stderr.Bytes()))
	case a.Error != "":
		return a, fmt.Errorf("generate packets: %s", a.Error)
	}
	return a, nil
}

func (g *generator) close() error {
	g.stdin.Close() // it exits at once
	err := g.cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil // killed because the measurement was interrupted
	}
	return err
}

// allowedCPUs returns the CPUs that this process may use, in ascending order.
func allowedCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return nil, fmt.Errorf("read the allowed CPUs: %w", err)
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
