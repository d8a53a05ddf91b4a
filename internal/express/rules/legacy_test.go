package rules

import (
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// legacyFilter reads the table filter as the kernel stores it.
func legacyFilter(t testing.TB, ns string) (table legacyTable) {
	t.Helper()
	nstest.Do(t, ns, func() {
		tables, err := readLegacyTables(Options{})
		if err != nil || len(tables) != 1 || tables[0].name != "filter" {
			t.Fatalf("%d tables: %v", len(tables), err)
		}
		table = tables[0]
	})
	return table
}

// FuzzLegacy holds that no answer of the kernel can make the parser fail other
// than by an error, nor make the following of rules endless.
func FuzzLegacy(f *testing.F) {
	ns := nstest.New(f)
	nstest.Run(f, ns, `
		iptables-legacy -N LOGGING
		iptables-legacy -A LOGGING -m limit -j LOG
		iptables-legacy -A FORWARD -p tcp -m multiport --dports 80,400:500 -m conntrack --ctstate NEW,ESTABLISHED -g LOGGING
		iptables-legacy -A FORWARD -m iprange --src-range 10.0.0.1-10.0.0.9 -i eth+ -j LOGGING
		iptables-legacy -A FORWARD -p tcp --syn -j DROP
	`)
	table := legacyFilter(f, ns)
	ns6 := nstest.New(f)
	nstest.Run(f, ns6, "ip6tables-legacy -A FORWARD -s 2001:db8::/32 -p tcp -m multiport --dports 80,400:500 -m limit -j LOG")
	f.Add(legacyFilter(f, ns6).entries, table.layout.hooks, table.layout.entries[2])
	f.Add(table.entries, table.layout.hooks, table.layout.entries[2])
	f.Add([]byte{}, uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, hooks, begin uint32) {
		for _, form := range legacyForms {
			fuzzed := legacyTable{form, "filter", legacyLayout{hooks: hooks & 31, size: uint32(len(b))}, b}
			fuzzed.layout.entries = table.layout.entries
			fuzzed.layout.entries[2] = begin
			digest([]legacyTable{fuzzed})
			bases, err := fuzzed.parse(newExactCounters(Options{}))
			if err != nil {
				continue
			}
			ruleset := newRuleset(bases, Options{Drops: true})
			ruleset.Touches(outbound(tcp, "443"))
			ruleset.Touches(over6(outbound(tcp, "443")))
			ruleset.Discardable(maybeHere(sent(tcp, "443")))
		}
	})
}

func TestLegacyTablesAreNotMade(t *testing.T) {
	ns := nstest.New(t)
	nstest.Do(t, ns, func() {
		if _, err := Read(Options{}); err != nil {
			t.Fatal(err)
		}
	})
	if names := nstest.Run(t, ns, "cat "+legacySources[0].names); names != "" {
		t.Errorf("reading made the tables %q", names)
	}
}

func TestLegacyCutShort(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "iptables-legacy -A FORWARD -p tcp -m limit -j LOG")
	table := legacyFilter(t, ns)
	if _, err := table.parse(newExactCounters(Options{})); err != nil {
		t.Fatal(err)
	}
	whole := table.entries
	for n := 1; n < len(whole); n++ {
		table.entries = whole[:n]
		// A cut between two entries may leave a table that makes sense.
		if _, err := table.parse(newExactCounters(Options{})); err == nil && n%8 != 0 {
			t.Errorf("%d of %d bytes are taken for a table", n, len(whole))
		}
	}
	if _, err := parseLegacyInfo(make([]byte, legacyInfoSize-1)); err == nil {
		t.Error("information that is cut short is taken")
	}
}

func TestStaleSeesLegacyChanges(t *testing.T) {
	ns := nstest.New(t)
	var r Ruleset
	reread := func() {
		nstest.Do(t, ns, func() {
			var err error
			if r, err = Read(Options{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	want := func(what string, want bool) {
		t.Helper()
		nstest.Do(t, ns, func() {
			if stale, err := r.Stale(); err != nil || stale != want {
				t.Errorf("%s: stale = %v, %v, want %v", what, stale, err, want)
			}
		})
	}
	reread()
	want("nothing", false)
	nstest.Run(t, ns, "iptables-legacy -A OUTPUT -m limit -j LOG")
	want("the first rule", true)
	reread()
	want("read anew", false)
	nstest.Run(t, ns, "ping -c 1 -W 1 127.0.0.1")
	want("a packet counted", false)
	nstest.Run(t, ns, "iptables-legacy -R OUTPUT 1 -m limit --limit 7/sec -j LOG")
	want("another rate", true)
}
