package kernels

import (
	"io"
	"maps"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/vm"
)

// guest is a kind of guest.
type guest struct {
	name   string
	kernel string
	arch   string
	// cpus is the number of CPUs for tests that need several. It is 1 if the kernel
	// itself reorders packets: before Linux 6.5 packets wait for ksoftirqd while
	// their sender migrates to another CPU and sends from there.
	cpus  int
	mode  string // how devices are hooked: "clsact" or "tcx"
	noBTF bool
	short bool // runs in the short form as well
	// hardware is set if the suites that need drivers of hardware run here.
	hardware bool
	// skips are the tests of each package that this guest skips, in order. A skip
	// of any other test is a failure, and so is a run of one of these.
	skips map[string][]string
}

// guests are the guests in the order in which they run.
var guests = []guest{
	{name: "6.1", kernel: "6.1", arch: "amd64", cpus: 1, mode: "clsact", short: true, skips: sinceLinux61},
	{name: "6.12", kernel: "6.12", arch: "amd64", cpus: 2, mode: "tcx", short: true, hardware: true},
	{name: "newest", kernel: "newest", arch: "amd64", cpus: 2, mode: "tcx", skips: withOldNFT},
	{name: "6.12 without BTF", kernel: "6.12", arch: "amd64", cpus: 2, mode: "tcx", noBTF: true, skips: withoutBTF},
	{name: "6.12 arm64", kernel: "6.12", arch: "arm64", cpus: 2, mode: "tcx"},
}

// sinceLinux61 are the tests of features newer than Linux 6.1: tcx (6.6),
// mounts beneath others (6.5), netkit (6.7), renaming devices that are up
// (6.2).
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
		"TestForeignFilterInBlock", "TestForeignFunction", "TestForeignFunctionAtRest", "TestForeignProgram", "TestForeignProgramAtBridge",
		"TestNetkit", "TestNetkitForeign", "TestNetkitOrder", "TestNetkitPolicy", "TestNetkitRestart", "TestPerPacketRuleByNewName",
		"TestPinsTakenAway", "TestRoutedNetkit",
	},
	"test/differential": {"TestDifferentialFunctions", "TestDifferentialNetkit"},
}

// withOldNFT are the tests with byteorder expressions of one octet. The guests' nft
// emits them for a concatenation of a protocol and networks; newer kernels refuse them.
var withOldNFT = map[string][]string{
	"internal/express/rules": {"TestNFTWays/map_of_networks_and_its_protocol", "TestNFTWays/map_of_networks_and_protocols"},
}

// withoutBTF are the tests that need the kernel's type information.
var withoutBTF = map[string][]string{
	"internal/express":          {"TestDiscard", "TestDiscardEndsWithConnection"},
	"internal/express/datapath": {"TestForgottenBetweenContainers/functions", "TestForgottenConnection/functions", "TestForgottenWhileBusy"},
	"test/differential":         {"TestDifferentialFunctions"},
}

// hideBTF hides the kernel's type information at all its paths.
const hideBTF = "mount -t tmpfs -o ro tmpfs /sys/kernel/btf\n"

// job is the work of a guest.
type job struct {
	command string
	files   map[string]string // path in the guest -> path here; scon is in /opt
	systemd bool
	several bool // gets the guest's several CPUs
	// hardware makes it run on the kernel with drivers of hardware.
	hardware bool
	console  io.Writer // gets the output as it is printed; may be nil
}

// run runs a job in a guest and returns the result. A warning in the kernel's log is a
// failure.
//
// The guest's clock counts instructions: it stops while this machine runs other
// processes, and skips the time in which the guest is idle.
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
		hardware = []string{"-device", "virtio-rng-pci"} // any option selects the hardware's QEMU
	}
	r, err := vm.Run(t.Context(), vm.Options{
		Hardware: hardware,
		Kernel:   g.kernel, Arch: g.arch, CPUs: cpus, Memory: 1536, Icount: true, Systemd: j.systemd, Console: j.console,
		Files: files, Command: j.command, Timeout: 90 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Complaints != "" {
		t.Errorf("warnings of the kernel:\n%s", r.Complaints)
	}
	return r
}

// output returns the output of a job, which must succeed.
func (g guest) output(t *testing.T, j job) string {
	t.Helper()
	r := g.run(t, j)
	if r.ExitCode != 0 {
		t.Fatalf("exit status %d:\n%s", r.ExitCode, r.Output)
	}
	return r.Output
}
