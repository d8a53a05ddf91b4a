package pitfalls

import (
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Conntrack compares a RST's sequence number with the highest acknowledgement that it
// has seen. After half of the sequence space, an outdated acknowledgement would be ahead
// of the RST.
func TestRSTIsNotJudgedByStaleMaxAck(t *testing.T) {
	t.Parallel()
	const total = 1<<31 + 64<<20
	b := scontest.NewExpress(t, scontest.Layout{Offload: true})
	c := b.Outgoing("tcp", 1).GoExpress()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(c.Server, zeros{}, total)
		sent <- err
	}()
	const some = 32 << 20
	for left := total; left > 0; left -= some {
		_ = c.Client.SetReadDeadline(time.Now().Add(scontest.Patience))
		if _, err := io.CopyN(io.Discard, c.Client, some); err != nil {
			t.Fatalf("%d bytes before the end: %v", left, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if express := c.MustFlow().ExpressBytes[1]; express < total/2 {
		t.Fatalf("%d of %d bytes went express", express, total)
	}
	if err := scontest.Reset(c.Server); err != nil {
		t.Fatal(err)
	}
	scontest.WantEnd(t, c.Client, syscall.ECONNRESET)
	c.WaitGone()
	b.WantNoInvalid()
}

// zeros is an endless source of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// If conntrack sees a data packet but not its acknowledgement, it uses the timeout for
// unacknowledged data, five minutes. An idle connection must keep the timeout of
// established connections, which is days.
func TestIdleConnectionKeepsItsTimeout(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.FlushIdle = time.Second }})
	const unacknowledged = 300 // net.netfilter.nf_conntrack_tcp_timeout_unacknowledged
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			c := connect(b.In(t), "tcp", 1).GoExpress()
			c.Exchange(4 << 20)
			scontest.Eventually(t, "conntrack has the long timeout", func() error {
				if conn := tracked(c); conn.timeout <= unacknowledged {
					return fmt.Errorf("it is %s", conn.line)
				}
				return nil
			})
			c.WaitGone()
			if conn := tracked(c); conn.timeout <= unacknowledged {
				t.Errorf("conntrack's entry after the removal of the Conentry: %s", conn.line)
			}
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}
