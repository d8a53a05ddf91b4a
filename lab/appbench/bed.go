package appbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/machine"
)

// The containers.
const (
	bridged = "web"
	native  = "web-host"
)

// service is a server in each of both containers, by its port there, which is published as
// another one.
type service struct{ port, published int }

var (
	web    = service{80, 8080}
	broker = service{1883, 8883}
)

// Pages of the servers.
const (
	small, big = "small", "big"
	smallBytes = 612 // of nginx's own first page
	bigBytes   = 1 << 20
)

// nginxConf is that of both containers. One worker, on one CPU.
const nginxConf = `daemon off;
worker_processes 1;
error_log stderr;
pid /run/nginx.pid;
events { worker_connections 512; }
http {
	access_log off;
	keepalive_requests 1000000;
	root /www;
	server { listen 80; sendfile on; tcp_nopush on; }
}
`

// mosquittoConf is that of both containers.
const mosquittoConf = `listener 1883
allow_anonymous true
persistence false
log_type error
user root
`

// servers starts both in a container.
const servers = "mosquitto -c /etc/mosquitto.conf & exec nginx"

// nearlyAll is the share of the packets that have to go express.
const nearlyAll = 0.9

// some is the share of those of short connections where conntrack is liberal.
const some = 0.25

// bed is a machine with the two containers.
type bed struct {
	machine *machine.Machine
	cgroup  string
	dockerd *exec.Cmd
	log     bytes.Buffer // of dockerd; valid when it has ended
	port    string       // device of the bridged container
	daemon  *bench.Daemon
	removal func() error // of the flowtable
	liberal bool         // whether conntrack is
	seconds int          // of a sample
	cpu     int          // of the servers and their clients
}

