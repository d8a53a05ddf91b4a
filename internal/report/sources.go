package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
	pipecontrol "github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/redact"
	startupcontrol "github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

// mostFlows bounds how many connections are in a report.
const mostFlows = 1000

// collector has what parts share.
type collector struct {
	Options
	redactor *redact.Redactor
	answers  map[string]answer // of the services
}

// answer is a service's process, or why it does not answer.
type answer struct {
	api.Process
	err error
}

func newCollector(o Options) *collector {
	c := &collector{Options: o, redactor: redact.New(), answers: make(map[string]answer)}
	for _, s := range o.Services {
		var a answer
		_, a.err = within(o.Limit, func(context.Context) (_ []byte, err error) {
			a.Process, err = s.Client.Process()
			return nil, err
		})
		c.answers[s.Name] = a
		c.redactor.Keep(a.Version)
	}
	if this, err := json.Marshal(o.Version); err == nil { // versions.txt has the error
		c.redactor.Keep(string(this))
	}
	c.learn()
	return c
}

// learn registers the names of this machine, so that their pseudonyms say what they are.
func (c *collector) learn() {
	var links []netlink.Link
	var containers []string
	_, _ = within(c.Limit, func(context.Context) ([]byte, error) { // what is missing is said by its part
		return nil, c.inside(func() (err error) {
			links, err = netdev.List()
			return err
		})
	})
	_, _ = within(c.Limit, func(context.Context) ([]byte, error) {
		containers = c.containers()
		return nil, nil
	})
	for _, name := range containers {
		if c.Names {
			c.redactor.Keep(name)
		}
		c.redactor.Name("container", name)
	}
	for _, l := range links {
		if name := l.Attrs().Name; !redact.IsDevice(name) {
			c.redactor.Name(l.Type(), name)
		}
	}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		c.redactor.Name("host", host)
		short, _, _ := strings.Cut(host, ".")
		c.redactor.Name("host", short)
	}
	for _, known := range kernelNames() {
		c.redactor.Keep(known)
	}
}

// containers are the names that the services know.
func (c *collector) containers() (names []string) {
	for _, s := range c.Services {
		switch {
		case c.answers[s.Name].err != nil:
		case s.State == state.Express:
			status, err := (&api.Client{Service: s.Client}).Status()
			if err != nil {
				continue
			}
			for _, container := range status.Containers {
				if container.Name != container.Dev {
					names = append(names, container.Name)
				}
			}
		case s.State == state.Startup:
			startup, err := (&startupcontrol.Client{Service: s.Client}).Startup()
			if err != nil {
				continue
			}
			for _, a := range startup.Attachments {
				names = append(names, a.Container)
			}
		}
	}
	return names
}

// inside calls fn in the network namespace that is examined.
func (c *collector) inside(fn func() error) error {
	if c.Netns == "" {
		return fn()
	}
	return netns.Do(c.Netns, fn)
}

// examined is a source that reads in the network namespace that is examined.
func (c *collector) examined(read func(context.Context) ([]byte, error)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) (content []byte, err error) {
		err = c.inside(func() (err error) {
			content, err = read(ctx)
			return err
		})
		return content, err
	}
}

