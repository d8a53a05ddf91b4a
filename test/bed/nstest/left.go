package nstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Left returns a function that fails the test if there are namespaces with
// that prefix, children of this process, or more open files than at the call
// of Left.
func Left(t testing.TB) (check func(prefix string)) {
	t.Helper()
	before := openFiles(t)
	return func(prefix string) {
		t.Helper()
		left, err := filepath.Glob("/run/netns/" + prefix + "*")
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("namespaces are left: %v", left)
		}
		tasks, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			// A thread that has ended meanwhile has no children.
			if children, _ := os.ReadFile(task); strings.TrimSpace(string(children)) != "" {
				t.Errorf("processes are left: %s", children)
			}
		}
		if now := openFiles(t); now > before {
			t.Errorf("%d files are open, %d before", now, before)
		}
	}
}

// openFiles counts the open files of this process.
func openFiles(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
