package lab

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var errFault = errors.New("injected fault")

// steps returns the names of the steps that a lab takes.
func steps(t *testing.T, opts Options) (names []string) {
	t.Helper()
	l, err := up(opts, func(step string) error {
		names = append(names, step)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return names
}

// failAt returns a fault before one step.
func failAt(name string) func(string) error {
	return func(step string) error {
		if step == name {
			return errFault
		}
		return nil
	}
}

func TestFaultLeavesNothing(t *testing.T) {
	opts := Options{Prefix: prefix(t), Containers: 2, NoOffload: true, Uplink: UplinkBridge}
	for _, step := range steps(t, opts) {
		_, err := up(opts, failAt(step))
		if !errors.Is(err, errFault) || !strings.Contains(err.Error(), step) {
			t.Errorf("fault in %q: error %v", step, err)
		}
		if left := nodes(t, opts.Prefix); len(left) != 0 {
			t.Fatalf("fault in %q leaves %v", step, left)
		}
	}
}

func TestFaultLeavesWhatWasThere(t *testing.T) {
	opts := Options{Prefix: prefix(t), Containers: 3, Uplink: UplinkBridge}
	names := steps(t, opts)
	small := opts
	small.Containers, small.Uplink = 1, ""
	l := mustUp(t, small)
	device := inode(t, l.Node(Device))
	for _, step := range names {
		if _, err := up(opts, failAt(step)); !errors.Is(err, errFault) {
			t.Errorf("fault in %q: error %v", step, err)
		}
		if left := nodes(t, opts.Prefix); !slices.Equal(left, []string{Edge, Device, "c1"}) {
			t.Fatalf("fault in %q leaves %v", step, left)
		}
		if left := ports(t, l); !slices.Equal(left, []string{"veth1"}) {
			t.Fatalf("fault in %q leaves ports %v", step, left)
		}
	}
	if inode(t, l.Node(Device)) != device {
		t.Error("device is another namespace")
	}
}

func TestBadRules(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct{ name, rules, want string }{
		{"unknown", "dcoker", `rules "dcoker" are neither docker, none nor a file`},
		{"iptables", file("a", "*filter\n-A FORWARD -j ACCEPT\n-A FORWARD --nonsense\nCOMMIT\n"), "line: 3"},
		{"nft", file("b", "table ip x {\n\tchain y {\n\t\tnonsense\n\t}\n}\n"), ":3:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := prefix(t)
			_, err := Up(Options{Prefix: p, Containers: 1, Rules: tc.rules})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
			if left := nodes(t, p); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

func TestBadRulesLeaveTheOldOnes(t *testing.T) {
	opts := Options{Prefix: prefix(t), Containers: 1}
	l := mustUp(t, opts)
	before := output(t, l, Device, "nft", "--stateless", "list", "ruleset")
	opts.Rules = filepath.Join(t.TempDir(), "bad.nft")
	if err := os.WriteFile(opts.Rules, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(opts); err == nil {
		t.Error("bad rules were taken")
	}
	if after := output(t, l, Device, "nft", "--stateless", "list", "ruleset"); after != before {
		t.Errorf("rules are now\n%s\nbefore:\n%s", after, before)
	}
}

func TestMissingTool(t *testing.T) {
	p := prefix(t)
	t.Setenv("PATH", t.TempDir())
	_, err := Up(Options{Prefix: p})
	if err == nil || !strings.Contains(err.Error(), "Debian package iptables") {
		t.Errorf("error %v, want the Debian package named", err)
	}
	if left := nodes(t, p); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

func TestContainersOutOfRange(t *testing.T) {
	for _, n := range []int{-1, MaxContainers + 1} {
		p := prefix(t)
		if _, err := Up(Options{Prefix: p, Containers: n}); err == nil {
			t.Errorf("a lab of %d containers", n)
		}
	}
}
