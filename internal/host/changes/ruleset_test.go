package changes

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Every message of a transaction comes before its event.
func TestMessages(t *testing.T) {
	w := newDevice(t)
	calls := make(chan string, queueLength)
	w.watch(Options{RulesOnly: true, Messages: true, OnStale: func(e Event) {
		if e.Message.Data == nil {
			calls <- fmt.Sprint("event ", e.Number)
			return
		}
		switch e.Message.Type {
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE:
			calls <- "table"
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN:
			calls <- "chain"
		case newGeneration:
			calls <- "end"
		default:
			calls <- fmt.Sprint("message ", e.Message.Type)
		}
	}}, roomy)
	for _, change := range []struct{ command, want string }{
		{"nft add table ip t ; add chain ip t c", "table, chain, end, event 1"},
		{"nft add chain ip t d", "chain, end, event 2"},
	} {
		w.run(change.command)
		if e := w.next(); e.Kind != Ruleset || !e.Stale || e.Message.Data != nil {
			t.Errorf("%s: notified of %+v", change.command, e)
		}
		var got []string
		for len(calls) > 0 {
			got = append(got, <-calls)
		}
		if strings.Join(got, ", ") != change.want {
			t.Errorf("%s: called for %v, want %s", change.command, got, change.want)
		}
	}
}

// Without OnStale nobody takes messages.
func TestMessagesForNobody(t *testing.T) {
	w := newDevice(t)
	w.watch(Options{RulesOnly: true, Messages: true}, roomy)
	w.run("nft add table ip t")
	if e := w.next(); e.Kind != Ruleset || !e.Stale {
		t.Errorf("notified of %+v", e)
	}
}
