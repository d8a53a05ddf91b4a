package pitfalls

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Once a policy requires IPsec, no packet leaves in cleartext, not even of a connection
// that was express before.
func TestIPsecPolicyStopsPlainPackets(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpressOriginal()
	const policy = " dir out src 10.77.0.1 dst 10.77.0.2 proto udp"
	b.Sh(lab.Device, "ip xfrm policy add"+policy+" tmpl src 10.77.0.1 dst 10.77.0.2 proto esp mode tunnel level required")
	since := time.Now()
	time.Sleep(time.Until(since.Add(scontest.Lease))) // traffic continues
	if late := time.Unix(0, n.Latest.Load()).Sub(since); late > scontest.Lease {
		t.Errorf("a packet left in cleartext %v after the policy", late)
	}
	sent, arrived := n.Sent.Load(), n.Arrived.Load()
	if sent-arrived < 100 {
		t.Errorf("%d of %d packets arrived", arrived, sent)
	}
	b.Sh(lab.Device, "ip xfrm policy delete"+policy)
	n.Proceed(t, 100)
	c.WaitExpressOriginal()
	b.WantNoInvalid()
}

// A decrypted packet enters by the uplink a second time, like a cleartext one. The
// policy still drops real cleartext packets, also after many decrypted ones.
func TestCleartextPacketIsDropped(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	const (
		there, back = "src 10.77.0.1 dst 10.77.0.2", "src 10.77.0.2 dst 10.77.0.1"
		keys        = " mode tunnel auth-trunc hmac(sha256) 0x0001020304050607080910111213141516171819202122232425262728293031 128 enc cbc(aes) 0x00010203040506070809101112131415"
	)
	states := []string{
		"ip xfrm state add " + there + " proto esp spi 0x1001" + keys,
		"ip xfrm state add " + back + " proto esp spi 0x1002" + keys,
	}
	if !canIPsec(states[0]) {
		t.Skip("no IPsec: this kernel has no ESP with AES and SHA-256")
	}
	b.Sh(lab.Edge, strings.Join(states, "\n"))
	b.Sh(lab.Device, strings.Join(states, "\n"))
	policy := func(dir, selector, tunnel string) string {
		return "\nip xfrm policy add dir " + dir + " " + selector + " proto udp tmpl " + tunnel + " proto esp mode tunnel level required"
	}
	b.Sh(lab.Device, policy("out", there, there)+
		policy("in", back, back)+
		policy("fwd", "src 10.77.0.2 dst 0.0.0.0/0", back))
	b.Sh(lab.Edge, policy("out", back, back)+policy("in", there, there))

	c := b.Outgoing("udp", 1)
	c.MustPing(100)
	f := c.MustFlow()
	edge := b.OpenWire(lab.Edge)
	plain := scontest.Frame(hardwareAddr(b, lab.Device, lab.Uplink), edge.Iface.HardwareAddr,
		endpoint(f.Reply.Src, f.Reply.Sport), endpoint(f.Reply.Dst, f.Reply.Dport), "in the clear")
	for _, mode := range []string{"regular", "with SCON"} {
		change := b.Daemon.Pause
		if mode != "regular" {
			change = b.Daemon.Resume
		}
		if err := change(""); err != nil {
			t.Fatal(err)
		}
		c.MustPing(100)
		for range 100 {
			edge.Send(plain)
		}
		_ = c.Client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Client.Read(make([]byte, 100)); err == nil {
			t.Fatalf("%s: %d bytes arrived in cleartext", mode, n)
		}
	}
	c.MustPing(100)
	b.WantNoInvalid()
}

// canIPsec reports whether the kernel accepts an ESP state.
func canIPsec(state string) bool {
	words := strings.Fields(state)
	return netns.Scratch(func() error { return exec.Command(words[0], words[1:]...).Run() }) == nil
}
