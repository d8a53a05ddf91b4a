package daemon_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/scontest"
)

// Connections without a Conentry are explained by what conntrack knows.
func TestExplainTracked(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = 1000 }})
	c := b.Outgoing("udp", 1)
	for subject, want := range map[string]string{
		fmt.Sprintf("udp:%s->%s", c.Client.LocalAddr(), c.Client.RemoteAddr()): "has no Conentry",
		fmt.Sprintf("tcp:%s->%s", c.Client.LocalAddr(), c.Client.RemoteAddr()): "conntrack knows no such connection",
		lab.ContainerAddr(1).String():                                          "has no Conentry",
		"192.0.2.1":                                                            "conntrack knows no such connection",
	} {
		x, err := b.Daemon.Explain(subject)
		if err != nil {
			t.Fatal(err)
		}
		if x.Express || len(x.Flows) > 0 || len(x.Findings) != 1 || !strings.Contains(x.Findings[0].What, want) {
			t.Errorf("%s is explained by %+v, want %q", subject, x, want)
		}
	}
}

// Listing more connections than one asks for takes no end.
func TestExplainMany(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = 1000 }})
	const many = 120
	for range many {
		b.Outgoing("udp", 1)
	}
	x, err := b.Daemon.Explain(lab.ContainerAddr(1).String())
	if err != nil {
		t.Fatal(err)
	}
	n := len(x.Findings)
	if n < 2 || n >= many || !strings.Contains(x.Findings[n-1].What, "more") {
		t.Errorf("%d findings for %d connections, the last of them %+v", n, many, x.Findings[n-1])
	}
}
