package kernels

import (
	_ "embed"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/vm"
)

//go:embed irqbalance.sh
var irqbalanceScript string

// irqbalanceWorks is the expected output of irqbalance.sh.
const irqbalanceWorks = `before: /usr/sbin/irqbalance --foreground --powerthresh=1 
applied: /usr/sbin/irqbalance --foreground --powerthresh=1 --banirq=N --banirq=N --banirq=N 
placed on: 0
  "differs": 0,
4 settings are as they were.
restored: /usr/sbin/irqbalance --foreground --powerthresh=1 
as before
`

// scon pin edits the settings of a real irqbalance and restarts it; restore
// undoes both.
func TestIrqbalance(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: "6.12", Arch: "amd64", CPUs: 2, Memory: 1536, Icount: true, Systemd: true,
		Hardware: []string{"-netdev", "hubport,id=hub,hubid=0", "-device", "virtio-net-pci,netdev=hub,romfile="},
		Files:    programs(t, "amd64"), Command: irqbalanceScript, Timeout: 10 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 || r.Output != irqbalanceWorks || r.Complaints != "" {
		t.Errorf("exit status %d:\n%s\nwant\n%s\nwarnings of the kernel: %s", r.ExitCode, r.Output, irqbalanceWorks, r.Complaints)
	}
}
