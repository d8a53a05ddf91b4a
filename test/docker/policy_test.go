package docker

import (
	"fmt"
	"testing"
	"time"
)

// TestFirewallInMidStream adds a rule that drops an express connection and
// removes it: traffic stops and continues.
func TestFirewallInMidStream(t *testing.T) {
	e := Start(t)
	e.RunEcho(t, "echo")
	for _, tc := range []struct{ name, iptables, chain string }{
		{"iptables-nft", "iptables-nft", "DOCKER-USER"},
		// Docker's chains are nft's here, but both process every packet. The
		// kernel sends no notification of changes of these rules.
		{"iptables-legacy", "iptables-legacy", "FORWARD"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
				s.waitHooked(t, "echo")
				stream, exchange := startStream(t, e), startExchange(t, e)
				if s != nil {
					s.expectExpress(t, stream, "tcp")
					s.expectExpress(t, exchange, "udp")
				}
				rule := fmt.Sprintf("%s -I %s -p tcp --dport %d -j DROP", tc.iptables, tc.chain, echoPort)
				back := fmt.Sprintf("%s -D %s -p tcp --dport %d -j DROP", tc.iptables, tc.chain, echoPort)

				e.Sh(t, rule)
				took := stream.stands(t)
				t.Logf("the stream stopped %v after the rule", took)
				// The rule is for TCP only.
				exchange.proceed(t, "exchange beside the dropped stream", 20<<10)

				e.Sh(t, back)
				stream.proceed(t, "stream after the rule is gone", 16<<20)
				if s != nil {
					s.expectExpress(t, stream, "tcp")
				}
				wantUnbroken(t, stream, exchange)
			})
		})
	}
}

// stands waits until no byte of a load is echoed, then fails if one is within two
// leases. It returns the time of the first wait.
func (l *load) stands(t *testing.T) time.Duration {
	t.Helper()
	last := l.received.Load()
	took := eventually(t, "end of the traffic", func() error {
		time.Sleep(200 * time.Millisecond)
		was := last
		if last = l.received.Load(); last != was {
			return fmt.Errorf("%d bytes were echoed within 200 ms", last-was)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	if now := l.received.Load(); now != last {
		t.Errorf("%d bytes passed the firewall", now-last)
	}
	return took
}
