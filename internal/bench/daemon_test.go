package bench

import (
	"os"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
)

func TestActiveAt(t *testing.T) {
	both := []api.Hook{{Dev: "eth0"}, {Dev: "veth1"}}
	for _, c := range []struct {
		name   string
		status api.Status
		want   bool
	}{
		{"active", api.Status{State: api.StateActive, Hooks: both}, true},
		{"paused", api.Status{State: api.StatePaused, Hooks: both}, false},
		{"port not hooked yet", api.Status{State: api.StateActive, Hooks: both[:1]}, false},
	} {
		if got := activeAt(c.status, "eth0", "veth1"); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestProcessTimeIsOfTheWholeProcess(t *testing.T) {
	before, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); time.Since(begun) < 20*time.Millisecond; {
	}
	after, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after <= before {
		t.Errorf("processor time went from %v to %v", before, after)
	}
	if _, err := processTime(1 << 22); err == nil { // above any pid
		t.Error("no error about a process that is not there")
	}
}
