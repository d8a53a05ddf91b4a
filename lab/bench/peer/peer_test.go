package peer

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/test/bed/nstest"
)

// TestMain runs this executable as a peer when a test starts it as one.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"peer"}) {
		Main(os.Stdin, os.Stdout)
	}
	goleak.VerifyTestMain(m)
}

// newPair starts two peers in one namespace, which communicate over its loopback
// device.
func newPair(t *testing.T) (server, driver *Peer) {
	t.Helper()
	ns := nstest.New(t)
	peers := map[string]*Peer{}
	for _, node := range []string{"server", "driver"} {
		p, err := Start(Options{Node: node, Netns: ns, Args: []string{"peer"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		peers[node] = p
	}
	return peers["server"], peers["driver"]
}

func loopback(s Spec) Spec {
	s.Address = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0)
	return s
}

func TestStreamCountsEveryMessage(t *testing.T) {
	server, driver := newPair(t)
	for _, proto := range []string{"udp", "tcp"} {
		for _, size := range []int{1, 64, 1024} {
			served, driven, err := Run(t.Context(), server, driver, loopback(Spec{
				Pattern: Stream, Proto: proto, Size: size, Duration: 20 * time.Millisecond, WarmUp: 3,
			}))
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", proto, size, err)
			}
			// With one CPU and a large buffer no message is lost.
			if served.Total != driven.Total {
				t.Errorf("%s, %d bytes: %d of %d messages were counted", proto, size, served.Total, driven.Total)
			}
			if served.Messages > served.Total || served.PerSecond() <= 0 {
				t.Errorf("%s, %d bytes: report %+v", proto, size, served)
			}
		}
	}
}

func TestRequestsAreTimed(t *testing.T) {
	server, driver := newPair(t)
	for _, proto := range []string{"udp", "tcp"} {
		_, driven, err := Run(t.Context(), server, driver, loopback(Spec{
			Pattern: RequestResponse, Proto: proto, Size: 64, Duration: 20 * time.Millisecond, WarmUp: 3,
		}))
		if err != nil {
			t.Fatalf("%s: %v", proto, err)
		}
		if driven.Messages == 0 || driven.P50 <= 0 || driven.P50 > driven.P99 || driven.P99 > driven.P999 {
			t.Errorf("%s: report %+v", proto, driven)
		}
		if driven.Max > driven.Elapsed {
			t.Errorf("%s: one round trip took %v of %v in all", proto, driven.Max, driven.Elapsed)
		}
	}
}

func TestConnectionsAreAllMade(t *testing.T) {
	server, driver := newPair(t)
	served, driven, err := Run(t.Context(), server, driver, loopback(Spec{
		Pattern: Connections, Proto: "tcp", Size: 64, Count: 50, WarmUp: 3,
	}))
	if err != nil {
		t.Fatal(err)
	}
	if served.Messages != 50 || driven.Messages != 50 {
		t.Errorf("%d served, %d driven, want 50", served.Messages, driven.Messages)
	}
	if served.CPU <= 0 || driven.CPU <= 0 {
		t.Errorf("processor time %v and %v", served.CPU, driven.CPU)
	}
}

func TestFlowsAreTimed(t *testing.T) {
	server, driver := newPair(t)
	served, driven, err := Run(t.Context(), server, driver, loopback(Spec{
		Pattern: Flows, Proto: "tcp", Size: 1, Sizes: []int{100, 1400, 300}, Count: 50, WarmUp: 4,
	}))
	if err != nil {
		t.Fatal(err)
	}
	if served.Total != 54 || driven.Messages != 50 {
		t.Errorf("%d served, %d driven, want 54 and 50", served.Total, driven.Messages)
	}
	if driven.P50 <= 0 || driven.P50 > driven.P99 {
		t.Errorf("report %+v", driven)
	}
}

func TestRunRefusesANonsenseSpec(t *testing.T) {
	good := loopback(Spec{Pattern: Stream, Proto: "udp", Size: 64, Duration: time.Second})
	for want, spoil := range map[string]func(*Spec){
		`protocol "sctp"`: func(s *Spec) { s.Proto = "sctp" },
		"message size 0":  func(s *Spec) { s.Size = 0 },
		"duration":        func(s *Spec) { s.Duration = 0 },
		`pattern "burst"`: func(s *Spec) { s.Pattern = "burst" },
		"connections":     func(s *Spec) { s.Pattern = Connections },
		"flows":           func(s *Spec) { s.Pattern, s.Proto, s.Count = Flows, "tcp", 1 },
		"server address":  func(s *Spec) { s.Address = netip.AddrPort{} },
	} {
		spec := good
		spoil(&spec)
		if _, _, err := Run(t.Context(), nil, nil, spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestRunReportsWhatAPeerCannotDo(t *testing.T) {
	server, driver := newPair(t)
	spec := loopback(Spec{Pattern: Stream, Proto: "tcp", Size: 64, Duration: time.Second, ServerCPU: 1023})
	_, _, err := Run(t.Context(), server, driver, spec)
	if err == nil || !strings.Contains(err.Error(), "peer server: pin to CPU 1023") {
		t.Errorf("error %v, want the server's about CPU 1023", err)
	}
}

func TestCancelledRunEndsAtOnce(t *testing.T) {
	server, driver := newPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
	// The duration exceeds any test run; Close must end the peers.
	_, _, err := Run(ctx, server, driver, loopback(Spec{
		Pattern: RequestResponse, Proto: "tcp", Size: 64, Duration: time.Hour,
	}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the cancellation", err)
	}
}

func TestStartInNoNamespace(t *testing.T) {
	_, err := Start(Options{Node: "edge", Netns: "scon-no-such", Args: []string{"peer"}})
	if err == nil || !strings.Contains(err.Error(), "start peer edge") {
		t.Errorf("error %v, want one about peer edge", err)
	}
}

// A crowd's exchanges are on all of its connections, and one without an answer is an
// error that names it.
func TestCrowd(t *testing.T) {
	ns := nstest.New(t)
	to := netip.MustParseAddr("127.0.0.1")
	const connections = crowdSockets + 76 // more than one server
	c, err := OpenCrowd(ns, ns, to, connections)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(c.servers) != 2 || len(c.drivers) != connections/2 {
		t.Errorf("%d drivers and %d servers", len(c.drivers), len(c.servers))
	}
	if err := c.Each(); err != nil {
		t.Fatal(err)
	}
	report, err := c.Random(0, 10*time.Millisecond)
	if err != nil || report.Messages == 0 || report.P50 <= 0 || report.P50 > report.P99 {
		t.Errorf("report %+v, error %v", report, err)
	}
	if err := c.servers[1].setTimeout(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	c.addresses[1] = c.addresses[0] // the second server receives nothing
	if err := c.exchange(1); !errors.Is(err, errLost) || !strings.Contains(err.Error(), "connection 1 of") {
		t.Errorf("error %v, want that connection 1 has lost a message", err)
	}
	for _, n := range []int{0, crowdSockets*crowdSockets + 1} {
		if _, err := OpenCrowd(ns, ns, to, n); err == nil {
			t.Errorf("%d connections were opened", n)
		}
	}
}
