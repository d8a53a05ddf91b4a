package faults

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/scontest"
)

// A daemon works if its clock differs from the kernel's by years, as in a migrated
// container: leases, heartbeat and idle times use the kernel's jiffies or differences
// of the monotonic clock.
func TestOtherClock(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		t.Skip("no time namespaces: this kernel is built without them")
	}
	b := newBed(t, scontest.Layout{})
	const year = 365 * 24 * time.Hour
	b.SCON = limited(b, fmt.Sprintf("exec unshare --time --monotonic %d --boottime %d", int(year.Seconds()), int(year.Seconds())))
	b.Up()
	if own, its := timeNamespace(t, "self"), timeNamespace(t, fmt.Sprint(b.Daemon.Cmd.Process.Pid)); own == its {
		t.Skip("no time namespaces for new programs: this kernel is older than Linux 6.1")
	}
	f := b.StartTraffic()
	f.WaitExpress()
	if age := f.Datagrams.MustFlow().AgeMS; age < 0 || age > scontest.Patience.Milliseconds() {
		t.Errorf("the Conentry is %d ms old", age)
	}
	time.Sleep(2 * time.Second) // two leases
	f.WaitExpress()

	// The next daemon has a different clock.
	b.Daemon.Kill()
	b.SCON = scon
	b.Up()
	f.WaitExpress()
	f.WantUnbroken()
	b.WantNoInvalid()
}

// timeNamespace returns the name of a process's time namespace.
func timeNamespace(t *testing.T, process string) string {
	t.Helper()
	name, err := os.Readlink("/proc/" + process + "/ns/time")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// A step of the wall clock has no effect: the daemon compares times only by their
// monotonic readings. It calls none of the listed functions, which strip them.
func TestNoWallClock(t *testing.T) {
	t.Parallel()
	wall := []string{
		"Date", "Unix", "UnixMicro", "UnixMilli", "UnixNano", "UTC", "Local", "Round", "Truncate",
		"ModTime", "CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "Gettimeofday",
	}
	var files []string
	for _, dir := range daemonFolders {
		found, err := filepath.Glob("../../internal/" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	checked := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		checked++
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains(wall, s.Sel.Name) {
				t.Errorf("%v: %s uses the wall clock", set.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
	}
	if checked < 50 {
		t.Errorf("only %d files were checked", checked)
	}
}

// daemonFolders are the folders below internal/ with the daemon's decisions.
var daemonFolders = []string{
	"express", "express/*", "host/changes", "host/nlmsg", "host/tcfilter", "state",
}