func openBed(ctx context.Context, seconds int) (_ *bed, err error) {
	b := &bed{cgroup: fmt.Sprintf("scon-app-%d", os.Getpid()), seconds: seconds}
	if _, b.cpu, err = bench.TwoCPUs(); err != nil {
		return nil, err
	}
	if b.machine, err = machine.Boot(); err != nil {
		return nil, err
	}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// start starts the Docker engine and the containers.
func (b *bed) start(ctx context.Context) error {
	args := machine.Dockerd(b.cgroup)
	b.dockerd = b.machine.Command(args[0], args[1:]...)
	b.dockerd.Stdout, b.dockerd.Stderr = &b.log, &b.log
	if err := b.dockerd.Start(); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	if err := eventually(ctx, func() error { return b.docker(nil, "version") }); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	image := machine.Image{Name: "web", Programs: []string{"nginx", "mosquitto"}, Files: map[string]string{
		"etc/nginx/nginx.conf": nginxConf,
		"etc/mosquitto.conf":   mosquittoConf,
		"www/" + small:         strings.Repeat("x", smallBytes),
		"www/" + big:           strings.Repeat("x", bigBytes),
	}}
	var rootfs bytes.Buffer
	if err := image.Write(&rootfs); err != nil {
		return fmt.Errorf("make an image of the servers: %w", err)
	}
	if err := b.docker(&rootfs, "import", "-", image.Name); err != nil {
		return err
	}
	var published []string
	for _, s := range []service{web, broker} {
		published = append(published, "--publish", fmt.Sprintf("%d:%d", s.published, s.port))
	}
	if err := b.docker(nil, b.run(bridged, published...)...); err != nil {
		return err
	}
	if err := b.docker(nil, b.run(native, "--network", "host")...); err != nil {
		return err
	}
	for _, port := range []int{web.published, web.port, broker.published, broker.port} {
		if err := eventually(ctx, func() error { return b.dial(port) }); err != nil {
			return fmt.Errorf("start the servers: %w", err)
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root%s", b.machine.PID(), wrkFile), []byte(wrkScript), 0o644); err != nil {
		return err
	}
	return b.findPort()
}

// patience is the time limit for dockerd and the servers to answer.
const patience = 30 * time.Second

// eventually repeats try until it succeeds.
func eventually(ctx context.Context, try func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := try()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// dial connects from the edge.
func (b *bed) dial(port int) error {
	return netns.Do(b.machine.Edge(), func() error {
		conn, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", machine.HostAddr, port), time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// run returns the arguments that run a container.
func (b *bed) run(name string, options ...string) []string {
	args := []string{"run", "--detach", "--name", name, "--cpuset-cpus", strconv.Itoa(b.cpu)}
	return slices.Concat(args, options, []string{"web", "sh", "-c", servers})
}

// docker runs a command of the Docker client.
func (b *bed) docker(stdin *bytes.Buffer, args ...string) error {
	cmd := b.machine.Command("docker", args...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// findPort finds the only port of the bridge.
func (b *bed) findPort() error {
	return b.in(func() error {
		links, err := netdev.List()
		if err != nil {
			return fmt.Errorf("list the machine's devices: %w", err)
		}
		for _, l := range links {
			if l.Type() == "veth" && l.Attrs().MasterIndex != 0 {
				b.port = l.Attrs().Name
				return nil
			}
		}
		return errors.New("the container has no port at Docker's bridge")
	})
}

// in calls fn in the machine's network namespace.
func (b *bed) in(fn func() error) error { return netns.Do(b.machine.Netns(), fn) }

// Ready prepares the machine for a mode.
func (b *bed) Ready(ctx context.Context, mode bench.Mode) (err error) {
	if err := b.in(bench.ForgetConnections); err != nil {
		return err
	}
	switch mode {
	case bench.Flowtable:
		b.removal, err = bench.OpenFlowtable(b.machine.Netns(), machine.Uplink, b.port)
	case bench.ExpressShort:
		b.liberal = true
		if err := b.in(func() error { return bench.SetLiberal(true) }); err != nil {
			return err
		}
		fallthrough
	case bench.Express:
		b.daemon, err = bench.StartDaemon(ctx, b.machine.Netns(), b.port, machine.Uplink)
		mode.Settle()
	}
	return err
}

// Clear undoes Ready.
func (b *bed) Clear() error {
	var err error
	if b.removal != nil {
		err = b.removal()
		b.removal = nil
	}
	if b.daemon != nil {
		err = errors.Join(err, b.daemon.Close())
		b.daemon = nil
	}
	if b.liberal {
		err = errors.Join(err, b.in(func() error { return bench.SetLiberal(false) }))
		b.liberal = false
	}
	return err
}

// Take measures one sample of a step.
func (b *bed) Take(ctx context.Context, mode bench.Mode, step bench.Step) (s bench.Sample, err error) {
	l := loads[slices.IndexFunc(loads, func(l load) bool { return l.name == step.Name })]
	port := l.service.published
	if mode == bench.Native {
		port = l.service.port
	}
	before, err := b.counters()
	if err != nil {
		return s, err
	}
	r, err := l.client(b, ctx, port, l)
	if err != nil {
		return s, err
	}
	mode.Settle()
	after, err := b.counters()
	if err != nil {
		return s, err
	}
	c := after.since(before)
	s = bench.Sample{
		UplinkPackets: c.uplink, BridgePackets: c.bridge, ExpressShare: c.share(),
		Values: map[string]float64{l.name + "_per_s": r.perSecond, l.name + "_p50_us": r.p50, l.name + "_p99_us": r.p99},
	}
	return s, c.check(mode, l)
}

// atEdge runs a client at the edge, and returns its output.
func (b *bed) atEdge(ctx context.Context, name string, args ...string) (string, error) {
	cmd := b.machine.EdgeCommand(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must only reach the bench
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("run %s: %w", name, err)
	}
	stop := context.AfterFunc(ctx, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("run %s %q: %w: %s", name, args, errors.Join(err, ctx.Err()), &out)
	}
	return out.String(), nil
}

// Close removes the machine and everything in it.
func (b *bed) Close() error {
	err := b.Clear()
	b.machine.Close()
	if b.dockerd != nil {
		_ = b.dockerd.Wait() // it was killed with the machine
	}
	return errors.Join(err, machine.RemoveCgroups(b.cgroup))
}

// counters of packets in both directions.
type counters struct {
	uplink, bridge   uint64 // by the devices' own counters
	express, regular uint64 // of the container, by SCON's
}

func (b *bed) counters() (c counters, err error) {
	err = b.in(func() error {
		if c.uplink, err = bench.CountPackets(machine.Uplink); err != nil {
			return err
		}
		c.bridge, err = bench.CountPackets("docker0")
		return err
	})
	if err == nil && b.daemon != nil {
		c.express, c.regular, err = b.daemon.Packets()
	}
	return c, err
}

func (c counters) since(before counters) counters {
	return counters{c.uplink - before.uplink, c.bridge - before.bridge, c.express - before.express, c.regular - before.regular}
}

func (c counters) share() float64 { return float64(c.express) / float64(max(c.express+c.regular, 1)) }

// check returns an error if the packets did not take the mode's path.
func (c counters) check(mode bench.Mode, l load) error {
	byBridge := float64(c.bridge) / float64(max(c.uplink, 1))
	switch {
	case c.uplink == 0:
		return errors.New("no packet crossed the uplink")
	case mode == bench.Native && byBridge > 1-nearlyAll, mode == bench.Container && byBridge < nearlyAll,
		mode == bench.Flowtable && !l.short && byBridge > 1-nearlyAll:
		return fmt.Errorf("%.1f %% of the packets crossed the bridge", 100*byBridge)
	case (mode == bench.Express || mode == bench.ExpressShort) && !l.short && c.share() < nearlyAll,
		mode == bench.ExpressShort && c.share() < some:
		return fmt.Errorf("only %.1f %% of the packets went express", 100*c.share())
	}
	return nil
}
