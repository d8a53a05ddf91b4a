package report

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/netns"
	pipecontrol "github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/redact"
	startupcontrol "github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

// secrets are what no report may have. A pseudonym has no more than two octets of an
// address in common with it but by a rare chance.
var secrets = []string{
	"203.0.113.77", "198.51.100.", "10.83.7.", "2001:db8:77", "fd83::", "02:83:ac:11:00:02", "0283ac110002",
	"acme", "billing-db", "smith", "hunter2", "s3cr3t", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "eyJhbGciOi",
	"wEQ4pkZMrWZZLAFEEmfWXrKkJ6zYmZ4fQJcGPqGkR3o", "DB_PASSWORD", "com.example.customer", "4f2a9b8c7d6e", "router.example.net",
}

// backend has a container with a secret name, in all places where its names occur.
type backend struct{ api.Backend }

const containerID = "4f2a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a"

func (backend) Status() (api.Status, error) {
	return api.Status{
		State: api.StateInert, Why: `the rules could not be read: chain "acme-in": bad hunter2`, Kernel: "6.1.0", Mode: "tcx", PID: os.Getpid(), Version: "1.0.0",
		Hooks:      []api.Hook{{Dev: "vethacme1", Ifindex: 5, Hook: "from_container", Mode: "tcx"}},
		Containers: []api.Container{{Name: "billing-db", ID: containerID, Dev: "vethacme1", Bridge: "br-acme", Reasons: map[string]uint64{"no_entry": 4}}},
		Skipped:    []api.Skipped{{Dev: "acme0", Reason: "no Ethernet device below it"}},
	}, nil
}

func (backend) Flows(string) ([]api.Flow, error) {
	all := make([]api.Flow, mostFlows+1)
	for i := range all {
		all[i] = api.Flow{
			Container: "billing-db", Peer: "acme-web", Orig: api.Tuple{Src: "10.83.7.2", Sport: 43512, Dst: "203.0.113.77", Dport: 443},
			Reply: api.Tuple{Src: "2001:db8:77::9"}, NextHop: "02:83:ac:11:00:02", Oif: "acme0",
		}
	}
	return all, nil
}

func (backend) Metrics(w io.Writer) error {
	_, err := io.WriteString(w, `scon_container_express_bytes_total{container="billing-db",dev="vethacme1"} 123456789012`+"\n")
	return err
}

func (backend) Stop() error { return nil }

type agent struct{ startupcontrol.Agent }

func (agent) Startup() (startupcontrol.Startup, error) {
	return startupcontrol.Startup{Attachments: []startupcontrol.StartupAttachment{
		{Network: "acme-net", Container: "smith-web", Netns: "/run/netns/cni-hunter2", Addresses: []string{"10.83.7.9/24"}},
	}}, nil
}

// serve serves express at a socket, and nothing at all if mute.
func serve(t *testing.T, socket string, mute bool) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !mute {
			_ = api.Serve(ctx, l, api.Handler(backend{}, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
			return
		}
		<-ctx.Done()
		l.Close()
	}()
	t.Cleanup(func() { end(); <-done })
}

