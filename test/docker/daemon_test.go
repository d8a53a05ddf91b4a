package docker

import (
	"testing"

	"github.com/scon-project/scon/internal/state"
)

// TestDaemonRestart restarts the daemon under load. No byte is lost, and the same
// connections become express again.
func TestDaemonRestart(t *testing.T) {
	e := Start(t)
	e.RunEcho(t, "echo")
	t.Run("plain", func(t *testing.T) {
		stream, exchange := startStream(t, e), startExchange(t, e)
		stream.proceed(t, "stream", 20<<20)
		exchange.proceed(t, "exchange", 20<<10)
		wantUnbroken(t, stream, exchange)
	})
	for _, tc := range []struct {
		name string
		end  func(*SCON, *testing.T)
	}{
		{"killed", func(s *SCON, t *testing.T) { s.Kill(t, state.Express) }},
		{"down", (*SCON).Down},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSCON(t, e.Machine)
			s.waitHooked(t, "echo")
			stream, exchange := startStream(t, e), startExchange(t, e)
			for range 2 {
				s.expectExpress(t, stream, "tcp")
				s.expectExpress(t, exchange, "udp")

				tc.end(s, t)
				// At 32 MB/s this takes longer than the heartbeat's timeout: the
				// packets are express at first, then regular.
				stream.proceed(t, "stream without a daemon", 64<<20)
				exchange.proceed(t, "exchange without a daemon", 20<<10)

				s.Up(t)
				s.waitHooked(t, "echo")
			}
			s.expectExpress(t, stream, "tcp")
			s.expectExpress(t, exchange, "udp")
			wantUnbroken(t, stream, exchange)
		})
	}
}

// expectExpress waits until a load is express in both directions.
func (s *SCON) expectExpress(t *testing.T, l *load, proto string) {
	t.Helper()
	s.waitExpress(t, from("echo", proto, l.port()), func() { l.proceed(t, proto, 1) })
}

// wantUnbroken stops loads and fails unless every byte was echoed.
func wantUnbroken(t *testing.T, loads ...*load) {
	t.Helper()
	for _, l := range loads {
		if err := l.stop(); err != nil {
			t.Error(err)
		}
		t.Logf("%s: %d bytes were echoed", l.conn.RemoteAddr().Network(), l.received.Load())
	}
}
