package pipe

import (
	"maps"
	"slices"
)

// RecheckNow asks the network about all connections.
func (b *Broker) RecheckNow() { b.recheck() }

// SendsSmall says what the broker thinks of the messages of its only name.
func (b *Broker) SendsSmall() bool {
	b.mu.Lock()
	names := slices.Collect(maps.Keys(b.names))
	b.mu.Unlock()
	return len(names) == 1 && names[0].sendsSmall()
}
