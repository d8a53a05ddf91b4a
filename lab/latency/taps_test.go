package latency

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/topology"
	"github.com/scon-project/scon/test/bed/nstest"
)

// open loads the taps, or skips the test.
func open(t *testing.T, packets uint32) *taps {
	t.Helper()
	taps, err := openTaps(packets)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := taps.Close(); err != nil {
			t.Error(err)
		}
	})
	return taps
}

// The verdicts of the taps.
const (
	next = uint32(0xffffffff)
	drop = uint32(2)
)

// run runs a tap on a frame, which it must not change.
func run(t *testing.T, p *ebpf.Program, frame []byte) (verdict uint32) {
	t.Helper()
	verdict, out, err := p.Test(frame)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, frame) {
		t.Errorf("the frame was %x and is %x", frame, out)
	}
	return verdict
}

func TestTapsNoteThePackets(t *testing.T) {
	taps := open(t, 4)
	if err := taps.begin(7, 4); err != nil {
		t.Fatal(err)
	}
	mine := payload(7)
	setNumber(mine, 2)
	if v := run(t, taps.objects.SconTapIn, frame(mine)); v != next {
		t.Errorf("the first tap's verdict is %d", v)
	}
	samples, err := taps.read(4)
	if err != nil {
		t.Fatal(err)
	}
	if s := samples[2]; s.InNs == 0 || s.OutNs != 0 || s.InThread == 0 {
		t.Errorf("after the first tap: %+v", s)
	}
	if v := run(t, taps.objects.SconTapOut, frame(mine)); v != drop {
		t.Errorf("the last tap's verdict is %d", v)
	}
	if samples, err = taps.read(4); err != nil {
		t.Fatal(err)
	}
	if s := samples[2]; s.OutNs <= s.InNs || s.OutThread != s.InThread {
		t.Errorf("after the last tap: %+v", s)
	}
	for _, i := range []int{0, 1, 3} {
		if samples[i] != (sample{}) {
			t.Errorf("packet %d was never sent: %+v", i, samples[i])
		}
	}
	if err := taps.begin(8, 4); err != nil {
		t.Fatal(err)
	}
	if samples, err = taps.read(4); err != nil || samples[2] != (sample{}) {
		t.Errorf("the next run begins with %+v, %v", samples[2], err)
	}
	if err := taps.begin(9, 5); err == nil {
		t.Error("more packets than there is memory for")
	}
}

func TestTapsLeaveOthersAlone(t *testing.T) {
	taps := open(t, 4)
	if err := taps.begin(7, 4); err != nil {
		t.Fatal(err)
	}
	changed := func(change func(f []byte)) []byte {
		f := frame(payload(7))
		change(f)
		return f
	}
	for name, f := range map[string][]byte{
		"ARP":             changed(func(f []byte) { f[12], f[13] = 8, 6 }),
		"TCP":             changed(func(f []byte) { f[23] = 6 }),
		"IP options":      changed(func(f []byte) { f[14] = 0x46 }),
		"IPv6":            changed(func(f []byte) { f[14] = 0x65 }),
		"another mark":    changed(func(f []byte) { f[42]++ }),
		"warming up":      frame(payload(0)),
		"another run":     frame(payload(8)),
		"a number beyond": changed(func(f []byte) { f[57] = 4 }),
		"short":           frame(payload(7)[:15]),
	} {
		for _, p := range []*ebpf.Program{taps.objects.SconTapIn, taps.objects.SconTapOut} {
			if v := run(t, p, f); v != next {
				t.Errorf("%s: verdict %d", name, v)
			}
		}
	}
	samples, err := taps.read(4)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range samples {
		if s != (sample{}) {
			t.Errorf("sample %d is %+v", i, s)
		}
	}
}

