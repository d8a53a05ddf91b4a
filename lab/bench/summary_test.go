package bench

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A summary has no samples, only the ratios that are shown, and the same table as
// its result.
func TestSummaryHasTheTableOfItsResult(t *testing.T) {
	for _, rounds := range []int{1, 2, 3, 4, 7, 12} {
		e := tiny()
		e.Modes = []Mode{Container, Native}
		r := newResult(e, rounds)
		for i := range rounds {
			for _, m := range e.Modes {
				values := map[string]float64{}
				for j, metric := range e.metrics() {
					values[metric.Name] = float64(100*len(m.Name) + 7*j + 13*(i*i%5))
				}
				r.add(Sample{Round: i + 1, Mode: m.Name, Values: values})
			}
		}
		r.summarize()
		r.against = []string{Native.Name}
		r.Ratios["native/container"] = r.Ratios["container/native"]
		var before, after strings.Builder
		if err := r.WriteTable(&before); err != nil {
			t.Fatal(err)
		}
		r.Summarize()
		if err := r.WriteTable(&after); err != nil {
			t.Fatal(err)
		}
		if before.String() != after.String() {
			t.Errorf("%d rounds: the table of the summary is\n%s\nof the result\n%s", rounds, &after, &before)
		}
		if len(r.Samples) > 0 || len(r.Ratios) != 1 || strings.Join(r.MeasuredModes(), " ") != "container native" {
			t.Errorf("%d samples, %d ratios, modes %v", len(r.Samples), len(r.Ratios), r.MeasuredModes())
		}
	}
}

// Update keeps the summaries that it does not replace.
func TestSummariesUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.json")
	for _, s := range []Summaries{
		{"a": []byte(`{"experiment":"quick","summary":true,"rounds":1}`), "b": []byte(`{"experiment":"none","summary":true}`)},
		{"a": []byte(`{"experiment":"quick","summary":true,"rounds":2}`)},
	} {
		if err := s.Update(path); err != nil {
			t.Fatal(err)
		}
	}
	s, err := ReadSummaries(path)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Result("a"); err != nil || r.Rounds != 2 {
		t.Errorf("a: %+v, %v", r, err)
	}
	for name, want := range map[string]string{"b": "it is not a result of scon bench", "c": `no result "c", but a, b`} {
		if _, err := s.Result(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := os.WriteFile(path, []byte(`{"experiment":"quick","rounds":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSummaries(path); err == nil {
		t.Error("a result was accepted as summaries")
	}
}

// The committed results are small summaries without samples.
func TestCommittedResultsAreSummaries(t *testing.T) {
	const mostFiles, mostBytes = 20, 1_000_000
	files, bytes := 0, int64(0)
	err := filepath.WalkDir("../results", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files, bytes = files+1, bytes+info.Size()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files > mostFiles || bytes > mostBytes {
		t.Errorf("lab/results/ has %d files of %d bytes, want at most %d of %d: scon bench summary", files, bytes, mostFiles, mostBytes)
	}
}
