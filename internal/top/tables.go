package top

import (
	"fmt"
	"strings"

	"github.com/scon-project/scon/internal/live"
)

// The tables that can be looked at.
const (
	containersTable = iota
	connectionsTable
	changesTable
	tables
)

var tableNames = [tables]string{"containers", "connections", "changes"}

var containerColumns = []column[live.Container]{
	{title: "CONTAINER", least: 12, text: containerName},
	{title: "BRIDGE", least: 6, drop: 3, text: func(c *live.Container) string { return c.Bridge }},
	{title: "PORT", least: 6, drop: 4, text: func(c *live.Container) string { return c.Dev }},
	{title: "CONNS", right: true, drop: 1, text: func(c *live.Container) string { return fmt.Sprint(c.Entries) }},
	{title: "EXPRESS/s", right: true, text: func(c *live.Container) string { return number(c.Express.Packets) }},
	{title: "BYTES/s", right: true, text: func(c *live.Container) string { return number(c.Express.Bytes) }},
	{title: "REGULAR/s", right: true, text: func(c *live.Container) string { return number(c.Regular) }},
	{title: "SHARE", right: true, text: func(c *live.Container) string { return share(c.Express.Packets, c.Regular) }},
	{title: "WHY REGULAR", least: 12, text: whyRegular},
}

func containerName(c *live.Container) string {
	if c.Paused {
		return c.Name + " (paused)"
	}
	return c.Name
}

func whyRegular(c *live.Container) string {
	var all []string
	for _, reason := range live.MostFrequent(c.Reasons) {
		all = append(all, reason+" "+number(c.Reasons[reason]))
	}
	return strings.Join(all, ", ")
}

var connectionColumns = []column[live.Connection]{
	{title: "CONTAINER", least: 10, text: func(c *live.Connection) string { return c.Container }},
	{title: "PROTO", drop: 2, text: func(c *live.Connection) string { return c.Proto }},
	{title: "CONNECTION", least: 20, text: func(c *live.Connection) string { return c.Orig.String() }},
	{title: "PEER", least: 6, drop: 4, text: func(c *live.Connection) string { return c.Peer }},
	{title: "WAY", drop: 1, text: func(c *live.Connection) string { return c.Path }},
	{title: "STATE", drop: 3, text: func(c *live.Connection) string { return c.State }},
	{title: "OUT/s", right: true, text: func(c *live.Connection) string { return number(c.Express[0].Packets) }},
	{title: "BACK/s", right: true, text: func(c *live.Connection) string { return number(c.Express[1].Packets) }},
	{title: "BYTES/s", right: true, text: func(c *live.Connection) string { return number(c.Total().Bytes) }},
	{title: "REGULAR/s", right: true, drop: 5, text: regularRate},
	{title: "AGE", right: true, drop: 7, text: func(c *live.Connection) string { return millis(c.AgeMS) }},
	{title: "IDLE", right: true, drop: 6, text: func(c *live.Connection) string { return millis(c.IdleMS) }},
	{title: "LEASE BY", least: 10, drop: 8, text: func(c *live.Connection) string { return c.LeaseBound }},
}

// regularRate is "-" where conntrack does not count.
func regularRate(c *live.Connection) string {
	if c.Regular == nil {
		return "-"
	}
	return number(c.Regular[0].Packets + c.Regular[1].Packets)
}

var changeColumns = []column[live.Change]{
	{title: "TIME", text: func(c *live.Change) string { return c.At.Format("15:04:05") }},
	{title: "WHAT", least: 30, text: func(c *live.Change) string { return c.What }},
	{title: "EFFECT", least: 20, text: func(c *live.Change) string { return c.Effect }},
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
		uplinks += fmt.Sprintf("  %s %s/s", reason, number(v.Uplinks[reason]))
	}
	if uplinks == "" {
		uplinks = "  nothing regular"
	}
	return []string{
		fmt.Sprintf("state     %s  daemon %.1f %% of a CPU, pid %d", state, v.DaemonCPU, v.PID),
		fmt.Sprintf("packets   %s %s express  %s/s, %sB/s; regular %s/s, discarded %s/s", bar(v.Express.Packets, v.Regular, wide),
			share(v.Express.Packets, v.Regular), number(v.Express.Packets), number(v.Express.Bytes), number(v.Regular), number(v.Discarded)),
		"uplinks " + uplinks,
	}
}