// sources are all parts, in the order in which a reader needs them.
func (c *collector) sources() []source {
	all := []source{
		{"versions.txt", "versions of SCON, the system and its tools", asText, c.versions},
		{"doctor.json", "scon doctor", asJSON, c.examined(c.doctor)},
		{"settings.txt", "the settings without comments", asText, c.settings},
	}
	for _, s := range c.Services {
		all = append(all, source{s.Name + "/service.txt", "the service " + s.Name + ": systemd, process", asProcess, c.service(s)})
		for _, d := range documents[s.State] {
			all = append(all, source{s.Name + "/" + d.file, d.what, asJSON, c.document(s, d.read)})
		}
		all = append(all,
			source{s.Name + "/metrics.txt", "counters of " + s.Name, asMetrics, c.metrics(s)},
			source{s.Name + "/log.txt", "log of " + s.Name, asText, c.log(s)})
	}
	for _, r := range []struct {
		file string
		args []string
	}{
		{"nft.txt", []string{"nft", "list", "ruleset"}},
		{"iptables.txt", []string{"iptables-save", "-c"}},
		{"ip6tables.txt", []string{"ip6tables-save", "-c"}},
		{"iptables-legacy.txt", []string{"iptables-legacy-save", "-c"}},
		{"ip6tables-legacy.txt", []string{"ip6tables-legacy-save", "-c"}},
	} {
		all = append(all, source{"rules/" + r.file, strings.Join(r.args, " "), asRules, c.examined(command(r.args...))})
	}
	return append(all,
		source{"devices/devices.txt", "devices, and the programs at them", asText, c.examined(devices)},
		source{"devices/pins.txt", "what SCON has pinned", asText, pins},
		source{"devices/addresses.txt", "ip address", asRules, c.examined(command("ip", "address"))},
		source{"devices/routes.txt", "ip route, ip rule", asRules, c.examined(commands([]string{"ip", "rule"}, []string{"ip", "route", "show", "table", "all"}))},
		source{"kernel/kernel.txt", "release, command line, security modules", asText, kernel},
		source{"kernel/config.txt", "the kernel's options that matter", asText, kernelConfig},
		source{"kernel/sysctls.txt", "the kernel's settings that matter", asText, c.examined(sysctls)},
	)
}

func (c *collector) doctor(context.Context) ([]byte, error) {
	settings, err := config.Load(c.Config)
	if err != nil {
		settings = config.Default() // settings.txt says why
	}
	return indented(doctor.Examine(doctor.Options{ExactCounters: settings.ExactCounters}))
}

// documents are what a service answers, by its name.
var documents = map[state.Service][]struct {
	file, what string
	read       func(*api.Service) (any, error)
}{
	state.Express: {
		{"status.json", "scon status", func(s *api.Service) (any, error) { return (&api.Client{Service: s}).Status() }},
		{"flows.json", "scon flows", func(s *api.Service) (any, error) {
			flows, err := (&api.Client{Service: s}).Flows("")
			if len(flows) > mostFlows {
				return flows[:mostFlows], fmt.Errorf("the first %d of %d connections", mostFlows, len(flows))
			}
			return flows, err
		}},
	},
	state.Startup: {
		{"status.json", "scon startup status", func(s *api.Service) (any, error) { return (&startupcontrol.Client{Service: s}).Startup() }},
	},
	state.Pipe: {
		{"status.json", "scon pipe stat", func(s *api.Service) (any, error) { return (&pipecontrol.Client{Service: s}).Pipe() }},
	},
}

func (c *collector) document(s Service, read func(*api.Service) (any, error)) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		if err := c.answers[s.Name].err; err != nil {
			return nil, err
		}
		document, incomplete := read(s.Client)
		if incomplete != nil && isEmpty(document) {
			return nil, incomplete
		}
		content, err := indented(document)
		return content, cmp.Or(err, incomplete)
	}
}

// isEmpty reports whether a document is the zero one of a failed call: no list of flows.
func isEmpty(document any) bool {
	flows, ok := document.([]api.Flow)
	return !ok || len(flows) == 0
}

func (c *collector) metrics(s Service) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		if err := c.answers[s.Name].err; err != nil {
			return nil, err
		}
		var text bytes.Buffer
		err := s.Client.Metrics(&text)
		return text.Bytes(), err
	}
}

// settings are the lines of the file that are no comments, what is wrong with them, and what
// each service has taken.
func (c *collector) settings(context.Context) ([]byte, error) {
	var out strings.Builder
	content, err := os.ReadFile(c.Config)
	if err == nil {
		fmt.Fprintf(&out, "%s:\n", c.Config)
		for line := range strings.Lines(string(content)) {
			if text := strings.TrimSpace(line); text != "" && text[0] != '#' {
				out.WriteString(line)
			}
		}
		if _, wrong := config.Load(c.Config); wrong != nil {
			fmt.Fprintf(&out, "\nwrong: %v\n", wrong)
		}
	} else {
		fmt.Fprintf(&out, "no file of settings: %v\n", err)
	}
	var missing []error
	for _, s := range c.Services {
		taken, err := state.Read(s.State.Dir(c.StateDir))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			missing = append(missing, err)
			continue
		}
		text, err := json.MarshalIndent(taken, "", "  ")
		missing = append(missing, err)
		fmt.Fprintf(&out, "\n%s runs, or ran, with:\n%s\n", s.Name, text)
	}
	return []byte(out.String()), errors.Join(missing...)
}

