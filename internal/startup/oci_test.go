package startup

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/metrics"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/nstest"
)

// wanted is the annotation of a container of the network.
const wanted = `"scon.network": "net"`

// script writes a runtime that executes the given lines.
func (b *bed) script(lines string) (path string) {
	b.t.Helper()
	path = filepath.Join(b.dir, "runtime")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+lines+"\n"), 0o700); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// Without an agent scon-oci only executes the runtime, but refuses a container whose network it
// would have to make.
func TestOCIWithoutAgent(t *testing.T) {
	b := newBed(t)
	const env, ns, path = `"env": ["A=b"]`, `{"type": "network"}`, `"network", "path": "/proc/1/ns/net"`
	plain := fmt.Sprintf(spec, "", "")
	for name, c := range map[string]struct {
		spec    string
		options []string
		refused bool
	}{
		"no network":                    {plain, nil, false},
		"by annotation":                 {fmt.Sprintf(spec, wanted, ""), nil, true},
		"by variable":                   {strings.Replace(plain, env, `"env": ["A={}", "SCON_NETWORK=net"]`, 1), nil, true},
		"by option":                     {plain, []string{"--scon-network", "net"}, true},
		"by an empty option":            {plain, []string{"--scon-network", ""}, false},
		"path is empty":                 {strings.Replace(plain, `"network"`, `"network", "path": ""`, 1), []string{"--scon-network", "net"}, true},
		"it has a namespace":            {strings.Replace(fmt.Sprintf(spec, wanted, ""), `"network"}`, path+"}", 1), nil, false},
		"it has the host's namespace":   {strings.Replace(plain, ", "+ns, "", 1), []string{"--scon-network", "net"}, false},
		"the runtime has to say it":     {"{", []string{"--scon-network", "net"}, false},
		"the name is another one's too": {strings.Replace(plain, `"A=b"`, `"A={\"type\":\"network\"}"`, 1), nil, false},
	} {
		for _, verb := range []string{"create", "run"} {
			out, err := b.oci("/bin/true", append(c.options, verb, "--bundle", writeBundle(t, c.spec), "c")...)
			if c.refused != (err != nil) || c.refused && !strings.Contains(out, "scon up") {
				t.Errorf("%s: %s: %v %s", name, verb, err, out)
			}
		}
	}
}

// The wrapped runtime gets all arguments unchanged, and scon-oci returns its exit status.
func TestOCIPassesOn(t *testing.T) {
	b := newBed(t)
	b.withPool(0)
	seen := filepath.Join(b.dir, "seen")
	runtime := b.script(`printf '%s\n' "$@" >` + seen + `
		exit 3`)
	bundle := writeBundle(t, fmt.Sprintf(spec, "", ""))
	before, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"", "--version", "features", "list", "spec", "help create",
		"--root /r --log=/l --log-format json --systemd-cgroup create --bundle " + bundle + " --pid-file p --no-pivot c",
		"create -b " + bundle + " c", "create -b=" + bundle + " c", "create -bundle " + bundle + " c",
		"create --bundle " + bundle + " --console-socket /s --preserve-fds 2 c", "create --bundle " + bundle,
		"-root /r start c", "start c", "exec -t --pid-file p --process x c sh -c --bundle", "state c", "kill --all c 9", "kill c SIGTERM",
		"ps c", "pause c", "resume c", "events --stats c", "update --resources - c", "checkpoint c", "restore --bundle x c",
		"delete c", "delete --force c", "run -d --bundle " + bundle + " c", "run --bundle=" + bundle + " --detach c", "run --bundle " + bundle + " c",
	} {
		_ = os.Remove(seen)
		out, err := b.oci(runtime, strings.Fields(line)...)
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("%q: %v %s", line, err, out)
		}
		if got, err := os.ReadFile(seen); err != nil || strings.Join(strings.Fields(string(got)), " ") != line {
			t.Errorf("%q became %q, %v", line, got, err)
		}
	}
	if after, err := os.ReadFile(filepath.Join(bundle, "config.json")); err != nil || string(after) != string(before) {
		t.Errorf("a configuration that names no network has changed: %s, %v", after, err)
	}
	if s := b.state(); len(s.Attachments) != 0 || s.Stages["cgroup"].Inside+s.Stages["start_vm"].Inside != 0 {
		t.Errorf("left: %+v", s)
	}
}

