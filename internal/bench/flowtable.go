package bench

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/scon-project/scon/internal/lab"
)

// flowtableTable is the flowtable's table, beside Docker's rules.
const flowtableTable = "ip sconbench"

// flowtableRules offload every connection that Docker's rules let pass. Only
// with its port among the devices do a container's packets leave the bridge out
// in both directions; with the uplink alone conntrack says OFFLOAD, too, and the
// bridge sees them all the same (reading.check does not accept that).
const flowtableRules = `table ` + flowtableTable + ` {
	flowtable fast {
		hook ingress priority filter
		devices = { %s }
	}
	chain forward {
		type filter hook forward priority 10; policy accept;
		meta l4proto { tcp, udp } flow add @fast
	}
}
`

// loadFlowtable puts the kernel's fast path into the current namespace, for the
// containers at some ports.
func loadFlowtable(ports []string) error {
	devices := strings.Join(append([]string{lab.Uplink}, ports...), ", ")
	return nft(fmt.Sprintf(flowtableRules, devices))
}

func unloadFlowtable() error {
	return nft("delete table " + flowtableTable + "\n")
}

// nft runs a script in the current namespace.
func nft(script string) error {
	cmd := exec.Command("nft", "--file", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
