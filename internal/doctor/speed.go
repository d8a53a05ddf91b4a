package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/discover"
)

// findSpeed finds settings that cost containers' traffic speed, with SCON or without.
func findSpeed(h host) []api.Finding {
	top, err := discover.Scan(discover.Options{})
	if err != nil {
		return nil // which findDevices reports
	}
	return slices.Concat(offloadsOf(top), mtusOf(top), h.bridgedOf(top), h.proxied(), h.short())
}

// A costly feature of devices that somebody has turned off.
type offload struct {
	feature string // as ethtool names it
	of      func(top discover.Topology) []string
	what    string
	why     string
	remedy  string // for a device
}

var offloads = []offload{
	{
		"tx-tcp-segmentation", carriers, "TCP segmentation offload is off at",
		"a container's large segments are cut before they pass the device, and each piece pays for all of it",
		"ethtool -K %s tso on",
	},
	{
		"tx-generic-segmentation", carriers, "generic segmentation offload is off at",
		"large segments are cut before they pass the device, and each piece pays for all of it",
		"ethtool -K %s gso on",
	},
	{
		"rx-gro", uplinks, "generic receive offload (GRO) is off at",
		"each packet of a stream passes the host by itself instead of merged with others",
		"ethtool -K %s gro on",
	},
	{
		"tx-checksum-ip-generic", overlays, "checksum offload is off at the VXLAN device",
		"each packet is summed up in software, and segmentation offload needs it; that is a workaround for wrong " +
			"checksums of Linux before 5.7",
		"ethtool -K %s tx-checksum-ip-generic on; take it back if names are no longer resolved across nodes",
	},
}

// carriers are the devices that containers' packets pass and that are no tunnels.
func carriers(top discover.Topology) (names []string) {
	names = uplinks(top)
	for _, b := range top.Bridges {
		names = append(names, b.Name)
	}
	for _, p := range top.Ports {
		names = append(names, p.Name)
	}
	return names
}

func uplinks(top discover.Topology) (names []string) {
	for _, u := range top.Uplinks {
		if u.TunnelPort == 0 {
			names = append(names, u.Name)
		}
	}
	return names
}

func overlays(top discover.Topology) (names []string) {
	for _, l := range top.Links {
		if _, is := l.(*netlink.Vxlan); is {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// offloadsOf finds features that the devices have and that somebody has turned off. What
// a device cannot do, or does without because of another one, is not named.
func offloadsOf(top discover.Topology) (found []api.Finding) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil
	}
	defer e.Close()
	for _, o := range offloads {
		var off []string
		for _, name := range o.of(top) {
			all, err := e.FeaturesWithState(name)
			state := all[o.feature]
			if err == nil && state.Available && !state.NeverChanged && !state.Requested && !slices.Contains(off, name) {
				off = append(off, name)
			}
		}
		if len(off) > 0 {
			found = append(found, api.Finding{
				Level: note, What: o.what + " " + some(off), Why: o.why, Remedy: fmt.Sprintf(o.remedy, off[0]),
			})
		}
	}
	return found
}

// some names the first of many.
func some(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
}

// mtusOf finds containers that send longer packets than a device by which they leave.
func mtusOf(top discover.Topology) (found []api.Finding) {
	for _, u := range top.Uplinks {
		var longer []string
		longest := 0
		for _, p := range top.Ports {
			if _, name := p.Inside(); p.MTU > u.MTU && p.Index != u.Index && !slices.Contains(longer, name) {
				longer = append(longer, name)
				longest = max(longest, p.MTU)
			}
		}
		if len(longer) > 0 {
			found = append(found, api.Finding{
				Level: note, What: fmt.Sprintf("containers of %s have an MTU of %d, and uplink %s has %d", some(longer), longest, u.Name, u.MTU),
				Why: "longer packets are fragmented, or are lost until their sender has learnt the path's MTU; where ICMP " +
					"is filtered, connections stall",
				Remedy: fmt.Sprintf("give their network an MTU of %d (Docker: --opt com.docker.network.driver.mtu=%[1]d)", u.MTU),
			})
		}
	}
	return found
}

// bridgedOf finds bridges whose packets pass Netfilter for IP though no rule is there.
func (h host) bridgedOf(top discover.Topology) []api.Finding {
	if len(top.Bridges) == 0 || !h.isRoot() {
		return nil
	}
	var on []string
	for _, name := range []string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"} {
		if value, err := h.sysctl(name); err == nil && value != "0" {
			on = append(on, name)
		}
	}
	if len(on) == 0 {
		return nil
	}
	if exist, err := h.forwardingRules(); exist || err != nil {
		return nil
	}
	return []api.Finding{{
		Level: note, What: "bridge netfilter is on (" + strings.Join(on, ", ") + "), and no rule concerns forwarded packets",
		Why:    "packets within a bridge pass conntrack and empty chains of Netfilter",
		Remedy: "sysctl -w " + strings.Join(on, "=0 ") + "=0",
	}}
}

// forwardingRules reports whether nftables or iptables have a rule for packets of IP that
// this namespace forwards.
func (h host) forwardingRules() (bool, error) {
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		if names, err := h.read("/proc/thread-self/net/" + file); err == nil && names != "" {
			return true, nil
		}
	}
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return false, err
	}
	forwarding := []nftables.ChainHook{*nftables.ChainHookPrerouting, *nftables.ChainHookForward, *nftables.ChainHookPostrouting}
	for _, chain := range chains {
		switch {
		case chain.Hooknum == nil || !slices.Contains(forwarding, *chain.Hooknum):
			continue
		case chain.Table.Family == nftables.TableFamilyBridge || chain.Table.Family == nftables.TableFamilyARP ||
			chain.Table.Family == nftables.TableFamilyNetdev:
			continue
		case chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop:
			return true, nil
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil || len(rules) > 0 {
			return true, err
		}
	}
	return false, nil
}

// proxied finds Docker's processes that copy the data of published ports.
func (h host) proxied() []api.Finding {
	processes, err := h.processes()
	if err != nil || !processes["docker-proxy"] {
		return nil
	}
	return []api.Finding{{
		Level: note, What: "connections from this machine to its published ports at 127.0.0.1 pass docker-proxy",
		Why:    "a process copies their bytes between two connections",
		Remedy: `"userland-proxy": false in /etc/docker/daemon.json, or use the container's address`,
	}}
}

// short says that connections of few packets could go express.
func (h host) short() []api.Finding {
	const setting = "net.netfilter.nf_conntrack_tcp_be_liberal"
	if is, err := h.sysctl(setting); err != nil || is != "0" {
		return nil
	}
	return []api.Finding{{
		Level: note, What: "TCP connections of few packets stay regular",
		Why: "conntrack judges sequence numbers (" + setting + " is 0)",
		Remedy: "short_connections: true in the settings: they go express from about their fourth packet on, and " +
			"sequence numbers are judged by the ends alone",
	}}
}
