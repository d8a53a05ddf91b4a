package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/nstest"
)

// bin is a directory with scon-cni, and with the test binary as scon.
var bin string

// TestMain lets the test binary act as `scon cni` and as an agent with its socket.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "cni":
		os.Exit(runAlone())
	case len(os.Args) == 3 && os.Args[1] == "agent":
		if err := runAgent(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "scon-cni-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	from := filepath.Dir(os.Args[0])
	var out []byte
	if _, here := os.Stat(filepath.Join(from, "scon-cni")); here != nil { // it is in a guest
		from = "../../bin"
		out, err = exec.Command("make", "-C", "../..", "bin/scon-cni", "bin/scon-oci").CombinedOutput()
	}
	if err == nil {
		out, err = exec.Command("cp", filepath.Join(from, "scon-cni"), filepath.Join(from, "scon-oci"), bin).CombinedOutput()
	}
	if err == nil {
		out, err = exec.Command("cp", os.Args[0], filepath.Join(bin, "scon")).CombinedOutput()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "building scon-cni: %v: %s\n", err, out)
		return 1
	}
	return m.Run()
}

func runAlone() int {
	setFault()
	if dir := os.Getenv(pauseEnv); dir != "" {
		setPauses(dir)
	}
	setTimes()
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	document, failed := Alone(cni.Request{
		Command: os.Getenv("CNI_COMMAND"), ContainerID: os.Getenv("CNI_CONTAINERID"), Netns: os.Getenv("CNI_NETNS"),
		IfName: os.Getenv("CNI_IFNAME"), Args: os.Getenv("CNI_ARGS"), Path: os.Getenv("CNI_PATH"), Input: input,
	})
	os.Stdout.Write(document)
	if failed {
		return 1
	}
	return 0
}

// Environment variables that change an agent.
const (
	faultEnv     = "SCON_TEST_FAULT"     // the step at which it kills itself
	configEnv    = "SCON_TEST_CONFIG"    // YAML, what is below startup:
	socketEnv    = "SCON_TEST_SOCKET"    // its name in the directory
	reconcileEnv = "SCON_TEST_RECONCILE" // how often it searches for containers that have gone
	patienceEnv  = "SCON_TEST_PATIENCE"  // how long it waits for another one's end
	pauseEnv     = "SCON_TEST_PAUSE"     // directory of setPauses, for scon-cni alone
)

// setTimes sets shorter times from the environment.
func setTimes() {
	for env, t := range map[string]*time.Duration{reconcileEnv: &reconcileInterval, patienceEnv: &lockPatience} {
		if d, err := time.ParseDuration(os.Getenv(env)); err == nil {
			*t = d
		}
	}
}

