package contable_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

const now = 5000 // jiffies

func TestFlow(t *testing.T) {
	b := newBed(t, options())
	conn := published(1)
	e := b.compose(8, conn, false, start)
	b.settings.Heartbeat = now
	b.SetLease(e, 250*time.Millisecond)
	f := b.Flow(e, after(3))
	if f.Port != 8 || f.Conn.Orig != conn.Orig || f.Decided || f.Oif != 0 || f.Left != 0 || f.Age != 3*time.Second || f.Idle != 3*time.Second {
		t.Errorf("before any decision: %+v", f)
	}

	// The original direction is the one from the wire.
	in, out := b.half(conn.Orig, 0), b.half(conn.Reply, 8)
	*in, *out = decide(*in), decide(*out)
	in.Packets, in.Bytes, in.LeaseFrom, in.OutDev = 3, 300, now-50, 8
	out.Packets, out.Bytes, out.LeaseFrom, out.OutDev = 4, 400, now-100, 2
	out.OutMacs = 0x0605_0403_0201
	f = b.Flow(e, after(4))
	if f.Packets != [2]uint64{3, 4} || f.Bytes != [2]uint64{300, 400} {
		t.Errorf("%v packets, %v bytes", f.Packets, f.Bytes)
	}
	if !f.Decided || f.Left != 200*time.Millisecond || f.Oif != 2 || f.NextHop.String() != "01:02:03:04:05:06" {
		t.Errorf("decided: %+v", f)
	}
	if f.Age != 4*time.Second || f.Idle != 0 {
		t.Errorf("age %v, idle %v", f.Age, f.Idle)
	}

	b.settings.Generation++
	if f = b.Flow(e, after(6)); f.Decided || f.Left != 0 || f.Idle != 2*time.Second {
		t.Errorf("with new rules: %+v", f)
	}
}

// decide gives a half a decision of the current generation.
func decide(h datapath.Half) datapath.Half {
	h.Generation = 1
	return h
}