// A container with a network namespace of its own keeps it, though it names a network.
func TestOCIKeeps(t *testing.T) {
	b := newBed(t)
	b.withPool(1)
	for name, namespaces := range map[string]string{
		"the host's":    `{"type": "pid"}`,
		"another's":     `{"type": "network", "path": "/proc/1/ns/net"}`,
		"no namespaces": ``,
		"capitals":      `{"type": "network"}`,
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf(`{"annotations": {%s}, "linux": {"namespaces": [%s]}}`, wanted, namespaces)
			if name == "capitals" {
				text = strings.Replace(text, "linux", "Linux", 1)
			}
			dir := writeBundle(t, text)
			if out, err := b.oci("/bin/true", "create", "--bundle", dir, "c"); err != nil {
				t.Fatal(err, out)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "config.json")); err != nil || string(got) != text {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
	if s := b.state(); len(s.Attachments) != 0 {
		t.Errorf("attached: %+v", s.Attachments)
	}
}

// A container keeps its device when another one of its ID is created, which the runtime
// refuses: by a bundle that names no network, and by its own, which has a namespace by now.
func TestOCISameID(t *testing.T) {
	b := newBed(t)
	b.withPool(1)
	own := writeBundle(t, fmt.Sprintf(spec, wanted, ""))
	if out, err := b.oci("/bin/true", "create", "--bundle", own, "c"); err != nil {
		t.Fatal(err, out)
	}
	for _, dir := range []string{writeBundle(t, fmt.Sprintf(spec, "", "")), own} {
		if out, err := b.oci("/bin/false", "create", "--bundle", dir, "c"); err == nil {
			t.Errorf("created again: %s", out)
		}
		if s := b.state(); len(s.Attachments) != 1 {
			t.Fatalf("attached: %+v", s.Attachments)
		}
	}
	other := writeBundle(t, fmt.Sprintf(spec, wanted, ""))
	if out, err := b.oci("/bin/false", "create", "--bundle", other, "d"); err == nil {
		t.Errorf("created: %s", out)
	}
	if s := b.state(); len(s.Attachments) != 1 {
		t.Errorf("attached: %+v", s.Attachments)
	}
	if out, err := b.oci("/bin/true", "delete", "c"); err != nil {
		t.Error(err, out)
	}
	if s := b.state(); len(s.Attachments) != 0 {
		t.Errorf("left: %+v", s.Attachments)
	}
}

// Of creates of one ID at a time, that by the runtime keeps its device and what is to be made
// before its start; a run that is refused keeps the others' as well.
func TestOCISameIDAtOnce(t *testing.T) {
	b := newBed(t)
	b.withPool(2)
	none := writeBundle(t, fmt.Sprintf(spec, "", ""))
	late, goOn := filepath.Join(b.dir, "late"), filepath.Join(b.dir, "go-on")
	slow := b.script("echo >" + late + "\nuntil [ -e " + goOn + " ]; do sleep 0.01; done\nexit 1")
	refused := make(chan error)
	create := func(args ...string) {
		go func() {
			_, err := b.oci(slow, append(args, "c")...)
			refused <- err
		}()
		eventually(t, "another create is under way", func() bool { return os.Remove(late) == nil })
	}
	end := func() {
		t.Helper()
		if err := os.WriteFile(goOn, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; err == nil {
			t.Error("created twice")
		}
		if err := os.Remove(goOn); err != nil {
			t.Fatal(err)
		}
	}
	create("create", "--bundle", none)
	if out, err := b.oci("/bin/true", "create", "--bundle", writeBundle(t, fmt.Sprintf(spec, wanted, "")), "c"); err != nil {
		t.Fatal(err, out)
	}
	end()
	if s := b.state(); len(s.Attachments) != 1 {
		t.Errorf("after a create that was refused: %+v", s.Attachments)
	}
	create("run", "--bundle", none)
	end()
	if s := b.state(); len(s.Attachments) != 1 {
		t.Errorf("after a run that was refused: %+v", s.Attachments)
	}
	if out, err := b.oci("/bin/true", "delete", "c"); err != nil {
		t.Fatal(err, out)
	}
	if out, err := b.oci("/bin/true", "run", "--bundle", writeBundle(t, fmt.Sprintf(spec, wanted, "")), "d"); err != nil {
		t.Fatal(err, out)
	}
	if s := b.state(); len(s.Attachments) != 0 {
		t.Errorf("after a run: %+v", s.Attachments)
	}

	// A device that is made before the start.
	own := newUserns(t)
	if out, err := b.create(own); err != nil {
		t.Fatal(err, out)
	}
	other := writeBundle(t, fmt.Sprintf(spec, wanted, `, {"type": "user"}`))
	create("create", "--bundle", other, "--pid-file", filepath.Join(other, "pid"))
	end()
	if out, err := b.oci("/bin/true", "start", "c"); err != nil {
		t.Fatal(err, out)
	}
	if s := b.state(); len(s.Attachments) != 1 {
		t.Errorf("after the start: %+v", s.Attachments)
	}
}

// A network whose addresses another IPAM plugin leases is refused at create, whether its
// namespace is the runtime's or that of a container with a user namespace.
func TestOCIWithDelegate(t *testing.T) {
	b := newBed(t)
	b.start()
	b.want(b.cni("ADD", "c", netns.Path(nstest.New(t)), b.hostLocal()))
	for name, more := range map[string]string{"plain": "", "user": `, {"type": "user"}`} {
		dir := writeBundle(t, fmt.Sprintf(spec, wanted, more))
		out, err := b.oci("/bin/true", "create", "--bundle", dir, "--pid-file", filepath.Join(dir, "pid"), name)
		if err == nil || !strings.Contains(out, "requires ipam.type scon") {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
}

// A bundle and a file with paths relative to the working directory.
func TestOCIRelativePaths(t *testing.T) {
	b := newBed(t)
	b.withPool(1)
	dir := writeBundle(t, fmt.Sprintf(spec, wanted, ""))
	for id, args := range map[string][]string{"named": {"--bundle", filepath.Base(dir)}, "here": nil} {
		cmd := exec.Command(filepath.Join(bin, "scon-oci"), append(append([]string{"create"}, args...), id)...)
		cmd.Env = append(os.Environ(), "SCON_SOCKET="+b.socket(), "SCON_RUNTIME=/bin/true")
		cmd.Dir = filepath.Dir(dir)
		if args == nil {
			cmd.Dir = dir
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		if netnsOf(t, dir) == "" {
			t.Errorf("%s: no path", id)
		}
		if out, err := b.oci("/bin/true", "delete", id); err != nil {
			t.Fatal(err, out)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, spec, wanted, ""), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The agent dies at each step of a create and a delete by scon-oci. A create without an answer is
// refused. Nothing is left, whether the engine deletes the container or forgets it.
func TestKilledOCI(t *testing.T) {
	for _, at := range []string{
		"pool-begin", "pool-made", "oci-taken", "oci-named", "oci-kept", "oci-written",
		"del-begin", "del-device", "del-lease", "del-record", "del-name",
	} {
		for _, forgets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, forgets %v", at, forgets), func(t *testing.T) {
				b := newBed(t)
				pool := 1
				if strings.HasPrefix(at, "pool") {
					pool = 0
				}
				b.withPool(pool, faultEnv+"="+at)
				dir := writeBundle(t, fmt.Sprintf(spec, wanted, ""))
				out, err := b.oci("/bin/true", "create", "--bundle", dir, "c")
				if dies := !strings.HasPrefix(at, "del"); dies != (err != nil) {
					t.Fatal(err, out)
				}
				if strings.HasPrefix(at, "del") {
					if out, err := b.oci("/bin/true", "delete", "c"); err != nil {
						t.Fatal(err, out)
					}
				}
				if err := b.agent.Wait(); err == nil {
					t.Error("the agent ended in order")
				}
				b.agent = nil
				if forgets {
					if err := os.RemoveAll(dir); err != nil {
						t.Fatal(err)
					}
				}
				b.withPool(pool)
				if !forgets {
					if out, err := b.oci("/bin/true", "delete", "--force", "c"); err != nil {
						t.Fatal(err, out)
					}
				}
				b.wantWhole(b.conf())
			})
		}
	}
}

// scon-oci, or the wrapped runtime, is killed while it creates a container.
func TestKilledRuntime(t *testing.T) {
	for who, script := range map[string]string{"scon-oci": "kill -KILL $PPID; exec sleep 60", "runtime": "kill -KILL $$"} {
		for _, forgets := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, forgets %v", who, forgets), func(t *testing.T) {
				b := newBed(t)
				b.withPool(1)
				dir := writeBundle(t, fmt.Sprintf(spec, wanted, ""))
				began := filepath.Join(b.dir, "began")
				out, err := b.oci(b.script("echo $$ >"+began+"\n"+script), "create", "--bundle", dir, "c")
				if err == nil {
					t.Error("the create went well: " + out)
				}
				pid, err := os.ReadFile(began)
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "the runtime has ended", func() bool {
					stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
					return err != nil || strings.Contains(string(stat), ") Z ")
				})
				if forgets {
					if err := os.RemoveAll(dir); err != nil {
						t.Fatal(err)
					}
					b.kill()
					b.withPool(1)
				} else if out, err := b.oci("/bin/true", "delete", "--force", "c"); err != nil {
					t.Fatal(err, out)
				}
				b.wantWhole(b.conf())
			})
		}
	}
}

