package rules

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// TestReadWhileChanging holds that rules which change all the time can be read: what is
// read in the middle, and followed from then on, is what a reader finds afterwards.
func TestReadWhileChanging(t *testing.T) {
	ns := nstest.New(t)
	f := follow(t, ns, Options{})
	var large strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&large, "ip daddr 10.0.%d.%d tcp dport %d limit rate 5/second drop\n", i>>8, i&255, i+1)
	}
	rules := `table inet t {
		set s { type ipv4_addr; }
		map m { type ipv4_addr : verdict; }
		chain large { ` + large.String() + ` }
		chain small { }
		chain f { type filter hook forward priority 0; jump large; jump small; ip saddr vmap @m; }
	}`
	file := filepath.Join(f.dir, "rules")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if !f.sh("nft -f rules") {
		t.Fatal("no rules")
	}

	some := rand.New(rand.NewPCG(1, 2))
	for round := range 5 {
		readWhile(t, f, someChanges(some, 40))
		f.follow()
		want, _ := f.fresh()
		if got := f.nft.state(); got != want.state() {
			t.Fatalf("round %d: followed:\n%s\nread afterwards:\n%s", round, got, want.state())
		}
	}
}

// readWhile reads the rules three times while a script changes them again and again, for
// a minute at most, and notes the rest.
func readWhile(t *testing.T, f *follower, script string) {
	enough := filepath.Join(f.dir, "enough")
	_ = os.Remove(enough)
	var cmd *exec.Cmd
	nstest.Do(t, f.ns, func() {
		cmd = exec.Command("timeout", "60", "sh", "-c", "while [ ! -e "+enough+" ]; do\n"+script+"done; true\n")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	ending, noted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(noted)
		for f.sock.Receive(f.note) == nil {
			select {
			case <-ending:
				return
			default:
			}
		}
	}()
	for reads := 0; reads < 3; {
		f.Lost("test")
		nstest.Do(t, f.ns, func() {
			switch _, err := f.Follow(nil, nil); {
			case errors.Is(err, ErrUnfinished):
			case err != nil:
				t.Errorf("read %d: %v", reads, err)
				fallthrough
			default:
				reads++
			}
		})
	}
	if err := os.WriteFile(enough, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the changes were over before the rules were read: %v", err)
	}
	close(ending)
	f.sh("nft add table inet end; nft delete table inet end") // wakes the goroutine
	<-noted
}

// someChanges are lines of a script that change chains, rules, sets and maps.
func someChanges(some *rand.Rand, n int) string {
	var script strings.Builder
	for i := range n {
		n := some.IntN(10)
		switch some.IntN(8) {
		case 0:
			fmt.Fprintf(&script, "nft add chain inet t c%d\n", n)
		case 1:
			fmt.Fprintf(&script, "nft add rule inet t c%d ip ttl %d drop\nnft add rule inet t small jump c%[1]d\n", n, i%250+1)
		case 2:
			fmt.Fprintf(&script, "nft flush chain inet t small\n")
		case 3:
			fmt.Fprintf(&script, "nft flush chain inet t c%d\nnft delete chain inet t c%[1]d\n", n)
		case 4:
			fmt.Fprintf(&script, "nft add element inet t s '{ 10.1.0.%d }'\nnft insert rule inet t small ip saddr @s drop\n", n)
		case 5:
			fmt.Fprintf(&script, "nft delete element inet t s '{ 10.1.0.%d }'\n", n)
		case 6:
			fmt.Fprintf(&script, "nft add element inet t m '{ 10.2.0.%d : jump c%[1]d }'\n", n)
		case 7:
			fmt.Fprintf(&script, "nft add rule inet t small ip saddr '{ 10.3.0.%d, 10.4.0.%[1]d }' limit rate %d/second accept\n", n, i+1)
		}
	}
	return script.String()
}
