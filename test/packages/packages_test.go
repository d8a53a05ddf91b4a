// Package packages tests the packages that "make packages" makes: what is in them, and
// that they can be installed, upgraded and removed in Debian's systems, with a real
// Docker and traffic.
package packages

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/vm"
)

var full = flag.Bool("full", false, "make the packages, and install them in guests: an hour")

// root is the root of the module.
const root = "../.."

// Two releases of the same sources: the second one takes over from the first one.
const before, after = "0.1.0", "0.2.0"

// packages makes the packages of a version and returns their directory.
func packages(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(root, "scripts/packages.sh"), dir)
	cmd.Env = append(os.Environ(), "VERSION="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make packages: %v: %s", err, out)
	}
	return dir
}

// glob returns the files of a pattern, of which there is at least one.
func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	return files
}

// dropIn writes the drop-in for scon.service that the documents show into a file.
func dropIn(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```ini\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/kubernetes.md shows no drop-in")
	}
	path := filepath.Join(t.TempDir(), "drop-in.conf")
	if err := os.WriteFile(path, block[1], 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

//go:embed guest.sh
var guestScript string

// guestWorks is the expected output of guest.sh, with the architecture.
const guestWorks = `installed: not enabled, not running, nothing attached
regular: goes
enabled: express
upgraded: version ` + after + `, express, settings kept
upgraded: units are right, programs run on %s
upgraded: the other services run
drop-in: in force, express
drop-in: reverted, express
all three times: nothing lost, connections taken over
all three times: neither error nor warning
removed: nothing attached, goes
removed: settings kept
purged: what a service from elsewhere holds stays
purged: nothing left
`

// guests are Debian's systems, with the kernels that there are for the architecture. One
// hides the kernel's type information, as Raspberry Pi OS's kernels have none.
var guests = []struct {
	suite, arch, kernel string
	before              string // commands before guest.sh
}{
	{"bookworm", "amd64", "6.1", ""},
	{"trixie", "amd64", "6.12", ""},
	{"trixie", "amd64", "6.12", hideBTF},
	{"bookworm", "arm64", "6.12", ""},
	{"trixie", "arm64", "6.12", ""},
}

const hideBTF = "mount -t tmpfs -o ro tmpfs /sys/kernel/btf && [ ! -e /sys/kernel/btf/vmlinux ] || exit 1\n"

//go:embed rpm.sh
var rpmScript string

// rpmWorks is the expected output of rpm.sh: only settings that were edited are left.
const rpmWorks = `installed: whole
upgraded: scon ` + after + `, settings kept
scon-` + after + `-1.x86_64
scon-startup-` + after + `-1.x86_64
scon-pipe-` + after + `-1.x86_64
libsconpipe0-` + after + `-1.x86_64
programs run
0a1,2
> /etc/scon
> /etc/scon/scon.yaml.rpmsave
`

// The same sources give the same bytes, lintian has no complaint, and an installation is
// upgraded and removed under traffic.
func TestPackages(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-packages")
	}
	old, young := packages(t, before), packages(t, after)

	t.Run("reproducible", func(t *testing.T) {
		again := packages(t, after)
		for _, file := range glob(t, young, "*") {
			if out, err := exec.Command("cmp", file, filepath.Join(again, filepath.Base(file))).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
	t.Run("checksums", func(t *testing.T) {
		cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		cmd.Dir = young
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("libraries", func(t *testing.T) {
		for _, file := range glob(t, young, "*.cdx.json") {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, vague := range []string{"../", "(devel)"} {
				if strings.Contains(string(text), vague) {
					t.Errorf("%s names a library as %s", filepath.Base(file), vague)
				}
			}
		}
	})
	t.Run("lintian", func(t *testing.T) {
		args := append([]string{"--allow-root", "--fail-on=error,warning"}, glob(t, young, "*.deb")...)
		if out, err := exec.Command("lintian", args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("rpm", func(t *testing.T) {
		system := t.TempDir()
		run := func(name string, args ...string) string {
			out, err := exec.Command(name, args...).Output()
			if err != nil {
				t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
			}
			return string(out)
		}
		run("mmdebstrap", "--quiet", "--variant=minbase", "--include=rpm", "bookworm", system)
		for to, from := range map[string]string{"old": old, "new": young} {
			run("mkdir", filepath.Join(system, to))
			for _, name := range []string{"scon-[0-9]*", "scon-startup-*", "libsconpipe0-*", "scon-pipe-*"} {
				run("cp", glob(t, from, name+".x86_64.rpm")[0], filepath.Join(system, to))
			}
		}
		if got := run("unshare", "--mount", "sh", "-c", `mount -t proc proc "$0/proc"; exec chroot "$0" sh -c "$1"`, system, rpmScript); got != rpmWorks {
			t.Errorf("%s\nwant\n%s", got, rpmWorks)
		}
	})
	for _, g := range guests {
		name := g.suite + " " + g.arch
		if g.before == hideBTF {
			name += " without BTF"
		}
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"/drop-in.conf": dropIn(t)}
			for to, from := range map[string]string{"old": old, "new": young} {
				for _, name := range []string{"scon_*", "scon-startup_*", "libsconpipe0_*", "libsconpipe-dev_*", "scon-pipe_*", "scon-lab_*"} {
					deb := glob(t, from, name+"_"+g.arch+".deb")[0]
					files[fmt.Sprintf("/%s/%s", to, filepath.Base(deb))] = deb
				}
			}
			r, err := vm.Run(t.Context(), vm.Options{
				Kernel: g.kernel, Arch: g.arch, Memory: 4096, Icount: true, Systemd: true, System: g.suite,
				Files: files, Command: g.before + guestScript, Timeout: 30 * time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf(guestWorks, g.arch)
			if _, lines, ok := strings.Cut(r.Output, "\n=== results\n"); !ok || lines != want || r.ExitCode != 0 || r.Complaints != "" {
				t.Errorf("exit status %d:\n%s\nwant\n%s\nwarnings of the kernel: %s", r.ExitCode, r.Output, want, r.Complaints)
			}
		})
	}
}