// A container leaves each stage that it enters: also if its verb is refused, or comes while the
// outcome of an earlier one is missing.
func TestOCIStages(t *testing.T) {
	files := &store{dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(files.dir, "pending"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := &Agent{log: slog.New(slog.DiscardHandler), store: files, records: newRecords(nil), stages: stages{newGates(config.Limits{}), &stageLog{ended: make(map[Stage]metrics.Times)}}}
	dir := writeBundle(t, fmt.Sprintf(spec, "", ""))
	for _, c := range []struct {
		call          control.OCI
		inside, ended string // the stage that it is in, and those that it has left
	}{
		{control.OCI{Verb: "create", Bundle: "nowhere"}, "", "cgroup"},
		{control.OCI{Verb: "create", Bundle: dir}, "cgroup", "cgroup"},
		{control.OCI{Verb: "create", Bundle: dir}, "cgroup", "cgroup cgroup"},
		{control.OCI{Verb: "start"}, "start_vm", "cgroup cgroup cgroup"},
		{control.OCI{Verb: "start", Outcome: "done"}, "", "cgroup cgroup cgroup start_vm"},
		{control.OCI{Verb: "start", Outcome: "done"}, "", "cgroup cgroup cgroup start_vm"},
	} {
		c.call.ID = "c"
		err := a.OCI(c.call)
		if refused := c.call.Bundle == "nowhere"; refused != (err != nil) {
			t.Errorf("%+v: %v", c.call, err)
		}
		var inside, ended []string
		states := a.stages.states()
		for _, s := range Stages {
			if states[s].Inside > 0 {
				inside = append(inside, string(s))
			}
		}
		events, _ := a.stages.since(0)
		for _, e := range events {
			ended = append(ended, string(e.Stage))
		}
		if in, out := strings.Join(inside, " "), strings.Join(ended, " "); in != c.inside || out != c.ended {
			t.Errorf("%+v: it is in %q, and has left %q", c.call, in, out)
		}
	}
}

// A container's environment and annotation, which its image can set, select a network only
// if the settings list it; scon-oci's caller always does.
func TestOCINetwork(t *testing.T) {
	withEnv := func(annotations, env string) *bundle {
		b, err := readBundle(writeBundle(t, strings.Replace(fmt.Sprintf(spec, annotations, ""), `"A=b"`, `"A=b", "SCON_NETWORK=`+env+`"`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a := &Agent{log: slog.New(slog.DiscardHandler)}
	a.opts.Config.EnvNetworks = []string{"listed", "other"}
	for _, c := range []struct{ annotation, env, caller, want string }{
		{"", "net", "", ""},
		{"", "net", "default", "default"},
		{"", "listed", "default", "listed"},
		{"", "Listed", "", ""},
		{`"scon.network": "net"`, "listed", "default", "listed"},
		{`"scon.network": "net"`, "net", "default", "default"},
		{`"scon.network": "other"`, "listed", "", "other"},
		{`"scon.network": ""`, "net", "", ""},
	} {
		if got := a.networkFor(control.OCI{ID: "c", Network: c.caller}, withEnv(c.annotation, c.env)); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}
