package docker

import (
	"fmt"
	"net/http"
	"testing"
)

// TestShortConnections makes 1000 connections in a row for one page each. None
// fails, and no entry is left.
func TestShortConnections(t *testing.T) {
	e := Start(t)
	folder := t.TempDir()
	page := writePage(t, folder, "page", 64)
	e.RunNginx(t, "web", folder)
	withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
		s.waitHooked(t, "web")
		c := newClient(t, e, 8080)
		c.http.Transport.(*http.Transport).DisableKeepAlives = true
		for range 1000 {
			c.get(t, "page", page)
		}
		if n := c.dials.Load(); n != 1000 {
			t.Errorf("the client made %d connections, want 1000", n)
		}
		if s == nil {
			return
		}
		took := eventually(t, "removal of the entries", func() error {
			if flows := s.Flows(t); len(flows) > 0 {
				return fmt.Errorf("%d entries left, one is %+v", len(flows), flows[0])
			}
			return nil
		})
		t.Logf("no entry was left after %v", took)
		if n := s.Status(t).Totals.Entries; n != 0 {
			t.Errorf("the status has %d entries, want none", n)
		}
	})
}
