package express_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// stayRegular checks that connections of a container stay regular, in both directions.
func stayRegular(b *scontest.Bed, n int) {
	b.T.Helper()
	for name, connect := range scontest.Directions {
		c := connect(b, "udp", n)
		for range 200 {
			c.MustPing(1)
		}
		if f, err := c.Flow(); err == nil && f.State == api.FlowExpress {
			b.T.Errorf("%s: a connection is express: %+v", name, f)
		}
	}
}

// What the settings declare stays regular, and everything else goes express.
func TestRegularSetting(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 3})
	b.Config.Regular = []config.Selector{
		{Device: lab.Port(1)}, {Name: filepath.Base(b.Node(lab.Container(2)))}, {Label: "none.has.it"},
	}
	b.Up()
	b.Outgoing("udp", 3).GoExpress()
	stayRegular(b, 1)
	stayRegular(b, 2)

	scontest.Eventually(t, "the container is identified", func() error { // until then it is regular for that
		x, err := b.Daemon.Explain(filepath.Base(b.Node(lab.Container(2))))
		said := fmt.Sprint(x.Findings)
		if err == nil && (!strings.Contains(said, "regular: name=") || !x.Known || strings.Contains(said, "no connection of it is known")) {
			err = fmt.Errorf("explain says %+v", x)
		}
		return err
	})
	if c, _ := b.Container(2); !strings.Contains(c.Withheld, "regular: name=") {
		t.Errorf("status has %+v", c)
	}
	if c, _ := b.Container(3); c.Withheld != "" {
		t.Errorf("status has %+v", c)
	}
	if text := fmt.Sprint(b.Status().Skipped); !strings.Contains(text, "regular: "+lab.Port(1)) {
		t.Errorf("skipped are %s", text)
	}
}

// An uplink that is declared is not hooked.
func TestRegularUplink(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) {
		c.Regular = []config.Selector{{Device: "eth0"}}
	}})
	stayRegular(b, 1)
}
