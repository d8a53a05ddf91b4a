package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/lab"
)

// perPacket are rules that judge single packets of one port of edge, and what
// takes them away; %d is the port.
var perPacket = map[string]struct{ add, remove, names string }{
	"nft limit": {
		add: `nft add table ip judge
			nft add chain ip judge forward { type filter hook forward priority -5 ; }
			nft add rule ip judge forward udp dport %d limit rate 1000000/second accept`,
		remove: "nft delete table ip judge",
		names:  "ip judge forward handle 2 (limit)",
	},
	"iptables-nft hashlimit": {
		add:    "iptables-nft -I DOCKER-USER -p udp --dport %d -m hashlimit --hashlimit-upto 10000/sec --hashlimit-name h -j ACCEPT",
		remove: "iptables-nft -D DOCKER-USER 1",
		names:  "ip filter DOCKER-USER handle",
	},
	"iptables-legacy length": {
		add:    "iptables-legacy -w -t mangle -A PREROUTING -p udp --dport %d -m length --length 60000: -j DROP",
		remove: "iptables-legacy -w -t mangle -F",
		names:  "iptables-legacy mangle PREROUTING handle 1 (length)",
	},
	"iptables-legacy length, nowhere announced": {
		add:    "env XTABLES_LOCKFILE=/dev/null iptables-legacy -t mangle -A PREROUTING -p udp --dport %d -m length --length 60000: -j DROP",
		remove: "env XTABLES_LOCKFILE=/dev/null iptables-legacy -t mangle -F",
		names:  "iptables-legacy mangle PREROUTING handle 1 (length)",
	},
}

// A rule that judges single packets keeps the connections regular that it is
// about, and no others: those to come and those that were express.
func TestPerPacketRules(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	for name, r := range perPacket {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			judged, other := b.outgoing("udp", 1).goExpress(), b.outgoing("udp", 1).goExpress()
			b.sh(lab.Device, strings.ReplaceAll(r.add, "%d", fmt.Sprint(portOf(judged.server.LocalAddr()))))
			eventually(t, "the Conentry goes", func() error {
				judged.mustPing(1)
				if _, err := judged.flow(); err == nil {
					return errors.New("it is there")
				}
				return nil
			})
			judged.mustPing(64)
			if f, err := judged.flow(); err == nil {
				t.Errorf("it has a Conentry again: %+v", f)
			}
			judged.wantExplained(r.names)
			other.goExpress()

			b.sh(lab.Device, r.remove)
			judged.goExpress()
			other.goExpress()
		})
	}
}

// wantExplained fails unless `scon explain` names the rule that keeps the
// connection regular.
func (c *connection) wantExplained(rule string) {
	c.b.t.Helper()
	client := c.client
	x, err := c.b.daemon.Explain(fmt.Sprintf("%s:%s->%s", c.proto, client.LocalAddr(), client.RemoteAddr()))
	if err != nil {
		c.b.t.Fatal(err)
	}
	if x.Express || len(x.Findings) == 0 || !strings.Contains(x.Findings[0].What, rule) {
		c.b.t.Errorf("explained by %+v, want rule %q", x.Findings, rule)
	}
	if x, err = c.b.daemon.Explain(lab.Port(1)); err != nil {
		c.b.t.Fatal(err)
	}
	named := false
	for _, f := range x.Findings {
		named = named || strings.Contains(f.What, rule)
	}
	if !named {
		c.b.t.Errorf("the container is explained by %+v, want rule %q", x.Findings, rule)
	}
}

// Rules that are there when the daemon starts count as well, and a limit on new
// connections is none on those that go express.
func TestRulesAtStart(t *testing.T) {
	t.Parallel()
	b := newBed(t, layout{})
	judged, other := b.outgoing("tcp", 1), b.outgoing("tcp", 1)
	b.sh(lab.Device, fmt.Sprintf(`
		iptables-nft -I DOCKER-USER -p tcp --dport %d -m limit --limit 10000/sec -j RETURN
		iptables-nft -A FORWARD -m conntrack --ctstate NEW -m limit --limit 10/sec -j LOG`,
		portOf(judged.server.LocalAddr())))
	b.up()
	other.goExpress()
	judged.mustPing(64)
	if f, err := judged.flow(); err == nil {
		t.Errorf("it has a Conentry: %+v", f)
	}
	s := b.status()
	if c, _ := b.container(1); s.State != api.StateActive || s.Why != "" || c.Entries != 1 {
		t.Errorf("state %q (%s), %d Conentries, want 1", s.State, s.Why, c.Entries)
	}
}

// From when a rule that judges single packets is there, each packet meets it,
// however long it takes to read the rules.
func TestPerPacketRuleMissesNothing(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	file := filepath.Join(t.TempDir(), "rules")
	var rules strings.Builder
	rules.WriteString("table ip judge {\ncounter met { }\nchain long {\n")
	for i := range 4000 {
		fmt.Fprintf(&rules, "ip saddr 10.1.%d.%d tcp dport 80 accept\n", i/250, i%250)
	}
	rules.WriteString("}\nchain forward { type filter hook forward priority -5; }\n}\n")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.sh(lab.Device, "nft -f "+file)
	c := b.outgoing("udp", 1).goExpress()

	b.sh(lab.Device, fmt.Sprintf("nft add rule ip judge forward udp dport %d counter name met limit rate 1000000/second accept",
		portOf(c.server.LocalAddr())))
	time.Sleep(20 * time.Millisecond) // a netlink message takes less
	const pings = 500
	c.mustPing(pings)
	var met int
	out := b.sh(lab.Device, "nft list counter ip judge met")
	if _, err := fmt.Sscanf(out[strings.Index(out, "packets"):], "packets %d", &met); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if met < pings {
		t.Errorf("the rule met %d of %d packets", met, pings)
	}
}
