package main

import (
	"slices"
	"testing"
)

// gotestsum appends its arguments and the package of a test that failed.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		args, flags []string
		pkg         string
	}{
		{[]string{"-timeout", "30m", "./..."}, []string{"-timeout", "30m"}, ""},
		{[]string{"-timeout", "30m", "./...", "-test.run=^TestA$", "x/y"}, []string{"-timeout", "30m", "-test.run=^TestA$"}, "x/y"},
	} {
		if flags, pkg := parse(c.args); pkg != c.pkg || !slices.Equal(flags, c.flags) {
			t.Errorf("%q is %q and package %q", c.args, flags, pkg)
		}
	}
}

// A package of each module is tested in its folder.
func TestModuleOf(t *testing.T) {
	for pkg, want := range map[string]string{
		"github.com/scon-project/scon/internal/pipe":    ".",
		"github.com/scon-project/scon/test/kernels":     "test",
		"github.com/scon-project/scon/lab/test/kernels": "lab",
	} {
		if got := moduleOf(pkg); got != want {
			t.Errorf("%s is in module %s, want %s", pkg, got, want)
		}
	}
}

// Each package is in one lane: the first that names it, or the last.
func TestLaneOf(t *testing.T) {
	for pkg, want := range map[string]int{
		"github.com/scon-project/scon/internal/express":          0,
		"github.com/scon-project/scon/internal/express/datapath": 0,
		"github.com/scon-project/scon/lab/test/kernels":          1,
		"github.com/scon-project/scon/test/kernels":              2,
		"github.com/scon-project/scon/internal/pin":              2,
	} {
		if got := laneOf(pkg); got != want {
			t.Errorf("%s is in lane %d, want %d", pkg, got, want)
		}
	}
}
