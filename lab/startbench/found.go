package startbench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/scon-project/scon/lab/bench"
)

// key identifies a search: results are valid for searches with the same key only.
func (f *Found) key() [5]string {
	return [5]string{f.Machine, f.Kernel, f.Launcher, f.Runtime, f.Network}
}

// Keep adds the result to a file, which also has the results for other machines and
// networks.
func (f *Found) Keep(path string) error {
	kept, err := ReadFound(path)
	if err != nil {
		return err
	}
	all := []*Found{f}
	for _, other := range kept {
		if other.key() != f.key() {
			all = append(all, other)
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// ReadFound reads a file that Keep wrote. A missing file has no results.
func ReadFound(path string) (all []*Found, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the results of tuning from %s: %w", path, err)
	}
	return all, nil
}

// Kept returns the limits in a file for this machine and a mode, and whether there
// are any. They hold for any number of containers.
func Kept(path, launcher, runtime string, m Mode) (Limits, bool, error) {
	all, err := ReadFound(path)
	if err != nil {
		return nil, false, err
	}
	want := Found{Launcher: launcher, Runtime: runtime, Network: m.Name}
	want.Machine, want.Kernel = bench.Machine()
	for _, f := range all {
		if f.key() == want.key() && f.Best["bayes"] != nil {
			return f.Best["bayes"], true, nil
		}
	}
	return nil, false, nil
}

// WriteTable writes the result as a table.
func (f *Found) WriteTable(w io.Writer) error {
	rows := [][]string{{"containers", "limits", "total_ms", "/ none", "/ random"}}
	for _, c := range f.Checks {
		for _, method := range []string{NoLimits, "random", "bayes"} {
			limits := "none"
			if l := f.Best[method]; l != nil {
				limits = method + ": " + l.String()
			}
			row := []string{strconv.Itoa(c.Count), limits, number(bench.Quartiles(c.TotalMS[method]).Median)}
			for _, other := range []string{NoLimits, "random"} {
				if i, ok := c.Ratios[method+"/"+other]; ok {
					row = append(row, fmt.Sprintf("%.2f [%.2f, %.2f]", i.Median, i.Low, i.High))
				} else {
					row = append(row, "-")
				}
			}
			rows = append(rows, row)
		}
	}
	if err := bench.WriteMarkdown(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s, Linux %s; %s, %s, %s; %d and %d trials with %d containers in %.0f s.\n%s\n",
		f.Machine, f.Kernel, f.Launcher, f.Runtime, f.Network,
		len(f.Trials["bayes"]), len(f.Trials["random"]), f.Count, f.Seconds, f.verdict())
	return err
}

// verdict compares Bayesian optimisation with random search in a sentence.
func (f *Found) verdict() string {
	if f.Interrupted || len(f.Checks) == 0 {
		return "Interrupted: no check was made."
	}
	i := f.Checks[0].Ratios["bayes/random"]
	switch {
	case i.High < 1:
		return "Bayesian optimisation beats random search at equal trials."
	case i.Low > 1:
		return "Random search beats Bayesian optimisation at equal trials."
	}
	return "Neither Bayesian optimisation nor random search beats the other at equal trials: the interval holds 1."
}
