// Package documents has what the live page asks for beside the daemon's state: explanations,
// the past, the other services, the doctor's list, and profiles.
package documents

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/host/programs"
	pipecontrol "github.com/scon-project/scon/internal/pipe/control"
	startupcontrol "github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/internal/web"
)

// Options say where the documents come from.
type Options struct {
	Dir       string // of the services
	Express   api.Reader
	Netns     string   // of the daemon, as given by --netns; "" for this process's own
	Counters  []string // of the setting exact_counters
	NoProfile string   // why the page cannot trace packets, "" if it can
}

// documents are what the page asks for. They keep what takes long.
type documents struct {
	Options

	profiling sync.Mutex // one profile at a time

	examining sync.Mutex // guards the fields below
	examined  time.Time
	doctor    api.Doctor
}

// All returns the documents by their paths.
func All(o Options) map[string]web.Document {
	d := &documents{Options: o}
	startup, pipe := startupcontrol.Dial(state.Startup.Socket(d.Dir)), pipecontrol.Dial(state.Pipe.Socket(d.Dir))
	return map[string]web.Document{
		"explain": func(_ context.Context, q url.Values) (any, error) { return d.Express.Explain(q.Get("subject")) },
		"history": func(_ context.Context, q url.Values) (any, error) { return api.HistoryFor(d.Express, q) },
		"startup": func(context.Context, url.Values) (any, error) { return startup.Startup() },
		"stages": func(_ context.Context, q url.Values) (any, error) {
			from, err := strconv.ParseUint(q.Get("from"), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("from is %q: want a whole number", q.Get("from"))
			}
			return startup.StartupEvents(from)
		},
		"pipe":    func(context.Context, url.Values) (any, error) { return pipe.Pipe() },
		"doctor":  func(context.Context, url.Values) (any, error) { return d.examine() },
		"profile": func(ctx context.Context, q url.Values) (any, error) { return d.profile(ctx, q.Get("container")) },
	}
}

// examineAgain is how old the doctor's list may be: it takes a quarter of a second of a CPU.
const examineAgain = 10 * time.Second

func (d *documents) examine() (_ api.Doctor, err error) {
	d.examining.Lock()
	defer d.examining.Unlock()
	if time.Since(d.examined) > examineAgain {
		if d.doctor, err = doctor.ExamineIn(d.Netns, doctor.Options{ExactCounters: d.Counters}); err != nil {
			return api.Doctor{}, err
		}
		d.examined = time.Now()
	}
	return d.doctor, nil
}

// profileTime is how long "scon profile" traces packets for the page.
const profileTime = 3 * time.Second

// profiled is the answer to a request for a profile.
type profiled struct {
	SVG string `json:"svg"`
}

// profile draws the way of a container's packets. The container is given by its device.
func (d *documents) profile(ctx context.Context, container string) (_ any, err error) {
	if d.NoProfile != "" {
		return nil, fmt.Errorf("%s: 'sudo scon profile --container %s --open' does", d.NoProfile, container)
	}
	if !d.profiling.TryLock() {
		return nil, errors.New("another one is being taken")
	}
	defer d.profiling.Unlock()
	path, err := programs.Find(cli.LabProgram)
	if err != nil {
		return nil, fmt.Errorf("%s is not installed: install the package %[1]s", cli.LabProgram)
	}
	dir, err := os.MkdirTemp("", "scon-web-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the profile: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	picture := filepath.Join(dir, "profile.svg")
	args := []string{"profile", "--container=" + container, "--for=" + profileTime.String(), "--svg=" + picture}
	if d.Netns != "" {
		args = append(args, "--netns="+d.Netns)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = profileTime
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("profile the container: %w: %s", err, lines[len(lines)-1])
	}
	svg, err := os.ReadFile(picture)
	return profiled{string(svg)}, err
}
