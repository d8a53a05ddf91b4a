package docs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/machine"
)

// patience is the timeout of waits. It is no assertion about time.
const patience = 20 * time.Second

// looks are commands that change nothing: they are repeated until they print what the
// document shows.
var looks = []string{"scon status", "scon flows", "scon explain", "scon pipe ls", "scon pipe stat", "scon startup status", "curl"}

// images are made of programs of this machine, under the names of images that readers get
// from a registry.
var images = map[string]struct {
	machine.Image
	change string // instruction of an image file
}{
	"nginx": {machine.Image{Programs: []string{"nginx", "curl"}, Files: map[string]string{
		"etc/nginx/nginx.conf": "daemon off;\nworker_processes 1;\nerror_log stderr;\npid /run/nginx.pid;\nevents { worker_connections 512; }\n" +
			"http {\n\taccess_log off;\n\tkeepalive_requests 100000;\n\tinclude /etc/nginx/conf.d/*.conf;\n}\n",
		"etc/nginx/conf.d/default.conf":   "server {\n\tlisten 80;\n\troot /usr/share/nginx/html;\n}\n",
		"usr/share/nginx/html/index.html": "<h1>Welcome to nginx!</h1>\n",
	}}, `CMD ["nginx"]`},
	"busybox": {machine.Image{Files: map[string]string{"etc/hostname": "busybox\n"}}, `CMD ["sh"]`},
}

// install returns a folder with what "make install" installs.
var install = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "scon-docs-")
	if err != nil {
		return "", err
	}
	installed = dir
	if out, err := exec.Command("make", "-C", root, "install", "PREFIX=/usr", "DESTDIR="+dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make install: %w\n%s", err, out)
	}
	return dir, nil
})

// Without what "make build" makes, "make install" says so, and installs nothing.
func TestInstallUnbuilt(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command("make", "-C", root, "install", "BIN="+filepath.Join(dir, "bin"), "DESTDIR="+filepath.Join(dir, "dest")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "run 'make build' first") {
		t.Errorf("%v: %s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("it has left %q, %v", left, err)
	}
}

// installed is install's folder, "" before.
var installed string

func TestMain(m *testing.M) {
	status := m.Run()
	if installed != "" {
		os.RemoveAll(installed)
	}
	os.Exit(status)
}

// setUp puts what is installed into the machine's /usr and /etc, where documents may
// change what they like, and the sources into the home directory.
const setUp = `
for dir in usr etc; do
	mkdir -p /run/over/$dir /run/over/work-$dir
	mount -t overlay overlay -o lowerdir="$0/$dir:/$dir,upperdir=/run/over/$dir,workdir=/run/over/work-$dir" /$dir
done
printf '#!/bin/sh\nexec "$@"\n' >/usr/local/bin/sudo
chmod 755 /usr/local/bin/sudo
mkdir /run/home
ln -s "$1" /run/home/scon
`

// services prints the ends of the services' logs, and where the kernel has their threads.
const services = `
tail -n 50 /run/scon/scon.log /run/scon/*/scon.log
for task in /proc/[0-9]*/task/[0-9]*; do
	case $(cat $task/comm) in
	scon*) echo "$task $(cat $task/wchan)"; cat $task/stack ;;
	esac
done 2>/dev/null
`

// host is a machine of the documents, with a Docker engine.
type host struct{ *machine.Machine }

// boot starts a machine with the images that a document mentions.
func boot(t *testing.T, document string) host {
	t.Helper()
	dir, err := install()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("scon-docs-%d", os.Getpid())
	t.Cleanup(func() { // after the machine's end
		if err := machine.RemoveCgroups(group); err != nil {
			t.Error(err)
		}
	})
	m, err := machine.Boot()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	h := host{m}
	run := func(stdin []byte, name string, args ...string) {
		t.Helper()
		cmd := m.Command(name, args...)
		cmd.Stdin = bytes.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	sources, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	run(nil, "sh", "-ec", setUp, dir, sources)
	engine := machine.Dockerd(group)
	h.background(t, m.Command(engine[0], engine[1:]...))
	deadline := time.Now().Add(patience)
	for m.Command("docker", "version").Run() != nil {
		if time.Now().After(deadline) {
			t.Fatal("dockerd does not start")
		}
		time.Sleep(50 * time.Millisecond)
	}
	for name, image := range images {
		if !strings.Contains(document, " "+name) {
			continue
		}
		var tar bytes.Buffer
		if err := image.Write(&tar); err != nil {
			t.Fatal(err)
		}
		run(tar.Bytes(), "docker", "import", "--change", image.change, "-", name)
	}
	return h
}

// background starts a command that ends with the machine at the latest.
func (h host) background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	go cmd.Wait()
}

// command prepares a step's.
func (h host) command(s step) *exec.Cmd {
	enter := h.Command
	if s.other {
		enter = h.EdgeCommand
	}
	cmd := enter("bash", "-c", "cd; "+strings.TrimSuffix(s.command, "&"))
	cmd.Env = append(cmd.Env, "TERM=dumb", "HOME=/run/home")
	return cmd
}

// run runs a step, and says how it differs from what the document says, "" if not.
func (h host) run(t *testing.T, s step) string {
	t.Helper()
	if strings.HasSuffix(s.command, "&") {
		h.background(t, h.command(s))
		return ""
	}
	deadline := time.Now().Add(patience)
	for {
		out, err := h.command(s).CombinedOutput()
		diff := match(s.output, string(out))
		if err != nil {
			diff = err.Error()
		}
		if diff == "" || !onlyLooks(s.command) || time.Now().After(deadline) {
			t.Logf("%s\n%s", s.command, out)
			return diff
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func onlyLooks(command string) bool {
	command = strings.TrimPrefix(command, "sudo ")
	for _, prefix := range looks {
		if strings.HasPrefix(command, prefix+" ") || command == prefix {
			return true
		}
	}
	return false
}

// Each document's commands print what it shows.
func TestSessions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes namespaces: needs root")
	}
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var here []block
		for _, b := range blocks {
			if b.notRun == "" {
				here = append(here, b)
			}
		}
		if here == nil {
			continue
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			h := boot(t, string(text))
			for _, b := range here {
				for _, s := range b.steps {
					if diff := h.run(t, s); diff != "" {
						out, _ := h.Command("sh", "-c", services).CombinedOutput()
						t.Logf("logs of the services, and where their threads are:\n%s", out)
						t.Fatalf("%s:%d: %s: %s\nwant\n%s", name, s.line, s.command, diff, strings.Join(s.output, "\n"))
					}
				}
			}
		})
	}
}