// setPauses makes the process wait at a step while a directory has a file pause-STEP, until
// paused-STEP is removed. One process waits at a time.
func setPauses(dir string) {
	die := step
	step = func(name string) {
		die(name)
		paused := filepath.Join(dir, "paused-"+name)
		if os.Rename(filepath.Join(dir, "pause-"+name), paused) != nil {
			return
		}
		for {
			if _, err := os.Stat(paused); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// pause makes the next process wait at a step. The first returned function waits until a
// process is there, the second lets it continue.
func (b *bed) pause(step string) (reached, goOn func()) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "pause-"+step), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
	paused := filepath.Join(b.dir, "paused-"+step)
	return func() {
			b.t.Helper()
			eventually(b.t, "somebody is at "+step, func() bool {
				_, err := os.Stat(paused)
				return err == nil
			})
		}, func() {
			b.t.Helper()
			if err := os.Remove(paused); err != nil {
				b.t.Fatal(err)
			}
		}
}

// setFault makes the process kill itself at a step.
func setFault() {
	if fault := os.Getenv(faultEnv); fault != "" {
		step = func(name string) {
			if name == fault {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		}
	}
}

func runAgent(dir string) error {
	setFault()
	setPauses(dir)
	setTimes()
	c := config.Default()
	c.Startup.Pool.WarmTarget = 0
	if text := os.Getenv(configEnv); text != "" {
		var err error
		if c, err = config.Read("test", strings.NewReader("startup:\n"+text)); err != nil {
			return err
		}
	}
	c.Startup.Enabled, c.Startup.EnvNetworks = true, []string{"net", "nowhere"}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Run(ctx, service.Options{
		Config: c, StateDir: dir, Socket: socketIn(dir), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// socketIn returns the socket of a directory's agent.
func socketIn(dir string) string {
	return filepath.Join(dir, cmp.Or(os.Getenv(socketEnv), "startup.sock"))
}

// bed is a host in its own namespace, with or without an agent.
type bed struct {
	t     *testing.T
	host  string // namespace
	dir   string // state directory
	agent *exec.Cmd
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "scon-s") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &bed{t: t, host: nstest.New(t), dir: dir}
}

func (b *bed) socket() string { return socketIn(b.dir) }

// start starts an agent; env are variables such as faultEnv.
func (b *bed) start(env ...string) {
	b.t.Helper()
	b.spawn(env...)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("unix", b.socket()); err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			b.t.Fatal("the agent does not listen")
		}
	}
}

// spawn starts an agent without waiting for it to answer.
func (b *bed) spawn(env ...string) {
	b.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "scon"), "agent", b.dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = testLog{b.t}
	nstest.Do(b.t, b.host, func() {
		if err := cmd.Start(); err != nil {
			b.t.Fatal(err)
		}
	})
	b.agent = cmd
	b.t.Cleanup(b.kill)
}

// kill kills the agent; a second call does nothing.
func (b *bed) kill() {
	if b.agent != nil {
		_ = b.agent.Process.Kill()
		_ = b.agent.Wait()
		b.agent = nil
	}
}

// stop ends the agent with SIGTERM.
func (b *bed) stop() {
	b.t.Helper()
	_ = b.agent.Process.Signal(unix.SIGTERM)
	if err := b.agent.Wait(); err != nil {
		b.t.Errorf("the agent ended with %v", err)
	}
	b.agent = nil
}

// state returns the agent's state.
func (b *bed) state() control.Startup {
	b.t.Helper()
	s, err := control.Dial(b.socket()).Startup()
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// address returns a container's address.
func (b *bed) address(id string) string {
	b.t.Helper()
	for _, a := range b.state().Attachments {
		if a.Container == id {
			addr, _, _ := strings.Cut(a.Addresses[0], "/")
			return addr
		}
	}
	b.t.Fatalf("container %s has no address", id)
	return ""
}

// withPool starts an agent that knows the network and has n of its namespaces ready; 0
// disables the pool.
func (b *bed) withPool(n int, env ...string) {
	b.t.Helper()
	file := filepath.Join(b.dir, "net.conf")
	if err := os.WriteFile(file, []byte(b.conf()), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.start(append(env, configEnv+fmt.Sprintf("=  networks: [%s]\n  pool: {warm_target: %d, minimum: 0}", file, n))...)
	if n == 0 {
		return
	}
	if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: n}); err != nil {
		b.t.Fatal(err)
	}
}

// testLog writes a process' output to the test's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("agent: %s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// answer is the output of scon-cni.
type answer struct {
	out  string
	code int // exit status
}

// cni runs scon-cni in the host's namespace, as a runtime does.
func (b *bed) cni(verb, id, netnsPath, conf string, env ...string) (a answer) {
	b.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "scon-cni"))
	cmd.Env = append(append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS="+netnsPath,
		"CNI_IFNAME=eth0", "CNI_PATH="+bin+":/usr/lib/cni"), env...)
	cmd.Stdin = strings.NewReader(conf)
	cmd.Stderr = testLog{b.t}
	nstest.Do(b.t, b.host, func() {
		out, err := cmd.Output()
		a.out = string(out)
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			a.code = exit.ExitCode()
		} else if err != nil {
			b.t.Fatal(err)
		}
	})
	return a
}

// want fails unless scon-cni succeeded.
func (b *bed) want(a answer) string {
	b.t.Helper()
	if a.code != 0 {
		b.t.Fatalf("scon-cni: %s", a.out)
	}
	return a.out
}

// conf returns a network's configuration; more are further keys.
func (b *bed) conf(more ...string) string {
	c := fmt.Sprintf(`"cniVersion": "1.1.0", "name": "net", "type": "scon-cni", "socket": %q, "bridge": "br0", "isGateway": true,
		"ipam": {"type": "scon", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}`, b.socket())
	return "{" + strings.Join(append([]string{c}, more...), ", ") + "}"
}

// ping fails unless the gateway answers a container.
func (b *bed) ping(ns string) {
	b.t.Helper()
	nstest.Run(b.t, ns, "ping -n -q -c 1 -W 5 10.88.0.1")
}

// wantNothing fails if any state of a container is left on the host.
func (b *bed) wantNothing() {
	b.t.Helper()
	for _, name := range b.devices() {
		b.t.Errorf("device %s is left", name)
	}
	if n := len(b.records()); n != 0 {
		b.t.Errorf("%d records are left", n)
	}
	inode, err := netns.Inode(b.host)
	if err != nil {
		b.t.Fatal(err)
	}
	left, _ := filepath.Glob(fmt.Sprintf("/run/netns/cni-scon-%d-*", inode))
	if len(left) > 0 {
		b.t.Errorf("namespaces are left: %v", left)
	}
}

// devices returns the devices that the agent made on the host for containers.
func (b *bed) devices() (names []string) {
	b.t.Helper()
	for line := range strings.Lines(nstest.Run(b.t, b.host, "ip -br link")) {
		if name, _, _ := strings.Cut(strings.Fields(line)[0], "@"); strings.HasPrefix(name, "scn") || strings.HasPrefix(name, "scp") {
			names = append(names, name)
		}
	}
	return names
}

// records returns the files of attachments.
func (b *bed) records() []string {
	files, _ := filepath.Glob(filepath.Join(b.dir, "startup", "*", "attachments", "*"))
	return files
}
