package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show express and regular packets per container, the reasons for regular, and the services",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var services []serviceStatus
			var asked sync.WaitGroup
			asked.Go(func() { services = t.services() })
			s, err := t.client().Status()
			asked.Wait()
			if err != nil && asJSON && slices.ContainsFunc(services, func(s serviceStatus) bool { return s.Running || s.condition() != "" }) {
				down := api.Status{
					State: api.StateDown, Hooks: []api.Hook{}, Containers: []api.Container{}, Skipped: []api.Skipped{}, Reasons: map[string]uint64{},
				}
				err = errors.Join(err, t.printJSON(statusDocument{down, services}))
			} else if err != nil {
				t.printServices(cli.Colored(t.stdout), services, err.Error())
			}
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(statusDocument{s, services})
			}
			return t.printStatus(s, t.lastMinute(), services)
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

// statusDocument is the output of `scon status --json`.
type statusDocument struct {
	api.Status
	Services []serviceStatus `json:"services"` // express, startup and pipe
}

// serviceStatus is one of the three services.
type serviceStatus struct {
	Name    string `json:"name"`    // `express`, `startup` or `pipe`
	Running bool   `json:"running"` // whether it answers
	PID     int    `json:"pid"`     // 0 if it does not run
	Version string `json:"version"` // of its program
	Socket  string `json:"socket"`  // where it is asked
	// Error is why the state of the service is unknown; absent if it is known.
	Error string `json:"error,omitempty"`
	Hangs bool   `json:"hangs,omitempty"` // a process has the socket and does not answer
	// Why is what has become of a service that was not stopped, and of which no process
	// answers; absent for one that was stopped or never started.
	Why string `json:"why,omitempty"`
	// Left is what a service that has crashed has left: sockets, files, pins.
	Left []string `json:"left,omitempty"`
}

// services asks each service for its process.
func (t *tool) services() []serviceStatus {
	dir := filepath.Dir(t.socketOf(state.Express))
	all := make([]serviceStatus, len(t.units))
	var asked sync.WaitGroup
	defer asked.Wait()
	for i, u := range t.units {
		s := serviceStatus{Name: u.id(), Socket: u.Socket(dir)}
		if u.Service == state.Express {
			s.Socket = t.socketOf(u.Service)
		}
		asked.Go(func() {
			s.ask(u, dir)
			all[i] = s
		})
	}
	return all
}

// enabledBy are the settings with which 'scon up' starts a service. Express has none.
var enabledBy = map[string]string{
	string(state.Startup): "startup.enabled or docker.enabled", string(state.Pipe): "pipe.enabled",
}

// line describes a service in a line, "" if it neither runs nor should.
func (s serviceStatus) line(enabled bool) string {
	word, tone := "", cli.Plain
	switch {
	case s.condition() != "":
		word, tone = plain.Text(s.condition()), cli.Bad
	case s.Running:
		word = fmt.Sprintf("pid %d, scon %s", s.PID, s.Version)
	case enabled:
		word, tone = "not running, though the settings have "+enabledBy[s.Name]+": 'scon up' starts it", cli.Warn
	default:
		return ""
	}
	return fmt.Sprintf("%-8s  %s", s.Name, cli.Paint(tone, word))
}

// printServices prints the lines of the services that are broken, but for an error that is
// said already, and of those besides express that run or should.
func (t *tool) printServices(out io.Writer, services []serviceStatus, said string) {
	settings, err := config.Load(t.config)
	if err != nil {
		settings = config.Default() // 'scon up' says what is wrong with them
	}
	for i, s := range services {
		if s.Error != "" && s.Error == said || t.units[i].Service == state.Express && s.condition() == "" {
			continue
		}
		if line := s.line(t.units[i].enabled(settings)); line != "" {
			fmt.Fprintln(out, line)
		}
	}
}

// lastMinute is what went express and regular in the last minute, empty where the daemon does
// not say it.
func (t *tool) lastMinute() api.History {
	h, err := t.client().History("", time.Now().Add(-time.Minute))
	if err != nil {
		return api.History{} // a daemon of an older version, or one that has just ended
	}
	return h
}

