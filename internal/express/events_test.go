package express_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The kernel does not announce the end of a connection whose events a rule, or the setting
// nf_conntrack_events, leaves out. Its Conentry ends nevertheless.
func TestEndIsNotAnnounced(t *testing.T) {
	t.Parallel()
	for name, leaveOut := range map[string]string{
		"nftables": "nft add table ip t\nnft add chain ip t f { type filter hook forward priority 0 ; }\nnft add rule ip t f ct state new ct event set new",
		"iptables": "iptables-nft -t raw -A PREROUTING -j CT --ctevents new",
		"legacy":   "iptables-legacy -t raw -A PREROUTING -j CT --ctevents new,assured",
		"setting":  "sysctl -qw net.netfilter.nf_conntrack_events=0",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.FlushIdle = time.Hour }})
			b.Sh(lab.Device, leaveOut)
			for _, proto := range []string{"tcp", "udp"} {
				c := b.Outgoing(proto, 1).GoExpress()
				b.Sh(lab.Device, "conntrack -D --orig-src "+c.MustFlow().Orig.Src)
				c.WaitGone()
			}
		})
	}
}
