package profile

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/lab/bench"
)

// Each mode has the layers that its packets cross.
func TestModesDifferByTheirLayers(t *testing.T) {
	needWaypoints(t)
	before := openFiles(t)
	var p *Profile
	// On a busy machine most packets of a short measurement precede the daemon's decision.
	for duration := 100 * time.Millisecond; !expressWent(p) && duration < 10*time.Second; duration *= 4 {
		var err error
		if p, err = Lab(t.Context(), LabOptions{Modes: Modes, Rounds: 1, Duration: duration, Progress: quiet{}}); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d open files, before %d", after, before)
	}
	wantNoWaypoints(t)
	if len(p.Paths) != len(Modes) {
		t.Fatalf("paths %+v, want one for each mode", p.Paths)
	}
	regular := []string{layerBridge, "2nd IP layer", "Netfilter prerouting", "Netfilter forward", "Netfilter postrouting"}
	has := map[string][]string{
		bench.Native.Name:    {"Netfilter output", "IP output", "wire: transmit", "IP input at the edge"},
		bench.Container.Name: append([]string{layerVeth, layerVethQueue, "wire: transmit", "IP input at the edge"}, regular...),
		bench.Express.Name:   {layerVeth, layerVethQueue, layerExpress, "wire: transmit", "IP input at the edge"},
	}
	lacks := map[string][]string{
		bench.Native.Name:    {layerBridge, "2nd IP layer", layerVeth, layerExpress},
		bench.Container.Name: {layerExpress, "Netfilter output"},
		bench.Express.Name:   append([]string{"neighbour"}, regular...),
	}
	for _, w := range p.Paths {
		for _, name := range has[w.Name] {
			if !w.crosses(name) {
				t.Errorf("%s lacks the layer %q: %+v", w.Name, name, w.Layers)
			}
		}
		for _, name := range lacks[w.Name] {
			if w.crosses(name) {
				t.Errorf("%s has the layer %q: %+v", w.Name, name, w.Layers)
			}
		}
		checkSum(t, w)
		if w.CallNS <= 0 {
			t.Errorf("%s: calls were not measured", w.Name)
		}
		if w.Share <= 0.5 {
			t.Errorf("%s: only %.2f of the packets took the same path", w.Name, w.Share)
		}
	}
	for _, chain := range []string{"ip filter FORWARD", "NAT: ip nat POSTROUTING"} {
		wantRule(t, p, bench.Container.Name, chain)
	}
}

// The layers add up to the time between two waypoints alone. These measurements
// follow different packets, and the machine may be busier with one than with the
// other, but not always.
func TestLayersAreTheWholePath(t *testing.T) {
	needWaypoints(t)
	var ratio float64
	for range 5 {
		p, err := Lab(t.Context(), LabOptions{
			Modes: []bench.Mode{bench.Container}, Rounds: 1, Duration: 50 * time.Millisecond, Progress: quiet{},
		})
		if err != nil {
			t.Fatal(err)
		}
		// The time of 22 waypoints themselves is nearly as much again.
		ratio = p.Paths[0].TotalNS / p.Paths[0].EndToEndNS
		if ratio > 1/1.25 && ratio < 1.25 {
			return
		}
	}
	t.Errorf("the layers add up to %.2f times the whole path", ratio)
}

// expressWent says whether the measured packets of the express mode went express.
func expressWent(p *Profile) bool {
	return p != nil && slices.ContainsFunc(p.Paths, func(w Path) bool { return w.Name == bench.Express.Name && w.crosses(layerExpress) })
}

// crosses reports whether a path crosses a layer whose name has the prefix.
func (w Path) crosses(prefix string) bool {
	return slices.ContainsFunc(w.Layers, func(l Layer) bool { return strings.HasPrefix(l.Name, prefix) })
}

// checkSum checks that all layers are named and that they add up.
func checkSum(t *testing.T, w Path) {
	t.Helper()
	total := 0.0
	for _, l := range w.Layers {
		total += l.NS
		if strings.Contains(l.Name, " to ") {
			t.Errorf("%s: the layer %q has no name", w.Name, l.Name)
		}
	}
	if w.Packets == 0 || w.TotalNS <= 0 || math.Abs(total-w.TotalNS) > 1e-6*w.TotalNS {
		t.Errorf("%s: %d packets, the layers add up to %v, the total is %v", w.Name, w.Packets, total, w.TotalNS)
	}
}

// wantRule checks that a chain's cost was measured on a path.
func wantRule(t *testing.T, p *Profile, path, chain string) {
	t.Helper()
	for _, r := range p.Rules {
		if slices.Contains(r.Chains, chain) && r.NS > 0 && r.Share > 0 && r.Share < 1 {
			return
		}
	}
	t.Errorf("no cost of %q on %s: %+v", chain, path, p.Rules)
}

// openFiles counts the open files of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// programsLeft counts the kernel's programs of this package.
func programsLeft(t *testing.T) (n int) {
	t.Helper()
	spec, err := loadWaypoint()
	if err != nil {
		t.Fatal(err)
	}
	for id := ebpf.ProgramID(0); ; {
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it was unloaded meanwhile
		}
		info, err := p.Info()
		p.Close()
		if err == nil && spec.Programs[info.Name] != nil {
			n++
		}
	}
}

// wantNoWaypoints waits until the kernel has no program of this package. An
// attached program stays loaded.
func wantNoWaypoints(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); programsLeft(t) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d programs are left", programsLeft(t))
		}
	}
}
