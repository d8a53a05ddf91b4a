package figures

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/profile"
)

// plotsDir is the folder of the plots, beside the results.
const plotsDir = "figures"

// results holds the results that were found.
type results struct {
	experiments map[string]*bench.Result // by source
	profile     *profile.Profile         // nil if there is none
	summaries   bool                     // some results are summaries: without samples, and without plots beside them
}

// summariesFile has the summaries of experiments whose results are not in the
// folder.
const summariesFile = "figures.json"

// has reports whether any of the sources was measured.
func (r results) has(sources []string) bool {
	return slices.ContainsFunc(sources, func(s string) bool {
		return r.experiments[s] != nil || s == profileSource && r.profile != nil
	})
}

// readResults reads the results in a folder.
func readResults(dir string) (found results, err error) {
	found.experiments = map[string]*bench.Result{}
	summaries, err := bench.ReadSummaries(filepath.Join(dir, summariesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return results{}, err
	}
	for _, s := range sources {
		r, err := bench.ReadResult(resultPath(dir, s.name), Experiments()...)
		if errors.Is(err, fs.ErrNotExist) {
			if summaries[s.name] == nil {
				continue
			}
			found.summaries = true
			r, err = summaries.Result(s.name, Experiments()...)
		}
		if err != nil {
			return results{}, err
		}
		found.experiments[s.name] = r
	}
	found.profile, err = readProfile(dir)
	return found, err
}

// errNoResult means that there is nothing to draw.
var errNoResult = errors.New("no result")

// Draw writes the report figures.md and the plots of the results in a folder, which
// must hold at least one. For summaries it writes the report alone.
func Draw(dir string) error {
	found, err := readResults(dir)
	if err != nil {
		return err
	}
	if len(found.experiments) == 0 && found.profile == nil {
		return fmt.Errorf("draw the figures: %w in %s", errNoResult, dir)
	}
	var report bytes.Buffer
	if err := writeReport(&report, found); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "figures.md"), report.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if found.summaries {
		return nil
	}
	plots := filepath.Join(dir, plotsDir)
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	return errors.Join(drawCharts(plots, found), drawProfile(plots, found))
}

// drawCharts has the helper draw all panels that were measured.
func drawCharts(dir string, found results) error {
	var charts []Chart
	for _, f := range figures {
		for _, p := range f.panels {
			if c, ok := p.chart(found); ok {
				c.File = filepath.Join(dir, p.file())
				charts = append(charts, c)
			}
		}
	}
	return DrawCharts(charts)
}
