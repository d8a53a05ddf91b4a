package express_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/scontest"
)

const healthAddr = "127.0.0.1:9478"

// probe returns the answer to a probe.
func probe(t *testing.T, b *scontest.Bed, path string) (status int, text string) {
	t.Helper()
	resp, err := scraper(b).Get("http://" + healthAddr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// The daemon is healthy and ready when it has started, also while an operator has paused it.
func TestProbes(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Health = healthAddr }})
	want := func(when, path string, status int, part string) {
		t.Helper()
		scontest.Eventually(t, when, func() error {
			if got, text := probe(t, b, path); got != status || !strings.Contains(text, part) {
				return &answer{got, text}
			}
			return nil
		})
	}
	want("started", api.HealthyPath, http.StatusOK, "ok\n")
	want("started", api.ReadyPath, http.StatusOK, "ok\n")
	if got, text := probe(t, b, "/v1/status"); got != http.StatusNotFound {
		t.Errorf("/v1/status: %d %s", got, text)
	}
	if err := b.Daemon.Pause(""); err != nil {
		t.Fatal(err)
	}
	want("paused", api.ReadyPath, http.StatusOK, "ok\n")
	if err := b.Daemon.Resume(""); err != nil {
		t.Fatal(err)
	}
}

type answer struct {
	status int
	text   string
}

func (a *answer) Error() string { return a.text }
