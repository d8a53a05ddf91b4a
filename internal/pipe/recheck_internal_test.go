package pipe

import (
	"errors"
	"testing"
	"time"
)

// A change of rules during a proof causes another proof.
func TestRulesChangeTwice(t *testing.T) {
	t.Parallel()
	b := &Broker{connections: make(map[*connection]bool)}
	c := &connection{b: b, checking: true, ends: [2]*end{{}, {}}}
	b.connections[c] = true
	b.recheck(time.Now()).Wait() // starts none
	for i, want := range []bool{true, false} {
		if got := c.settleCheck(nil); got != want || c.checking != want {
			t.Errorf("after check %d: another one: %v, in progress: %v", i, got, c.checking)
		}
	}
	c.over, c.checking, c.again = true, true, true
	if c.settleCheck(errors.New("closed")) {
		t.Error("a connection that is over is checked")
	}
}
