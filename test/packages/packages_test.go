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

	"github.com/scon-project/scon/internal/lab/vm"
)

var full = flag.Bool("full", false, "make the packages, and install them in guests: half an hour")

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

// guestWorks is the expected output of guest.sh.
const guestWorks = `installed: not enabled, not running, nothing attached
regular: goes
enabled: express
upgraded: version 0.2.0, express, settings kept
drop-in: in force, express
drop-in: reverted, express
all three times: nothing lost, connections taken over
all three times: neither error nor warning
removed: nothing attached, goes
removed: settings kept
purged: what a service from elsewhere holds stays
purged: nothing left
`

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

//go:embed arm64.sh
var arm64Script string

// arm64Works is the expected output of arm64.sh.
const arm64Works = `verified
state active
version ` + after + `
arch arm64
1
ip utility
down
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
	for _, suite := range []string{"bookworm", "trixie"} {
		t.Run(suite, func(t *testing.T) {
			files := map[string]string{"/drop-in.conf": dropIn(t)}
			for to, from := range map[string]string{"old": old, "new": young} {
				for _, name := range []string{"scon_*", "scon-startup_*", "libsconpipe0_*", "libsconpipe-dev_*", "scon-pipe_*", "scon-lab_*"} {
					deb := glob(t, from, name+"_amd64.deb")[0]
					files[fmt.Sprintf("/%s/%s", to, filepath.Base(deb))] = deb
				}
			}
			kernel := map[string]string{"bookworm": "6.1", "trixie": "6.12"}[suite]
			r, err := vm.Run(t.Context(), vm.Options{
				Kernel: kernel, Arch: "amd64", Memory: 4096, Icount: true, Systemd: true, System: suite,
				Files: files, Command: guestScript, Timeout: 30 * time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, lines, ok := strings.Cut(r.Output, "\n=== results\n"); !ok || lines != guestWorks || r.ExitCode != 0 || r.Complaints != "" {
				t.Errorf("exit status %d:\n%s\nwant\n%s\nwarnings of the kernel: %s", r.ExitCode, r.Output, guestWorks, r.Complaints)
			}
		})
	}
	t.Run("arm64", func(t *testing.T) {
		unpacked := t.TempDir()
		for _, deb := range glob(t, young, "*_arm64.deb") {
			if out, err := exec.Command("dpkg-deb", "--extract", deb, unpacked).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		files := make(map[string]string)
		for _, name := range []string{
			"usr/bin/scon", "usr/bin/scon-cni", "usr/bin/scon-oci", "usr/lib/scon/libsconrun.so", "etc/scon/scon.yaml",
			"usr/lib/systemd/system/scon.service", "usr/lib/systemd/system/scon-startup.service", "usr/lib/systemd/system/scon-pipe.service",
		} {
			files["/"+name] = filepath.Join(unpacked, name)
		}
		r, err := vm.Run(t.Context(), vm.Options{
			Kernel: "6.12", Arch: "arm64", Memory: 1536, Icount: true, Systemd: true, Files: files, Command: arm64Script, Timeout: 30 * time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Output != arm64Works || r.ExitCode != 0 || r.Complaints != "" {
			t.Errorf("exit status %d:\n%s\nwant\n%s\nwarnings of the kernel: %s", r.ExitCode, r.Output, arm64Works, r.Complaints)
		}
	})
}
