package profile

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// observe profiles container 1 of a lab for a while.
func observe(ctx context.Context, b *scontest.Bed, d time.Duration) (p *Profile, err error) {
	err = netns.Do(b.Node(lab.Device), func() error {
		p, err = Live(ctx, LiveOptions{Container: lab.Port(1), Duration: d, Progress: quiet{}})
		return err
	})
	return p, err
}

// byName returns the paths of a profile by name.
func byName(p *Profile) map[string]Path {
	paths := make(map[string]Path)
	for _, w := range p.Paths {
		paths[w.Name] = w
	}
	return paths
}

// A container's packets are followed in both directions, before and after SCON
// takes them past the layers of the regular path.
func TestLiveContainer(t *testing.T) {
	needWaypoints(t)
	b := scontest.New(t, scontest.Layout{})
	c := b.Outgoing("udp", 1)
	requests := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	replies := scontest.SendNumbers(t, c.Server, c.Client, 1, time.Millisecond)
	p, err := observe(t.Context(), b, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	paths := byName(p)
	if len(paths) != 2 {
		t.Fatalf("paths %+v, want out and in", p.Paths)
	}
	for name, layers := range map[string][]string{
		"out": {"IP output in the container", layerBridge, "2nd IP layer", "Netfilter forward", "wire: transmit"},
		"in":  {"2nd IP layer", "Netfilter forward", layerBridge, layerVeth, layerIPInput},
	} {
		checkSum(t, paths[name])
		for _, l := range layers {
			if !paths[name].crosses(l) {
				t.Errorf("%s lacks the layer %q: %+v", name, l, paths[name].Layers)
			}
		}
	}
	// The lab's own rules, and those that the bed adds before them.
	for _, chain := range []string{"ip filter FORWARD", "ip invalid forward", "NAT: ip nat POSTROUTING"} {
		wantRule(t, p, "out", chain)
	}
	if p.Cost.CPUShare <= 0 || p.Cost.FollowedNS <= 0 || p.Cost.PassNS <= 0 || p.Cost.HookNS <= 0 {
		t.Errorf("cost %+v, want all of it", p.Cost)
	}

	b.Up()
	c.WaitExpress(nil)
	p, err = observe(t.Context(), b, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out, express", "in, express"} {
		w := byName(p)[name]
		checkSum(t, w)
		if !w.crosses(layerExpress) || w.crosses(layerBridge) || w.crosses("2nd IP") || w.crosses("Netfilter") {
			t.Errorf("%s has the layers %+v", name, w.Layers)
		}
	}
	requests.WantAll(t, "requests")
	replies.WantAll(t, "replies")
	wantNoWaypoints(t)
}

// Each recorded path is one packet's, also of those that met waypoints while some were
// attached, and with packets at addresses of earlier ones.
func TestLivePathsAreOnePackets(t *testing.T) {
	needWaypoints(t)
	b := scontest.New(t, scontest.Layout{})
	c := b.Outgoing("udp", 1)
	streams := []*scontest.Numbers{
		scontest.SendNumbers(t, c.Client, c.Server, 1, 100*time.Microsecond),
		scontest.SendNumbers(t, c.Server, c.Client, 1, 100*time.Microsecond),
	}
	var v *view
	err := netns.Do(b.Node(lab.Device), func() (err error) {
		if v, err = findContainer(lab.Port(1)); err != nil {
			return err
		}
		w, err := load(loading{quota: liveQuota, wireNet: v.hostNet, wires: v.wires})
		if err != nil {
			return err
		}
		for range 20 { // as often as watch
			if err := v.observe(t.Context(), 20*time.Millisecond, w); err != nil {
				return errors.Join(err, w.Close())
			}
		}
		return w.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		s.WantAll(t, "datagrams")
	}
	whole := 0
	for _, steps := range v.paths {
		if len(steps) < 2 {
			t.Errorf("a path of %d steps", len(steps))
			continue
		}
		for i := range steps[1:] {
			if points := v.chart.points(steps[i : i+2]); !follows(steps[i], steps[i+1]) {
				t.Errorf("a path with %v to %v", points[0], points[1])
			}
		}
		if v.chart.kind(steps) != "" {
			whole++
		}
	}
	if whole < len(v.paths)/2 || whole == 0 {
		t.Errorf("%d of %d paths lead between container and wire", whole, len(v.paths))
	}
}

// watching reports whether waypoints are attached at a hook that the calibration
// does not use.
func watching() bool {
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil || info.Type != link.NetfilterType {
			continue
		}
		if info.Netfilter().Hook == link.NetfilterInetForward {
			return true
		}
	}
	return false
}

func TestLiveEndsWithoutATrace(t *testing.T) {
	needWaypoints(t)
	b := scontest.New(t, scontest.Layout{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for !watching() && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	p, err := observe(ctx, b, time.Minute)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted, it ended with %v", err)
	}
	if p != nil && !p.Interrupted {
		t.Errorf("it does not say that it was interrupted: %+v", p)
	}
	wantNoWaypoints(t)

	killed := exec.Command("/proc/self/exe", "watch", b.Node(lab.Device), lab.Port(1))
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	scontest.Eventually(t, "waypoints are attached", func() error {
		if !watching() {
			return errors.New("none")
		}
		return nil
	})
	if err := killed.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = killed.Wait() // killed by a signal
	wantNoWaypoints(t)
}

// A container without traffic has no paths, which is an error, but the cost is
// reported.
func TestLiveWithoutTraffic(t *testing.T) {
	needWaypoints(t)
	b := scontest.New(t, scontest.Layout{})
	p, err := observe(t.Context(), b, 50*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no packet between container ") {
		t.Errorf("error %v, want one about no packet", err)
	}
	if p == nil {
		t.Fatal("no profile")
	}
	var text strings.Builder
	if err := p.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	if got := text.String(); strings.Contains(got, "all layers") || !strings.Contains(got, "of one CPU in all") {
		t.Errorf("want the cost, without an empty table of layers:\n%s", got)
	}
}

func TestLiveNamesWhoIsThere(t *testing.T) {
	b := scontest.New(t, scontest.Layout{})
	err := netns.Do(b.Node(lab.Device), func() error {
		_, err := Live(t.Context(), LiveOptions{Container: "nobody", Duration: time.Second, Progress: quiet{}})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "c1") {
		t.Errorf("error %v, want one with the existing containers", err)
	}
}
