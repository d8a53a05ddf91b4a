package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProgressOffATerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := NewProgress(f)
	p.Step(0, 4, "first")
	p.Step(1, 4, "second") // too soon for another line
	p.Done()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); strings.Count(got, "\n") != 1 || !strings.Contains(got, "first") || strings.Contains(got, "\r") {
		t.Errorf("got %q, want one plain line about the first step", got)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	var b strings.Builder
	p := &Progress{out: &b, terminal: true, started: time.Now().Add(-10 * time.Second)}
	p.Step(1, 4, "second")
	if got := b.String(); !strings.Contains(got, "[######..................]  25 %  30s left  second") || strings.Contains(got, "\n") {
		t.Errorf("got %q, want a bar and 30 s left", got)
	}
}

// The time left is judged by the steps, not by what came before the first.
func TestProgressBeginsWithTheFirstStep(t *testing.T) {
	var b strings.Builder
	p := &Progress{out: &b, terminal: true, started: time.Now().Add(-time.Hour)}
	p.Step(0, 4, "first")
	p.Step(1, 4, "second")
	if got := b.String(); !strings.HasSuffix(got, "0s left  second") {
		t.Errorf("got %q, want no time left", got)
	}
}

func TestTimeLeft(t *testing.T) {
	for _, c := range []struct {
		elapsed     time.Duration
		done, total int
		want        string
	}{
		{0, 0, 10, "time left unknown"},
		{10 * time.Second, 5, 10, "10s left"},
		{90 * time.Second, 90, 100, "10s left"},
		{time.Minute, 10, 10, "0s left"},
	} {
		if got := timeLeft(c.elapsed, c.done, c.total); got != c.want {
			t.Errorf("%d of %d in %v: %q, want %q", c.done, c.total, c.elapsed, got, c.want)
		}
	}
}
