package gains

import (
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/appbench"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/pipebench"
	"github.com/scon-project/scon/lab/startbench"
)

var experiments = append(pipebench.Experiments(), startbench.Experiment(), appbench.Experiment())

// TestGain: an interval with 1 in it shows no gain, whatever the median.
func TestGain(t *testing.T) {
	more, less := group{}, group{less: true}
	for _, c := range []struct {
		of            group
		low, med, top float64
		want          string
	}{
		{more, 1.1, 1.2, 1.3, "1.20 [1.10, 1.30] of it"},
		{more, 0.9, 1.2, 1.3, "no difference shown"},
		{more, 0.7, 0.8, 0.9, "0.80 [0.70, 0.90] of it: a loss"},
		{less, 0.7, 0.8, 0.9, "0.80 [0.70, 0.90] of it"},
		{less, 0.7, 0.8, 1.01, "no difference shown"},
		{less, 1.1, 1.2, 1.3, "1.20 [1.10, 1.30] of it: a loss"},
	} {
		if got := c.of.gain(bench.Interval{Low: c.low, Median: c.med, High: c.top}); got != c.want {
			t.Errorf("less %t, [%g, %g]: %q, want %q", c.of.less, c.low, c.top, got, c.want)
		}
	}
}

// TestCommitted: docs/gains.svg is what the committed results make.
func TestCommitted(t *testing.T) {
	c, err := Read("../results", experiments...)
	if err != nil {
		t.Fatal(err)
	}
	picture := c.SVG()
	committed, err := os.ReadFile("../../docs/gains.svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(committed) != picture {
		t.Error(`docs/gains.svg is not of the committed results: "bin/scon bench gains --results lab/results docs/gains.svg" draws it`)
	}
	d := xml.NewDecoder(strings.NewReader(picture))
	for err == nil {
		_, err = d.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("the picture is no XML: %v", err)
	}
}

func TestReadNamesWhatIsMissing(t *testing.T) {
	if _, err := Read(t.TempDir(), experiments...); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without results: %v", err)
	}
	folder := t.TempDir()
	for _, file := range []string{"app.json", "startup.json", "pipe.json"} {
		content, err := os.ReadFile("../results/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if file == "pipe.json" {
			content = []byte(strings.ReplaceAll(string(content), "gbps_64k", "gbps"))
		}
		if err := os.WriteFile(filepath.Join(folder, file), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(folder, experiments...); err == nil || !strings.Contains(err.Error(), "gbps_64k of tcp_bridge") {
		t.Errorf("without a metric: %v", err)
	}
}
