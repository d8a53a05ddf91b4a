package packages

import (
	_ "embed"
	"path/filepath"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/vm"
)

//go:embed report.sh
var reportScript string

// reportWorks is the expected output of report.sh.
const reportWorks = `1
= root
secrets: 0
mode 600 of 0
Missing:
0
it answers: ...
ActiveState=active
UnitFileState=disabled
threads: where they wait
scon: level=INFO msg="SCON is up" mode=tcx containers=0 uplinks=0 conentries=0
systemd: Started scon.service - SCON: express forwarding for containers.
systemd: Starting scon.service - SCON: express forwarding for containers...
1
flows.json   log.txt      metrics.txt  service.txt  status.json
= user
secrets: 0
mode 600 of 65534
Missing; run as root, it reads what only root may:
      read state: open /run/scon/daemon.json: permission denied
      permission denied for /run/scon/scon.sock; run as root, or, to read, as a member of the group socket_group of the configuration
      the journal: journalctl: exit status 1: No journal files were opened due to insufficient permissions.
      nft: (you must be root)
      iptables-save: (you must be root)
      ip6tables-save: (you must be root)
service.txt
write the report: open /etc/.scon-report-: permission denied; name another file with --output
`

// Under systemd a report has the units and their journal without secrets. That of an
// ordinary user says what is missing, and why.
func TestReport(t *testing.T) {
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: "6.12", Icount: true, Systemd: true, Memory: 1536, Command: reportScript, Timeout: 10 * time.Minute,
		Files: map[string]string{
			"/usr/bin/scon":                        filepath.Join(root, "bin/scon"),
			"/etc/scon/scon.yaml":                  filepath.Join(root, "packaging/scon.yaml"),
			"/usr/lib/systemd/system/scon.service": filepath.Join(root, "packaging/scon.service"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Output != reportWorks || r.ExitCode != 0 || r.Complaints != "" {
		t.Errorf("exit status %d:\n%s\nwant\n%s\nwarnings of the kernel: %s", r.ExitCode, r.Output, reportWorks, r.Complaints)
	}
}
