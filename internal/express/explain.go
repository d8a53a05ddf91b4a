package express

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/numbers"
)

// explain adds what concerns all connections, or a container, to an explanation.
func (v view) explain(s api.Subject, x *api.Explanation) error {
	if v.heartbeat.isPaused() {
		x.Findings = append(x.Findings, api.Finding{
			Level: "warn", What: "SCON is paused: every packet goes regular", Remedy: "scon resume",
		})
	}
	if f, inert := v.inertFinding(time.Now()); inert {
		x.Findings = append(x.Findings, f)
	}
	if s.Container == "" {
		return nil
	}
	return v.explainContainer(s.Container, x)
}

func (v view) explainContainer(name string, x *api.Explanation) error {
	ports, err := v.portsOf(name)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if v.composer.IsPaused(p.Index) {
			x.Known = true
			x.Findings = append(x.Findings, api.Finding{
				Level: "warn", What: fmt.Sprintf("%s is paused: its packets go regular", p.Container.Name),
				Remedy: "scon resume --container " + p.Container.Name,
			})
		}
		if why := p.Withheld(); why != "" {
			x.Known = true
			x.Findings = append(x.Findings, api.Finding{
				Level: "warn", What: fmt.Sprintf("%s stays regular", p.Container.Name), Why: why,
				Remedy: "change the setting regular, if it should go express",
			})
		}
		what := fmt.Sprintf("port %s of bridge %s is hooked", p.Name, p.Bridge.Name)
		if p.Routed() {
			what = fmt.Sprintf("device %s, which the route to the container uses, is hooked", p.Name)
		}
		x.Findings = append(x.Findings, api.Finding{Level: "ok", What: what})
		x.Findings = append(x.Findings, deliveryFindings(p)...)
		x.Findings = append(x.Findings, v.bridgeFindings(p)...)
		x.Findings = append(x.Findings, overlayFindings(p)...)
		refused, rule, until := v.composer.RefusedOf(p.Index)
		x.Known = x.Known || len(refused) > 0
		x.Findings = append(x.Findings, refusals(refused)...)
		if refused[composer.PerPacketRule] > 0 {
			x.Findings = append(x.Findings, keptFinding(rule, until))
		}
		counters, err := v.dp.Counters(p.Index)
		if err != nil {
			return err
		}
		x.Findings = append(x.Findings, packetReasons(counters.Reasons)...)
	}
	for _, t := range v.hooks.KeptTunnels() {
		f := api.Finding{Level: "note", What: "express packets do not skip " + t.Dev, Why: t.Why}
		if t.ByRoute {
			f.What = "packets stay regular that leave by " + t.Dev + ", which sends each where its route says"
		}
		x.Findings = append(x.Findings, f)
	}
	if len(v.hooks.Uplinks()) == 0 {
		x.Findings = append(x.Findings, noUplink())
	}
	return nil
}

// noConnections says that a container has none that SCON knows.
func noConnections(o *Options) api.Finding {
	return api.Finding{
		Level: "note", What: "no connection of it is known", Why: admission(o),
		Remedy: "ask again while there is traffic; 'conntrack -L' lists the connections that the kernel knows",
	}
}

// admission says when connections get a Conentry and when they lose it.
func admission(o *Options) string {
	return fmt.Sprintf("connections get a Conentry after %d packets of a hooked container, or after a second and 3 packets, "+
		"those of TCP sooner with short_connections in the settings; idle ones lose it after %s", o.Config.Admit, o.Config.FlushIdle)
}

// sortFindings puts first what needs to be mended.
func sortFindings(all []api.Finding) {
	weight := map[string]int{"fail": -2, "warn": -1}
	sort.SliceStable(all, func(i, j int) bool { return weight[all[i].Level] < weight[all[j].Level] })
}

