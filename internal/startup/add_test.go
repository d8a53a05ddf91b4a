package startup

import (
	"errors"
	"slices"
	"testing"
)

// What an operation has done is undone if it ends with an error or a panic, the last first.
func TestUndo(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		end   func() error
		wants []int
	}{
		{"success", func() error { return nil }, nil},
		{"error", func() error { return broken }, []int{2, 1}},
		{"panic", func() error { panic(broken) }, []int{2, 1}},
	} {
		var undone []int
		var ended any
		func() {
			defer func() { ended = recover() }()
			_ = func() (err error) {
				var undo undoList
				defer undo.after(&err)
				undo.with(func() { undone = append(undone, 1) })
				undo.with(func() { undone = append(undone, 2) })
				return c.end()
			}()
		}()
		if want := c.name == "panic"; !slices.Equal(undone, c.wants) || want != (ended == any(broken)) {
			t.Errorf("%s: undid %v, want %v; it ended with %v", c.name, undone, c.wants, ended)
		}
	}
}
