package pipe

import (
	"maps"
	"slices"
	"time"
)

// RecheckNow has all connections prove themselves, and waits for that.
func (b *Broker) RecheckNow() { b.recheck(time.Now()).Wait() }

// SendsSmall says what the broker thinks of the messages of its only name.
func (b *Broker) SendsSmall() bool {
	b.mu.Lock()
	names := slices.Collect(maps.Keys(b.names))
	b.mu.Unlock()
	return len(names) == 1 && names[0].sendsSmall()
}
