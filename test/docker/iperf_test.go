package docker

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
)

// TestIperf runs iperf3 in a container against a server outside: TCP and UDP,
// data in either direction.
func TestIperf(t *testing.T) {
	e := Start(t)
	e.Import(t, Image{Name: "iperf3", Programs: []string{"iperf3"}})
	background(t, e.EdgeCommand("iperf3", "--server"))
	c := e.Run(t, Spec{Name: "iperf", Image: "iperf3", Command: []string{"sleep", "600"}})
	withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
		s.waitHooked(t, "iperf")
		for _, tc := range []struct {
			name, proto string
			flags       string
			data        int // direction of the data: original or reply
		}{
			{"TCP out", "tcp", "--bitrate 2G", 0},
			{"TCP in", "tcp", "--bitrate 2G --reverse", 1},
			{"UDP out", "udp", "--udp --length 1200 --bitrate 100M", 0},
			{"UDP in", "udp", "--udp --length 1200 --bitrate 100M --reverse", 1},
		} {
			t.Run(tc.name, func(t *testing.T) {
				stop := s.watch(t, to("iperf", tc.proto, 5201))
				receiver := []string{e.Edge(), c.netns(t)}[tc.data]
				overflows := e.udpOverflows(t, receiver)
				result := runIperf(t, c, strings.Fields(tc.flags)...)
				s.wantMostly(t, stop(), tc.data, result.received)
				// A receiver without CPU time for a while loses datagrams at its
				// socket. The network must lose none.
				if overflows = e.udpOverflows(t, receiver) - overflows; result.lost > overflows {
					t.Errorf("%d datagrams were lost, only %d of them at the receiver", result.lost, overflows)
				}
			})
		}
	})
}

// iperfResult is the result of a run of iperf3.
type iperfResult struct {
	received uint64 // bytes
	lost     int    // datagrams
}

// runIperf measures for two seconds.
func runIperf(t *testing.T, c *Container, flags ...string) iperfResult {
	t.Helper()
	args := append(c.Exec("iperf3", "--client", edgeAddr, "--json", "--time", "2"), flags...)
	var report struct {
		Error string
		End   struct {
			SumReceived struct{ Bytes uint64 } `json:"sum_received"`
			Sum         struct {               // of UDP
				Bytes uint64
				Lost  int `json:"lost_packets"`
			}
		}
	}
	// The server ends its last run a moment after the client does.
	eventually(t, "run of iperf3", func() error {
		out, err := c.engine.Command("docker", args...).Output()
		if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
			return fmt.Errorf("%v: %w: %s", err, jsonErr, out)
		}
		if report.Error != "" {
			return fmt.Errorf("iperf3: %s", report.Error)
		}
		return err
	})
	result := iperfResult{
		received: max(report.End.SumReceived.Bytes, report.End.Sum.Bytes),
		lost:     report.End.Sum.Lost,
	}
	if result.received == 0 {
		t.Fatal("iperf3 received nothing")
	}
	t.Logf("received %d bytes, lost %d datagrams", result.received, result.lost)
	return result
}

// udpOverflows returns a network namespace's count of datagrams lost to full
// socket buffers.
func (m *Machine) udpOverflows(t *testing.T, namespace string) (n int) {
	t.Helper()
	out := output(t, m.Enter("nstat", []string{"-asz", "UdpRcvbufErrors"}, "--net="+namespace))
	for line := range strings.Lines(out) {
		if _, err := fmt.Sscanf(line, "UdpRcvbufErrors %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no counter of lost datagrams in:\n%s", out)
	return 0
}

// watch polls new entries that match until it is stopped, and returns the one
// with the most traffic: iperf3 has a control connection too, and closes both
// at the end. A UDP entry of the previous run may still exist.
func (s *SCON) watch(t *testing.T, match flowMatch) (stop func() api.Flow) {
	t.Helper()
	if s == nil {
		return func() api.Flow { return api.Flow{} }
	}
	old := make(map[api.Tuple]bool)
	for _, f := range s.Flows(t) {
		old[f.Orig] = true
	}
	stopping, most := make(chan struct{}), make(chan api.Flow)
	carried := func(f api.Flow) uint64 { return f.ExpressBytes[0] + f.ExpressBytes[1] }
	go func() {
		var best api.Flow
		for {
			var flows []api.Flow
			if err := s.read(&flows, "flows"); err != nil {
				t.Error(err)
			}
			for _, f := range flows {
				if match(f) && !old[f.Orig] && carried(f) >= carried(best) {
					best = f
				}
			}
			select {
			case <-stopping:
				most <- best
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	stop = sync.OnceValue(func() api.Flow {
		close(stopping)
		return <-most
	})
	t.Cleanup(func() { stop() }) // also if the test fails before
	return stop
}

// wantMostly fails unless the watched entry carried most of the data. Data
// before it was composed and after it was last polled is missing.
func (s *SCON) wantMostly(t *testing.T, f api.Flow, direction int, data uint64) {
	t.Helper()
	if s == nil {
		return
	}
	if f.ExpressBytes[direction] < data/2 {
		t.Errorf("%d of %d bytes went express: %+v", f.ExpressBytes[direction], data, f)
	}
	// TCP acknowledges continuously; a UDP receiver sends hardly any packets.
	if back := 1 - direction; f.Proto == "tcp" && f.ExpressPackets[back] == 0 {
		t.Errorf("no acknowledgement was express: %+v", f)
	}
	t.Logf("express packets %v, bytes %v of %d", f.ExpressPackets, f.ExpressBytes, data)
}
