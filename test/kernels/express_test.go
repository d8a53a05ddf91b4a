package kernels

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

//go:embed express.sh
var expressScript string

// The programs load, devices are hooked by the mechanism that the kernel supports,
// connections are express in both directions, conntrack judges those of TCP again
// afterwards, and nothing is left behind.
func TestExpress(t *testing.T) {
	for _, g := range guests {
		if !*full && !g.short {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			out := g.output(t, job{command: expressScript})
			_, documents, _ := strings.Cut(out, "\n{")
			decoder := json.NewDecoder(strings.NewReader("{" + documents))
			var status api.Status
			var flows []api.Flow
			var down api.Down
			for _, d := range []any{&status, &flows, &down} {
				if err := decoder.Decode(d); err != nil {
					t.Fatalf("parse scon's output: %v:\n%s", err, out)
				}
			}
			if status.State != api.StateActive || status.Mode != g.mode || len(status.Hooks) != 6 {
				t.Errorf("status %+v, want 6 hooks by %s", status, g.mode)
			}
			kinds := make(map[string]bool)
			for _, f := range flows {
				kinds[fmt.Sprintf("%s to port %d", f.Proto, f.Orig.Dport)] = true
				if f.State != "express" || f.ExpressPackets[0] < 10 || f.ExpressPackets[1] < 10 {
					t.Errorf("not express in both directions: %+v", f)
				}
			}
			for _, kind := range []string{"tcp to port 7000", "udp to port 7000", "tcp to port 8001", "udp to port 8001",
				"tcp to port 9000", "udp to port 9000"} {
				if !kinds[kind] {
					t.Errorf("no connection %s:\n%s", kind, out)
				}
			}
			if len(down.Connections) < 2 { // the one between containers may be untracked
				t.Errorf("liberal connections %+v, want at least the two to and from outside", down.Connections)
			}
			for _, c := range down.Connections {
				if c.Outcome != "restored" {
					t.Errorf("after scon down: %+v", c)
				}
			}
		})
	}
}
