// Package incus has Incus and LXC start containers on a bridge that the card is a port of,
// as on a server whose containers are machines of the network, and compares them without
// and with SCON by the clock.
package incus

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/scon-project/scon/test/bed/system"
)

var (
	full    = flag.Bool("full", false, "make the system and measure: minutes")
	rounds  = flag.Int("rounds", 6, "visits of each mode")
	seconds = flag.Int("seconds", 2, "of each of the two measurements of a visit")
)

// packages are what the system has: Incus is in Debian since 13.
const packages = "incus,lxc,iproute2,nftables,busybox-static,iperf3,sockperf,jq,ca-certificates,procps"

// visit is a line of bridged.sh.
type visit struct {
	round           int
	container, mode string
	gbits, us       float64
	express         uint64
}

func TestBridged(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-incus")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "dist", "incus")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := withSCON(t, dir, root)
	table, err := system.Create(filepath.Join(dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	out := io.MultiWriter(table, os.Stdout)
	fmt.Fprintln(out, "| br_netfilter | runtime | metric | unit | container | express | express/container |\n| --- | --- | --- | --- | --- | --- | --- |")
	for netfilter, looks := range []string{"off", "on"} {
		t.Run("br_netfilter "+looks, func(t *testing.T) {
			visits := measure(t, archive, root, netfilter)
			for _, runtime := range []string{"by-incus", "by-lxc"} {
				name := map[string]string{"by-incus": "Incus", "by-lxc": "LXC"}[runtime]
				plain, express := of(visits, runtime, "container"), of(visits, runtime, "express")
				if len(plain) != *rounds || len(express) != *rounds {
					t.Fatalf("%s: %d and %d visits", runtime, len(plain), len(express))
				}
				for _, v := range express {
					if v.express == 0 {
						t.Errorf("%s, round %d: no packet went express", runtime, v.round)
					}
				}
				for _, m := range []struct {
					metric, unit string
					of           func(visit) float64
				}{
					{"TCP to beyond the card", "Gbit/s", func(v visit) float64 { return v.gbits }},
					{"UDP round trip, 14 bytes", "us", func(v visit) float64 { return v.us }},
				} {
					a, b := median(plain, m.of), median(express, m.of)
					fmt.Fprintf(out, "| %s | %s | %s | %s | %.2f | %.2f | %.2f |\n", looks, name, m.metric, m.unit, a, b, b/a)
				}
			}
		})
	}
}

// withSCON returns the archive of a system that has SCON as it was built last, and bridged.sh.
func withSCON(t *testing.T, dir, root string) string {
	t.Helper()
	base, err := system.Archive(dir, "trixie", packages)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "archive.tar")
	for _, args := range [][]string{
		{"cp", "--reflink=auto", base, archive},
		{"tar", "--append", "--file", archive, "--transform", "s,^,./usr/,", "--directory", root, "bin/scon"},
		{"tar", "--append", "--file", archive, "--transform", "s,^,./srv/,", "bridged.sh"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	return archive
}

// measure runs bridged.sh in a new system.
func measure(t *testing.T, archive, root string, netfilter int) (visits []visit) {
	t.Helper()
	cmd := system.Command(archive, root, "root", fmt.Sprintf("/srv/bridged.sh %d %d %d", *rounds, *seconds, netfilter), "--net")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	said, err := os.Create(filepath.Join(t.TempDir(), "said")) // no pipe: who watches for the end of input holds it
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stderr = said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		t.Log(lines.Text())
		var v visit
		if _, err := fmt.Sscan(lines.Text(), &v.round, &v.container, &v.mode, &v.gbits, &v.us, &v.express); err != nil {
			t.Errorf("line %q: %v", lines.Text(), err)
			continue
		}
		visits = append(visits, v)
	}
	err = cmd.Wait()
	text, _ := os.ReadFile(said.Name())
	t.Logf("%s", text)
	if err != nil {
		t.Fatalf("bridged.sh: %v", err)
	}
	return visits
}

func of(visits []visit, container, mode string) []visit {
	return slices.DeleteFunc(slices.Clone(visits), func(v visit) bool { return v.container != container || v.mode != mode })
}

func median(visits []visit, of func(visit) float64) float64 {
	var all []float64
	for _, v := range visits {
		all = append(all, of(v))
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
