package express_test

import (
	"errors"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A connection's second packet decides nothing where a rule judges the packets behind it
// otherwise: conntrack takes the connection for assured by the third one.
func TestShortAssured(t *testing.T) {
	t.Parallel()
	b := newLiberal(t, scontest.Layout{})
	undo := map[string]string{"nftables": "nft delete table ip t", "iptables": "iptables-nft -D DOCKER-USER 1"}
	for name, rule := range map[string]string{
		"nftables": "nft add table ip t ; add chain ip t f { type filter hook forward priority 0 ; } ; " +
			"add rule ip t f ct direction reply ct status assured drop",
		"iptables": "iptables-nft -I DOCKER-USER -m conntrack --ctdir REPLY --ctstatus ASSURED -j DROP",
	} {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			before := b.Status().Rules.Generation
			b.Sh(lab.Device, rule)
			scontest.Eventually(t, "the daemon knows the rule", func() error {
				if b.Status().Rules.Generation == before {
					return errors.New("it does not")
				}
				return nil
			})
			for range 20 {
				c := b.Outgoing("tcp", 1)
				if _, err := c.Client.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Server.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Server.Write([]byte("y")); err != nil {
					t.Fatal(err)
				}
				_ = c.Client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if n, _ := c.Client.Read(make([]byte, 1)); n != 0 {
					t.Error("a packet passed that the rule drops")
				}
				c.Close()
			}
			b.Sh(lab.Device, undo[name])
		})
	}
}
