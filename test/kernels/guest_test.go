package kernels

import (
	"maps"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/lab/vm"
)

// guest is a kind of guest.
type guest struct {
	name   string
	kernel string
	arch   string
	// cpus is how many a guest has for tests that need several. It is 1 where
	// the kernel itself lets packets overtake each other: before Linux 6.5
	// packets wait for ksoftirqd while their sender moves on to another CPU, and
	// overtakes them from there. No test of order could pass.
	cpus  int
	mode  string // how devices are hooked: "clsact" or "tcx"
	noBTF bool
	short bool // also in the short form
	// hardware tells that there is a suite for its kernel with drivers of hardware.
	hardware bool
	// skips are the tests that cannot run there, of each package, in order.
	// Any other that is skipped has failed, and so has one of these that is
	// not.
	skips map[string][]string
}

// guests are in the order in which they are run.
var guests = []guest{
	{name: "6.1", kernel: "6.1", arch: "amd64", cpus: 1, mode: "clsact", short: true, skips: sinceLinux61},
	{name: "6.12", kernel: "6.12", arch: "amd64", cpus: 2, mode: "tcx", short: true, hardware: true},
	{name: "newest", kernel: "newest", arch: "amd64", cpus: 2, mode: "tcx", skips: withOldNFT},
	{name: "6.12 without BTF", kernel: "6.12", arch: "amd64", cpus: 2, mode: "tcx", noBTF: true, skips: withoutBTF},
	{name: "6.12 arm64", kernel: "6.12", arch: "arm64", cpus: 2, mode: "tcx"},
}

// sinceLinux61 are the tests of what came later: tcx with 6.6, mounts beneath
// others with 6.5, netkit with 6.7, new names of devices that are up with 6.2.
var sinceLinux61 = map[string][]string{
	"internal/host/changes": {"TestRename"},
	"internal/express/datapath": {
		"TestAttach/tcx", "TestAttachedProgramsRun/tcx", "TestGoneDevice/tcx", "TestProgramsAreReplaced/tcx",
		"TestRemove/tcx", "TestTCXAfterClsact", "TestTCXOrder",
	},
	"internal/express/discover": {"TestNetkitPort"},
	"internal/startup":          {"TestInPlace", "TestKinds/netkit", "TestSwap"},
	"internal/express": {
		"TestDown/clsact_false,_killed_false", "TestDown/clsact_false,_killed_true",
		"TestForeignFilterInBlock", "TestForeignProgram", "TestForeignProgramAtBridge",
		"TestNetkit", "TestNetkitForeign", "TestNetkitOrder", "TestNetkitRestart", "TestPerPacketRuleByNewName",
		"TestPinsTakenAway",
	},
	"test/differential": {"TestDifferentialNetkit"},
}

// withOldNFT are the tests of what the guests' nft makes of a protocol that stands
// beside networks, a change of byte order of one octet: new kernels refuse it.
var withOldNFT = map[string][]string{
	"internal/express/rules": {"TestNFTWays/map_of_networks_and_its_protocol", "TestNFTWays/map_of_networks_and_protocols"},
}

// withoutBTF are the tests of what needs the kernel's type information.
var withoutBTF = map[string][]string{
	"internal/express": {"TestDiscard", "TestDiscardEndsWithConnection"},
}

// hideBTF takes the kernel's type information away, from everybody who looks
// for it where a kernel without it has none either.
const hideBTF = "mount -t tmpfs -o ro tmpfs /sys/kernel/btf\n"

// job is what a guest does.
type job struct {
	command string
	files   map[string]string // path in the guest -> path here; scon is in /opt
	systemd bool
	several bool // needs more than one CPU, if the guest's kernel can be given them
	// hardware has it run on the kernel that has drivers of hardware.
	hardware bool
}

// run has a guest do a job and returns how it ended. The kernel must have had
// nothing to complain of.
//
// The guest's clock counts instructions: it does not run on while this machine
// is busy, and nobody waits while the guest sleeps.
func (g guest) run(t *testing.T, j job) vm.Result {
	t.Helper()
	if g.noBTF {
		j.command = hideBTF + j.command
	}
	files := programs(t, g.arch)
	maps.Copy(files, j.files)
	cpus := 1
	if j.several {
		cpus = g.cpus
	}
	var hardware []string
	if j.hardware {
		hardware = []string{"-device", "virtio-rng-pci"} // any will do
	}
	r, err := vm.Run(t.Context(), vm.Options{
		Hardware: hardware,
		Kernel:   g.kernel, Arch: g.arch, CPUs: cpus, Memory: 1536, Icount: true, Systemd: j.systemd,
		Files: files, Command: j.command, Timeout: 90 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Complaints != "" {
		t.Errorf("the kernel complains:\n%s", r.Complaints)
	}
	return r
}

// output is what a guest printed that had to do its job.
func (g guest) output(t *testing.T, j job) string {
	t.Helper()
	r := g.run(t, j)
	if r.ExitCode != 0 {
		t.Fatalf("exit status %d:\n%s", r.ExitCode, r.Output)
	}
	return r.Output
}
