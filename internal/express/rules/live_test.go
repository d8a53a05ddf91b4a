package rules

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/host/nstest"
)

var liveSeed = flag.Uint64("live.seed", 0, "the seed of the first changes of TestLiveFollows, as the test's name has it; 0 is a random one")

// follower is a Live and the namespace whose rules it follows.
type follower struct {
	*Live
	t    testing.TB
	ns   string
	dir  string // of the scripts
	sock *nlmsg.Socket
	seen uint32 // generation
}

func follow(t testing.TB, ns string, opts Options) *follower {
	t.Helper()
	f := &follower{Live: NewLive(opts), t: t, ns: ns, dir: t.TempDir()}
	nstest.Do(t, ns, func() {
		var err error
		f.sock, err = nlmsg.Open(nlmsg.Options{
			Family: unix.NETLINK_NETFILTER, Groups: []uint32{unix.NFNLGRP_NFTABLES}, Buffer: 64 << 20,
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { f.sock.Close() })
	f.follow()
	return f
}

// follow takes in what was announced.
func (f *follower) follow() (c *Change) {
	f.t.Helper()
	f.receive()
	return f.followReceived()
}

// receive receives announcements up to the latest change.
func (f *follower) receive() {
	f.t.Helper()
	nstest.Do(f.t, f.ns, func() {
		sock, err := nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_NETFILTER})
		if err != nil {
			f.t.Fatal(err)
		}
		defer sock.Close()
		want, err := (&nftReader{sock: sock}).generation()
		if err != nil {
			f.t.Fatal(err)
		}
		for f.nft != nil && int32(want-f.seen) > 0 {
			if err := f.sock.Receive(f.note); err != nil {
				f.t.Fatal(err)
			}
		}
		f.seen = want
	})
}

func (f *follower) followReceived() (c *Change) {
	f.t.Helper()
	nstest.Do(f.t, f.ns, func() {
		var err error
		if c, err = f.Follow(f.opts.Foreign, nil); err != nil {
			f.t.Fatal(err)
		}
	})
	return c
}

func (f *follower) note(m nlmsg.Message) {
	f.Note(m)
	if m.Type&0xff == unix.NFT_MSG_NEWGEN {
		f.seen = parseAttrs(m.Data[sizeofNfgenmsg:]).number(unix.NFTA_GEN_ID)
	}
}

// fresh reads the ruleset twice: as Live does at first, and as Read does.
func (f *follower) fresh() (state *nftables, ruleset Ruleset) {
	f.t.Helper()
	nstest.Do(f.t, f.ns, func() {
		var err error
		if state, err = readNFTables(f.opts, newExactCounters(f.opts), true); err != nil {
			f.t.Fatal(err)
		}
		if ruleset, err = Read(f.opts); err != nil {
			f.t.Fatal(err)
		}
	})
	return state, ruleset
}

// sh runs a script in the namespace and reports whether it succeeded.
func (f *follower) sh(script string) bool {
	c := exec.Command("sh", "-ec", script)
	c.Dir = f.dir
	ok := false
	nstest.Do(f.t, f.ns, func() { ok = c.Run() == nil })
	return ok
}

// state describes the tables that matter.
func (n *nftables) state() string {
	var lines []string
	for key, t := range n.tables {
		if !t.kept {
			continue
		}
		lines = append(lines, fmt.Sprintf("%v dormant %v", key, t.dormant))
		for _, c := range t.chains {
			line := fmt.Sprintf("%v judging %d mapped %d comment %q:", c, c.judging, c.mapped, c.comment)
			if b := c.base; b != nil {
				line = fmt.Sprintf("%v at %v %v %d %v %v %v judging %d mapped %d:", c, b.hook, b.families, b.priority, b.devices, b.nat, b.drops, c.judging, c.mapped)
			}
			for _, r := range c.all {
				line += fmt.Sprintf(" %d=%x", r.handle, r.sum)
			}
			lines = append(lines, line)
		}
		for _, s := range t.sets {
			s.settle()
			lines = append(lines, fmt.Sprintf("%v set %v unknown %v, %d elements: %x", key, s.name, s.unknown, len(s.elements), s.sum()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// way describes what a connection's packets meet: each rule that they may match, and
// what comes of it.
func (n *nftables) way(conn Conn) string {
	var out []string
	for _, b := range n.bases {
		if b.starting() {
			continue
		}
		var w strings.Builder
		fmt.Fprintf(&w, "%v %v %v:", b.chain, b.hook, b.drops)
		m := machine{hit: goOn}
		var walk func(c *chain, depth int) (passes bool)
		walk = func(c *chain, depth int) bool {
			for _, r := range c.rules2() {
				m.affected, m.registers = false, [64]octet{}
				matched := m.apply(r)
				if matched == no && !m.affected {
					continue
				}
				fmt.Fprintf(&w, " %x=%d", r.sum, matched)
				if m.affected {
					fmt.Fprint(&w, m.registers)
				}
				verdicts, passes := m.verdicts, matched != yes
				for _, v := range verdicts {
					fmt.Fprintf(&w, ",%d%s", v.kind, v.targetName())
					switch {
					case v.kind == proceed:
						passes = true
					case matched == no:
					case v.kind == jump:
						fmt.Fprint(&w, "(")
						passes = walk(v.target, depth+1) || passes
						fmt.Fprint(&w, ")")
					case v.kind == goTo:
						fmt.Fprint(&w, "(")
						walk(v.target, depth+1)
						fmt.Fprint(&w, ")")
					}
				}
				if !passes {
					return len(verdicts) == 1 && verdicts[0].kind == back
				}
			}
			return true
		}
		b.forms(&conn, isUnreplied(&conn), func(f *form) {
			m.form = f
			walk(b.chain, 0)
			w.WriteByte(';')
		})
		out = append(out, w.String())
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// rules2 are all rules of a chain.
func (c *chain) rules2() []*rule {
	if c.contents == nil {
		return c.rules
	}
	return c.all
}

// TestLiveFollows holds that a ruleset that follows the kernel's messages is, after
// each change, the one that is read afresh, and answers alike; and that connections
// whose packets meet something else after a change are concerned by it.
func TestLiveFollows(t *testing.T) {
	changes, tuples := 150, 300
	if os.Getenv("SCON_LONG") != "" {
		changes, tuples = 1000, 10000
	}
	seed := *liveSeed
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	for i := range 2 {
		t.Run(fmt.Sprint("seed ", seed+uint64(i)), func(t *testing.T) {
			t.Parallel()
			testLiveFollows(t, seed+uint64(i), changes/2, tuples)
		})
	}
}

func testLiveFollows(t *testing.T, seed uint64, changes, tuples int) {
	ns := nstest.New(t)
	f := follow(t, ns, Options{ExactCounters: []string{"exact"}})
	f.sh("ip link set lo up")
	g := &ruleGenerator{r: rand.New(rand.NewPCG(seed, 2)), live: f.Live}
	before, _ := f.fresh()
	var failed, reread, all, concerned, equal, met int
	for i := range changes {
		script := g.change()
		if !f.sh(script) {
			failed++
		}
		wanted := f.nft
		c := f.follow()
		after, ruleset := f.fresh()
		if wanted != f.nft {
			reread++
		}
		if again := (&Live{nft: after}); i%5 == 0 {
			if same, ok := f.Same(again); !same || !ok {
				t.Fatalf("change %d: not the same: %v, %v", i, same, ok)
			}
		}
		if live, read := f.nft.state(), after.state(); live != read {
			t.Fatalf("change %d: followed:\n%s\nread afresh:\n%s\nafter:\n%s", i, live, read, script)
		}
		if live, read := f.PerPacket(), ruleset.PerPacket(); !sameRules(live, read) {
			t.Fatalf("change %d: per packet: followed %v, read afresh %v, after:\n%s", i, live, read, script)
		}
		if c.Everything() != "" {
			all++
		}
		for range tuples {
			conn := g.conn()
			live, lives := f.Touches(conn)
			read, reads := ruleset.Touches(conn)
			if lives != reads || lives && live.Why != read.Why && !sameRules([]Rule{live}, []Rule{read}) && len(f.PerPacket()) == 1 {
				t.Fatalf("change %d: %+v: followed %v %v, read afresh %v %v, after:\n%s", i, conn, live, lives, read, reads, script)
			}
			if port := uint16(g.r.IntN(4)); true {
				_, lives := f.TouchesTunnel(port)
				_, reads := ruleset.TouchesTunnel(port)
				if lives != reads {
					t.Fatalf("change %d: tunnel %d: followed %v, read afresh %v, after:\n%s", i, port, lives, reads, script)
				}
			}
			if live, read := f.Untracked(conn), ruleset.Untracked(conn); live != read {
				t.Fatalf("change %d: %+v: untracked: followed %v, read afresh %v, after:\n%s", i, conn, live, read, script)
			}
			if c.Everything() != "" {
				continue
			}
			concerns, was, is := c.Concerns(conn), before.way(conn), after.way(conn)
			switch {
			case was != is && !concerns:
				t.Fatalf("change %d: %+v is not concerned, but meets\n%s\nafter\n%s\nchange:\n%s", i, conn, is, was, script)
			case concerns && was == is:
				equal++
			case concerns:
				met++
			}
			if concerns {
				concerned++
			}
		}
		before = after
	}
	t.Logf("%d changes: %d refused, %d read afresh, %d concern everything; concerned by others: %d of %d tuples, of which %d meet what they met",
		changes, failed, reread, all, concerned, (changes-all)*tuples, equal)
	if reread > changes/5 {
		t.Errorf("%d of %d changes had the rules read again", reread, changes)
	}
	if met == 0 {
		t.Error("no connection was concerned")
	}
}

func sameRules(a, b []Rule) bool {
	key := func(r Rule) string { return r.String() + r.Text }
	var x, y []string
	for _, r := range a {
		x = append(x, key(r))
	}
	for _, r := range b {
		y = append(y, key(r))
	}
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// ruleGenerator generates changes of rules.
type ruleGenerator struct {
	r    *rand.Rand
	live *Live
}

func (g *ruleGenerator) one(of ...string) string { return of[g.r.IntN(len(of))] }

func (g *ruleGenerator) addr() string {
	return fmt.Sprintf("10.0.%d.%d", g.r.IntN(3), 1+g.r.IntN(4))
}

func (g *ruleGenerator) port() string { return fmt.Sprint(1 + g.r.IntN(5)) }

// conn is a random connection.
func (g *ruleGenerator) conn() Conn {
	c := outbound([]uint8{tcp, udp}[g.r.IntN(2)], "443")
	if g.r.IntN(3) == 0 {
		c = published(tcp, "80")
	}
	at := func() netip.AddrPort { return netip.MustParseAddrPort(g.addr() + ":" + g.port()) }
	c.Orig.Src, c.Orig.Dst = at(), at()
	c.Reply.Src, c.Reply.Dst = c.Orig.Dst, c.Orig.Src
	if g.r.IntN(2) == 0 {
		c.Reply.Dst = at()
	}
	switch g.r.IntN(8) {
	case 0:
		c = unreplied(c)
	case 1:
		c.Untracked = true
		c.Status = 0
	case 2:
		c.Peer = Device{"veth1", 8}
	}
	return c
}

// rule is the text of a random rule, without jumps.
func (g *ruleGenerator) rule(inTable string) string {
	conditions := []string{
		"ip saddr " + g.addr(), "ip daddr " + g.addr(), "tcp dport " + g.port(), "udp sport " + g.port(),
		"ct state new", "ct state established,related", "ct state vmap { established : accept, invalid : drop }",
		"tcp dport { 1, 2, " + g.port() + " }", "ip saddr { 10.0.0.1-10.0.0.3, 10.0.1.0/24 }", "ip saddr " + g.addr() + "/31",
		`iifname "veth0"`, `oifname "eth*"`, "meta mark 1", "meta l4proto udp", "ct direction reply", "ct status dnat", "ip protocol tcp",
		"ip saddr . tcp dport { 10.0.0.1 . 1, 10.0.0.2 . 2-3 }", "ip daddr != " + g.addr(), "tcp dport vmap { 1 : accept, 2 : drop }",
		"th dport != { 3, 4 }",
	}
	if inTable == "inet t" {
		conditions = append(conditions, "ip saddr @addresses", "ip daddr @ranges", "ip saddr . tcp dport @pairs", "ip daddr @timed",
			"ip saddr vmap @verdicts", "ip saddr @seen", "ip saddr @addresses", "ip saddr vmap @verdicts")
	}
	if inTable == "netdev d" || inTable == "bridge b" {
		conditions = conditions[:4]
	}
	statements := []string{
		"accept", "drop", "return", "counter", "accept", "drop", "meta mark set 7", "counter accept", "ip dscp set cs1",
	}
	if g.r.IntN(12) == 0 {
		statements = []string{"limit rate 5/second accept", "log", "quota 100 mbytes drop", "meta length > 1000 drop", "counter name exact", "ip ttl set 3"}
		if inTable != "inet t" {
			statements = statements[:4]
		}
	}
	if inTable == "inet t" && g.r.IntN(12) == 0 {
		return g.one("", "udp dport "+g.port()+" ") + "notrack"
	}
	if inTable == "inet t" && g.r.IntN(6) == 0 {
		statements = []string{"meta mark set ip saddr map @marks accept", "add @seen { ip saddr }", "jump a", "jump b", "goto b", "counter name plain accept"}
	}
	text := ""
	for range g.r.IntN(3) {
		text += g.one(conditions...) + " "
	}
	return text + g.one(statements...)
}

// chain is a random chain that is followed: its table, name and handles.
func (g *ruleGenerator) chain() (table, name string, handles []uint64) {
	var all []*chain
	for _, t := range g.live.nft.tables {
		if t.kept {
			for _, c := range t.chains {
				all = append(all, c)
			}
		}
	}
	if len(all) == 0 {
		return "inet t", "f", nil
	}
	slices.SortFunc(all, func(a, b *chain) int { return strings.Compare(a.String(), b.String()) })
	c := all[g.r.IntN(len(all))]
	for _, r := range c.all {
		handles = append(handles, r.handle)
	}
	return c.table, c.name, handles
}

const baseTables = `
table inet t {
 counter exact {}
 counter plain {}
 set addresses { type ipv4_addr; elements = { 10.0.0.1, 10.0.1.2 }; }
 set ranges { type ipv4_addr; flags interval; elements = { 10.0.0.0/30, 10.0.2.1-10.0.2.3 }; }
 set pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/24 . 1-3 }; }
 set timed { type ipv4_addr; flags timeout; elements = { 10.0.0.2 timeout 1h }; }
 set seen { type ipv4_addr; flags dynamic; size 100; }
 map marks { type ipv4_addr : mark; elements = { 10.0.0.1 : 1, 10.0.0.2 : 2 }; }
 chain a { }
 chain b { }
 map verdicts { type ipv4_addr : verdict; elements = { 10.0.0.1 : jump a, 10.0.0.2 : accept }; }
 chain f { type filter hook forward priority 0; }
 chain p { type filter hook prerouting priority -300; }
}
`

// command is a random command of nft.
func (g *ruleGenerator) command() string {
	table, name, handles := g.chain()
	handle := uint64(1)
	if len(handles) > 0 {
		handle = handles[g.r.IntN(len(handles))]
	}
	rule := g.rule(table)
	switch g.r.IntN(26) {
	case 0, 1, 2, 3:
		return fmt.Sprintf("add rule %s %s %s", table, name, rule)
	case 4, 5, 6:
		return fmt.Sprintf("insert rule %s %s %s", table, name, rule)
	case 7, 8:
		return fmt.Sprintf("insert rule %s %s handle %d %s", table, name, handle, rule)
	case 9:
		return fmt.Sprintf("add rule %s %s handle %d %s", table, name, handle, rule)
	case 10, 11:
		return fmt.Sprintf("replace rule %s %s handle %d %s", table, name, handle, rule)
	case 12, 13, 14:
		return fmt.Sprintf("delete rule %s %s handle %d", table, name, handle)
	case 15:
		return g.one("add", "add", "delete") + " element inet t " + g.one("addresses { "+g.addr()+" }", "timed { "+g.addr()+" }", "ranges { "+g.addr()+" }",
			"ranges { "+g.addr()+"-10.0.2.9 }", "pairs { "+g.addr()+" . "+g.port()+" }", "pairs { 10.0.1.0/24 . "+g.port()+"-9 }")
	case 16:
		return g.one("add element inet t marks { "+g.addr()+" : "+g.port()+" }", "delete element inet t marks { "+g.addr()+" }",
			"add element inet t verdicts { "+g.addr()+" : "+g.one("jump a", "jump b", "goto a", "drop", "accept")+" }", "delete element inet t verdicts { "+g.addr()+" }")
	case 17:
		return "flush set inet t " + g.one("addresses", "ranges", "pairs", "timed", "seen")
	case 18:
		return g.one("flush map inet t marks", "flush map inet t verdicts", "add element inet t seen { "+g.addr()+" }")
	case 19:
		return fmt.Sprintf("flush chain %s %s", table, name)
	case 20:
		return g.one("add chain inet t x", "delete chain inet t x", "add rule inet t f jump x", "add rule inet t x "+g.rule("inet t"),
			"rename chain inet t x y", "delete chain inet t y", "add rule inet t a jump b", "add rule inet t b jump x")
	case 21:
		return g.one("add chain inet t q { type filter hook postrouting priority 5; policy "+g.one("accept", "drop")+"; }", "delete chain inet t q",
			"add chain inet t f { type filter hook forward priority 0; policy "+g.one("accept", "accept", "drop")+"; }",
			"add chain inet t n { type nat hook postrouting priority 100; }", "add rule inet t n ip saddr "+g.addr()+" masquerade", "add rule inet t q jump a")
	case 22:
		return g.one("add table bridge b; add chain bridge b f { type filter hook forward priority 0; }", "add rule bridge b f "+g.rule("bridge b"), "delete table bridge b",
			"add table netdev d; add chain netdev d i { type filter hook ingress device lo priority 0; }", "add rule netdev d i "+g.rule("netdev d"), "delete table netdev d",
			"add table ip nat; add chain ip nat p { type nat hook prerouting priority -100; }; add rule ip nat p ip daddr "+g.addr()+" dnat to "+g.addr(), "delete table ip nat")
	case 23:
		return g.one("add set inet t more { type ipv4_addr; elements = { "+g.addr()+" }; }", "delete set inet t more", "add rule inet t f ip saddr @more drop",
			"add element inet t more { "+g.addr()+" }", "add quota inet t q { over 5 mbytes }", "add rule inet t f quota name q drop", "delete quota inet t q")
	case 24:
		if g.r.IntN(4) > 0 {
			return "flush table " + table
		}
		return g.one("add table inet t { flags dormant; }", "add table inet t", "delete table "+table)
	default:
		return "list ruleset"
	}
}

// change is a script that changes the rules, in one transaction or in several.
func (g *ruleGenerator) change() string {
	if g.live.nft == nil || g.live.nft.tables[tableKey{unix.NFPROTO_INET, "t"}] == nil {
		return nftScript(baseTables)
	}
	switch g.r.IntN(12) {
	case 0: // one after the other
		var b strings.Builder
		for range 2 + g.r.IntN(4) {
			fmt.Fprintf(&b, "{ %s; } || true\n", strings.TrimSpace(nftScript(g.command())))
		}
		return b.String()
	case 1, 2: // at once
		var commands []string
		for range 2 + g.r.IntN(5) {
			commands = append(commands, g.command())
		}
		return nftScript(strings.Join(commands, "\n"))
	case 3:
		return g.one("iptables-nft-save > saved; iptables-nft-restore < saved", "nft list ruleset > saved; { echo flush ruleset; cat saved; } | nft -f -",
			"iptables-nft-save > saved; { grep -v COMMIT saved; echo '-A FORWARD -s "+g.addr()+" -j ACCEPT'; echo COMMIT; } | iptables-nft-restore",
			nftScript("flush ruleset\n"+baseTables), nftScript("delete table inet t\n"+baseTables),
			"nft list table inet t > saved; { echo delete table inet t; cat saved; } | nft -f -")
	case 4, 5:
		rule := g.one("-s "+g.addr()+" -j ACCEPT", "-p tcp --dport "+g.port()+" -j DROP", "-m conntrack --ctstate NEW -s "+g.addr()+" -j ACCEPT", "-m conntrack --ctstate ESTABLISHED -j ACCEPT",
			"-s "+g.addr()+" -j MARK --set-mark 3", "-m limit --limit 5/s -s "+g.addr()+" -j ACCEPT", "-p udp -d "+g.addr()+" -j C", "-j C")
		chain := g.one("FORWARD", "FORWARD", "C")
		return "iptables-nft -N C 2>/dev/null || true\n" + g.one("iptables-nft -A "+chain+" "+rule, "iptables-nft -I "+chain+" "+rule, "iptables-nft -I "+chain+" 2 "+rule,
			"iptables-nft -D "+chain+" 1", "iptables-nft -R "+chain+" 1 "+rule, "iptables-nft -F "+chain, "iptables-nft -P FORWARD "+g.one("ACCEPT", "DROP"),
			"printf '*filter\n-D FORWARD 1\n-I FORWARD "+rule+"\nCOMMIT\n' | iptables-nft-restore --noflush",
			"printf '*filter\n:C - [0:0]\n-A C "+strings.Replace(rule, "-j C", "-j DROP", 1)+"\n-A C -j RETURN\nCOMMIT\n' | iptables-nft-restore --noflush")
	default:
		return nftScript(g.command())
	}
}

func nftScript(commands string) string {
	return "nft -f - <<'END'\n" + strings.ReplaceAll(commands, "; add ", "\nadd ") + "\nEND\n"
}

// TestLiveUnfinished holds that a transaction of which only a part was announced is
// waited for.
func TestLiveUnfinished(t *testing.T) {
	l := NewLive(Options{})
	l.Lost("nothing yet")
	message := func(typ uint16) nlmsg.Message { return nlmsg.Message{Type: typ, Data: make([]byte, 4)} }
	if !l.Note(message(unix.NFT_MSG_NEWRULE)) || l.Note(message(unix.NFT_MSG_NEWRULE)) {
		t.Error("the first message is not told from the second")
	}
	if _, err := l.Follow(nil, nil); !errors.Is(err, ErrUnfinished) {
		t.Errorf("Follow = %v, want ErrUnfinished", err)
	}
	l.Lost("test")
	if _, err := l.Follow(nil, nil); !errors.Is(err, ErrUnfinished) {
		t.Errorf("Follow = %v after a loss, want ErrUnfinished", err)
	}
	l.Note(message(unix.NFT_MSG_NEWGEN))
	if _, lost, err := l.feed.take(); err != nil || lost != "test" {
		t.Errorf("take = %q, %v after the end", lost, err)
	}
	if !reflect.DeepEqual(l.feed.complete, []announced(nil)) {
		t.Error("something is left")
	}

	l.Note(message(unix.NFT_MSG_NEWRULE))
	l.Lost("its end as well")
	l.feed.since = l.feed.since.Add(-mostUnfinished)
	if _, lost, err := l.feed.take(); err != nil || lost != "its end as well" || len(l.feed.partial) > 0 {
		t.Errorf("take = %q, %v after a second without the end", lost, err)
	}
}

// BenchmarkFollow adds a rule to many, which only new connections meet in three ways:
// by their state, behind the established ones, or by their addresses.
func BenchmarkFollow(b *testing.B) {
	for _, kind := range []struct{ name, first, rest string }{
		{"state", "", " -m conntrack --ctstate NEW"},
		{"behind", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n", ""},
		{"addresses", "", ""},
	} {
		for _, n := range []int{20000} {
			ns := nstest.New(b)
			text := strings.Replace(manyRules(n), "-A FORWARD -j LOG\n", "", 1)
			text = strings.ReplaceAll(text, " -j ACCEPT", kind.rest+" -j ACCEPT")
			text = strings.Replace(text, "-A", kind.first+"-A", 1)
			file := filepath.Join(b.TempDir(), "rules")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
			nstest.Run(b, ns, xtNFT+" "+file)
			b.Run(fmt.Sprint(kind.name, " ", n), func(b *testing.B) {
				runtime.GC()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				f := follow(b, ns, Options{})
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ResetTimer()
				for b.Loop() {
					b.StopTimer()
					nstest.Run(b, ns, "nft insert rule ip filter FORWARD ip saddr 10.9.9.9 accept")
					f.receive()
					b.StartTimer()
					c := f.followReceived()
					if c.Everything() != "" || c.Concerns(outbound(tcp, "443")) {
						b.Fatal("concerned")
					}
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/rule")
				runtime.KeepAlive(f)
			})
		}
	}
}

// TestLiveDiffers holds that a ruleset that misses a change is not the same as the one
// that is read.
func TestLiveDiffers(t *testing.T) {
	for name, change := range map[string]string{
		"rule": "add rule inet t f drop", "place": "insert rule inet t f ip saddr 10.0.0.1 drop", "element": "add element inet t addresses { 10.0.2.4 }",
		"policy": "add chain inet t f { policy drop; }", "chain": "add chain inet t z",
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, nstest.New(t), Options{})
			f.sh(nftScript(baseTables))
			f.follow()
			if !f.sh(nftScript(change)) {
				t.Fatal("refused")
			}
			state, _ := f.fresh()
			if _, ok := f.Same(&Live{nft: state}); ok {
				t.Error("compared with another generation")
			}
			f.nft.generation = state.generation // its messages are lost
			if same, ok := f.Same(&Live{nft: state}); same || !ok {
				t.Errorf("same %v, %v", same, ok)
			}
		})
	}
}
