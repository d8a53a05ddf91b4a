package kernels

import (
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

var full = flag.Bool("full", false, "run all tests of the datapath, the table and the daemon, on every kernel")

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if dir, err = os.MkdirTemp("", "scon-kernels-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		return m.Run()
	}())
}

//go:embed express.sh
var expressScript string

// The programs load, devices are hooked as the kernel can, connections go
// express both ways, and nothing is left.
func TestExpress(t *testing.T) {
	for name, g := range guests {
		if !*full && !g.short {
			continue
		}
		t.Run(name, func(t *testing.T) {
			out := g.run(t, expressScript, false)
			_, documents, _ := strings.Cut(out, "\n{")
			decoder := json.NewDecoder(strings.NewReader("{" + documents))
			var status api.Status
			var flows []api.Flow
			for _, d := range []any{&status, &flows} {
				if err := decoder.Decode(d); err != nil {
					t.Fatalf("reading what scon printed: %v:\n%s", err, out)
				}
			}
			if status.State != api.StateActive || status.Mode != g.mode || len(status.Hooks) != 4 {
				t.Errorf("status %+v, want 4 hooks by %s", status, g.mode)
			}
			kinds := make(map[string]bool)
			for _, f := range flows {
				kinds[fmt.Sprintf("%s to port %d", f.Proto, f.Orig.Dport)] = true
				if f.State != "express" || f.ExpressPackets[0] < 10 || f.ExpressPackets[1] < 10 {
					t.Errorf("not express both ways: %+v", f)
				}
			}
			for _, kind := range []string{"tcp to port 7000", "udp to port 7000", "tcp to port 8001", "udp to port 8001"} {
				if !kinds[kind] {
					t.Errorf("no connection %s:\n%s", kind, out)
				}
			}
		})
	}
}

// Every test of what depends on the kernel passes on each.
func TestTests(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	for name, g := range guests {
		for _, pkg := range packages {
			t.Run(name+"/"+pkg, func(t *testing.T) {
				// The datapath's tests play the regular way, step by step: the
				// guest's clock must not run on while this machine is busy.
				g.test(t, pkg, ".", pkg == "datapath")
			})
		}
	}
}
