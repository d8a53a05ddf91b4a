package express_test

import (
	"testing"

	"github.com/scon-project/scon/test/bed/scontest"
)

// Bytes arrive as they were sent, in packets of any size, while receivers
// verify every checksum; and they go express.
func TestBytesArrive(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]scontest.Layout{
		"checksums verified": {},
		"offloads":           {Offload: true},
		"clsact":             {Clsact: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := scontest.NewExpress(t, l)
			if mode := b.Status().Mode; l.Clsact && mode != "clsact" {
				t.Fatalf("hooked by %s", mode)
			}
			arriveBothDirections(t, b)
			b.WantNoInvalid()
		})
	}
}

// arriveBothDirections tests every kind of connection.
func arriveBothDirections(t *testing.T, b *scontest.Bed) {
	for name, connect := range scontest.Directions {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				b := b.In(t)
				connect(b, proto, 1).ExchangeExpress(2 << 20)
			})
		}
	}
}
