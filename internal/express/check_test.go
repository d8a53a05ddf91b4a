package express

import (
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// The rules that are followed are compared with the kernel's when that is due and they
// may have changed, and a difference has them read again: whether a rule was missed, or
// the whole change.
func TestRulesAreCompared(t *testing.T) {
	t.Parallel()
	const every = time.Minute
	ns := nstest.New(t)
	var sock *nlmsg.Socket
	p := policy{live: rules.NewLive(rules.Options{}), check: check{every: every}, log: slog.New(slog.DiscardHandler)}
	nstest.Do(t, ns, func() {
		var err error
		if sock, err = nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_NETFILTER, Groups: []uint32{unix.NFNLGRP_NFTABLES}}); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { sock.Close() })
	follow := func() {
		nstest.Do(t, ns, func() {
			if _, err := p.live.Follow(nil, nil); err != nil {
				t.Fatal(err)
			}
		})
		p.version++
	}
	// change changes the rules; what is announced of that and not left out is followed.
	change := func(script string, leaveOut ...uint16) {
		nstest.Run(t, ns, script)
		for ended := false; !ended; {
			if err := sock.Receive(func(m nlmsg.Message) {
				ended = ended || m.Type&0xff == unix.NFT_MSG_NEWGEN
				for _, typ := range leaveOut {
					if m.Type&0xff == typ {
						return
					}
				}
				p.live.Note(m)
			}); err != nil {
				t.Fatal(err)
			}
		}
		follow()
	}
	var now time.Time
	// compare reports whether a comparison ran at a time, and whether it found a difference.
	compare := func(at time.Time) (ran, differs bool) {
		results := make(chan func())
		p.fresh = func() (fresh *rules.Live, err error) {
			nstest.Do(t, ns, func() { fresh, err = p.live.Fresh() })
			return fresh, err
		}
		p.checkIn(at, func(fn func()) { results <- fn }, func() { differs = true })
		if p.check.runs {
			ran = true
			(<-results)()
		}
		return ran, differs
	}
	follow()
	change("nft add table ip t")
	change("nft add chain ip t f { type filter hook forward priority 0 ; }")
	want := func(what string, at time.Time, run, differ bool) {
		t.Helper()
		if ran, differs := compare(at); ran != run || differs != differ {
			t.Errorf("%s: compared %v, differs %v", what, ran, differs)
		}
	}
	now = time.Now()
	p.check.next = now.Add(every)
	want("before it is due", now, false, false)
	want("when it is due", now.Add(every), true, false)
	if next := p.check.next; next.Before(now.Add(every)) {
		t.Errorf("the next one is due at %v, %v after the last", next, next.Sub(now))
	}
	want("no change since", now.Add(3*every), false, false)
	change("nft add rule ip t f ip saddr 10.0.0.1 drop")
	want("too early", now.Add(every/2), false, false)
	want("a change that was followed", now.Add(3*every), true, false)
	change("nft add rule ip t f ip saddr 10.0.0.2 drop", unix.NFT_MSG_NEWRULE)
	want("a change of which a rule was missed", now.Add(6*every), true, true)
	p.live.Lost("test")
	follow()
	want("after the rules were read again", now.Add(9*every), true, false)
	change("nft add rule ip t f ip saddr 10.0.0.3 drop", unix.NFT_MSG_NEWRULE, unix.NFT_MSG_NEWGEN)
	want("a change that was missed", now.Add(12*every), true, false)
	want("a change that is missed still", now.Add(12*every), false, true)
}
