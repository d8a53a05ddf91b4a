package express_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// TestAssured holds that a rule which drops what conntrack takes for assured drops a connection of
// UDP from the packet on that makes it so, which comes two seconds after the first
// (net/netfilter/nf_conntrack_proto_udp.c), and that one which does not drop it leaves it express.
func TestAssured(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	t.Run("dropped", func(t *testing.T) {
		b := b.In(t)
		b.Sh(lab.Device, "nft add table ip t ; add chain ip t f { type filter hook forward priority 0 ; } ; add rule ip t f ct status assured drop")
		defer b.Sh(lab.Device, "nft delete table ip t")
		c := b.Outgoing("udp", 1)
		c.MustPing(1)
		const late = 2*time.Second + 100*time.Millisecond // a tick is 10 ms at most
		for began := time.Now(); ; {
			sent := time.Now()
			arrived := true
			for _, e := range c.Ends() {
				if _, err := e[0].Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				_ = e[1].SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if _, err := e[1].Read(make([]byte, 1)); err != nil {
					arrived = false
				}
			}
			if sent.Sub(began) > late {
				if arrived {
					t.Error("packets passed that the rule drops")
				}
				break
			}
		}
		c.Close()
	})
	t.Run("marked", func(t *testing.T) {
		b := b.In(t)
		b.Sh(lab.Device, "nft add table ip t ; add chain ip t f { type filter hook forward priority 0 ; } ; add rule ip t f ct status assured ip dscp set 9")
		defer b.Sh(lab.Device, "nft delete table ip t")
		c := b.Outgoing("udp", 1)
		c.GoExpress()
		c.Close()
	})
}