func (t *tool) printStatus(s api.Status, minute api.History, services []serviceStatus) error {
	out := cli.Colored(t.stdout)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-8s  "+format+"\n", append([]any{name}, args...)...)
	}
	line("state", "%s", cli.Paint(cli.StateTone(s.State), stateText(s)))
	line("daemon", "pid %d, scon %s, kernel %s, %s, generation %d", s.PID, s.Version, s.Kernel, s.Mode, s.Generation)
	line("hooks", "%s", hooksText(s.Hooks))
	line("packets", "%s  %d express (%s), %d regular, %d discarded",
		cli.Paint(cli.Good, share(s.Totals.ExpressPackets, s.Totals.RegularPackets)), s.Totals.ExpressPackets,
		numbers.Bytes(s.Totals.ExpressBytes), s.Totals.RegularPackets, s.Totals.DiscardedPackets)
	if seconds, sum := minute.Sum(); seconds > 0 {
		line("now", "%s  %s/s express (%s/s), %s/s regular, in the last %.0f s", cli.Paint(cli.Good, share(sum.ExpressPackets, sum.RegularPackets)),
			perSecond(sum.ExpressPackets, seconds), numbers.Bytes(float64(sum.ExpressBytes)/seconds), perSecond(sum.RegularPackets, seconds), seconds)
	}
	line("entries", "%d", s.Totals.Entries)
	if s.Short.Express {
		line("short", "connections of few packets go express, too")
	}
	if s.Table.Why != "" {
		line("table", "%s", cli.Paint(cli.Warn, fmt.Sprintf("no more than %d entries have room: %s", s.Table.Room, plain.Text(s.Table.Why))))
	}
	if why := mostFirst(s.Reasons); why != "" {
		line("uplinks", "regular: %s", plain.Text(why))
	}
	t.printServices(out, services, "")
	fmt.Fprintln(t.stdout)

	if len(s.Containers) == 0 {
		fmt.Fprintln(t.stdout, "No containers yet: "+noContainers)
	} else if err := cli.PrintGrid(t.stdout, containerColumns, containersNow(s.Containers, minute), cli.NoWidth); err != nil {
		return err
	} else if s.Totals.ExpressPackets == 0 && s.State == api.StateActive && slices.ContainsFunc(s.Containers, mayGoExpress) {
		fmt.Fprintln(t.stdout, "\nNo packet has gone express yet: a connection does after some packets. 'scon explain CONTAINER' says more.")
	}
	if len(s.Skipped) == 0 {
		return nil
	}
	fmt.Fprintln(t.stdout)
	tab := cli.NewTable("NOT HOOKED", "WHY")
	for _, d := range s.Skipped {
		tab.Add(d.Dev, d.Reason)
	}
	return tab.Print(t.stdout)
}

// mayGoExpress reports whether a container is neither paused nor kept regular by the settings.
func mayGoExpress(c api.Container) bool { return live.Kept(c.Paused, c.Withheld) == "" }

// noContainers says when there will be containers.
const noContainers = "a container is hooked when its port joins a bridge or a route leads to it."

// containerNow is a container with what it did in the last minute.
type containerNow struct {
	*api.Container
	seconds float64 // 0: not known
	traffic api.Traffic
}

func containersNow(containers []api.Container, minute api.History) []containerNow {
	all := make([]containerNow, len(containers))
	for i := range containers {
		all[i].Container = &containers[i]
		for _, h := range minute.Containers {
			if h.Dev == containers[i].Dev && h.ID == containers[i].ID && !h.Gone {
				all[i].seconds, all[i].traffic = h.Seconds, h.Traffic
			}
		}
	}
	return all
}

// perSecond returns a rate, "-" over no time.
func perSecond(n uint64, seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return numbers.Count(float64(n) / seconds)
}

// containerColumns: sums are of the whole time, the rates and the share of the last minute.
var containerColumns = []cli.Column[containerNow]{
	{Title: "CONTAINER", Text: containerName, Tone: func(c *containerNow) cli.Tone {
		if !mayGoExpress(*c.Container) {
			return cli.Warn
		}
		return cli.Plain
	}},
	{Title: "BRIDGE", Text: func(c *containerNow) string { return cli.OrDash(c.Bridge) }},
	{Title: "PORT", Text: func(c *containerNow) string { return c.Dev }},
	{Title: "ENTRIES", Right: true, Text: func(c *containerNow) string { return fmt.Sprint(c.Entries) }},
	{Title: "EXPRESS", Right: true, Text: func(c *containerNow) string { return fmt.Sprint(c.ExpressPackets) }},
	{Title: "REGULAR", Right: true, Text: func(c *containerNow) string { return fmt.Sprint(c.RegularPackets) }},
	{Title: "EXPRESS/s", Right: true, Text: func(c *containerNow) string { return perSecond(c.traffic.ExpressPackets, c.seconds) }},
	{Title: "REGULAR/s", Right: true, Text: func(c *containerNow) string { return perSecond(c.traffic.RegularPackets, c.seconds) }},
	{Title: "SHARE", Text: func(c *containerNow) string { return share(c.traffic.ExpressPackets, c.traffic.RegularPackets) },
		Tone: func(*containerNow) cli.Tone { return cli.Good }},
	{Title: "WHY REGULAR", Text: func(c *containerNow) string { return cli.OrDash(mostFirst(c.Reasons)) }},
}

func containerName(c *containerNow) string {
	return cmp.Or(c.Name, c.ID, c.Dev) + live.Kept(c.Paused, c.Withheld)
}

func stateText(s api.Status) string {
	switch s.State {
	case api.StatePaused:
		return s.State + " (every packet goes regular; 'scon resume' ends it)"
	case api.StateInert:
		return s.State + " (" + plain.Text(s.Why) + "; 'scon doctor' has the details)"
	default:
		return s.State
	}
}

// hooksText names the uplinks and counts the containers' ports, which have lines of
// their own.
func hooksText(hooks []api.Hook) string {
	var uplinks []string
	ports := 0
	for _, h := range hooks {
		switch h.Hook {
		case "to_wire":
			uplinks = append(uplinks, plain.Text(h.Dev))
		case "from_container":
			ports++
		}
	}
	if len(hooks) == 0 {
		return "none: there is no bridge with containers yet"
	}
	word := "ports"
	if ports == 1 {
		word = "port"
	}
	out := few(uplinks)
	if out == "" {
		out = "none, since no route uses a device that can be one"
	}
	return fmt.Sprintf("uplinks %s; %d container %s", out, ports, word)
}
