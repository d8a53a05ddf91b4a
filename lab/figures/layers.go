package figures

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/profile"
)

// profileSource is the source of Fig. 4 and 13; it is a profile, not an experiment.
const profileSource = "layers"

// profilePlot is the plot of both figures.
const profilePlot = "layers.png"

// profileTime is the duration of one measurement.
const profileTime = 300 * time.Millisecond

// measureProfile profiles the packets' layers and writes the profile.
func measureProfile(ctx context.Context, dir string, rounds int, progress bench.Progress) error {
	p, err := profile.Lab(ctx, profile.LabOptions{
		Modes: profile.Modes, Rounds: rounds, Duration: profileTime, Progress: progress,
	})
	if p != nil && len(p.Paths) > 0 {
		err = errors.Join(err, p.WriteFile(resultPath(dir, profileSource)))
	}
	return err
}

// readProfile returns nil if there is no profile.
func readProfile(dir string) (*profile.Profile, error) {
	p, err := profile.ReadFile(resultPath(dir, profileSource))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return p, err
}

// drawProfile draws Fig. 13, whose first two bars are Fig. 4.
func drawProfile(dir string, found results) error {
	if found.profile == nil {
		return nil
	}
	return found.profile.WritePNG(filepath.Join(dir, profilePlot))
}

// callRatio returns the estimate of the ratio of two modes' times of the whole call
// that sends a message.
func callRatio(mode, to bench.Mode) estimate {
	return func(found results) (bench.Interval, bool) {
		return quotient(found.path(mode).CallNS, found.path(to).CallNS)
	}
}

// secondLayerShare returns the share of the additional time of a container's path,
// compared with the native path, that the second IP layer with its Netfilter hooks
// takes.
func secondLayerShare(found results) (bench.Interval, bool) {
	more := func(of func(profile.Layer) bool) float64 {
		return total(found.path(bench.Container), of) - total(found.path(bench.Native), of)
	}
	return quotient(more(isSecondLayer), more(anyLayer))
}

func anyLayer(profile.Layer) bool { return true }

func isSecondLayer(l profile.Layer) bool {
	return l.Hook != "" || strings.HasPrefix(l.Name, "2nd IP layer")
}

// path returns the profile of a mode, zero if it was not measured.
func (r results) path(mode bench.Mode) (path profile.Path) {
	if r.profile == nil {
		return path
	}
	for _, w := range r.profile.Paths {
		if w.Name == mode.Name {
			path = w
		}
	}
	return path
}

// total adds up the times of some layers, in nanoseconds.
func total(path profile.Path, of func(profile.Layer) bool) (ns float64) {
	for _, l := range path.Layers {
		if of(l) {
			ns += l.NS
		}
	}
	return ns
}

// quotient returns an estimate without an interval, of times or rates.
func quotient(a, b float64) (bench.Interval, bool) {
	return bench.Interval{Median: a / b, Low: math.NaN(), High: math.NaN()}, a > 0 && b > 0
}
