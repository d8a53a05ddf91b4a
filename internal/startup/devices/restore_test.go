package devices

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/test/bed/nstest"
)

// churn changes the chains of another table, of which there are many, until the test ends.
func churn(t *testing.T, host string) {
	t.Helper()
	var load, step strings.Builder
	load.WriteString("add table ip aaa\n")
	for n := range 3000 {
		fmt.Fprintf(&load, "add chain ip aaa c%d\n", n)
	}
	for n := range 300 {
		fmt.Fprintf(&step, "delete chain ip aaa c%d\nadd chain ip aaa c%d\n", n, n)
	}
	nft := func(ctx context.Context, commands string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "ip", "netns", "exec", host, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(commands)
		return cmd
	}
	if out, err := nft(t.Context(), load.String()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = nft(ctx, step.String()).Run()
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
}

// Rules that are in place are not taken for missing while another program changes its own.
func TestRulesOfOthersChange(t *testing.T) {
	host := nstest.New(t)
	churn(t, host)
	spec := func(n int) Spec {
		return Spec{
			Conf:   &cni.Conf{Network: cni.Network{Name: "n", Rules: []cni.Rule{{Direction: "ingress"}, {Direction: "egress"}}}},
			Host:   fmt.Sprintf("h%d", n),
			Leases: []ipam.Lease{{Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 16)}},
		}
	}
	nstest.Do(t, host, func() {
		h := &Host{}
		var containers []Spec
		for n := range 20 {
			containers = append(containers, spec(n))
			if err := h.addRules(spec(n)); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			lost, all, err := h.LostGroups(containers)
			if err != nil || all || len(lost) > 0 {
				t.Fatalf("lost are %d containers, all: %v, %v", len(lost), all, err)
			}
		}
		for _, s := range containers {
			if err := h.dropRules(&s.Conf.Network, s.Host); err != nil {
				t.Fatal(err)
			}
		}
	})
	if left := nstest.Run(t, host, "nft list table ip "+groupTable); strings.Contains(left, "h1") || strings.Contains(left, "10.0.") {
		t.Errorf("left: %s", left)
	}
}