// The taps count each event between them as often as it happened.
func TestTapsCountEvents(t *testing.T) {
	taps := open(t, 1)
	for _, l := range taps.traces { // only the test's own events
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	taps.traces = nil
	unpin := onOneCPU(t)
	defer unpin()
	raise := make([]byte, 8*12)
	binary.NativeEndian.PutUint64(raise, 3) // the receive softirq, NET_RX
	for _, tc := range []struct {
		program *ebpf.Program
		context []byte
		times   int
		want    string
	}{
		{taps.objects.SconTick, make([]byte, 96), 1, "tick"},
		{taps.objects.SconReschedule, make([]byte, 96), 2, "reschedule"},
		{taps.objects.SconCall, make([]byte, 96), 1, "call_function"},
		{taps.objects.SconDevice, make([]byte, 96), 3, "device"},
		{taps.objects.SconRaise, raise, 1, ""},
		{taps.objects.SconRaise, raise, 2, "time_squeeze"},
		{taps.objects.SconRaise, make([]byte, 96), 5, ""},
	} {
		if err := taps.begin(1, 1); err != nil {
			t.Fatal(err)
		}
		mine := frame(payload(1))
		run(t, taps.objects.SconTapIn, mine)
		for range tc.times {
			if _, err := tc.program.Run(&ebpf.RunOptions{Context: tc.context}); err != nil {
				t.Fatal(err)
			}
		}
		run(t, taps.objects.SconTapOut, mine)
		samples, err := taps.read(1)
		if err != nil {
			t.Fatal(err)
		}
		if got := causesOf(samples[0], nil).String(); got != tc.want {
			t.Errorf("%v, %d times: %q, want %q; %+v", tc.program, tc.times, got, tc.want, samples[0])
		}
	}
}

func TestCostIsMeasured(t *testing.T) {
	c, err := open(t, 1).cost()
	if err != nil || c.InNS <= 0 || c.OutNS <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// quiet is a progress that discards its reports.
type quiet struct{}

func (quiet) Step(int, int, string) {}
func (quiet) Done()                 {}

// bed returns a running line of three nodes.
func bed(t *testing.T, packets uint32) (*taps, *topology.Lab, *line) {
	t.Helper()
	taps := open(t, packets)
	top, err := topology.Line(fmt.Sprintf("latt%d", os.Getpid()), 3)
	if err != nil {
		t.Fatal(err)
	}
	l, err := topology.Up(t.Context(), top, topology.Options{Dir: filepath.Join(t.TempDir(), "records")})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := openLine(l, []string{"in", "n1", "n2", "n3", "out"}, port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ln.close(), l.Close()); err != nil {
			t.Error(err)
		}
		if len(taps.links) > 0 {
			t.Errorf("taps are left: %v", taps.links)
		}
	})
	return taps, l, ln
}

func allCPUs(t *testing.T) []int {
	t.Helper()
	cpus, err := allowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	return cpus
}

