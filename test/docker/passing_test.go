package docker

import (
	"os"
	"testing"
	"time"
)

// TestPassingContainers checks that containers that come and go make no decision about
// others stale, and that no error is logged. It logs what they cost the daemon.
func TestPassingContainers(t *testing.T) {
	n := 10
	if os.Getenv("SCON_LONG") != "" {
		n = 100
	}
	e := Start(t)
	echo := e.RunEcho(t, "echo")
	e.Import(t, Image{Name: "passing"})
	pass := func() { e.Docker(t, "run", "--rm", "passing", "sh", "-c", ":") }
	s := newSCON(t, e.Machine)
	s.waitHooked(t, echo.Name)
	l := startExchange(t, e)
	s.waitExpress(t, from(echo.Name, "udp", localPort(l.conn)), func() {})
	pass()

	// What the daemon does anyway is measured first.
	const rest = 5 * time.Second
	resting := s.Status(t)
	time.Sleep(rest)
	before, start := s.Status(t), time.Now()
	for range n {
		pass()
	}
	after, took := s.Status(t), time.Since(start)
	if after.Generation != before.Generation {
		t.Errorf("%d generations, want none", after.Generation-before.Generation)
	}
	anyway := (before.CPUSeconds - resting.CPUSeconds) * took.Seconds() / rest.Seconds()
	t.Logf("%d containers in %v cost the daemon %.2f ms of processor time each; of that %.2f ms are what it uses anyway",
		n, took.Round(time.Millisecond), (after.CPUSeconds-before.CPUSeconds)*1e3/float64(n), anyway*1e3/float64(n))
	if err := l.stop(); err != nil {
		t.Error(err)
	}
	if log := e.Sh(t, "grep level=ERROR /run/scon/scon.log || :"); log != "" {
		t.Errorf("errors in the log:\n%s", log)
	}
}
