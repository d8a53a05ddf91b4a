package differential

import (
	"fmt"
	"strings"
)

// Changes that the kernel makes by itself and does not announce.

// silent generates one of them, with packets before and after it.
func (g *generator) silent() {
	begin, end := g.ownerEnds()
	if g.ipv6 && g.r.IntN(2) == 0 {
		begin, end = g.routeExpires()
	}
	g.happens(begin)
	g.admit()
	g.happens(end)
	g.admit()
	g.mix(jiffies)
}

// routeExpires generates a route with a lifetime that is longer than the packets of admit
// take, and its end.
func (g *generator) routeExpires() (begin, end *change) {
	const lifetime = 10
	remote := g.remoteOf(g.Conns[g.r.IntN(len(g.Conns))])
	begin = &change{
		Script: g.onUplink(fmt.Sprintf("ip -6 route replace %v/128 via fd00:77::9 dev eth0 expires %d", remote, lifetime)),
		Undo:   changeOverIPv6.Replace(g.restoreRoute(remote)),
	}
	return begin, &change{Script: fmt.Sprintf("sleep %d", lifetime+1)}
}

// ownerEnds generates a table of nftables that belongs to a process, and the process's end,
// for longer than SCON takes to notice.
func (g *generator) ownerEnds() (begin, end *change) {
	family, saddr := g.family(), "ip saddr 172.17.0.2"
	if g.ipv6 {
		saddr = "ip6 saddr fd00:17::2"
	}
	rule := []string{
		saddr + " meta mark set 5",       // routed by another table
		saddr + " meta l4proto udp drop", // not those of a tunnel
		saddr + " meta l4proto tcp drop",
		saddr + " meta length > 200 drop",
	}[g.r.IntN(4)]
	const kill = "kill -- -$(cat /run/owner)"
	begin = &change{
		Script: strings.Join([]string{
			fmt.Sprintf(`setsid sh -c '{ echo "table %s owned { flags owner; chain p { type filter hook prerouting priority -150; %s; }; }"; sleep 120; } | nft -i' >/dev/null 2>&1 &`, family, rule),
			"echo $! >/run/owner",
			fmt.Sprintf("for i in $(seq 100); do nft list table %s owned >/dev/null 2>&1 && break; sleep 0.05; done", family),
		}, "\n"),
		Undo: kill,
	}
	return begin, &change{Script: kill + "\nsleep 2"}
}