// deliveryFindings say how express packets leave and reach a container, where
// that is not the default.
func deliveryFindings(p *hooks.Port) (all []api.Finding) {
	switch hooked, past := p.Netkit(); {
	case hooked:
		all = append(all, api.Finding{Level: "ok", What: "its device is a netkit pair: express packets leave its own transmit call"})
	case past != "":
		all = append(all, api.Finding{
			Level: "note", What: "its device is a netkit pair, but express packets go through the port's queue",
			Why: past + " must see every packet",
		})
	}
	if why := p.Queue(); why != "" {
		all = append(all, api.Finding{Level: "note", What: "express packets for it take the queue of " + p.Name, Why: why})
	}
	return all
}

// bridgeFindings name the other ports of a container's bridge by which its packets do not go
// express.
func (v view) bridgeFindings(p *hooks.Port) (all []api.Finding) {
	for _, s := range v.hooks.Skipped() {
		if s.Bridge != 0 && s.Bridge == p.Bridge.Index {
			all = append(all, api.Finding{
				Level: "note", What: fmt.Sprintf("what bridge %s forwards by %s stays regular", p.Bridge.Name, s.Dev), Why: s.Reason,
			})
		}
	}
	return all
}

// overlayFindings name the networks of a container whose connections another daemon sees.
func overlayFindings(p *hooks.Port) (all []api.Finding) {
	for _, o := range p.Container.Overlays {
		all = append(all, api.Finding{
			Level: "note", What: fmt.Sprintf("%s's packets by network %s are regular for this daemon", p.Container.Name, o.Name),
			Why:    "it is " + o.String() + "; a daemon serves one namespace",
			Remedy: fmt.Sprintf("scon up --netns %s --uplink vxlan0 --state-dir /run/scon-%s", o.Netns, o.Name),
		})
	}
	return all
}

// flowFindings are what there is to say of a Conentry.
func (v view) flowFindings(f api.Flow) []api.Finding {
	found := []api.Finding{conentryFinding(f)}
	if f.LeaseLimitMS > 0 {
		found = append(found, v.leaseFinding(f))
	}
	if elsewhere, is := v.elsewhereFinding(f); is {
		found = append(found, elsewhere)
	}
	return found
}

// wayFindings say what there is to say of the way of a Conentry's packets. They ask the kernel,
// which may keep the loop waiting.
func (v view) wayFindings(f api.Flow) (found []api.Finding) {
	if outer, is := v.outerFinding(f); is {
		found = append(found, outer)
	}
	if f.State != api.FlowComposing {
		return found
	}
	if s, left := v.leftOut(f.Orig); left {
		found = append(found, api.Finding{
			Level: "note", What: "a path of its packets uses " + s.Dev + ", which is not hooked", Why: s.Reason,
		})
	}
	return found
}

// elsewhereFinding says that one half of a connection is not express: its packets enter at
// another port than the one by which the connection began, as after a change of the
// container's routes. Forged packets may be the reason as well.
func (v view) elsewhereFinding(f api.Flow) (finding api.Finding, is bool) {
	tuple, err := tracked(f)
	e := v.table.Lookup(tuple)
	if err != nil || e == nil {
		return finding, false
	}
	elsewhere, is := v.table.Strays(e)
	if !is {
		return finding, false
	}
	name := func(port int) string {
		if p := v.hooks.Port(port); p != nil {
			return p.Name
		}
		return "a port that is gone"
	}
	return api.Finding{
		Level: "warn",
		What: fmt.Sprintf("packets from %s enter at %s, where they go regular (seen %s ago)",
			elsewhere.Tuple.Src, name(elsewhere.Port), numbers.Millis(time.Since(elsewhere.At).Milliseconds())),
		Why:    fmt.Sprintf("the connection began by %s: its container routes these packets by another of its networks now, or another one forges them", name(e.Port())),
		Remedy: "let the container send packets of that address by the network that has it ('ip route get' in the container), or open the connection anew",
	}, true
}

