package scontest

import (
	"testing"
	"time"
)

// Traffic is a stream into container 1, and numbered datagrams in both directions.
type Traffic struct {
	t                 *testing.T
	Stream            *Stream
	Datagrams         *Connection
	Requests, Replies *Numbers
}

// StartTraffic starts a stream into container 1 and datagrams out of it.
func (b *Bed) StartTraffic() *Traffic {
	b.T.Helper()
	return b.TrafficOver(b.Incoming("tcp", 1), b.Outgoing("udp", 1))
}

// TrafficOver starts traffic over two connections.
func (b *Bed) TrafficOver(tcp, udp *Connection) *Traffic {
	b.T.Helper()
	return &Traffic{
		t: b.T, Stream: StartStream(tcp), Datagrams: udp,
		Requests: SendNumbers(b.T, udp.Client, udp.Server, 1, time.Millisecond),
		Replies:  SendNumbers(b.T, udp.Server, udp.Client, 1, time.Millisecond),
	}
}

// WaitExpress waits until all of it takes the express path, in both directions.
func (f *Traffic) WaitExpress() {
	f.t.Helper()
	f.Stream.C.WaitExpress(nil)
	f.Datagrams.WaitExpress(nil)
}

// Proceed waits until some more bytes and datagrams of each stream have arrived.
func (f *Traffic) Proceed() {
	f.t.Helper()
	f.Stream.Proceed(f.t, 256<<10)
	f.Requests.Proceed(f.t, 100)
	f.Replies.Proceed(f.t, 100)
}

// WantUnbroken ends the traffic and fails unless all of it has arrived.
func (f *Traffic) WantUnbroken() {
	f.t.Helper()
	f.Stream.Stop(f.t)
	f.Requests.WantAll(f.t, "requests")
	f.Replies.WantAll(f.t, "replies")
}
