package profile

import (
	"errors"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/test/pages"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestDivideLeavesRoomForWaypoints(t *testing.T) {
	for _, c := range []struct {
		name  string
		given []function
		want  []span
		at    []int32
	}{
		{"nothing", nil, nil, []int32{firstPriority, lastPriority}},
		{
			"in the order of priorities",
			[]function{{0, "filter", true}, {-200, "conntrack", false}},
			[]span{{-200, []string{"conntrack"}, false}, {0, []string{"filter"}, true}},
			[]int32{firstPriority, -199, lastPriority},
		},
		{
			"same and adjacent ones together",
			[]function{{0, "a", false}, {0, "b", true}, {1, "c", false}, {3, "d", false}},
			[]span{{1, []string{"a", "b", "c"}, true}, {3, []string{"d"}, false}},
			[]int32{firstPriority, 2, lastPriority},
		},
		{
			"not more than a path has steps for",
			[]function{{0, "a", true}, {10, "b", true}, {20, "c", true}, {30, "d", true}, {40, "e", true}, {50, "f", true}, {60, "g", true}},
			[]span{
				{0, []string{"a"}, true}, {10, []string{"b"}, true}, {20, []string{"c"}, true},
				{30, []string{"d"}, true}, {40, []string{"e"}, true}, {60, []string{"f", "g"}, true},
			},
			[]int32{firstPriority, 1, 11, 21, 31, 41, lastPriority},
		},
		{
			"up to the ends",
			[]function{{math.MinInt32, "first", false}, {math.MaxInt32, "last", false}},
			[]span{{math.MinInt32, []string{"first"}, false}, {math.MaxInt32, []string{"last"}, false}},
			nil,
		},
	} {
		got := divide(c.given)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(span{})); diff != "" {
			t.Errorf("%s: spans (-want +got):\n%s", c.name, diff)
		}
		if at := priorities(got); c.at != nil && !slices.Equal(at, c.at) {
			t.Errorf("%s: waypoints at %v, want %v", c.name, at, c.at)
		}
	}
}

func TestLegacyTables(t *testing.T) {
	r := make(registered)
	r.addLegacy([]string{"filter", "nat", "mangle", "unheard-of"})
	forward := []function{{priorityFilter, "iptables-legacy filter", true}, {priorityMangle, "iptables-legacy mangle", true}}
	if diff := cmp.Diff(forward, r[link.NetfilterInetForward], cmp.AllowUnexported(function{})); diff != "" {
		t.Errorf("forward (-want +got):\n%s", diff)
	}
	nat := function{priorityNATSource, "NAT: iptables-legacy nat", true}
	if !slices.Contains(r[link.NetfilterInetPostRouting], nat) {
		t.Errorf("postrouting %+v, want %+v among them", r[link.NetfilterInetPostRouting], nat)
	}
}

