package pipe

// RecheckNow asks the network about all connections.
func (b *Broker) RecheckNow() { b.recheck() }