func TestEveryPacketIsMeasured(t *testing.T) {
	taps, _, ln := bed(t, 2000)
	s, a, err := ln.measure(t.Context(), taps, 1, newSchedule(10_000, 200*time.Millisecond), allCPUs(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Packets)+int(s.Skipped) != 2000 || s.Lost+s.Untapped+s.Overtaken != 0 || int(a.Sent.Sent) != len(s.Packets) {
		t.Fatalf("%d arrived, %d lost, %d skipped, %d untapped, %d overtaken; the generator says %+v",
			len(s.Packets), s.Lost, s.Skipped, s.Untapped, s.Overtaken, a.Sent)
	}
	for i, p := range s.Packets {
		if p.InNS < p.DueNS-1000 || p.OutNS <= p.InNS || p.LatencyNS < p.WireNS() {
			t.Fatalf("packet %+v", p)
		}
		if i > 0 && p.InNS <= s.Packets[i-1].InNS {
			t.Fatalf("%+v came after %+v", p, s.Packets[i-1])
		}
	}
}

func TestLossIsCounted(t *testing.T) {
	taps, l, ln := bed(t, 1000)
	rules := filepath.Join(t.TempDir(), "rules")
	// Offset 160: the lowest bits of the number, after the mark and the run.
	text := "table ip t { chain c { type filter hook forward priority 0; udp dport 7000 @th,160,32 & 3 == 1 drop; }; }\n"
	if err := os.WriteFile(rules, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, filepath.Base(l.Path("n2")), "nft -f "+rules)
	s, _, err := ln.measure(t.Context(), taps, 1, newSchedule(10_000, 100*time.Millisecond), allCPUs(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.Skipped == 0 && (s.Lost != 250 || len(s.Packets) != 750) {
		t.Errorf("%d lost, %d arrived of %d", s.Lost, len(s.Packets), s.Schedule.Packets)
	}
	for _, p := range s.Packets {
		if p.Number%4 == 1 {
			t.Fatalf("packet %d was dropped and has arrived", p.Number)
		}
	}
}

// Other traffic passes the taps.
func TestOtherTrafficPasses(t *testing.T) {
	taps, l, ln := bed(t, 1000)
	if err := taps.attach(ln.in, ln.out); err != nil {
		t.Fatal(err)
	}
	defer taps.detach()
	var server, client *net.UDPConn
	address := netip.AddrPortFrom(l.Addr("out"), 9000)
	err := l.Do("out", func() (err error) {
		server, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	err = l.Do("in", func() (err error) {
		client, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("0123456789abcdef0123")); err != nil {
		t.Fatal(err)
	}
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, _, err := server.ReadFrom(make([]byte, 64)); err != nil || n != 20 {
		t.Errorf("%d bytes arrived, %v", n, err)
	}
}

func TestRunWritesItsFiles(t *testing.T) {
	open(t, 1) // skips the test if unsupported
	dir := filepath.Join(t.TempDir(), "out")
	check := nstest.Left(t)
	r, err := Run(t.Context(), Options{Nodes: []int{1, 2}, Rate: 2000, Duration: 100 * time.Millisecond, Repeats: 2,
		Pin: PinNone, Dir: dir, Progress: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	check(fmt.Sprintf("scon-latency%d-", os.Getpid()))
	for _, mode := range []string{"n1", "n2"} {
		for _, metric := range Metrics {
			if n := len(r.Modes[mode][metric.Name]); n != 2 {
				t.Errorf("%s has %d samples of %s", mode, n, metric.Name)
			}
		}
		hgrm, err := os.ReadFile(filepath.Join(dir, mode+".hgrm"))
		if err != nil || !strings.Contains(string(hgrm), "1/(1-Percentile)") {
			t.Errorf("%s.hgrm: %v: %.100s", mode, err, hgrm)
		}
		log, err := os.Open(filepath.Join(dir, mode+".hlog"))
		if err != nil {
			t.Fatal(err)
		}
		h, err := hdrhistogram.NewHistogramLogReader(log).NextIntervalHistogram()
		log.Close()
		if err != nil || h == nil || h.TotalCount() != int64(r.Details[mode].Rounds[r.Details[mode].Worst-1].Arrived) {
			t.Errorf("%s.hlog: %v, %v", mode, h, err)
		}
		for _, name := range []string{mode + "-worst.csv", "raw/" + mode + "-1.csv.gz", "raw/" + mode + "-2.csv.gz"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
	}
	path := filepath.Join(dir, "r.json")
	if err := r.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	again, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var before, after bytes.Buffer
	if err := errors.Join(r.WriteTable(&before), again.WriteTable(&after)); err != nil || before.String() != after.String() {
		t.Errorf("%v: the table of the file is\n%s\nbefore:\n%s", err, &after, &before)
	}
	var plain struct {
		Modes map[string]map[string][]float64
	}
	text, _ := os.ReadFile(path)
	if err := json.Unmarshal(text, &plain); err != nil || len(plain.Modes["n1"]["p50_us"]) != 2 {
		t.Errorf("%v: %v", err, plain)
	}
}

func TestFlowsOfATopology(t *testing.T) {
	open(t, 1)
	top, err := topology.Read("f", strings.NewReader(fmt.Sprintf(`name: flows%d
topology:
  nodes: {a: , b: , c: , d: }
  links:
    - endpoints: ["a:1", "b:1"]
    - endpoints: ["b:2", "d:1"]
    - endpoints: ["a:2", "c:1"]
    - endpoints: ["c:2", "d:2"]
    - endpoints: ["b:3", "c:3"]
flows:
  - {port: 7001, path: [a, b, d]}
  - {port: 7002, path: [a, b, c, d]}
  - {port: 7003, path: [d, c, b]}
`, os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{Topology: top, Rate: 2000, Duration: 50 * time.Millisecond, Repeats: 1, Pin: PinCore, Progress: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	for i, mode := range r.Order {
		if want := []string{"port7001", "port7002", "port7003"}[i]; mode != want {
			t.Errorf("mode %q, want %q", mode, want)
		}
		round := r.Details[mode].Rounds[0]
		if round.Arrived+int(round.Skipped) != 100 {
			t.Errorf("%s: %+v", mode, round)
		}
	}
	if r.Details["port7002"].Nodes != 2 || r.Details["port7003"].Nodes != 1 {
		t.Errorf("details %+v", r.Details)
	}
}

// A measurement removes the lines of killed processes and keeps those of running
// ones.
func TestLinesOfTheKilledAreRemoved(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		purpose string
		pid     int
		left    bool
	}{{"latency", ended.Process.Pid, false}, {"pin", ended.Process.Pid, false}, {"latency", os.Getpid(), true}} {
		top, err := topology.Line(fmt.Sprintf("%s%d-1", tc.purpose, tc.pid), 1)
		if err != nil {
			t.Fatal(err)
		}
		l, err := topology.Up(t.Context(), top, topology.Options{Dir: recordDir})
		if err != nil {
			t.Fatal(err)
		}
		if err := removeLeft(); err != nil {
			t.Fatal(err)
		}
		if _, err := netns.Inode(l.Path("n1")); (err == nil) != tc.left {
			t.Errorf("process %d: %v", tc.pid, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// stopper is a progress that cancels the measurement when the first round begins.
type stopper struct{ stop func() }

func (s stopper) Step(int, int, string) { time.AfterFunc(100*time.Millisecond, s.stop) }
func (stopper) Done()                   {}

func TestRunStopsOnCancel(t *testing.T) {
	open(t, 1)
	check := nstest.Left(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := Run(ctx, Options{Nodes: []int{1}, Rate: 1000, Duration: time.Minute, Repeats: 1, Pin: PinNone, Progress: stopper{cancel}})
	if !errors.Is(err, context.Canceled) || r == nil || !r.Interrupted {
		t.Errorf("%+v, %v", r, err)
	}
	check(fmt.Sprintf("scon-latency%d-", os.Getpid()))
}