// Two chains of one hook, and one of another table.
func TestSpansOfANamespace(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		nft add table inet mine
		nft add chain inet mine early { type filter hook forward priority -7 ; }
		nft add chain inet mine late { type filter hook forward priority 9 ; }
		nft add table ip other
		nft add chain ip other translate { type nat hook postrouting priority 7 ; }
		nft add table ip6 six
		nft add chain ip6 six forward { type filter hook forward priority 3 ; }`)
	var got map[hook][]span
	nstest.Do(t, ns, func() {
		var err error
		if got, err = readSpans(); err != nil {
			t.Fatal(err)
		}
	})
	want := map[hook][]span{
		link.NetfilterInetForward:     {{-7, []string{"inet mine early"}, true}, {9, []string{"inet mine late"}, true}},
		link.NetfilterInetPostRouting: {{priorityNATSource, []string{"NAT: ip other translate"}, true}},
		link.NetfilterInetPreRouting:  {{priorityConntrack, []string{"conntrack"}, false}},
	}
	for h, spans := range want {
		if diff := cmp.Diff(spans, got[h], cmp.AllowUnexported(span{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", hookNames[h], diff)
		}
	}
}

// path builds the steps of a packet from a container: its arrival at each waypoint,
// 100 ns of which are the waypoint's.
func path(net uint32, times ...uint64) (steps []step) {
	const hookStep, queue, start = waypointWaypointWAYPOINT_HOOK, waypointWaypointWAYPOINT_QUEUE, waypointWaypointWAYPOINT_START
	for i, at := range times {
		s := step{EnteredNs: at, BodyNs: 100, Net: net, At: 2, Waypoint: []waypointWaypoint{hookStep, queue, start}[i]}
		if i == 0 {
			s.At = uint32(link.NetfilterInetLocalOut)
		}
		steps = append(steps, s)
	}
	return steps
}

func TestSummaryOfTheMiddleHalf(t *testing.T) {
	c := chart{7: {place: inContainer}}
	cost := Cost{HookNS: 60, TracepointNS: 80}
	paths := [][]step{
		path(7, 1000, 1270, 1480), // 100 and 30
		path(7, 1000, 1290, 1500), // 120 and 30
		path(7, 1000, 1280, 1510), // 110 and 50
		path(7, 1000, 9000, 9999), // delayed by an interrupt
		path(8, 1000, 1270, 1480), // of another namespace
		path(7, 1000, 1270),       // another path
	}
	w := c.summarize("out", paths, cost)
	want := Path{
		Name: "out", Packets: 6, Share: 4. / 6, TotalNS: 155, Spread: w.Spread,
		Layers: []Layer{{Name: "IP output in the container", NS: 115}, {Name: "veth: qdisc, tc", NS: 40}},
	}
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if empty := c.summarize("in", nil, cost); empty.Packets != 0 || len(empty.Layers) != 0 || empty.TotalNS != 0 {
		t.Errorf("of no packets: %+v", empty)
	}
	// 3 steps with bodies of 100 ns each, of a hook and two tracepoints.
	if got := cost.meanHeldUp(paths[:1]); got != 300+60+80+80 {
		t.Errorf("a followed packet is held up by %v ns, want 520", got)
	}
}

func TestStretchesOfOneNameAreOneLayer(t *testing.T) {
	host := &site{spans: map[hook][]span{link.NetfilterInetForward: {{0, []string{"ip a x", "ip b y"}, true}}}}
	forward := point{place: atHost, name: "forward", site: host, hook: link.NetfilterInetForward}
	behind := forward
	behind.nth = 1
	points := []point{
		{place: inContainer, name: "start"}, {place: atPort, name: "rx"}, {place: inContainer, name: "xmit"},
		forward, behind,
	}
	layers, belongs := layersOf(points)
	want := []Layer{
		{Name: layerVeth},
		{Name: "container xmit to host forward"},
		{Name: "Netfilter forward: ip a x, ...", Hook: "forward", Chains: []string{"ip a x", "ip b y"}},
	}
	if diff := cmp.Diff(want, layers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Equal(belongs, []int{0, 0, 1, 2}) {
		t.Errorf("stretches belong to %v", belongs)
	}
}

func TestDearestRulesFirst(t *testing.T) {
	cheap, dear := Layer{"a", 10, "forward", []string{"ip a x"}}, Layer{"b", 90, "prerouting", []string{"ip b y"}}
	got := rulesOf([]Path{
		{Name: "out", TotalNS: 200, Layers: []Layer{cheap, {Name: layerBridge, NS: 100}, dear}},
		{Name: "in", TotalNS: 400, Layers: []Layer{{"a", 20, "forward", cheap.Chains}}},
	})
	want := []RuleCost{{"prerouting", []string{"ip b y"}, "out", 90, 0.45}, {"forward", []string{"ip a x"}, "in", 20, 0.05}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func example() *Profile {
	return &Profile{
		Machine: "a board", Kernel: "6.18",
		Paths: []Path{
			{Name: "native", Packets: 2, Share: 1, TotalNS: 500, EndToEndNS: 510, CallNS: 900, Layers: []Layer{{Name: "IP output", NS: 300}, {Name: "wire: transmit", NS: 200}}},
			{Name: "container", Packets: 3, Share: 1, TotalNS: 1500, EndToEndNS: 1490, CallNS: 2000, Layers: []Layer{
				{Name: layerVeth, NS: 400}, {Name: layerBridge, NS: 900}, {Name: "wire: transmit", NS: 200},
			}},
		},
		Rules: []RuleCost{{"forward", []string{"ip filter FORWARD"}, "container", 340, 0.17}},
		Cost:  Cost{Begun: 8, Ended: 5},
	}
}

func TestTableHasARowForEachLayer(t *testing.T) {
	var text strings.Builder
	if err := example().WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| bridge | - | 0.90 |",
		"| **all layers** | **0.50** | **1.50** |",
		"| by two waypoints at the ends | 0.51 | 1.49 |",
		"| forward: ip filter FORWARD | 0.34 | 17.0 % of container |",
		"3 more packets did not come to an end here",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
}

func TestPictureShowsTheLayers(t *testing.T) {
	p := example()
	picture, err := p.draw()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[[4]uint32]int) // pixels per colour
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			r, g, b, a := picture.At(x, y).RGBA()
			seen[[4]uint32{r, g, b, a}]++
		}
	}
	pixels := func(name string) int {
		r, g, b, a := shadesOf(layerNames(p.Paths))[name].RGBA()
		return seen[[4]uint32{r, g, b, a}]
	}
	// 900 ns of the bridge are higher than 400 ns of the pair, apart from the key.
	if pixels(layerVeth) < barWidth*50 || pixels(layerBridge) < 2*pixels(layerVeth) {
		t.Errorf("%d pixels of the bridge, %d of the pair", pixels(layerBridge), pixels(layerVeth))
	}
	if err := p.WritePNG(filepath.Join(t.TempDir(), "p.png")); err != nil {
		t.Error(err)
	}
}

func TestFileKeepsTheProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.json")
	if err := example().WriteFile(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestErrorOnOldKernelNamesAlternatives(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		name            string
		load, netfilter error
		want            string
	}{
		{"no netfilter links", refused, ebpf.ErrNotSupported, "6.4"},
		{"no BTF", ebpf.ErrNotSupported, nil, "BTF"},
	} {
		err := explain(c.load, c.netfilter)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "scon bench quick") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := explain(refused, nil); errors.Is(err, ErrUnsupported) || !errors.Is(err, refused) {
		t.Errorf("another error becomes %v", err)
	}
}

// However many packets there are, the quota limits how many are followed.
func TestQuotaBoundsFollowedPackets(t *testing.T) {
	needWaypoints(t)
	const quota = 3
	err := netns.Scratch(func() error {
		loop, err := openLoop()
		if err != nil {
			return err
		}
		defer loop.close()
		w, err := load(loading{quota: quota})
		if err != nil {
			return err
		}
		defer w.Close()
		since := time.Now()
		if err := w.attach(row(2)); err != nil {
			return err
		}
		if err := loop.send(5000); err != nil {
			return err
		}
		if err := w.detach(); err != nil {
			return err
		}
		windows := uint64(time.Since(since)/(10*time.Millisecond)) + 2
		counted, err := w.count()
		if err != nil {
			return err
		}
		if most := quota * windows * uint64(runtime.NumCPU()); counted.Begun == 0 || counted.Begun > most {
			t.Errorf("%d packets were followed, want 1 to %d", counted.Begun, most)
		}
		paths, err := w.collect()
		if uint64(len(paths)) != counted.Ended || counted.Lost != 0 || len(paths) == 0 {
			t.Errorf("%d paths, %d ended, %d lost", len(paths), counted.Ended, counted.Lost)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The figures in the documents are those of the committed result.
func TestDocumentShowsTheResult(t *testing.T) {
	p, err := ReadFile("../results/profile.json")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := p.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	pages.WantShown(t, "profile", "scon profile show lab/results/profile.json", table.String())
}

// A path is shown if one packet can have taken it, between the container and a wire.
func TestKindOfPath(t *testing.T) {
	const container, host = 7, 8
	const port, wire, eth = 2, 3, 4
	c := chart{
		container: {place: inContainer},
		host:      {place: atHost, devices: map[uint32]place{port: atPort, wire: atWire}},
	}
	at := func(h hook, net uint32) step {
		return step{Waypoint: waypointWaypointWAYPOINT_HOOK, At: uint32(h), Net: net}
	}
	dev := func(w waypointWaypoint, net, device uint32) step { return step{Waypoint: w, At: device, Net: net} }
	const queue, start, rx, xmit, receive = waypointWaypointWAYPOINT_QUEUE, waypointWaypointWAYPOINT_START,
		waypointWaypointWAYPOINT_RX, waypointWaypointWAYPOINT_XMIT, waypointWaypointWAYPOINT_RECEIVE
	output, input := at(link.NetfilterInetLocalOut, container), at(link.NetfilterInetLocalIn, container)
	prerouting := at(link.NetfilterInetPreRouting, container)
	leaving := []step{output, dev(queue, container, eth), dev(start, container, eth), dev(rx, host, port), dev(xmit, container, eth), dev(receive, host, port)}
	forwarded := []step{
		at(link.NetfilterInetPreRouting, host), at(link.NetfilterInetForward, host), at(link.NetfilterInetForward, host),
		at(link.NetfilterInetPostRouting, host),
	}
	toWire := []step{dev(queue, host, wire), dev(start, host, wire), dev(xmit, host, wire)}
	for _, test := range []struct {
		name  string
		steps [][]step
		want  string
	}{
		{"out", [][]step{leaving, forwarded, toWire}, "out"},
		{"out, express", [][]step{leaving, toWire}, "out, express"},
		{"in, express", [][]step{{dev(receive, host, wire), prerouting, input}}, "in, express"},
		{"a packet that left, then a reply at its address", [][]step{{output, prerouting, input}}, ""},
		{"the same, seen from the device on", [][]step{leaving, {dev(receive, container, eth), prerouting, input}}, ""},
		{"two waypoints at the output hook", [][]step{{output}, leaving, forwarded, toWire}, "out"},
		{"the second when the first had left", [][]step{leaving, {output}, leaving[1:], toWire}, ""},
		{"seen at no device", [][]step{{output}, toWire}, ""},
		{"an input without a prerouting", [][]step{{dev(receive, host, wire), input}}, ""},
		{"to another container", [][]step{leaving, {dev(queue, host, port), dev(xmit, host, port)}}, ""},
	} {
		if got := c.kind(slices.Concat(test.steps...)); got != test.want {
			t.Errorf("%s: kind %q, want %q", test.name, got, test.want)
		}
	}
}
