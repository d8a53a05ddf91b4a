package express_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/nstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Another container's start makes no decision stale, nor does its end.
func TestFewGenerations(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	ns := nstest.New(t)
	identified := func(want bool) func() error {
		return func() error {
			all := b.Status().Containers
			for _, of := range all {
				if of.Dev == "veth9" && (of.Name != ns || !want) {
					return fmt.Errorf("veth9 is %q", of.Name)
				}
			}
			if (len(all) == 2) != want {
				return fmt.Errorf("%d containers", len(all))
			}
			return nil
		}
	}
	before := settled(b, 1)
	b.Sh(lab.Device, fmt.Sprintf(`
		ip link add veth9 type veth peer name eth0 netns %s
		ip link set veth9 master docker0
		ip -n %[1]s link set eth0 up
		ip link set veth9 up`, ns))
	scontest.Eventually(t, "veth9 is identified", identified(true))
	c.MustPing(10)
	started := b.Status().Generation
	b.Sh(lab.Device, "ip link del veth9")
	scontest.Eventually(t, "veth9 is unhooked", identified(false))
	ended := b.Status().Generation
	if started != before || ended != started {
		t.Errorf("%d generations at a start, %d at an end, want none", started-before, ended-started)
	}
}

// settled returns the generation once the delivery at the containers' ports is known, which
// on a busy machine comes after the first connection.
func settled(b *scontest.Bed, containers int) uint32 {
	b.T.Helper()
	for n := range containers {
		scontest.Eventually(b.T, "the delivery at "+lab.Port(n+1)+" is known", func() error {
			if !strings.Contains(b.Daemon.Log(), "msg=delivery dev="+lab.Port(n+1)) {
				return errors.New("it is not")
			}
			return nil
		})
	}
	return b.Status().Generation
}

// Neither does one that ends before its port is hooked.
func TestFewGenerationsUnhooked(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) {
		c.Regular = []config.Selector{{Device: "veth9"}}
	}})
	c := b.Outgoing("udp", 1).GoExpress()
	before := settled(b, 1)
	ns := nstest.New(t)
	b.Sh(lab.Device, fmt.Sprintf(`
		ip link add veth9 type veth peer name eth0 netns %s
		ip link set veth9 master docker0
		ip -n %[1]s link set eth0 up
		ip link set veth9 up
		bridge link set dev veth9 isolated on
		ip -n %[1]s link del eth0`, ns))
	time.Sleep(20 * time.Millisecond) // nothing tells when the messages were read
	c.MustPing(10)
	if now := b.Status().Generation; now != before {
		t.Errorf("%d generations, want none", now-before)
	}
}
