package services

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	pipecontrol "github.com/scon-project/scon/internal/pipe/control"
	startupcontrol "github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The kill and restart of a service, or its replacement by another release, does not
// affect the others: express packets, attachment of containers, and bytes through the pipe
// continue. All have the capabilities of their systemd units only.
func TestServicesAreIndependent(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(*scontest.Process)
		first string // program of the services at first; "": the test itself
		next  string // program of their successors
	}{
		"killed":     {(*scontest.Process).Kill, "", ""},
		"upgraded":   {(*scontest.Process).Terminate, release(t, "v1.0.0"), release(t, "v1.1.0")},
		"downgraded": {(*scontest.Process).Terminate, release(t, "v1.1.0"), release(t, "v1.0.0")},
	} {
		t.Run(name, func(t *testing.T) { independent(t, c.end, c.first, c.next) })
	}
}

// release builds scon with a version, unless it is built.
func release(t *testing.T, version string) string {
	t.Helper()
	program := filepath.Join(built, version)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.Command("go", "build", "-C", "../..", "-ldflags", "-X main.release="+version, "-o", program, "./cmd/scon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", version, err, out)
	}
	return program
}

func independent(t *testing.T, end func(*scontest.Process), first, next string) {
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2, Service: true, SCON: first, Config: func(c *config.Config) {
		c.Startup.Enabled, c.Startup.Pool = true, config.Pool{MemoryLimit: 1 << 20, Cooldown: time.Second}
		c.Pipe.Enabled = true
	}})
	startup, broker := b.Serve(state.Startup), b.Serve(state.Pipe)
	packets := b.StartTraffic()
	stays := newPod(b, "stays")
	stays.ask("ADD")
	bytes := startLoad(b)

	traffic := map[state.Service]func(){
		state.Express: packets.Proceed,
		state.Startup: func() {
			b.T.Helper()
			comes := newPod(b, "comes")
			comes.ask("ADD")
			comes.ask("DEL")
			comes.remove()
		},
		state.Pipe: bytes.proceed,
	}
	for _, victim := range []state.Service{state.Express, state.Startup, state.Pipe} {
		packets.WaitExpress()
		switch victim {
		case state.Express:
			end(b.Daemon)
		case state.Startup:
			end(startup)
		case state.Pipe:
			end(broker)
		}
		for service, proceed := range traffic {
			if service != victim {
				proceed()
			}
		}
		if victim != state.Express {
			packets.WaitExpress()
		}
		b.SCON = next
		switch victim {
		case state.Express:
			b.Up()
		case state.Startup:
			startup = b.Serve(state.Startup)
		case state.Pipe:
			broker = b.Serve(state.Pipe)
			bytes.stop() // the broker's end closes its connections
			bytes = startLoad(b)
			traffic[state.Pipe] = bytes.proceed
		}
		for _, proceed := range traffic {
			proceed()
		}
	}
	s, err := startupcontrol.Dial(state.Startup.Socket(b.StateDir())).Startup()
	if err != nil || len(s.Attachments) != 1 || s.Attachments[0].Container != "stays" {
		t.Errorf("attachment of the remaining container: %+v, %v", s.Attachments, err)
	}
	stays.ask("DEL")
	bytes.stop()
	packets.WaitExpress()
	packets.WantUnbroken()
	b.WantNoInvalid()
}

// pod is a container without processes, as a runtime creates it for CNI.
type pod struct {
	b        *scontest.Bed
	id, name string
}

func newPod(b *scontest.Bed, id string) *pod {
	b.T.Helper()
	p := &pod{b, id, filepath.Base(b.Node(id))}
	if err := netns.Create(p.name); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { _ = netns.Delete(p.name) })
	return p
}

func (p *pod) remove() {
	p.b.T.Helper()
	if err := netns.Delete(p.name); err != nil {
		p.b.T.Fatal(err)
	}
}

