package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/scon-project/scon/lab/output"
)

// Summarize replaces the samples by their five-number summary: minimum, lower
// quartile, median, upper quartile and maximum. Tables and charts of a summary
// equal those of its result, since the quartiles of the five numbers are those of
// the samples. It drops ratios that no table shows.
func (r *Result) Summarize() {
	if r.Summary {
		return
	}
	r.Summary, r.ModeOrder = true, r.MeasuredModes()
	for _, metrics := range r.Modes {
		for metric, samples := range metrics {
			q := Quartiles(samples)
			metrics[metric] = []float64{slices.Min(samples), q.Low, q.Median, q.High, slices.Max(samples)}
		}
	}
	if r.against != nil {
		maps.DeleteFunc(r.Ratios, func(pair string, _ map[string]Interval) bool {
			_, other, _ := strings.Cut(pair, "/")
			return !slices.Contains(r.against, other)
		})
	}
	r.Samples = nil
}

// MeasuredModes returns the modes in the order in which they were first measured.
func (r *Result) MeasuredModes() []string {
	if r.Summary {
		return r.ModeOrder
	}
	var modes []string
	for _, s := range r.Samples {
		if !slices.Contains(modes, s.Mode) {
			modes = append(modes, s.Mode)
		}
	}
	return modes
}

// Summaries holds summaries of results by name. Each file of lab/results/ has those of
// one kind.
type Summaries map[string]json.RawMessage

// ReadSummaries reads a file that Update wrote.
func ReadSummaries(path string) (Summaries, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read summaries: %w", err)
	}
	var s Summaries
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read summaries %s: %w", path, err)
	}
	for name, text := range s {
		var r struct{ Summary bool }
		if err := json.Unmarshal(text, &r); err != nil || !r.Summary {
			return nil, fmt.Errorf("read summaries %s: %q is not a summary", path, name)
		}
	}
	return s, nil
}

// Update adds summaries to a file, which it creates if needed, and replaces those
// of the same names.
func (s Summaries) Update(path string) error {
	all, err := ReadSummaries(path)
	if errors.Is(err, fs.ErrNotExist) {
		all, err = Summaries{}, nil
	}
	if err != nil {
		return err
	}
	maps.Copy(all, s)
	// One line per summary: a change of one result changes one line.
	var text strings.Builder
	separator := "{\n"
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s%q: %s", separator, name, all[name])
		separator = ",\n"
	}
	text.WriteString("\n}\n")
	return output.Write(path, []byte(text.String()))
}

// Names returns the sorted names of the summaries.
func (s Summaries) Names() []string { return slices.Sorted(maps.Keys(s)) }

// Result returns the result of a name, of an experiment of this package or one of
// the others.
func (s Summaries) Result(name string, others ...Experiment) (*Result, error) {
	text, ok := s[name]
	if !ok {
		return nil, fmt.Errorf("no result %q, but %s", name, strings.Join(s.Names(), ", "))
	}
	r, err := parseResult(text, others...)
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", name, err)
	}
	return r, nil
}
