package rules

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
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
	"github.com/scon-project/scon/test/bed/nstest"
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
		sock, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
		if err != nil {
			f.t.Fatal(err)
		}
		defer sock.Close()
		want, err := (&nftReader{sock: sock}).current()
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
		f.seen = parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:]).number(unix.NFTA_GEN_ID)
	}
}

// fresh reads the ruleset twice: as Live does at first, and as Read does.
func (f *follower) fresh() (state *nftables, ruleset Ruleset) {
	f.t.Helper()
	nstest.Do(f.t, f.ns, func() {
		var err error
		if state, err = readNFTables(f.opts, newExactCounters(f.opts), new(feed).between); err != nil {
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
	c.Env = append(os.Environ(), lockIn(f.dir))
	ok := false
	nstest.Do(f.t, f.ns, func() { ok = c.Run() == nil })
	return ok
}

// state describes the tables that matter.
func (n *nftables) state() string {
	var lines []string
	rules := 0
	for key, t := range n.tables {
		if !t.kept {
			continue
		}
		lines = append(lines, fmt.Sprintf("%v dormant %v", key, t.dormant))
		for _, c := range t.chains {
			c.scan()
			line := fmt.Sprintf("%v judging %d end %d comment %q:", c, c.judging, c.end, c.comment)
			if b := c.base; b != nil {
				line = fmt.Sprintf("%v at %v %v %d %v %v %v judging %d end %d:", c, b.hook, b.families, b.priority, b.devices, b.nat, b.drops, c.judging, c.end)
			}
			for _, r := range c.all {
				line += fmt.Sprintf(" %d=%x", r.handle, r.sum)
			}
			rules += len(c.all)
			lines = append(lines, line)
		}
		for _, s := range t.sets {
			s.settle()
			lines = append(lines, fmt.Sprintf("%v set %v unknown %v, %d elements: %x", key, s.name, s.unknown, s.elements.len(), s.sum()))
		}
		for name, all := range t.lookers {
			var handles []uint64
			for _, r := range all {
				handles = append(handles, r.handle)
			}
			slices.Sort(handles)
			lines = append(lines, fmt.Sprintf("%v set %v looked into by %d", key, name, handles))
		}
	}
	if rules != n.rules {
		lines = append(lines, fmt.Sprintf("%d rules, counted as %d", rules, n.rules))
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
			if b.drops {
				w.WriteString("drop")
			}
			w.WriteByte(';')
		})
		if strings.Trim(w.String(), ";") != "" { // without a rule that matches, a chain is as if it were not there
			out = append(out, fmt.Sprintf("%v %v %v", b.chain, b.hook, w.String()))
		}
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
			for _, tunnel := range []Tunnel{{unix.IPPROTO_UDP, uint16(g.r.IntN(4))}, {Proto: unix.IPPROTO_IPIP}} {
				_, lives := f.TouchesTunnel(tunnel)
				_, reads := ruleset.TouchesTunnel(tunnel)
				if lives != reads {
					t.Fatalf("change %d: tunnel %v: followed %v, read afresh %v, after:\n%s", i, tunnel, lives, reads, script)
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
				many := conn
				if many.Shared = g.shared(conn); !c.MayConcern(many) {
					t.Fatalf("change %d: %+v is concerned, but none of those with %+v is, after:\n%s", i, conn, many.Shared, script)
				}
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
		for _, n := range []int{20000, 150000} {
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

// A table that goes with its owner is noticed, and one of the same name is another one.
func TestOwnerEnded(t *testing.T) {
	t.Parallel()
	f := follow(t, nstest.New(t), Options{})
	const owned = "table ip marks { flags owner; chain p { type filter hook forward priority 0; limit rate 1/second drop; }; }"
	ended := func() (is bool) {
		nstest.Do(t, f.ns, func() {
			sock, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
			if err != nil {
				t.Fatal(err)
			}
			defer sock.Close()
			if is, err = f.OwnerEnded(sock); err != nil {
				t.Fatal(err)
			}
		})
		return is
	}
	end := nstest.Owner(t, f.ns, owned)
	f.follow()
	f.sh("nft add table ip other")
	if f.follow(); ended() {
		t.Error("the owner is there")
	}
	end()
	if !ended() {
		t.Error("the owner's end is not noticed")
	}
	end = nstest.Owner(t, f.ns, strings.Replace(owned, "limit rate 1/second drop", "accept", 1))
	defer end()
	if f.follow(); f.Judges() {
		t.Error("the rules of the table that is gone are followed")
	}
}

// BenchmarkFollowMap adds a service to many that share a verdict map, as kube-proxy's.
func BenchmarkFollowMap(b *testing.B) {
	for _, n := range []int{4000, 20000} {
		ns := nstest.New(b)
		f := follow(b, ns, Options{})
		var chains, elements strings.Builder
		for i := range n {
			fmt.Fprintf(&chains, "chain service-%d {\nip saddr != 10.0.0.0/8 jump masq\nnumgen random mod 2 vmap { 0 : goto masq, 1 : goto masq }\n}\n", i)
			fmt.Fprintf(&elements, "10.96.%d.%d . tcp . 80 : goto service-%d,\n", i>>8, i&255, i)
		}
		text := `table ip kube-proxy {
			chain masq { meta mark set mark or 0x4000; }
			` + chains.String() + `
			map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { ` + elements.String() + ` }; }
			map none { type ipv4_addr . inet_proto . inet_service : verdict; }
			chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
			chain check { ip daddr . meta l4proto . th dport vmap @none; }
			chain filter-forward { type filter hook forward priority -110; ct state new jump check; }
			chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
		}`
		file := filepath.Join(f.dir, "rules")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		nstest.Run(b, ns, "nft -f "+file)
		f.follow()
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				nstest.Run(b, ns, "nft add chain ip kube-proxy another\nnft add element ip kube-proxy service-ips { 10.97.0.1 . tcp . 80 : goto another }")
				f.receive()
				b.StartTimer()
				c := f.followReceived()
				if c.Everything() != "" || c.Concerns(outbound(tcp, "443")) {
					b.Fatal("concerned ", c.Everything())
				}
				b.StopTimer()
				nstest.Run(b, ns, "nft delete element ip kube-proxy service-ips { 10.97.0.1 . tcp . 80 }\nnft delete chain ip kube-proxy another")
				f.follow()
				b.StartTimer()
			}
		})
	}
}

// Of the rules that have conntrack track, only the end of the last one of a family ends that, also
// of tables that are not kept since they only translate.
func TestLastTracker(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		nft add table ip n
		nft add chain ip n p { type nat hook prerouting priority -100 ; }
		nft add chain ip n q { type nat hook postrouting priority 100 ; }
		nft add rule ip n q ip saddr 10.1.0.0/16 masquerade
		nft add rule ip n q counter`)
	f := follow(t, ns, Options{})
	if n := f.nft.tables[tableKey{unix.NFPROTO_IPV4, "n"}]; n == nil || n.kept {
		t.Fatalf("the table is kept, or not known: %+v", n)
	}
	handle := func(rule string) string {
		return `$(nft -a list table ip n | sed -n 's/.*` + rule + `.*handle //p')`
	}
	for _, step := range []struct {
		script string
		want   string
	}{
		{"nft add rule ip n q ip saddr 10.2.0.0/16 masquerade", ""},
		{"nft add rule ip n p tcp dport 80 dnat to 10.1.0.2", ""},
		{"nft add table ip other", ""},
		{"nft add chain ip other q '{ type nat hook postrouting priority 99 ; }'; nft add rule ip other q tcp dport 1 masquerade", ""},
		{"nft delete rule ip n q handle " + handle("counter"), ""},
		{"nft delete rule ip n q handle " + handle("10.1.0.0"), ""},
		{"nft flush chain ip n p", ""},
		{"nft flush chain ip other q", ""},
		{"nft delete rule ip n q handle " + handle("10.2.0.0"), "perhaps no rule has conntrack track packets any more"},
		{"nft add rule ip n q ip saddr 10.3.0.0/16 masquerade", ""},
		{"nft flush table ip n", "perhaps no rule has conntrack track packets any more"},
	} {
		if !f.sh(step.script) {
			t.Fatalf("%s: failed", step.script)
		}
		if c := f.follow(); c.why != step.want {
			t.Errorf("%s: %q, want %q", step.script, c.why, step.want)
		}
	}
}