// ask sends the startup service a request as scon-cni does.
func (p *pod) ask(verb string) {
	t := p.b.T
	t.Helper()
	socket := state.Startup.Socket(p.b.StateDir())
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lab", "type": "scon-cni", "socket": %q, "bridge": %q,
		"ipam": {"type": "scon", "subnet": "172.17.0.0/16", "rangeStart": "172.17.0.200", "gateway": "172.17.0.1"}}`, socket, lab.Bridge)
	client := http.Client{Timeout: scontest.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequest(http.MethodPost, "http://scon/v1/cni", strings.NewReader(conf))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Cni-Command": verb, "Cni-Containerid": p.id, "Cni-Netns": netns.Path(p.name), "Cni-Ifname": "eth0", "Cni-Path": "/",
	} {
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s of %s: %v; the service waits for:\n%s", verb, p.id, err, stacks(p.b, state.Startup))
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s of %s: %s: %s", verb, p.id, response.Status, answer)
	}
}

// stacks returns where the threads of a service are in the kernel.
func stacks(b *scontest.Bed, of state.Service) (all string) {
	s, err := state.Read(of.Dir(b.StateDir()))
	if err != nil {
		return err.Error()
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", s.PID)) // the pattern is valid
	for _, path := range threads {
		stack, _ := os.ReadFile(path) // the thread may have ended
		all += path + ":\n" + string(stack)
	}
	return all
}

// load is a program in container 1 that sends to a program in container 2 through the
// pipe.
type load struct {
	b    *scontest.Bed
	ends []end
}

func startLoad(b *scontest.Bed) *load {
	b.T.Helper()
	program := buildLoad(b.T)
	l := &load{b: b}
	b.T.Cleanup(l.stop)
	l.start("c2", program, "listen", "copier:0.0.0.0:7000")
	scontest.Eventually(b.T, "a process listens", func() error {
		p, err := l.status()
		if err == nil && (len(p.Names) == 0 || !p.Names[0].Listening) {
			err = fmt.Errorf("%+v", p.Names)
		}
		return err
	})
	l.start("c1", program, "connect", fmt.Sprintf("copier:%v:7000", b.Addr("c2")))
	return l
}

func (l *load) start(node, program string, args ...string) {
	l.b.T.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + l.b.Node(node), program}, append(args, "--seconds", "600")...)...)
	cmd.Env = append(os.Environ(), "SCON_PIPE_SOCKET="+pipe.Socket(l.b.StateDir()))
	l.ends = append(l.ends, launch(l.b, cmd))
}

// launch starts a program that ends with the test at the latest.
func launch(b *scontest.Bed, cmd *exec.Cmd) end {
	b.T.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() { // on a thread that lives as long as the program: Pdeathsig ends the program with it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		b.T.Fatal(err)
	}
	return end{cmd.Process, ended}
}

// end is a program that runs.
type end struct {
	*os.Process
	ended chan struct{}
}

func (e end) kill() {
	_ = e.Kill()
	<-e.ended
}

func (l *load) status() (pipecontrol.Pipe, error) {
	return pipecontrol.Dial(state.Pipe.Socket(l.b.StateDir())).Pipe()
}

// stop ends the programs. It can be called twice.
func (l *load) stop() {
	for _, e := range l.ends {
		e.kill()
	}
	l.ends = nil
}

// sent returns the number of bytes through the pipe since the broker's start.
func (l *load) sent() (uint64, error) {
	p, err := l.status()
	return p.SentBytes, err
}

// proceed waits until more bytes have gone through the pipe.
func (l *load) proceed() {
	l.b.T.Helper()
	before, err := l.sent()
	if err != nil {
		l.b.T.Fatal(err)
	}
	scontest.Eventually(l.b.T, "bytes go through the pipe", func() error {
		now, err := l.sent()
		if err == nil && now < before+1<<20 {
			err = fmt.Errorf("%d bytes, before %d", now, before)
		}
		return err
	})
}

// buildLoad builds scon-pipe-load.
func buildLoad(t *testing.T) string {
	t.Helper()
	out := filepath.Join(built, "scon-pipe-load")
	for _, args := range [][]string{
		{"-C", "../../libsconpipe", "OUT=" + built},
		{"-C", "../../examples", "OUT=" + built, out},
	} {
		if text, err := exec.Command("make", args...).CombinedOutput(); err != nil {
			t.Fatalf("make %v: %v: %s", args, err, text)
		}
	}
	return out
}