// leaseFinding says how long the lease of a Conentry is, and why.
func (v view) leaseFinding(f api.Flow) api.Finding {
	finding := api.Finding{
		Level: "note", What: "one packet of each direction goes regular every " + numbers.Millis(f.LeaseLimitMS),
		Why: f.LeaseBound,
	}
	tuple, err := tracked(f)
	e := v.table.Lookup(tuple)
	if err != nil || e == nil {
		return finding
	}
	if rate, ends := v.table.EndsByPackets(e); ends {
		finding.What = fmt.Sprintf("one of %d packets of each direction goes regular: %s of the busier one", f.LeasePackets, numbers.Often(rate))
		return finding
	}
	if f.LeaseBound == composer.BoundByRule || f.LeaseBound == composer.BoundByMarks {
		if rule, silence := v.composer.SilentRule(e); silence != rules.NoSilence && rule != (rules.Rule{}) {
			finding.Why += fmt.Sprintf(": %s: %s", rule, rule.Text)
			finding.Rule = rule.Document()
		}
	}
	return finding
}

// leftOut returns the device that is not hooked, or the bridge whose ports are not, and that
// a connection's packets pass.
func (v view) leftOut(orig api.Tuple) (s discover.Skipped, left bool) {
	for _, end := range []string{orig.Dst, orig.Src} {
		way, is := wayTo(net.ParseIP(end))
		if !is {
			continue
		}
		dev := nameOf(way)
		if why := v.hooks.KeptBridge(way.LinkIndex); why != "" {
			return discover.Skipped{Dev: dev, Reason: why}, true
		}
		i := slices.IndexFunc(v.hooks.Skipped(), func(s discover.Skipped) bool { return s.Dev == dev })
		if i >= 0 {
			return v.hooks.Skipped()[i], true
		}
	}
	return s, false
}

// outerFinding says that packets stay regular which a tunnel sends where their route says, by a
// device where express packets do not get the tunnel's headers.
func (v view) outerFinding(f api.Flow) (finding api.Finding, is bool) {
	uplinks := v.hooks.Uplinks()
	for _, end := range []string{f.Orig.Dst, f.Orig.Src} {
		way, is := wayTo(net.ParseIP(end))
		tunnel := uplinks[way.LinkIndex]
		if !is || !tunnel.ByRoute {
			continue
		}
		if way, is = wayTo(way.Gw); !is {
			continue
		}
		if below, hooked := uplinks[way.LinkIndex]; !hooked || below.Bare() || below.Bridge.Index != 0 {
			return api.Finding{
				Level: "warn", What: "packets that leave by " + tunnel.Name + " go regular",
				Why: "the tunnel sends them by " + nameOf(way) + ", which is not hooked, has no MAC addresses or is a port of a bridge",
			}, true
		}
	}
	return finding, false
}

// wayTo returns the route by which this host sends to an address.
func wayTo(addr net.IP) (way netlink.Route, is bool) {
	routes, err := netlink.RouteGet(addr)
	if err != nil || len(routes) == 0 {
		return way, false
	}
	return routes[0], true
}

// nameOf names the device of a route. It waits for the kernel's lock of rtnetlink.
func nameOf(way netlink.Route) string {
	l, err := netlink.LinkByIndex(way.LinkIndex)
	if err != nil {
		return "a device that is gone"
	}
	return l.Attrs().Name
}

// mostTracked bounds how many connections are explained that only conntrack
// knows, and of how many others the ways are. A pattern may match very many.
const mostTracked = 100

// matching lists connections in conntrack.
func matching(ct *conntrack.Client, s api.Subject) (found []conntrack.Conn, err error) {
	err = ct.Dump(func(c conntrack.Conn) {
		f := api.Flow{Proto: protoName(c), Orig: tupleOf(c.Orig), Reply: tupleOf(c.Reply)}
		if len(found) < mostTracked && s.Match(f) {
			found = append(found, c)
		}
	})
	return found, err
}

// trackedFindings are about connections that conntrack knows and SCON does
// not.
func (v view) trackedFindings(tracked []conntrack.Conn) (all []api.Finding) {
	for _, c := range tracked {
		all = append(all, v.trackedFinding(c))
	}
	switch len(tracked) {
	case mostTracked:
		all = append(all, api.Finding{Level: "note", What: "there may be more such connections"})
	case 0:
		all = append(all, api.Finding{
			Level: "warn", What: "conntrack knows no such connection",
			Why:    "it has ended, its packets are dropped, or they are not tracked here",
			Remedy: "'conntrack -L' lists those that are",
		})
	}
	if len(v.hooks.Uplinks()) == 0 {
		all = append(all, noUplink())
	}
	return all
}

