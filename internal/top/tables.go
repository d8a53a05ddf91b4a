package top

import (
	"fmt"
	"strings"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/plain"
)

// The tables that can be looked at.
const (
	containersTable = iota
	connectionsTable
	changesTable
	tables
)

var tableNames = [tables]string{"containers", "connections", "changes"}

var containerColumns = []cli.Column[live.Container]{
	{Title: "CONTAINER", Least: 12, Text: containerName, Tone: func(c *live.Container) cli.Tone {
		if live.Kept(c.Paused, c.Withheld) != "" {
			return cli.Warn
		}
		return cli.Plain
	}},
	{Title: "BRIDGE", Least: 6, Drop: 3, Text: func(c *live.Container) string { return c.Bridge }},
	{Title: "PORT", Least: 6, Drop: 4, Text: func(c *live.Container) string { return c.Dev }},
	{Title: "CONNS", Right: true, Drop: 1, Text: func(c *live.Container) string { return fmt.Sprint(c.Entries) }},
	{Title: "EXPRESS/s", Right: true, Text: func(c *live.Container) string { return numbers.Count(c.Express.Packets) },
		Tone: func(c *live.Container) cli.Tone { return tone(cli.Good, c.Express.Packets) }},
	{Title: "BYTES/s", Right: true, Text: func(c *live.Container) string { return numbers.Bytes(c.Express.Bytes) }},
	{Title: "REGULAR/s", Right: true, Text: func(c *live.Container) string { return numbers.Count(c.Regular) },
		Tone: func(c *live.Container) cli.Tone { return tone(cli.Warn, c.Regular) }},
	{Title: "SHARE", Right: true, Text: func(c *live.Container) string { return numbers.Share(c.Express.Packets, c.Regular) }},
	{Title: "WHY REGULAR", Least: 12, Text: whyRegular},
}

func containerName(c *live.Container) string {
	return c.Name + live.Kept(c.Paused, c.Withheld)
}

func whyRegular(c *live.Container) string {
	var all []string
	for _, reason := range live.MostFrequent(c.Reasons) {
		all = append(all, reason+" "+numbers.Count(c.Reasons[reason]))
	}
	return strings.Join(all, ", ")
}

// connectionColumns fit into 80 columns: the longest connections of IPv6 take two lines.
var connectionColumns = []cli.Column[live.Connection]{
	{Title: "CONTAINER", Least: 10, Text: func(c *live.Connection) string { return c.Container }},
	{Title: "PROTO", Drop: 4, Text: func(c *live.Connection) string { return c.Proto }},
	{Title: "CONNECTION", Wrap: true, Least: len("255.255.255.255:65535->255.255.255.255:65535"),
		Text: func(c *live.Connection) string { return c.Orig.String() }},
	{Title: "PEER", Least: 6, Drop: 6, Text: func(c *live.Connection) string { return c.Peer }},
	{Title: "WAY", Drop: 3, Text: func(c *live.Connection) string { return c.Path }},
	{Title: "STATE", Drop: 5, Text: func(c *live.Connection) string { return c.State }, Tone: func(c *live.Connection) cli.Tone { return cli.FlowTone(c.State) }},
	{Title: "OUT/s", Right: true, Drop: 2, Text: func(c *live.Connection) string { return numbers.Count(c.Express[0].Packets) }},
	{Title: "BACK/s", Right: true, Drop: 1, Text: func(c *live.Connection) string { return numbers.Count(c.Express[1].Packets) }},
	{Title: "BYTES/s", Right: true, Text: func(c *live.Connection) string { return numbers.Bytes(c.Total().Bytes) }},
	{Title: "REGULAR/s", Right: true, Drop: 7, Text: regularRate},
	{Title: "AGE", Right: true, Drop: 9, Text: func(c *live.Connection) string { return numbers.Millis(c.AgeMS) }},
	{Title: "IDLE", Right: true, Drop: 8, Text: func(c *live.Connection) string { return numbers.Millis(c.IdleMS) }},
	{Title: "LEASE BY", Least: 10, Drop: 10, Text: func(c *live.Connection) string { return c.LeaseBound }},
}

// regularRate is "-" where conntrack does not count.
func regularRate(c *live.Connection) string {
	if c.Regular == nil {
		return "-"
	}
	return numbers.Count(c.Regular[0].Packets + c.Regular[1].Packets)
}

var changeColumns = []cli.Column[live.Change]{
	{Title: "TIME", Text: func(c *live.Change) string { return c.At.Format("15:04:05") }},
	{Title: "WHAT", Least: 30, Text: func(c *live.Change) string { return c.What }},
	{Title: "EFFECT", Least: 20, Text: func(c *live.Change) string { return c.Effect }},
}

// summary describes a view in three lines.
func summary(v *live.View, width int) []string {
	state := v.State
	if v.Why != "" {
		state += " (" + v.Why + ")"
	}
	wide := 10
	if width < 70 {
		wide = 5
	}
	uplinks := ""
	for _, reason := range live.MostFrequent(v.Uplinks) {
		uplinks += fmt.Sprintf("  %s %s/s", plain.Text(reason), numbers.Count(v.Uplinks[reason]))
	}
	if uplinks == "" {
		uplinks = "  nothing regular"
	}
	return []string{
		fmt.Sprintf("state     %s  daemon %.1f %% of a CPU, pid %d", cli.Paint(cli.StateTone(v.State), plain.Text(state)), v.DaemonCPU, v.PID),
		fmt.Sprintf("packets   %s %s express  %s/s, %s/s; regular %s/s, discarded %s/s",
			cli.Paint(cli.Good, cli.Bar(v.Express.Packets, v.Regular, wide)), numbers.Share(v.Express.Packets, v.Regular),
			numbers.Count(v.Express.Packets), numbers.Bytes(v.Express.Bytes), numbers.Count(v.Regular), numbers.Count(v.Discarded)),
		"uplinks " + uplinks,
	}
}

// tone returns a tone for numbers that are not 0.
func tone(t cli.Tone, n float64) cli.Tone {
	if n == 0 {
		return cli.Plain
	}
	return t
}