// service says what systemd and the kernel know of a service.
func (c *collector) service(s Service) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		var out bytes.Buffer
		a := c.answers[s.Name]
		pid := a.PID
		if a.err != nil {
			fmt.Fprintf(&out, "it does not answer: %v\n", a.err)
			if taken, err := state.Read(s.State.Dir(c.StateDir)); err == nil {
				pid = taken.PID
			}
		} else {
			fmt.Fprintf(&out, "it answers: pid %d, scon %s\n", a.PID, a.Version)
		}
		shown, err := command("systemctl", "show", s.Unit, "--property="+unitProperties)(ctx)
		if err != nil {
			err = fmt.Errorf("state of %s: %w", s.Unit, err)
		}
		fmt.Fprintf(&out, "\n%s:\n%s", s.Unit, shown)
		if pid != 0 {
			out.Write(process(pid))
		}
		return out.Bytes(), err
	}
}

const unitProperties = "LoadState,UnitFileState,ActiveState,SubState,Result,StatusText,MainPID,NRestarts,ExecMainStatus,ExecMainCode," +
	"ExecMainStartTimestamp,ActiveEnterTimestamp,MemoryCurrent,TasksCurrent,CPUUsageNSec"

// process is what the kernel says of a process of scon: what a thread that hangs waits for.
func process(pid int) []byte {
	var out bytes.Buffer
	dir := fmt.Sprintf("/proc/%d", pid)
	name, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil || strings.TrimSpace(string(name)) != "scon" {
		fmt.Fprintf(&out, "\nno process %d of scon: it has ended\n", pid)
		return out.Bytes()
	}
	args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	files, _ := os.ReadDir(filepath.Join(dir, "fd"))
	fmt.Fprintf(&out, "\nprocess %d: %s\n%d open files\n%s", pid, bytes.ReplaceAll(args, []byte{0}, []byte{' '}), len(files), status)
	tasks, _ := filepath.Glob(filepath.Join(dir, "task/*"))
	for _, t := range tasks {
		wait, _ := os.ReadFile(filepath.Join(t, "wchan"))
		stack, _ := os.ReadFile(filepath.Join(t, "stack"))
		fmt.Fprintf(&out, "\nthread %s waits in %s\n%s", filepath.Base(t), wait, stack)
	}
	return out.Bytes()
}

const (
	logAge   = 7 * 24 * time.Hour
	logLines = "3000"
	logBytes = 1 << 20 // of a file, its end
)

// log is the end of a service's log: the journal, and the files that `scon up` makes.
func (c *collector) log(s Service) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		journal, err := command("journalctl", "--unit="+s.Unit, "--lines="+logLines, "--since=@"+fmt.Sprint(time.Now().Add(-logAge).Unix()),
			"--no-pager", "--no-hostname", "--quiet", "--output=short-iso")(ctx)
		if err != nil {
			err = fmt.Errorf("the journal: %w", err)
		}
		var out bytes.Buffer
		out.Write(journal)
		for _, path := range []string{state.OldLog(s.State.Dir(c.StateDir)), state.Log(s.State.Dir(c.StateDir))} {
			text, failed := endOf(path)
			if failed != nil && !errors.Is(failed, os.ErrNotExist) {
				err = errors.Join(err, failed)
			}
			if len(text) > 0 {
				fmt.Fprintf(&out, "\n%s:\n%s", filepath.Base(path), text)
			}
		}
		return out.Bytes(), err
	}
}

// endOf returns the last lines of a file.
func endOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-logBytes)
	text := make([]byte, info.Size()-from)
	n, err := f.ReadAt(text, from)
	if n < len(text) {
		return text[:n], err
	}
	if from > 0 { // the first line is not whole
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	return text, nil
}