func conentryFinding(f api.Flow) api.Finding {
	if f.State == api.FlowExpress {
		out := cmp.Or(f.Oif, "the container's port")
		if f.Overlay != "" {
			out = fmt.Sprintf("%s, with the headers of overlay device %s", f.Overlay, f.Oif)
		}
		if f.Peer != "" {
			out += fmt.Sprintf(" to %s (%s)", f.Peer, pathText[f.Path])
		}
		return api.Finding{Level: "ok", What: fmt.Sprintf("%s goes express out of %s", f.Orig, out)}
	}
	return api.Finding{
		Level: "note", What: f.Orig.String() + " is being composed",
		Why: "no packet of it has reached the end of the regular path since the rules, routes or links changed: " +
			"its packets are dropped, are for this host itself or for the container that sent them, it has been silent, " +
			"or its packets are changed on the path (by another container that forwards them, a VRF, a rule about the TTL)",
	}
}

// pathText says what packets between two containers skip.
var pathText = map[string]string{
	api.PathBridged: "within a bridge",
	api.PathHairpin: "by this host back into a bridge",
	api.PathRouted:  "by this host",
}

func (v view) trackedFinding(c conntrack.Conn) api.Finding {
	orig := tupleOf(c.Orig).String()
	if why := v.composer.Unfit(c); why != "" {
		return api.Finding{Level: "note", What: orig + " stays regular: " + why.Text()}
	}
	if rule, kept := v.composer.KeptBy(c); kept {
		return ruleFinding(orig+" stays regular because of rule", rule)
	}
	if isOfHost(c) {
		return api.Finding{
			Level: "note", What: orig + " stays regular: one end is this host itself",
			Why: "packets of a local socket must pass routing and the input and output rules, none of which can be skipped",
		}
	}
	if s, left := v.leftOut(tupleOf(c.Orig)); left {
		return api.Finding{
			Level: "note", What: fmt.Sprintf("%s stays regular: a path of its packets uses %s, which is not hooked", orig, s.Dev), Why: s.Reason,
		}
	}
	return api.Finding{
		Level: "note", What: orig + " has no Conentry",
		Why: admission(v.opts),
	}
}

// isOfHost reports whether one end of a connection is a socket of this host.
func isOfHost(c conntrack.Conn) bool {
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && (p.Addr() == c.Orig.Src.Addr() || p.Addr() == c.Reply.Src.Addr())
	})
}

func protoName(c conntrack.Conn) string {
	if c.Orig.Proto == unix.IPPROTO_TCP {
		return "tcp"
	}
	return "udp"
}

func refusals(counts map[composer.Refusal]uint64) (all []api.Finding) {
	for _, why := range byCount(counts) {
		all = append(all, api.Finding{
			Level: "note", What: fmt.Sprintf("%d times a connection stayed regular: %s", counts[why], why.Text()),
		})
	}
	return all
}

func packetReasons(counts map[string]uint64) []api.Finding {
	if len(counts) == 0 {
		return nil
	}
	var counted []string
	for _, reason := range byCount(counts) {
		counted = append(counted, fmt.Sprintf("%s %d", reason, counts[reason]))
	}
	return []api.Finding{{Level: "note", What: "regular packets by reason: " + strings.Join(counted, ", ")}}
}

func byCount[K ~string](counts map[K]uint64) []K {
	return slices.SortedFunc(maps.Keys(counts), func(a, b K) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}

func noUplink() api.Finding {
	return api.Finding{
		Level: "fail", What: "no uplink is hooked",
		Why:    "no route uses a device that can be an uplink",
		Remedy: "name one with --uplink; 'scon status' lists the devices that were skipped",
	}
}