// machine makes a namespace with rules, devices and addresses that hold secrets, and a
// state directory with a log and settings.
func machine(t *testing.T) Options {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	namespace := filepath.Base(t.TempDir()) + "-scon-report"
	if err := netns.Create(namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Delete(namespace) })
	err := netns.Do(namespace, func() error {
		return run("sh", "-ec", `
			ip link add acme0 type veth peer name acme1 && ip link set acme1 up && ip link add br-acme type bridge && ip link add vethacme1 type veth peer name vethacme2
			ip link set vethacme1 master br-acme address 02:83:ac:11:00:02
			ip address add 10.83.7.1/24 dev br-acme && ip address add fd83::1/64 dev acme0
			ip link set acme0 up && ip link set br-acme up && ip link set vethacme1 up
			ip route add 198.51.100.0/24 dev acme0
			nft -f - <<'N'
table inet acme {
	set customers { type ipv4_addr; flags interval; elements = { 203.0.113.77, 198.51.100.0/24 } }
	chain in { type filter hook forward priority 0; policy drop
		iifname "br-acme" ip saddr @customers accept comment "customer Smith: drop"
		ip6 saddr 2001:db8:77::/48 log prefix "hunter2 " drop
		@nh,96,32 0x0a530002 accept
	}
}
N
			iptables -A FORWARD -i br-acme -s 203.0.113.77 -m comment --comment "token s3cr3t" -m string --string hunter2 --algo bm -j DROP
			iptables -t nat -A PREROUTING -m mac --mac-source 02:83:ac:11:00:02 -p tcp --dport 80 -j DNAT --to-destination 10.83.7.2:8080
			`)
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	settings := filepath.Join(dir, "acme.yaml")
	write(t, settings, "# Mrs Smith, hunter2\nregular: [label=com.example.customer=smith, name=billing-db]\nexact_counters: [acme]\nbridges: [br-acme]\nlog: {level: s3cr3t}\n")
	write(t, state.Log(dir), `time=2026-11-25T21:13:50.123Z level=INFO msg="port hooked" container=billing-db dev=vethacme1 id=`+containerID+`
time=2026-11-25T21:13:51Z level=WARN msg="container not identified" err="inspect acme-web: env DB_PASSWORD=hunter2 token=ghp_16C7e42F292c6912E7710c838347Ae178B4a" addr=10.83.7.2:443
time=2026-11-25T21:13:52Z level=WARN msg="rules" why="rule says: --comment \"of Smith\" -j ACCEPT" authorization="Bearer eyJhbGciOi.eyJzdWIi.c2ln" key=wEQ4pkZMrWZZLAFEEmfWXrKkJ6zYmZ4fQJcGPqGkR3o=
{"time":"2026-11-25T21:13:53Z","level":"INFO","msg":"flushed","container":"billing-db","peer":"[2001:db8:77::9]:80","host":"router.example.net"}
panic: runtime error: invalid memory address or nil pointer dereference

goroutine 17 [running]:
github.com/scon-project/scon/internal/express.(*Daemon).loop(0xc000123456, {0x1, 0x2})
	github.com/scon-project/scon/internal/express/loop.go:71 +0x1b4
`)
	journal(t)
	write(t, filepath.Join(dir, "daemon.json"), `{"pid": 1, "netns": "acme", "socket": "`+filepath.Join(dir, "scon.sock")+`", "version": "1", "config": {"SocketGroup": "smith"}}`)
	o := Options{
		StateDir: dir, Config: settings, Netns: namespace, Version: map[string]string{"version": "0~20261126.fc2ad0e+dirty", "commit": "fc2ad0e042e926bcca89823a3820447f90abefe9"},
		Progress: func(int, int, string) {},
	}
	for _, s := range []struct {
		name   string
		which  state.Service
		client func(socket string) *api.Service
	}{
		{"express", state.Express, func(socket string) *api.Service { return api.Dial(socket).Service }},
		{"startup", state.Startup, func(socket string) *api.Service { return startupcontrol.Dial(socket).Service }},
		{"pipe", state.Pipe, func(socket string) *api.Service { return pipecontrol.Dial(socket).Service }},
	} {
		socket := s.which.Socket(dir)
		o.Services = append(o.Services, Service{Name: s.name, Unit: "scon-no-such.service", State: s.which, Socket: socket, Client: s.client(socket)})
	}
	return o
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// journal makes programs that answer as systemd's do of a unit whose lines have secrets.
func journal(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, prints := range map[string]string{
		"journalctl": `2026-11-25T21:13:49+0000 systemd[1]: Starting scon.service - SCON: express forwarding for containers...
2026-11-25T21:13:49+0000 sh[340]: password=hunter2 of Mrs Smith at 203.0.113.77
2026-11-25T21:13:50+0000 scon[347]: time=2026-11-25T21:13:50.123Z level=WARN msg="container not identified" container=billing-db err="inspect acme-web: env DB_PASSWORD=hunter2 token=ghp_16C7e42F292c6912E7710c838347Ae178B4a"
2026-11-25T21:13:51+0000 scon[347]: panic: authorization Bearer eyJhbGciOi.eyJzdWIi.c2ln
2026-11-25T21:13:51+0000 systemd[1]: scon.service: Main process exited, code=exited, status=2/INVALIDARGUMENT`,
		"systemctl": "ActiveState=failed\nStatusText=billing-db of Smith: s3cr3t\nExecMainStatus=2",
	} {
		write(t, filepath.Join(dir, name), "#!/bin/sh\ncat <<'E'\n"+prints+"\nE\n")
		if err := os.Chmod(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// unpack returns the files of an archive.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		if h.ModTime.After(time.Now()) {
			t.Errorf("%s is of %v, in the future", h.Name, h.ModTime)
		}
		files[strings.TrimPrefix(h.Name, "scon-report/")] = string(content)
	}
}

// Of secrets in rules, devices, logs, settings and answers nothing is in the archive, and
// what is not secret is.
func TestSecrets(t *testing.T) {
	o := machine(t)
	serve(t, o.Services[0].Socket, false)
	startup, err := net.Listen("unix", o.Services[1].Socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		_ = api.Serve(ctx, startup, startupcontrol.Handler(backend{}, api.Process{PID: os.Getpid(), Version: "1"}, agent{}), slog.New(slog.DiscardHandler))
	}()
	path := filepath.Join(t.TempDir(), "r.tar.gz")
	d, err := Write(path, o)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, path)
	for name, content := range files {
		for _, secret := range secrets {
			if strings.Contains(strings.ToLower(content), strings.ToLower(secret)) {
				t.Errorf("%s has %q:\n%s", name, secret, content)
			}
		}
	}
	for file, wants := range map[string][]string{
		"express/status.json":   {`"state": "inert"`, `"no_entry": 4`, `"name": "container-`, `"id": "id-`, `"bridge": "bridge-`},
		"express/flows.json":    {`"container": "container-`, `"oif": "veth-`, `"sport": 43512`},
		"express/metrics.txt":   {`scon_container_express_bytes_total{container="container-`, " 123456789012\n"},
		"express/service.txt":   {"ActiveState=failed\nStatusText=", "ExecMainStatus=2"},
		"express/log.txt":       {"systemd[1]: Starting scon.service - SCON: express forwarding for containers...", "systemd[1]: scon.service: Main process exited, code=exited, status=2/INVALIDARGUMENT", `msg="port hooked" container=container-`, "panic: runtime error: invalid memory address or nil pointer dereference", "goroutine 17 [running]:\ngithub.com/scon-project/scon/internal/express.(*Daemon).loop(", "internal/express/loop.go:71 +0x1b4"},
		"startup/status.json":   {`"container": "container-`},
		"rules/nft.txt":         {"type filter hook forward priority filter; policy drop;", "elements = { ", `comment "text-`},
		"rules/iptables.txt":    {"-A PREROUTING -p tcp -m mac --mac-source 02:", "-j DNAT --to-destination 10."},
		"devices/devices.txt":   {" kind bridge, mtu 1500", ", master bridge-1", " kind veth"},
		"devices/routes.txt":    {"/24 dev veth-"},
		"settings.txt":          {"regular: [label=", "wrong: ", "log.level is "},
		"kernel/kernel.txt":     {"release: ", "/proc/cmdline: "},
		"kernel/sysctls.txt":    {"net/ipv4/ip_forward = "},
		"doctor.json":           {`"capabilities": [`, `"name": "kernel"`},
		"versions.txt":          {`"version": "0~20261126.fc2ad0e+dirty"`, `"commit": "fc2ad0e042e926bcca89823a3820447f90abefe9"`},
		"pipe/service.txt":      {"it does not answer: no pipe broker answers at "},
		"index.json":            {`"file": "express/flows.json"`, "the first 1000 of 1001 connections"},
		"devices/pins.txt":      nil,
		"kernel/config.txt":     nil,
		"startup/service.txt":   nil,
		"devices/addresses.txt": {"/24 "},
	} {
		content, ok := files[file]
		if !ok && wants != nil {
			t.Errorf("no %s", file)
		}
		for _, want := range wants {
			if !strings.Contains(content, want) {
				t.Errorf("%s has no %q:\n%.2000s", file, want, content)
			}
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != d.Bytes || d.File != path {
		t.Errorf("%v, %v, %+v", info.Mode(), err, d)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".scon-report-*"))
	if len(left) > 0 {
		t.Errorf("left %q", left)
	}
	var index Document
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil || len(index.Parts) != len(d.Parts) || index.File != "" {
		t.Errorf("index.json: %v, %+v", err, index)
	}
}

// With --names, containers' names are left, and nothing else.
func TestNames(t *testing.T) {
	o := machine(t)
	o.Names = true
	serve(t, o.Services[0].Socket, false)
	path := filepath.Join(t.TempDir(), "r.tar.gz")
	if _, err := Write(path, o); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, path)
	if !strings.Contains(files["express/status.json"], `"name": "billing-db"`) || !strings.Contains(files["express/log.txt"], "container=billing-db") {
		t.Errorf("%s%s", files["express/status.json"], files["express/log.txt"])
	}
	for name, content := range files {
		if strings.Contains(content, "hunter2") || strings.Contains(content, "10.83.7.") || strings.Contains(content, "acme") {
			t.Errorf("%s:\n%s", name, content)
		}
	}
}

// A service that takes connections and does not answer is said to, and all else is there.
func TestHangs(t *testing.T) {
	o := machine(t)
	o.Limit = 500 * time.Millisecond
	serve(t, o.Services[0].Socket, true)
	path := filepath.Join(t.TempDir(), "r.tar.gz")
	d, err := Write(path, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Parts {
		if p.File == "express/status.json" && (p.Missing != "it took longer than 500ms" || p.Bytes != 0) {
			t.Errorf("%+v", p)
		}
		if p.File == "rules/nft.txt" && p.Bytes == 0 {
			t.Errorf("%+v", p)
		}
	}
	if text := unpack(t, path)["express/service.txt"]; !strings.HasPrefix(text, "it does not answer: it took longer than 500ms\n") {
		t.Errorf("%s", text)
	}
}

// A part that hangs is given up. What a command has said until then is kept.
func TestWithin(t *testing.T) {
	content, err := within(50*time.Millisecond, func(context.Context) ([]byte, error) { select {} })
	if content != nil || err == nil || err.Error() != "it took longer than 50ms" {
		t.Errorf("%q, %v", content, err)
	}
	content, err = within(500*time.Millisecond, command("sh", "-c", "echo first; exec sleep 60"))
	if string(content) != "first\n" || err == nil || err.Error() != "it took longer than 500ms" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err = within(time.Minute, command("scon-no-such-tool")); err == nil || err.Error() != "scon-no-such-tool is not installed" {
		t.Errorf("%v", err)
	}
	content, err = within(time.Minute, command("sh", "-c", "head -c 9000000 /dev/zero"))
	if len(content) != outputLimit || err == nil || err.Error() != "the first 8 MiB" {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}

// A report that cannot be written leaves nothing, and the one that was there.
func TestNotWritten(t *testing.T) {
	dir := t.TempDir()
	o := Options{Config: "/no/such", StateDir: dir, Progress: func(done, _ int, _ string) {
		if done == 3 {
			_ = os.RemoveAll(filepath.Join(dir, "there"))
		}
	}}
	if _, err := Write(filepath.Join(dir, "no", "r.tar.gz"), o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "there"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(filepath.Join(dir, "there", "r.tar.gz"), o); err == nil {
		t.Error("it was written into a directory that is gone")
	}
}

func TestEndOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, strings.Repeat("x", logBytes)+"\nlast\n")
	if text, err := endOf(path); err != nil || string(text) != "last\n" {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	write(t, path, "first\nlast\n")
	if text, err := endOf(path); err != nil || string(text) != "first\nlast\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// Of a process the names of the kernel's functions are left, which say what it waits for.
func TestKernelFunctions(t *testing.T) {
	const text = `StatusText=thread 7 waits in hunter2
thread 243 waits in futex_wait_queue_x
[<0>] __x64_sys_futex_x+0x79/0x120
`
	got := string(asProcess(redact.New(), []byte(text)))
	if !strings.Contains(got, "waits in futex_wait_queue_x\n[<0>] __x64_sys_futex_x+0x79/0x120") || strings.Contains(got, "hunter2") {
		t.Error(got)
	}
}
